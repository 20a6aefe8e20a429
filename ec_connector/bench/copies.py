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
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from ec_connector.bench.churn import bench_region, churned, finish, jobs
from ec_connector.bench.rows import Row


def run(quick: bool = False) -> list[Row]:
    """All rows; those of a GPU if there is one."""
    rows = _host(quick)
    if torch.cuda.is_available():
        from ec_connector.bench import copies_cuda

        rows += copies_cuda.run(quick)
    return rows


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
