# SPDX-License-Identifier: Apache-2.0
"""Tiers, copies and holds with one fault each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tier.copies import Copy, CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Holder
from ec_protocol.tier.extents import Extents
from ec_protocol.tier.holds import HoldKey, HoldTable
from ec_verify.adapters.ours.faulty.registry import fault


# ------------------------------------------------------------------------------ tier
@fault("evicts-what-is-pinned", "EC-2.5", part="tier")
class EvictsWhatIsPinned(EncodingTier):
    """When there is no room, the oldest entry goes, whoever holds it."""

    def _make_room(self, count: int) -> Extents | None:
        extents = super()._make_room(count)
        while extents is None:
            held = [e for e in self._live.values() if e.state == "pinned"]
            if not held:
                return None
            oldest = min(held, key=lambda entry: entry.order)
            oldest.holders.clear()
            oldest.state = "ready"
            self._enqueue(oldest)
            self._step_holders.pop(oldest, None)
            extents = super()._make_room(count)
        return extents

    def unpin(self, entry: Entry, holder: Holder) -> None:
        if holder in entry.holders:
            super().unpin(entry, holder)


@fault("evicts-the-newest", "EC-2.5", part="tier")
class EvictsTheNewest(EncodingTier):
    """Ready entries are evicted in the reverse order of their landing."""

    def _enqueue(self, entry: Entry) -> None:
        self._evictable_blocks += entry.num_blocks
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._queue, (-entry.order, entry.entry_id, entry))


@fault("evicts-in-vain", "EC-2.6", part="tier")
class EvictsInVain(EncodingTier):
    """An allocation that cannot have room evicts everything before it fails."""

    def _make_room(self, count: int) -> Extents | None:
        if count > self.free_blocks + self.evictable_blocks:
            while self.evictable_blocks:
                self._evict_oldest()
            return None
        return super()._make_room(count)


@fault("promises-nothing-holds", "EC-3.2", "F6", part="tier")
class PromisesNothingHolds(EncodingTier):
    """True is answered without keeping the entry until the step is built."""

    def reserve(self, mm_hash: str) -> bool:
        entry = self.get(mm_hash)
        return entry is not None and entry.servable


@fault("promises-never-end", "EC-3.4", part="tier")
class PromisesNeverEnd(EncodingTier):
    """What was promised in a step stays pinned after it."""

    def end_step(self) -> None:
        pass


@fault("promises-what-is-being-written", "EC-3.1", part="tier")
class PromisesWhatIsBeingWritten(EncodingTier):
    """True is answered for an encoding whose write is under way."""

    def reserve(self, mm_hash: str) -> bool:
        entry = self.get(mm_hash)
        return super().reserve(mm_hash) or (entry is not None and entry.state == "saving")


@fault("retired-blocks-are-reused", "EC-6.3", "F5", part="tier")
class RetiredBlocksAreReused(EncodingTier):
    """Retired blocks are counted and free all the same."""

    def retire(self, entry: Entry) -> None:
        super().retire(entry)
        del self._retired[entry.entry_id]
        self.retired_blocks -= entry.num_blocks
        self._space.free(entry.extents)

    def reclaim(self, entry_id: int) -> int:
        return 0


# ---------------------------------------------------------------------------- copies
@fault("first-rank-ends-a-load", "EC-4.2", part="copies")
class FirstRankEndsALoad(CopyTable):
    """A load is over when the first rank has reported; what others report is dropped."""

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        copy = super().report(copy_id, rank, landed)
        for other in sorted(copy.waiting):
            super().report(copy_id, other, landed)
        return copy


@fault("skipped-saves-are-forgotten", "EC-4.3", "F7", part="copies")
class SkippedSavesAreForgotten(CopyTable):
    """A save that was planned and did not happen keeps its blocks."""

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        copy = self.get(copy_id)
        if copy is not None and copy.kind == "save" and not landed:
            return copy
        return super().report(copy_id, rank, landed)


@fault("every-save-lands", "EC-4.5", part="copies")
class EverySaveLands(CopyTable):
    """A save is ready when it is reported, whatever the report says."""

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        copy = self.get(copy_id)
        return super().report(copy_id, rank, landed or (copy is not None and copy.kind == "save"))


@fault("reports-are-counted-not-named", "EC-4.4", part="copies")
class ReportsAreCountedNotNamed(CopyTable):
    """As many reports as there are ranks end a copy, whoever they come from."""

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        copy = self.get(copy_id)
        if copy is not None and rank not in copy.waiting:
            rank = min(copy.waiting)
        return super().report(copy_id, rank, landed)


class _LowestFree(Iterator[int]):
    """Numbers that are used again."""

    def __init__(self, table: CopyTable) -> None:
        self.table = table

    def __next__(self) -> int:
        taken = {copy.copy_id for copy in self.table}
        return next(number for number in range(1, len(taken) + 2) if number not in taken)


@fault("copy-numbers-are-used-again", "EC-4.6", part="copies")
class CopyNumbersAreUsedAgain(CopyTable):
    """A copy gets the number of one that is over."""

    def __init__(self, tier: EncodingTier, world_size: int = 1) -> None:
        super().__init__(tier, world_size)
        self._ids = _LowestFree(self)  # type: ignore[assignment]


@fault("loads-are-not-pinned", "EC-2.4", part="copies")
class LoadsAreNotPinned(CopyTable):
    """An entry may be evicted while it is being loaded."""

    def submit(self, copy: Copy) -> None:
        super().submit(copy)
        if copy.kind == "load":
            self.tier.unpin(copy.entry, ("load", copy.copy_id))

    def _finish(self, copy: Copy, *, landed: bool) -> None:
        if copy.kind == "load":
            try:
                self.tier.pin(copy.entry, ("load", copy.copy_id))
            except LocalProtocolError:  # it was evicted meanwhile
                del self._copies[copy.copy_id]
                return
        super()._finish(copy, landed=landed)


# ----------------------------------------------------------------------------- holds
@fault("announced-is-not-held", "EC-11.3", part="holds")
class AnnouncedIsNotHeld(HoldTable):
    """An announced entry may be evicted at once."""

    def hold(self, key: HoldKey, entry: Entry, deadline: float) -> bool:
        return key[0] == "announced" or super().hold(key, entry, deadline)


@fault("holds-never-end", "EC-3.5", part="holds")
class HoldsNeverEnd(HoldTable):
    """What was announced stays pinned until somebody reads it."""

    def tick(self, now: float) -> None:
        pass


@fault("holds-take-everything", "EC-3.6", part="holds")
class HoldsTakeEverything(HoldTable):
    """Holds have no share: announcements can pin the whole region."""

    def __init__(self, tier: EncodingTier, max_share: float = 0.5) -> None:
        super().__init__(tier, 1.0)
