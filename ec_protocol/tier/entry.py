# SPDX-License-Identifier: Apache-2.0
"""One encoding in one region: the object that the entry lifecycle moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ec_protocol.names import encoding_of
from ec_protocol.tables.dispatch import ENTRY, Dispatcher
from ec_protocol.tier.extents import Extents

HolderKind = Literal["load", "grant", "hold", "step"]
#: Who depends on the bytes: the kind and a number unique within the kind.
Holder = tuple[HolderKind, int]
#: Who may be writing the blocks: ("save", copy id), ("read", attempt id) or
#: ("loan", loan id).
Writer = tuple[Literal["save", "read", "loan"], int]


@dataclass(slots=True, eq=False)
class Entry:
    """One encoding in one region; only ``EncodingTier`` changes it.

    Attributes:
        entry_id: Unique in the tier for ever; a re-allocated mm_hash is a new entry.
        mm_hash: The name that it is kept under.
        state: State of the entry lifecycle.
        extents: ``(start, count)`` in blocks, in the order of the bytes.
        num_blocks: Sum of the counts.
        nbytes: Bytes of the encoding; the rest of the last block is undefined.
        shape: Rows × width of the encoding, or None when not known.
        holders: Outstanding holders; empty unless ``pinned``.
        writer: Who may be writing; None unless ``saving`` or ``quarantined``.
        order: Place in the eviction order (landing order).
        queued: Whether the tier's eviction queue has an item for the entry.
    """

    lifecycle: ClassVar[Dispatcher] = ENTRY

    entry_id: int
    mm_hash: str
    extents: Extents
    num_blocks: int
    nbytes: int
    shape: tuple[int, ...] | None
    state: str = ENTRY.initial
    holders: set[Holder] = field(default_factory=set)
    writer: Writer | None = None
    order: int = 0
    queued: bool = False

    @property
    def servable(self) -> bool:
        """Whether the bytes are the named encoding (EC-2.2): ready or pinned."""
        return self.state in ("ready", "pinned")

    @property
    def encoding(self) -> str:
        """The encoding's own name, by which hosts and peers know it."""
        return encoding_of(self.mm_hash)

    def contradicts(self, nbytes: int, shape: tuple[int, int]) -> bool:
        """Whether something else was stored under the name than an encoding like that."""
        return self.nbytes != nbytes or self.shape not in (None, shape)

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"entry:{self.entry_id}"

    def variables(self) -> dict[str, Any]:
        """The entry's spec variables, for traces."""
        return {
            "mm_hash": self.mm_hash,
            "state": self.state,
            "extents": self.extents,
            "holders": sorted(self.holders),
            "writer": self.writer,
        }

    def __repr__(self) -> str:
        return (
            f"Entry({self.entry_id}, {self.mm_hash!r}, {self.state}, {self.num_blocks} blocks, "
            f"{len(self.holders)} holders)"
        )
