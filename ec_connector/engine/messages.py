# SPDX-License-Identifier: Apache-2.0
"""What the scheduler tells the workers each step, and what they report back.

Plain frozen data, picklable: it crosses process borders inside the engine's own
messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from ec_protocol.tier.extents import Extents


@dataclass(frozen=True, slots=True)
class SaveOp:
    """Copy ``encoder_cache[mm_hash]`` into the region; done by rank 0 only.

    Attributes:
        copy_id: What the report names.
        mm_hash: Key of the encoder cache.
        extents: ``(start, count)`` in blocks, in the order of the bytes.
        nbytes: Bytes of the encoding.
    """

    copy_id: int
    mm_hash: str
    extents: Extents
    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadOp:
    """Copy an encoding out of the region into ``encoder_cache[mm_hash]``; every rank.

    Attributes:
        copy_id: What the report names.
        mm_hash: Key of the encoder cache.
        extents: ``(start, count)`` in blocks, in the order of the bytes.
        nbytes: Bytes of the encoding.
        shape: Rows × width of the tensor to make.
        dtype: Its torch dtype's name, such as ``bfloat16``.
        stranger: The peer by whose word alone the bytes are the encoding; ``""``: they are
            our own, or come from one who has authenticated (EC-15.8).
    """

    copy_id: int
    mm_hash: str
    extents: Extents
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    stranger: str = ""


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Everything that the workers of one instance copy in one engine step.

    Attributes:
        step_id: Number of the step.
        saves: Copies into the region.
        loads: Copies out of it.
        region: Identity of the file that the blocks are in (EC-10.7). A worker that has
            another one open refuses the step, and so it does one that names none.
    """

    step_id: int
    saves: tuple[SaveOp, ...] = ()
    loads: tuple[LoadOp, ...] = ()
    region: bytes = b""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """One rank will not touch the blocks of one copy any more.

    Attributes:
        copy_id: The copy.
        rank: Who reports.
        landed: Whether it copied.
    """

    copy_id: int
    rank: int
    landed: bool


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The reports that one or more ranks give with one step's output."""

    entries: tuple[CopyReport, ...] = ()

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """Both reports in one, in order; neither is changed."""
        return WorkerReport(self.entries + other.entries)
