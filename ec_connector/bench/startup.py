# SPDX-License-Identifier: Apache-2.0
"""Start-up of a region: faulting its pages in, page-locking them, and both together.

Each round makes fresh files. The first round does not count: on a virtual machine the
host finds memory for it only then.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch

from ec_connector.bench.rows import Row
from ec_connector.region.memory import memory_room, populate
from ec_connector.region.shared import SharedRegion

_BLOCK: Final = 16384
_GIB: Final = 1 << 30
#: Smaller than the real one, so that a region of some GiB has several.
_CHUNK: Final = 2 * _GIB


@dataclass(slots=True)
class _Times:
    """Seconds of each part of one start, by round."""

    create: list[float] = field(default_factory=list)
    populate: list[float] = field(default_factory=list)
    pin: list[float] = field(default_factory=list)

    def rate(self, nbytes: int, *parts: list[float]) -> float:
        """GiB/s over the given parts together, the median round."""
        return nbytes / _GIB / statistics.median(map(sum, zip(*parts, strict=True)))


def run(quick: bool = False) -> list[Row]:
    """All rows; page-locking only where there is a GPU."""
    gpu = torch.cuda.is_available()
    room = memory_room()[0]
    shm = os.statvfs("/dev/shm")
    room = min(room, shm.f_bavail * shm.f_frsize)
    nbytes = min((16 if gpu else 1) * _GIB, room // 4) // _BLOCK * _BLOCK
    if quick:
        nbytes = min(nbytes, 256 << 20)
    if gpu:
        torch.zeros(1, device="cuda")
    ours, single = _Times(), _Times()
    variants: tuple[tuple[_Times, int | None], ...] = ((ours, None), (single, 1))
    for number in range(2 if quick else 4):
        for times, threads in variants:
            _start(nbytes, times if number else _Times(), threads, gpu)
    size = f"{nbytes / _GIB:.1f} GiB"
    rows = [
        Row(
            "startup",
            f"populate {size}, beside one thread",
            ours.rate(nbytes, ours.populate),
            single.rate(nbytes, single.populate),
            "GiB/s",
        )
    ]
    parts = [[t.create, t.populate, t.pin] for t, _ in variants]
    rows.append(
        Row(
            "startup",
            f"whole start of {size}, beside one thread" + (" and one registration" * gpu),
            ours.rate(nbytes, *parts[0]),
            single.rate(nbytes, *parts[1]),
            "GiB/s",
        )
    )
    if gpu:
        rows.append(
            Row(
                "startup",
                f"page-lock {size} in chunks of {_CHUNK // _GIB} GiB, beside one registration",
                ours.rate(nbytes, ours.pin),
                single.rate(nbytes, single.pin),
                "GiB/s",
            )
        )
    return rows


def _start(nbytes: int, times: _Times, threads: int | None, gpu: bool) -> None:
    """One region, from nothing to page-locked and away again."""
    began = time.perf_counter()
    region = SharedRegion.open(
        f"bench-{secrets.token_hex(6)}",
        0,
        nbytes // _BLOCK,
        _BLOCK,
        create=True,
        guard=False,
        prefault=False,
    )
    times.create.append(time.perf_counter() - began)
    try:
        address = region.address
        times.populate.append(
            _seconds(lambda: populate(address, region.buffer, write=True, threads=threads))
        )
        times.pin.append(_pin(address, nbytes, _CHUNK if threads is None else nbytes) * gpu)
    finally:
        region.close(unlink=True)


def _pin(address: int, nbytes: int, chunk: int) -> float:
    if not torch.cuda.is_available():
        return 0.0
    from ec_connector.copies.cuda_pinning import Pinning

    pinning = Pinning(address, nbytes, -(-chunk // 4096) * 4096)
    seconds = pinning.seconds
    if pinning.pinned_bytes < nbytes:
        raise RuntimeError(f"{nbytes - pinning.pinned_bytes} bytes were not page-locked")
    pinning.release()
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
