# SPDX-License-Identifier: Apache-2.0
"""What a producer's grants are made on: entries that can be found, kept and let go.

Grants do not care where the entries are kept. In the process that keeps them, a grant
pins its entry (``TierShelf``); in a process of its own the server finds them in the table
of offers and writes into the ledger until when they are needed
(``offers.server.SharedShelf``, EC-14.2).
"""

from __future__ import annotations

from typing import Protocol

from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.extents import Extents
from ec_protocol.trace import Recorder


class Found(Protocol):
    """An entry as a grant needs it; ``tier.Entry`` is one."""

    @property
    def entry_id(self) -> int:
        """Tells it from every other entry that can be found or is kept now."""

    @property
    def mm_hash(self) -> str:
        """Name of the encoding."""

    @property
    def nbytes(self) -> int:
        """Its length."""

    @property
    def extents(self) -> Extents:
        """``(start, count)`` in blocks, in the order of the bytes."""

    @property
    def num_blocks(self) -> int:
        """Sum of the counts."""

    @property
    def servable(self) -> bool:
        """Whether it may be granted (EC-5.4)."""


class Shelf(Protocol):
    """Where grants find entries and keep them."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the region."""

    @property
    def block_size_bytes(self) -> int:
        """Bytes of a block."""

    @property
    def recorder(self) -> Recorder:
        """Moves the grants."""

    def find(self, mm_hash: str) -> Found | None:
        """The entry of that name, servable or not."""

    def keep(self, found: Found, grant_id: int, until: float) -> bool:
        """Keep a servable entry for a grant; from here on nothing else uses its memory.

        Args:
            found: What ``find`` returned.
            grant_id: The grant.
            until: Seconds; ``let_go`` comes by then.

        Returns:
            False when it is not to be had any more.
        """

    def let_go(self, found: Found, grant_id: int, now: float) -> None:
        """The grant needs the entry no more; a part of the action that ends it."""

    def show(self) -> None:
        """That action is recorded: other processes may see what was let go."""

    def inherited_blocks(self, now: float) -> int:
        """Blocks that grants of an earlier process still keep (EC-14.6)."""


class TierShelf:
    """The entries of a tier in the same process: a grant is a holder (EC-2.4).

    Args:
        tier: The tier. Its lock is held around every call.
    """

    def __init__(self, tier: EncodingTier) -> None:
        self.tier = tier
        self.num_blocks = tier.num_blocks
        self.block_size_bytes = tier.block_size_bytes
        self.recorder = tier.recorder

    def find(self, mm_hash: str) -> Found | None:
        """The live entry of that name."""
        return self.tier.get(mm_hash)

    def keep(self, found: Found, grant_id: int, until: float) -> bool:
        """Pin it."""
        entry = self.tier.get(found.mm_hash)
        if entry is None or not entry.servable:
            return False
        self.tier.pin(entry, ("grant", grant_id))
        return True

    def let_go(self, found: Found, grant_id: int, now: float) -> None:
        """Unpin it; it is live, since it was pinned."""
        entry = self.tier.get(found.mm_hash)
        if entry is not None:
            self.tier.unpin(entry, ("grant", grant_id))

    def show(self) -> None:
        """There is no other process."""

    def inherited_blocks(self, now: float) -> int:
        """None: the tier is gone with its process."""
        return 0
