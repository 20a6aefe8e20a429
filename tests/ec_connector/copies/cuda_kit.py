# SPDX-License-Identifier: Apache-2.0
"""What the tests of the CUDA copy engine share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ec_connector.copies import cuda_pinning
from ec_connector.copies.cuda import CudaCopyEngine
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.extents import Extents
from tests.ec_connector.copies.kit import FILL
from tests.leftovers import shm_folder

BLOCKS, BLOCK = 512, 8192
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
