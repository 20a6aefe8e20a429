# SPDX-License-Identifier: Apache-2.0
"""What the tests of both copy engines share: bits, blocks, verdicts, and a slow memmove."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from ec_connector.copies import cpu as copy_cpu
from ec_connector.copies.base import CopyEngine
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import Extents

#: What every byte of a region is before a test.
FILL = 0xA5


def drain(engine: CopyEngine, timeout_s: float = 30.0) -> dict[int, bool]:
    """Every verdict owed; each must come once."""
    deadline = time.monotonic() + timeout_s
    verdicts: dict[int, bool] = {}
    while engine.pending:
        assert time.monotonic() < deadline
        for verdict in engine.poll():
            assert verdict.copy_id not in verdicts
            verdicts[verdict.copy_id] = verdict.ok
    assert engine.poll() == []
    return verdicts


def random_bits(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random *bits* in host memory: NaNs of all kinds included."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(tuple(shape), dtype=dtype).nbytes
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(tuple(shape))


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def gather(region: SharedRegion, extents: Extents, nbytes: int) -> bytes:
    return b"".join(bytes(region.view(extent)) for extent in extents)[:nbytes]


class Broken:
    """In place of libc."""

    @staticmethod
    def memmove(*_: Any) -> None:
        raise OSError("broken")


class Gate:
    """In place of libc: a memmove that waits until it is let through."""

    def __init__(self) -> None:
        self.real = copy_cpu._libc.memmove
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def memmove(self, *args: Any) -> None:
        self.entered.release()
        assert self.open.wait(60)
        self.real(*args)

    def waits(self) -> bool:
        """Whether a copy has come to it."""
        return self.entered.acquire(timeout=60)
