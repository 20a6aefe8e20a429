# SPDX-License-Identifier: Apache-2.0
"""The part of ``copies`` that needs a GPU."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from ec_connector.bench.churn import Encoding, batches, bench_region, churned, finish, jobs
from ec_connector.bench.rows import Row
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.copies.cuda_methods import (
    METHODS,
    CopyMethod,
    MethodUnavailable,
    Piece,
    choose_method,
)
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import Extents

#: The smaller one holds few encodings at a time and is churned harder.
_REGIONS: Final = (8 << 30, 2 << 30)
_PER_BATCH: Final = 4
_MATRIX: Final = 8192
_PRODUCTS: Final = 4
#: About 1 ms: longer than submitting takes.
_AHEAD_CYCLES: Final = 2_000_000


_Submit = Callable[[], object]


@dataclass(slots=True)
class _Samples:
    """Of one way to copy, by batch: seconds on the device, from call to end, and to submit."""

    device: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    submit: list[float] = field(default_factory=list)


def run(quick: bool = False) -> list[Row]:
    """Rates after churn, time to submit, and what a model beside the copies notices."""
    rows: list[Row] = []
    for size in _REGIONS:
        encodings = churned(size, 2000 if quick else 8000)
        groups = batches(encodings, _PER_BATCH, 20 if quick else 60)
        with bench_region(size) as region:
            noise = torch.randint(0, 256, (region.nbytes,), dtype=torch.uint8, device="cuda")
            region.tensor.copy_(noise)
            del noise
            engine = CudaCopyEngine(region)
            try:
                for save in (False, True):
                    rows += _after_churn(region, engine, groups, save)
                if size == max(_REGIONS):
                    rows += _methods(region, engine, groups)
                    rows += _beside_a_model(region, engine, groups, 20 if quick else 60)
            finally:
                engine.shutdown()
    return rows


def _after_churn(
    region: SharedRegion, engine: CudaCopyEngine, groups: list[list[Encoding]], save: bool
) -> list[Row]:
    """The engine, one big copy, and runs of a LIFO free list, in turns batch by batch.

    The runs go by our own method and, where vLLM can be imported, by its
    ``swap_blocks_batch``: together with the sorted list that is how its connector copies.
    """
    numbers = itertools.count(1)
    ours, big, runs, theirs = _Samples(), _Samples(), _Samples(), _Samples()
    swap = _swap(region)
    largest = max(sum(e.nbytes for e in group) for group in groups)
    flat = torch.randint(0, 256, (largest,), dtype=torch.uint8, device="cuda")
    stream = _stream()
    total = 0
    for number, group in enumerate(groups * 2):
        tensors = _split(flat, group)
        nbytes = sum(e.nbytes for e in group)
        warm = number >= len(groups) // 4
        total += nbytes * warm

        def mine(group: list[Encoding] = group, tensors: list[torch.Tensor] = tensors) -> _Submit:
            # As the worker does it: the memory of a load is the engine's, new each time.
            if not save:
                tensors = [engine.empty((e.nbytes,), torch.uint8) for e in group]
            made = jobs(group, tensors, numbers, _ours)
            return partial(engine.submit_saves if save else engine.submit_loads, made)

        whole = [Piece(region.address, flat.data_ptr(), nbytes, flat)]
        coalesced = _pieces(group, tensors, region, _runs)
        turns: list[tuple[_Samples, Callable[[], _Submit], torch.cuda.Stream]] = [
            (ours, mine, engine.stream(save)),
            (big, _always(partial(engine.method.submit, whole, save, stream)), stream),
            (runs, _always(partial(engine.method.submit, coalesced, save, stream)), stream),
        ]
        if swap is not None:
            turns.append((theirs, _always(partial(swap.submit, coalesced, save, stream)), stream))
        first = number % len(turns)
        for samples, make, where in turns[first:] + turns[:first]:
            device, host = _timed(make(), where)
            engine.order_loads()
            finish(engine)
            latency = _latency(make(), where)
            engine.order_loads()
            finish(engine)
            if warm:
                samples.device.append(device)
                samples.latency.append(latency)
                samples.submit.append(host)
    kind = f"{'save' if save else 'load'}, {region.nbytes >> 30} GiB after churn"
    extents = _mean(len(e.ours) for group in groups for e in group)
    lifo = _mean(len(e.runs) for group in groups for e in group)
    rate = _rate(total, ours.device)
    rows = [
        Row(
            "copy",
            f"{kind} ({extents:.2f} extents per entry), beside one big copy",
            rate,
            _rate(total, big.device),
            "GB/s",
        ),
        Row(
            "copy",
            f"{kind}, beside runs of a LIFO free list ({lifo:.1f} per entry)",
            rate,
            _rate(total, runs.device),
            "GB/s",
        ),
        Row(
            "copy",
            f"{kind}, from call to end on an idle device, beside one big copy",
            _rate(total, ours.latency),
            _rate(total, big.latency),
            "GB/s",
        ),
        Row(
            "copy",
            f"{kind}, from call to end on an idle device, beside runs of a LIFO free list",
            _rate(total, ours.latency),
            _rate(total, runs.latency),
            "GB/s",
        ),
        Row(
            "copy",
            f"{kind}, submitting a batch of {_PER_BATCH}, beside the bare call for the runs",
            statistics.median(ours.submit) * 1e6,
            statistics.median(runs.submit) * 1e6,
            "us",
        ),
    ]
    if swap is None:
        return rows
    beside = "beside vLLM's swap_blocks_batch of the same runs"
    fast = _rate(total, ours.latency), _rate(total, theirs.latency)
    queued = statistics.median(ours.submit) * 1e6, statistics.median(theirs.submit) * 1e6
    return [
        *rows,
        Row("copy", f"{kind}, {beside}", rate, _rate(total, theirs.device), "GB/s"),
        Row("copy", f"{kind}, from call to end on an idle device, {beside}", *fast, "GB/s"),
        Row("copy", f"{kind}, submitting a batch of {_PER_BATCH}, {beside}", *queued, "us"),
    ]


def _swap(region: SharedRegion) -> CopyMethod | None:
    try:
        return choose_method(region.tensor, "swap")
    except MethodUnavailable:
        return None


def _methods(
    region: SharedRegion, engine: CudaCopyEngine, groups: list[list[Encoding]]
) -> list[Row]:
    """What submitting costs by each method, beside one torch copy for each piece."""
    rows: list[Row] = []
    flat = torch.empty(
        max(sum(e.nbytes for e in group) for group in groups), dtype=torch.uint8, device="cuda"
    )
    stream = _stream()
    costs: dict[tuple[str, str], float] = {}
    for layout, place in (("our extents", _ours), ("LIFO runs", _runs)):
        for kind in METHODS:
            try:
                method = choose_method(region.tensor, kind.name)
            except MethodUnavailable:
                continue
            taken = []
            for group in groups:
                pieces = _pieces(group, _split(flat, group), region, place)
                taken.append(_timed(partial(method.submit, pieces, False, stream), stream)[1])
            costs[layout, kind.name] = statistics.median(taken) * 1e6
    for (layout, name), cost in costs.items():
        if name != "plain":
            rows.append(
                Row(
                    "copy",
                    f"submitting a batch of {_PER_BATCH}, {layout}: {name} beside plain",
                    cost,
                    costs[layout, "plain"],
                    "us",
                )
            )
    return rows


def _beside_a_model(
    region: SharedRegion, engine: CudaCopyEngine, groups: list[list[Encoding]], reps: int
) -> list[Row]:
    """Matrix products in bf16, with copies running from before them until after them."""
    left = torch.randn((_MATRIX, _MATRIX), device="cuda", dtype=torch.bfloat16)
    right = torch.randn((_MATRIX, _MATRIX), device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(left)
    group = [e for many in groups for e in many]
    size = 0
    chosen: list[Encoding] = []
    for encoding in group:  # enough to outlast the product
        if size < 1 << 30:
            chosen.append(encoding)
            size += encoding.nbytes
    flat = torch.empty(size, dtype=torch.uint8, device="cuda")
    pieces = _pieces(chosen, _split(flat, chosen), region, _ours)
    stream = _stream()
    compute = torch.cuda.current_stream()
    rows = []
    for kind in METHODS:
        try:
            method = choose_method(region.tensor, kind.name)
        except MethodUnavailable:
            continue
        for save in (False, True):
            alone: list[float] = []
            beside: list[float] = []
            for rep in range(2 * reps + 10):
                copying = rep % 2 == 1
                torch.cuda.synchronize()
                if copying:
                    method.submit(pieces, save, stream)
                start, end = _timer(), _timer()
                torch.mm(left, right, out=out)  # wakes the device up
                start.record(compute)
                for _ in range(_PRODUCTS):
                    torch.mm(left, right, out=out)
                end.record(compute)
                end.synchronize()
                if rep >= 10:
                    outlasted = not copying or not stream.query()
                    if outlasted:
                        (beside if copying else alone).append(start.elapsed_time(end) / _PRODUCTS)
                torch.cuda.synchronize()
            if beside:
                rows.append(
                    Row(
                        "copy",
                        f"bf16 product of {_MATRIX} beside {'saves' if save else 'loads'} "
                        f"({kind.name}), and alone",
                        statistics.median(beside),
                        statistics.median(alone),
                        "ms",
                    )
                )
    return rows


def _always(submit: _Submit) -> Callable[[], _Submit]:
    """For what may be submitted again as it is."""
    return lambda: submit


def _ours(encoding: Encoding) -> Extents:
    return encoding.ours


def _runs(encoding: Encoding) -> Extents:
    return encoding.runs


def _split(flat: torch.Tensor, group: Sequence[Encoding]) -> list[torch.Tensor]:
    """One tensor for each encoding, side by side in ``flat``."""
    sizes = [encoding.nbytes for encoding in group]
    return list(torch.split(flat[: sum(sizes)], sizes))


def _pieces(
    group: Sequence[Encoding],
    tensors: Sequence[torch.Tensor],
    region: SharedRegion,
    place: Callable[[Encoding], Extents],
) -> list[Piece]:
    base, block = region.address, region.block_size_bytes
    pieces: list[Piece] = []
    for encoding, tensor in zip(group, tensors, strict=True):
        at = tensor.data_ptr()
        for start, count in place(encoding):
            pieces.append(Piece(base + start * block, at, count * block, tensor))
            at += count * block
    return pieces


def _timed(submit: Callable[[], object], stream: torch.cuda.Stream) -> tuple[float, float]:
    """Seconds that the device took, and that submitting took.

    The stream is kept busy meanwhile, as it is in a server whose steps overlap: else
    the device would wait for the host, and its time contain the host's.
    """
    start, end = _timer(), _timer()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
    start.record(stream)
    began = time.perf_counter()
    submit()
    took = time.perf_counter() - began
    end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / 1e3, took


def _latency(submit: Callable[[], object], stream: torch.cuda.Stream) -> float:
    """Seconds from the call until the bytes are there, on a device that waits for it."""
    end = _timer()
    torch.cuda.synchronize()
    began = time.perf_counter()
    submit()
    end.record(stream)
    end.synchronize()
    return time.perf_counter() - began


def _rate(total: int, seconds: list[float]) -> float:
    """GB/s over all batches: they differ in size, so the sum counts, not the median."""
    return total / sum(seconds) / 1e9


def _mean(values: Iterable[int]) -> float:
    return statistics.fmean(values)


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
