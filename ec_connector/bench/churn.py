# SPDX-License-Identifier: Apache-2.0
"""Encodings where churn has put them, and regions and copies to measure them with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch

from ec_connector.bench.baselines import BlockListCache, TierCache
from ec_connector.bench.traffic import MODELS, make_trace, replay
from ec_connector.copies.base import CopyEngine, CopyJob
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import Extents

#: Pictures of at most 1280 tokens, which is what most deployments allow.
_MODEL: Final = replace(MODELS["qwen3-vl-2b"], max_tokens=1280)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoding and where the two caches put it."""

    nbytes: int
    ours: Extents
    runs: Extents


def churned(region_bytes: int, steps: int, seed: int = 1) -> list[Encoding]:
    """Encodings that both caches hold after a replayed trace."""
    num_blocks = region_bytes // _MODEL.row_bytes
    trace = make_trace(seed, _MODEL, steps=steps, pictures=12000)
    ours = replay(TierCache(num_blocks), trace).kept
    theirs = replay(BlockListCache(num_blocks), trace).kept
    return [
        Encoding(
            sum(count for _, count in extents) * _MODEL.row_bytes,
            tuple(extents),
            tuple(theirs[name]),
        )
        for name, extents in ours.items()
        if name in theirs
    ]


def batches(encodings: Sequence[Encoding], per_batch: int, limit: int) -> list[list[Encoding]]:
    """Groups of encodings, as one engine step copies them."""
    starts = range(0, len(encodings), per_batch)
    return [list(encodings[start : start + per_batch]) for start in starts][:limit]


@contextmanager
def bench_region(nbytes: int) -> Iterator[SharedRegion]:
    """A region of its own."""
    region = SharedRegion.open(
        f"bench-{secrets.token_hex(6)}",
        0,
        nbytes // _MODEL.row_bytes,
        _MODEL.row_bytes,
        create=True,
        guard=False,
    )
    try:
        yield region
    finally:
        region.close(unlink=True)


def jobs(
    group: Sequence[Encoding],
    tensors: Sequence[torch.Tensor],
    numbers: Iterator[int],
    place: Callable[[Encoding], Extents],
) -> list[CopyJob]:
    """Copies of a group, between its tensors and wherever it lies."""
    return [
        CopyJob(next(numbers), tensor, place(encoding), encoding.nbytes)
        for encoding, tensor in zip(group, tensors, strict=True)
    ]


def finish(engine: CopyEngine) -> None:
    """Wait for every verdict.

    Raises:
        RuntimeError: A copy failed.
    """
    while engine.pending:
        for verdict in engine.poll():
            if not verdict.ok:
                raise RuntimeError(f"copy {verdict.copy_id} failed")
        time.sleep(20e-6)  # spinning would keep the interpreter from the copying threads
