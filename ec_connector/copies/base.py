# SPDX-License-Identifier: Apache-2.0
"""What a copy engine does: move encodings between tensors and the region.

The worker hands over whole batches and polls for what has finished. An engine owes
a verdict for *every* job that it was handed, exactly once, even for one that it
could not start: a copy without a verdict would keep its blocks for ever.

A verdict means that the engine will not touch the job's blocks any more, whichever
way it went (EC-4.2).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ec_connector.region.errors import RegionArgumentError
from ec_protocol.tier.extents import Extents

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """One copy of one encoding.

    Attributes:
        copy_id: Names the copy in its verdict.
        tensor: Source of a save, destination of a load; of any shape and dtype,
            ``nbytes`` in all. Kept alive by the engine until the verdict.
        extents: ``(first block, number of blocks)``, in the order of the bytes.
        nbytes: Bytes to copy; the rest of the last block stays as it is.
    """

    copy_id: int
    tensor: torch.Tensor
    extents: Extents
    nbytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A job is over; ``ok`` says whether all of its bytes are in place."""

    copy_id: int
    ok: bool


class CopyEngine(ABC):
    """Asynchronous copies between tensors of one device and one region.

    Every method is called from the worker's main thread only.
    """

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tensors of loads are to be made."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor for a load to fill.

        A load may fill any contiguous tensor of ``device``, but an engine can start
        sooner when it chose the memory itself.
        """
        import torch

        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    @abstractmethod
    def submit_saves(self, batch: Sequence[CopyJob]) -> None:
        """Start copying tensors into the region, after whatever writes the tensors.

        Never raises for a job: one that cannot be started gets its verdict, and
        the others are started.
        """

    @abstractmethod
    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        """Start copying out of the region into tensors. As ``submit_saves``."""

    @abstractmethod
    def order_loads(self) -> set[int]:
        """Make every submitted load happen before whatever reads its tensor next.

        How is the engine's business: a device engine makes the compute stream
        wait, a host engine waits itself.

        Returns:
            Ids of submitted loads without a verdict so far that are known to have
            failed. Their tensors must not be used.
        """

    @abstractmethod
    def poll(self) -> list[Verdict]:
        """Verdicts since the last call; never waits."""

    def settle(self, timeout_s: float) -> None:  # noqa: B027 - an engine may have no use for it
        """Wait for saves that are about to end, at most ``timeout_s`` seconds.

        Their verdicts then leave with this step's output. Later ones have to wait for
        the end of the next step, however long its model runs, and until then nobody
        is served. An engine whose saves run behind the model does not wait at all.
        """

    @property
    @abstractmethod
    def pending(self) -> int:
        """Jobs whose verdict ``poll`` has not returned yet."""

    @abstractmethod
    def shutdown(self) -> None:
        """Wait until nothing touches the region any more. Verdicts can still be polled.

        A second call does nothing; a job submitted afterwards fails.
        """


def byte_spans(
    extents: Extents, nbytes: int, num_blocks: int, block_size_bytes: int
) -> list[tuple[int, int]]:
    """Where the bytes of an encoding lie in the region.

    Args:
        extents: In the order of the bytes.
        nbytes: Bytes of the encoding.
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.

    Returns:
        ``(byte offset, bytes)`` per extent, ``nbytes`` in all: of the last block
        only what is used.

    Raises:
        RegionArgumentError: An extent is not inside the region, two overlap, or
            together they are too small or needlessly many.
    """
    spans: list[tuple[int, int]] = []
    left = nbytes
    for start, count in extents:
        if start < 0 or count < 1 or start + count > num_blocks:
            raise RegionArgumentError(
                "extents", f"({start}, {count}) is not inside {num_blocks} blocks"
            )
        if left <= 0:
            raise RegionArgumentError(
                "extents", f"{extents} are more than {nbytes} bytes need; expected as many as used"
            )
        span = min(left, count * block_size_bytes)
        spans.append((start * block_size_bytes, span))
        left -= span
    if left > 0 or nbytes < 1:
        raise RegionArgumentError(
            "extents", f"{extents} do not hold {nbytes} bytes in blocks of {block_size_bytes}"
        )
    if len(spans) == 1:
        return spans
    for (a, n), (b, _) in itertools.pairwise(sorted(spans)):
        if a + n > b:
            raise RegionArgumentError("extents", f"{extents} overlap")
    return spans
