# SPDX-License-Identifier: Apache-2.0
"""The server's side of the table: entries are found in it and kept by the ledger.

Whatever is granted stands in the ledger before anybody is answered, so that it is safe
although the server may be gone in the next moment (EC-14.2). What an earlier server has
written there is never lowered (EC-14.6).

The server's one thread only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ec_protocol.offers.table import Ledger, OfferTable, Record, SlotLocks
from ec_protocol.p2p.shelf import Found
from ec_protocol.tier.extents import Extents
from ec_protocol.trace import Recorder

#: So often a slot that the engine is just writing is looked at before it counts as coming.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Offered:
    """An entry that was found in the table.

    Attributes:
        entry_id: Its slot.
        mm_hash: Its name.
        nbytes: Length of the encoding.
        extents: ``(start, count)`` in blocks.
        servable: Whether it was open when it was found.
    """

    entry_id: int
    mm_hash: str
    nbytes: int
    extents: Extents
    servable: bool

    @property
    def num_blocks(self) -> int:
        """Blocks that it takes."""
        return sum(count for _, count in self.extents)


class SharedShelf:
    """The entries that the engine offers.

    Args:
        table: The table; never written.
        ledger: The ledger, writable.
        locks: The slots' locks.
        num_blocks: Blocks of the region. What claims others is not found.
        block_size_bytes: Bytes of a block.
        now: Seconds of the clock that the engine uses too; leases that an earlier server
            gave and that have not ended by then are kept.
        lease_s: No lease is longer. An end that lies further off would never be raised
            by a grant of ours, and the engine stops to believe it.
        recorder: Moves the grants; None makes one without a trace.

    Attributes:
        counters: Slots that could not be looked at.
    """

    def __init__(
        self,
        table: OfferTable,
        ledger: Ledger,
        locks: SlotLocks,
        *,
        num_blocks: int,
        block_size_bytes: int,
        now: float,
        lease_s: float,
        recorder: Recorder | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size_bytes = block_size_bytes
        self.recorder = recorder or Recorder()
        self.counters: Counter[str] = Counter()
        self._table = table
        self._ledger = ledger
        self._locks = locks
        self._inherited = ledger.outstanding(now, lease_s)
        self._ends: dict[int, dict[int, float]] = {}  # slot: grant: end of its lease
        self._lower: set[int] = set()
        self.recorder.facts("shelf", total=num_blocks, slots=table.slots)

    def find(self, mm_hash: str) -> Offered | None:
        """What the table says of a name. One that cannot be looked at is coming."""
        best: Offered | None = None
        for slot in self._table.places(self._table.hash_of(mm_hash), self._table.hash_of(mm_hash)):
            if not self._lock(slot):
                best = best or Offered(slot, mm_hash, 0, (), servable=False)
                continue
            record = self._table.read(slot)
            self._locks.release(slot)
            if record is None or record.mm_hash != mm_hash or not self._sound(record):
                continue
            found = Offered(slot, mm_hash, record.nbytes, record.extents, record.state == "open")
            if found.servable:
                return found
            best = found
        return best

    def keep(self, found: Found, grant_id: int, until: float) -> bool:
        """Write the ledger, if the slot still says what it said (EC-14.2)."""
        slot = found.entry_id
        if not self._lock(slot):
            return False
        try:
            record = self._table.read(slot)
            if record is None or record.state != "open" or record.mm_hash != found.mm_hash:
                return False
            if record.extents != found.extents or record.nbytes != found.nbytes:
                return False
            self._ends.setdefault(slot, {})[grant_id] = until
            self._write(slot)
        finally:
            self._locks.release(slot)
        return True

    def let_go(self, found: Found, grant_id: int, now: float) -> None:
        """The slot is kept for what is left; ``show`` lowers the ledger."""
        slot = found.entry_id
        ends = self._ends.get(slot)
        if ends is not None and ends.pop(grant_id, None) is not None:
            if not ends:
                del self._ends[slot]
            if self._inherited.get(slot, now) <= now:
                self._inherited.pop(slot, None)
            self._lower.add(slot)

    def show(self) -> None:
        """Lower the ledger to what is left.

        Without the lock: who reads the old figure is only more careful.
        """
        while self._lower:
            self._write(self._lower.pop())

    def inherited_blocks(self, now: float) -> int:
        """Blocks that grants of an earlier server still keep."""
        blocks = 0
        for slot, until in list(self._inherited.items()):
            record = self._table.read(slot) if until > now else None
            if record is None:
                del self._inherited[slot]
            else:
                blocks += record.num_blocks
        return blocks

    def _write(self, slot: int) -> None:
        own = max(self._ends.get(slot, {}).values(), default=0.0)
        self._ledger.need(slot, max(own, self._inherited.get(slot, 0.0)))

    def _lock(self, slot: int) -> bool:
        for _ in range(_TRIES):
            if self._locks.acquire(slot):
                return True
        self.counters["slots_locked"] += 1
        return False

    def _sound(self, record: Record) -> bool:
        """Whether the region has the blocks; the engine is trusted, its memory may not be."""
        room = record.num_blocks * self.block_size_bytes
        return 0 < record.nbytes <= room and all(
            count > 0 and start + count <= self.num_blocks for start, count in record.extents
        )
