# SPDX-License-Identifier: Apache-2.0
"""The CPU tier of one engine instance: entries, holders, eviction, quarantine.

Methods with a capital-letter twin in ``spec/lifecycle.toml`` (``alloc`` is
``Alloc``) are protocol actions. The others are the entry events that the actions
of ``copies``, ``attempts`` and ``grants`` are made of.

One thread at a time. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Final, Literal

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tables.dispatch import ENTRY
from ec_protocol.tier.entry import Entry, Holder, Writer
from ec_protocol.tier.extents import ExtentAllocator, Extents
from ec_protocol.tier.gate import Gate
from ec_protocol.trace import Recorder, Trace

#: An entry in more pieces than this is made only when nothing is left to evict.
PREFERRED_EXTENTS: Final = 2
#: How many entries beyond the needed space may be evicted to get few extents.
EXTRA_EVICTIONS: Final = 4

#: What may become of an encoding, as others are told (EC-13.2).
TierEvent = Literal["stored", "evicted", "lost", "quarantined", "retired", "recovered"]

_LAST_HOLDER: Final = ENTRY.mask("last_holder")


class EncodingTier:
    """Entries and blocks of one region.

    Args:
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.
        trace: Where to record actions; None records nothing.
        preferred_extents: See ``PREFERRED_EXTENTS``.
        extra_evictions: See ``EXTRA_EVICTIONS``.

    Attributes:
        recorder: Moves and records whatever the process has a lifecycle for.
        listener: Told of every event; must neither raise nor take long.
        gate: Asked before an entry is evicted, where others may use its memory; None
            where nobody does.

    Invariants (checked by ``check``): ``NoOverlap``, ``Conserved``,
    ``PinSafety``.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size_bytes: int,
        trace: Trace | None = None,
        *,
        preferred_extents: int = PREFERRED_EXTENTS,
        extra_evictions: int = EXTRA_EVICTIONS,
    ) -> None:
        if block_size_bytes <= 0:
            raise LocalProtocolError(f"block_size_bytes={block_size_bytes}: must be positive")
        self.num_blocks = num_blocks
        self.block_size_bytes = block_size_bytes
        self.recorder = Recorder(trace)
        self.preferred_extents = preferred_extents
        self.extra_evictions = extra_evictions
        self.retired_blocks = 0
        self.evictions = 0
        self.listener: Callable[[TierEvent, Entry], None] | None = None
        self.gate: Gate | None = None
        self._space = ExtentAllocator(num_blocks)
        self._live: dict[str, Entry] = {}
        self._quarantined: dict[int, Entry] = {}
        self._retired: dict[int, Entry] = {}
        self._step_holders: dict[Entry, Holder] = {}
        self._evictable_blocks = 0
        # Eviction order with lazy deletion: pinned entries stay in the heap and
        # are dropped when they surface, so that pin and unpin stay O(1).
        self._queue: list[tuple[int, int, Entry]] = []
        self._ids = itertools.count(1)
        self._orders = itertools.count(1)
        self._steps = itertools.count(1)
        self.recorder.facts("tier", total=num_blocks, block_size=block_size_bytes)

    # ------------------------------------------------------------- queries
    def get(self, mm_hash: str) -> Entry | None:
        """The live entry of ``mm_hash`` (not quarantined), or None."""
        return self._live.get(mm_hash)

    def entries(self) -> Iterator[Entry]:
        """All entries that own blocks, quarantined ones included."""
        yield from self._live.values()
        yield from self._quarantined.values()

    @property
    def free_blocks(self) -> int:
        """Blocks that belong to nobody."""
        return self._space.free_blocks

    @property
    def evictable_blocks(self) -> int:
        """Blocks of ready entries, which nobody holds."""
        return self._evictable_blocks

    @property
    def quarantined_blocks(self) -> int:
        """Blocks that a lost transfer may still touch."""
        return sum(entry.num_blocks for entry in self._quarantined.values())

    def blocks_for(self, nbytes: int) -> int:
        """Blocks that ``nbytes`` bytes take."""
        return -(-nbytes // self.block_size_bytes)

    # ------------------------------------------------------- protocol actions
    def alloc(
        self, mm_hash: str, nbytes: int, shape: tuple[int, ...] | None = None
    ) -> Entry | None:
        """Action ``Alloc``: assign blocks to an encoding, evicting if need be.

        Returns:
            The new entry in ``allocated``, or None when even evicting every
            ready entry would not make room; then nothing was evicted.

        Raises:
            LocalProtocolError: ``mm_hash`` has a live entry, or ``nbytes`` is
                not positive.
        """
        if mm_hash in self._live:
            raise LocalProtocolError(f"Alloc: {mm_hash!r} is allocated already", clause="EC-2.1")
        if nbytes <= 0:
            raise LocalProtocolError(f"Alloc: {mm_hash!r} of {nbytes} bytes: must be positive")
        count = self.blocks_for(nbytes)
        extents = self._make_room(count)
        if extents is None:
            return None
        entry = Entry(next(self._ids), mm_hash, extents, count, nbytes, shape)
        self._live[mm_hash] = entry
        self.recorder.action("Alloc", entry, self, mm_hash=mm_hash, blocks=count)
        if self.gate is not None:
            self.gate.changed(entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Action ``Cancel``: give up an encoding that nobody is writing."""
        self.drop_allocated(entry)
        self.recorder.action("Cancel", mm_hash=entry.mm_hash)

    def reserve(self, mm_hash: str) -> bool:
        """Action ``Reserve``: promise that a load of ``mm_hash`` in this step cannot fail.

        Returns:
            Whether the encoding is servable. If so it stays so until ``end_step``.
        """
        entry = self._live.get(mm_hash)
        if entry is None or entry.state not in ("ready", "pinned"):
            return False
        if entry not in self._step_holders:
            holder: Holder = ("step", next(self._steps))
            self.pin(entry, holder)
            self._step_holders[entry] = holder
            self.recorder.action("Reserve", mm_hash=mm_hash)
        return True

    def end_step(self) -> None:
        """Action ``EndStep``: the step's metadata is built; its promises end."""
        if not self._step_holders:
            return
        for entry, holder in self._step_holders.items():
            self.unpin(entry, holder)
        self._step_holders.clear()
        self.recorder.action("EndStep")

    def hold(self, entry: Entry, holder: Holder) -> None:
        """Action ``Hold``: keep an announced or fetched encoding for a while.

        The caller bounds the time and calls ``release_hold`` (EC-3.6).
        """
        self.pin(entry, holder)
        self.recorder.action("Hold", mm_hash=entry.mm_hash, holder=holder)

    def release_hold(self, entry: Entry, holder: Holder) -> None:
        """Action ``ReleaseHold``."""
        self.unpin(entry, holder)
        self.recorder.action("ReleaseHold", mm_hash=entry.mm_hash, holder=holder)

    def reclaim(self, entry_id: int) -> int:
        """Action ``Reclaim``: a proof came after all; retired blocks are free again.

        Returns:
            Number of blocks that came back.

        Raises:
            LocalProtocolError: There are no such blocks.
        """
        entry = self._retired.pop(entry_id, None)
        if entry is None:
            raise LocalProtocolError(f"Reclaim: entry {entry_id} has no retired blocks")
        self._space.free(entry.extents)
        count = entry.num_blocks
        self.retired_blocks -= count
        self._tell("recovered", entry)
        self.recorder.action("Reclaim", self, entry=entry_id, blocks=count)
        return count

    # ----------------------------------------------- entry events of other actions
    def drop_allocated(self, entry: Entry) -> None:
        """Event ``cancel``."""
        self.recorder.move(entry, "cancel")
        self._release(entry, self._live)
        self._tell("lost", entry)

    def begin_write(self, entry: Entry, writer: Writer) -> None:
        """Event ``begin_write``: ``writer`` is about to be handed the blocks."""
        self.recorder.move(entry, "begin_write")
        entry.writer = writer
        self.recorder.touch(entry, self)

    def write_landed(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_landed``: the bytes are the named encoding."""
        self._check_writer(entry, writer, "write_landed")
        self.recorder.move(entry, "write_landed")
        entry.writer = None
        entry.order = next(self._orders)
        self._enqueue(entry)
        self.recorder.touch(entry, self)
        self._tell("stored", entry)

    def write_ended(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_ended``: the writer is provably gone, its bytes do not count."""
        self._check_writer(entry, writer, "write_ended")
        self.recorder.move(entry, "write_ended")
        entry.writer = None
        self.recorder.touch(entry, self)

    def write_lost(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_lost``: quarantine the blocks; the name is free for a new entry."""
        self._check_writer(entry, writer, "write_lost")
        self.recorder.move(entry, "write_lost")
        del self._live[entry.mm_hash]
        self._quarantined[entry.entry_id] = entry
        self.recorder.touch(entry, self)
        self._tell("quarantined", entry)

    def dma_ended(self, entry: Entry) -> None:
        """Event ``dma_ended``: with the proof in hand the blocks are free."""
        self.recorder.move(entry, "dma_ended")
        entry.writer = None
        del self._quarantined[entry.entry_id]
        self._space.free(entry.extents)
        self.recorder.touch(entry, self)
        self._tell("recovered", entry)

    def retire(self, entry: Entry) -> None:
        """Event ``retire``: no proof came; the blocks leave circulation."""
        self.recorder.move(entry, "retire")
        del self._quarantined[entry.entry_id]
        self._retired[entry.entry_id] = entry
        self.retired_blocks += entry.num_blocks
        self.recorder.touch(entry, self)
        self._tell("retired", entry)

    def pin(self, entry: Entry, holder: Holder) -> None:
        """Event ``pin``: ``holder`` depends on the bytes until its ``unpin``.

        Raises:
            LocalProtocolError: The entry is not servable, or the holder has it.
        """
        if holder in entry.holders:
            raise LocalProtocolError(f"pin: {holder} holds {entry!r} already", clause="EC-2.4")
        was_ready = entry.state == "ready"
        self.recorder.move(entry, "pin")
        entry.holders.add(holder)
        if was_ready:
            self._evictable_blocks -= entry.num_blocks
        self.recorder.touch(entry, self)

    def unpin(self, entry: Entry, holder: Holder) -> None:
        """Event ``unpin``: each holder releases once.

        Raises:
            LocalProtocolError: ``holder`` does not hold the entry.
        """
        holders = entry.holders
        if holder not in holders:
            raise LocalProtocolError(f"unpin: {holder} does not hold {entry!r}", clause="EC-2.4")
        last = len(holders) == 1
        self.recorder.move(entry, "unpin", _LAST_HOLDER if last else 0)
        holders.remove(holder)
        if last:
            self._enqueue(entry)
        self.recorder.touch(entry, self)

    # -------------------------------------------------------------- internals
    def _make_room(self, count: int) -> Extents | None:
        space = self._space
        if count > space.free_blocks + self._evictable_blocks:
            return None
        extents = space.alloc(count, self.preferred_extents)
        if extents is None and self.gate is not None:
            return self._make_room_by_leave(count, self.gate)
        extra = self.extra_evictions
        while extents is None:
            if space.free_blocks >= count:
                if extra == 0 or not self._evictable_blocks:
                    return space.alloc(count)
                extra -= 1
            self._evict(self._oldest())
            extents = space.alloc(count, self.preferred_extents)
        return extents

    def _make_room_by_leave(self, count: int, gate: Gate) -> Extents | None:
        """As ``_make_room``, where others may be reading some of the ready entries.

        All that is needed is had before any of it goes (EC-2.6).
        """
        space = self._space
        kept: list[Entry] = []
        victims: list[Entry] = []
        there = space.free_blocks
        extra = self.extra_evictions
        evictable = self._evictable_blocks

        def take() -> bool:
            nonlocal there, evictable
            while evictable > 0:
                entry = self._oldest()
                evictable -= entry.num_blocks
                if gate.may_evict(entry):
                    victims.append(entry)
                    there += entry.num_blocks
                    return True
                kept.append(entry)
            return False

        enough = True
        while there < count and enough:
            enough = take()
        if not enough:
            # What others may not have any more is offered to them again.
            for entry in victims:
                gate.changed(entry)
            kept += victims
        extents = None
        while enough and extents is None:
            for entry in victims:
                self._evict(entry)
            victims.clear()
            extents = space.alloc(count, self.preferred_extents)
            if extents is None and (extra == 0 or not take()):
                extents = space.alloc(count)
            extra -= 1
        for entry in kept:
            self._queue_up(entry)
        return extents

    def _oldest(self) -> Entry:
        """Take the entry out of the order that landed first among the ready ones."""
        while True:
            _, _, entry = heapq.heappop(self._queue)
            entry.queued = False
            if entry.state == "ready":
                return entry

    def _evict(self, entry: Entry) -> None:
        """Action ``Evict``."""
        self.recorder.move(entry, "evict")
        self._evictable_blocks -= entry.num_blocks
        self._release(entry, self._live)
        self.evictions += 1
        self._tell("evicted", entry)
        self.recorder.action("Evict", mm_hash=entry.mm_hash)

    def _enqueue(self, entry: Entry) -> None:
        self._evictable_blocks += entry.num_blocks
        self._queue_up(entry)

    def _queue_up(self, entry: Entry) -> None:
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._queue, (entry.order, entry.entry_id, entry))

    def _release(self, entry: Entry, index: dict[str, Entry]) -> None:
        del index[entry.mm_hash]
        self._space.free(entry.extents)
        self.recorder.touch(entry, self)

    def _tell(self, event: TierEvent, entry: Entry) -> None:
        if self.listener is not None:
            self.listener(event, entry)
        if self.gate is not None:
            self.gate.changed(entry)

    def _check_writer(self, entry: Entry, writer: Writer, event: str) -> None:
        if entry.writer != writer:
            raise LocalProtocolError(
                f"{event}: {writer} is not the writer of {entry!r}, which is {entry.writer}",
                clause="EC-2.3",
            )

    label: Final = "tier"

    def variables(self) -> dict[str, int]:
        """The tier's block counts, for traces and metrics."""
        return {
            "free": self._space.free_blocks,
            "retired": self.retired_blocks,
            "total": self.num_blocks,
        }

    def check(self) -> None:
        """Check the invariants by looking at every block: for tests and debugging.

        Raises:
            LocalProtocolError: The message names the invariant.
        """
        owner: dict[int, str] = {}

        def claim(extents: Extents, who: str) -> None:
            for start, count in extents:
                for block in range(start, start + count):
                    if block in owner:
                        raise LocalProtocolError(
                            f"NoOverlap: block {block} belongs to {owner[block]} and {who}"
                        )
                    owner[block] = who

        for entry in self.entries():
            claim(entry.extents, repr(entry))
            if bool(entry.holders) != (entry.state == "pinned"):
                raise LocalProtocolError(f"PinSafety: {entry!r} has holders {entry.holders}")
        for entry_id, entry in self._retired.items():
            claim(entry.extents, f"retired entry {entry_id}")
        claim(self._space.free_extents(), "the free list")
        if len(owner) != self.num_blocks:
            lost = self.num_blocks - len(owner)
            raise LocalProtocolError(f"Conserved: {lost} of {self.num_blocks} blocks are lost")
        ready = [entry for entry in self._live.values() if entry.state == "ready"]
        for what, counted, those in (
            ("retired", self.retired_blocks, self._retired.values()),
            ("evictable", self._evictable_blocks, ready),
        ):
            exist = sum(entry.num_blocks for entry in those)
            if exist != counted:
                text = f"Conserved: {counted} {what} blocks counted, {exist} exist"
                raise LocalProtocolError(text)
