# SPDX-License-Identifier: Apache-2.0
"""Copies between device and region, after churn, beside one big copy and a block-list cache.

A trace is replayed against the tier and against a cache of single blocks from a LIFO
free list. The encodings that both hold at the end are then copied in batches: ours
where the tier put them, by the copy engine; the others as runs of neighbouring blocks,
handed to the driver by the same batched call. Beside them the same bytes in one piece,
which no cache can beat. All three take turns.

On a machine without a GPU the host engine is measured the same way.
"""

from __future__ import annotations

import ctypes
import itertools
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from ec_connector.bench.baselines import BlockListCache, TierCache
from ec_connector.bench.rows import Row
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


def run(quick: bool = False) -> list[Row]:
    """All rows; those of a GPU if there is one."""
    rows = _host(quick)
    if torch.cuda.is_available():
        from ec_connector.bench import copies_cuda

        rows += copies_cuda.run(quick)
    return rows


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


def _host(quick: bool) -> list[Row]:
    """The host engine beside one memmove on the same thread."""
    from ec_connector.copies.cpu import CpuCopyEngine

    size = (128 if quick else 512) << 20
    group = churned(size, 300)[:4]
    nbytes = sum(encoding.nbytes for encoding in group)
    numbers = itertools.count(1)
    rows: list[Row] = []
    with bench_region(size) as region:
        engine = CpuCopyEngine(region)
        tensors = [torch.ones(e.nbytes, dtype=torch.uint8) for e in group]
        big = torch.ones(nbytes, dtype=torch.uint8)
        whole = region.tensor[:nbytes]

        def ours(save: bool) -> None:
            made = jobs(group, tensors, numbers, lambda e: e.ours)
            if save:
                engine.submit_saves(made)
            else:
                engine.submit_loads(made)
                engine.order_loads()
            finish(engine)

        def one(save: bool) -> None:
            target, source = (whole, big) if save else (big, whole)
            ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)

        for save in (False, True):
            mine, theirs = _rates(nbytes, 7, partial(ours, save), partial(one, save))
            kind = "save" if save else "load"
            rows.append(
                Row("copy", f"{kind}, host engine, beside one memmove", mine, theirs, "GB/s")
            )
        engine.shutdown()
    return rows


def _rates(nbytes: int, rounds: int, *bodies: Callable[[], object]) -> list[float]:
    """GB/s of each body, the median of rounds in turns."""
    samples: list[list[float]] = [[] for _ in bodies]
    for number in range(rounds + 1):
        for body, taken in zip(bodies, samples, strict=True):
            start = time.perf_counter()
            body()
            if number:
                taken.append(nbytes / (time.perf_counter() - start) / 1e9)
    return [statistics.median(taken) for taken in samples]
