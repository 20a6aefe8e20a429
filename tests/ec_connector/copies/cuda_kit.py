# SPDX-License-Identifier: Apache-2.0
"""What the tests of the CUDA copy engine share."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ec_connector.copies import cuda_pinning
from ec_connector.copies.base import CopyEngine
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import Extents
from tests.leftovers import shm_folder

BLOCKS, BLOCK = 512, 8192
FILL = 0xA5
#: Long enough that whatever is not ordered behind it runs before it.
SLEEP_CYCLES = 100_000_000


@contextmanager
def open_region() -> Iterator[SharedRegion]:
    """A region filled with ``FILL``, in a folder of its own."""
    with (
        shm_folder() as folder,
        SharedRegion.open("t", 0, BLOCKS, BLOCK, directory=str(folder), guard=False) as opened,
    ):
        opened.tensor.fill_(FILL)
        yield opened


@contextmanager
def open_engine(region: SharedRegion) -> Iterator[CudaCopyEngine]:
    """An engine; afterwards no CUDA error may be pending."""
    made = CudaCopyEngine(region)
    yield made
    made.shutdown()
    torch.cuda.synchronize()
    assert cuda_pinning.clear_error() == 0


def drain(engine: CopyEngine, timeout_s: float = 30.0) -> dict[int, bool]:
    """Every verdict owed; each must come once."""
    deadline = time.monotonic() + timeout_s
    verdicts: dict[int, bool] = {}
    while engine.pending:
        assert time.monotonic() < deadline
        for verdict in engine.poll():
            assert verdict.copy_id not in verdicts
            verdicts[verdict.copy_id] = verdict.ok
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


def put(region: SharedRegion, extents: Extents, data: bytes) -> None:
    for extent in extents:
        view = region.view(extent)
        part, data = data[: len(view)], data[len(view) :]
        view[: len(part)] = part


def busy() -> None:
    """Keep the compute stream occupied for a while."""
    torch.cuda._sleep(SLEEP_CYCLES)


def lay_out(layout: str, nbytes: int, seed: int = 3) -> Extents:
    """Extents of a given kind that hold so many bytes."""
    count = -(-nbytes // BLOCK)
    if layout == "one extent" or count == 1:
        return ((BLOCKS - count, count),)
    if layout == "two extents":
        first = count // 2
        return ((BLOCKS - first, first), (1, count - first))
    blocks = random.Random(seed).sample(range(BLOCKS), count)
    return tuple((block, 1) for block in blocks)
