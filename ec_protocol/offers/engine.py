# SPDX-License-Identifier: Apache-2.0
"""The engine's side of the table: what the server's process may grant without asking.

An entry that is written is *expected*, one that has landed is *offered*, and before its
memory is used for anything else the offer is *closed*. Closing succeeds at once unless
the ledger says that a reader may still be copying, or the server stands in the middle of
that very slot: then the engine evicts something else. Nothing here ever waits (EC-14.4).

What the server writes into the ledger is believed only as far as it can be true: no
lease is longer than ``lease_s``, so one that ends later is not counted longer than that
from when it is first seen. A server that somebody has taken over can keep entries, and
no more of them than ``max_blocks``: beyond that ``overdrawn`` says that it is to be
replaced.

Engine thread only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ec_protocol.announcements import can_be_asked_for
from ec_protocol.names import is_strangers
from ec_protocol.offers.table import (
    MAX_EXTENTS,
    Ledger,
    OfferTable,
    SlotLocks,
)
from ec_protocol.tables.dispatch import OFFER, Dispatcher
from ec_protocol.tier.entry import Entry
from ec_protocol.trace import Recorder


@dataclass(slots=True, eq=False)
class Offer:
    """One entry in the table.

    Attributes:
        offer_id: Unique in the process for ever.
        slot: Where it stands.
        entry: The entry.
        state: State of the offer lifecycle.
    """

    lifecycle: ClassVar[Dispatcher] = OFFER

    offer_id: int
    slot: int
    entry: Entry
    state: str = OFFER.initial

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"offer:{self.offer_id}"

    def variables(self) -> dict[str, Any]:
        """The offer's spec variables, for traces."""
        return {"state": self.state, "slot": self.slot, "entry": self.entry.entry_id}


class Offers:
    """Every offer of one engine.

    Args:
        table: The table, writable.
        ledger: The ledger.
        locks: The slots' locks.
        lease_s: No grant needs an entry longer.
        max_blocks: Blocks that all grants together may keep.
        recorder: Moves the offers.
        clock: Seconds of the common clock; read when room is wanted, which may be long
            after the last hook.

    Attributes:
        counters: What was not offered and why, and closes that were refused.
    """

    def __init__(
        self,
        table: OfferTable,
        ledger: Ledger,
        locks: SlotLocks,
        *,
        lease_s: float,
        max_blocks: int,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self.table = table
        self.ledger = ledger
        self.locks = locks
        self.lease_s = lease_s
        self.max_blocks = max_blocks
        self.recorder = recorder
        self.counters: Counter[str] = Counter()
        self._offers: dict[int, Offer] = {}  # by entry id
        # Slots whose lease ends later than any can: its end, and until when it counts.
        self._absurd: dict[int, tuple[float, float]] = {}
        self._changed: dict[int, Entry] = {}
        self._left: list[Offer] = []
        self._clock = clock
        self._ids = itertools.count(1)
        recorder.facts("offers", slots=table.slots)

    def __len__(self) -> int:
        return len(self._offers)

    def offered(self, entry: Entry) -> bool:
        """Whether peers can have the entry, now or when it has landed."""
        offer = self._offers.get(entry.entry_id)
        return offer is not None and offer.state != "closed"

    # -------------------------------------------------------------- the tier's gate
    def changed(self, entry: Entry) -> None:
        """An entry is being written, has landed, or is gone: see ``catch_up``.

        What a stranger has sent us is offered to nobody (EC-15.8).
        """
        if not is_strangers(entry.mm_hash):
            self._changed[entry.entry_id] = entry

    def may_evict(self, entry: Entry) -> bool:
        """Whether its memory may be used for something else; see ``close``."""
        return self.close(entry, self._clock())

    def catch_up(self, now: float) -> None:
        """Let the table say what has become of the entries that have changed.

        Called after every hook, outside of any other action. A slot in which the server
        is just now is looked at again the next time.
        """
        for slot, (end, _) in list(self._absurd.items()):
            if self.ledger.needed_until(slot) != end:
                del self._absurd[slot]
        for entry in list(self._changed.values()):
            if self._follow(entry):
                del self._changed[entry.entry_id]
        self._left = [offer for offer in self._left if not self._close(offer, now)]

    def _follow(self, entry: Entry) -> bool:
        offer = self._offers.get(entry.entry_id)
        if entry.servable:
            return (offer is not None and offer.state != "coming") or self.offer(entry) is not None
        if entry.state in ("allocated", "saving"):
            return offer is not None or self.expect(entry) is not None
        if offer is not None:
            # It was expected: nobody was granted it, so its memory need not wait.
            del self._offers[entry.entry_id]
            self._left.append(offer)
        return True

    # ------------------------------------------------------------------ actions
    def expect(self, entry: Entry) -> bool | None:
        """Action ``Expect``: who asks for the entry is told to ask again.

        Returns:
            False when it cannot stand in the table, which is counted; it can be had
            locally all the same.
        """
        return self._enter(entry, "Expect") is not None

    def offer(self, entry: Entry) -> bool | None:
        """Action ``Offer``: the entry has landed, and may be granted.

        Returns:
            As ``expect``, which need not have been called before; None when the server
            is just in its slot.
        """
        offer = self._offers.get(entry.entry_id)
        if offer is None:
            return self._enter(entry, "Offer") is not None
        if not self.locks.acquire(offer.slot):
            self.counters["slots_locked"] += 1
            return None
        try:
            self.recorder.move(offer, "open")
            self._record(offer, "Offer")
            self.table.set_state(offer.slot, offer.state)
        finally:
            self.locks.release(offer.slot)
        return True

    def close(self, entry: Entry, now: float) -> bool:
        """Action ``Close``: the entry's memory is wanted for something else (EC-14.2).

        Returns:
            Whether nobody can be reading it, and nobody will be granted it.
        """
        offer = self._offers.get(entry.entry_id)
        if offer is None:
            return True
        if not self._close(offer, now):
            return False
        del self._offers[entry.entry_id]
        return True

    def overdrawn(self, now: float) -> bool:
        """Whether the server keeps more than it may: nobody knows what runs there.

        One entry may be larger than all that may be kept (EC-5.10).
        """
        kept = [offer for offer in self._offers.values() if self._needed(offer.slot, now)]
        return len(kept) > 1 and sum(o.entry.num_blocks for o in kept) > self.max_blocks

    # ---------------------------------------------------------------- internals
    def _needed(self, slot: int, now: float) -> bool:
        """Whether a lease on the slot has not ended; none counts longer than it can be."""
        end = self.ledger.needed_until(slot)
        if not now < end:
            return False
        if end <= now + self.lease_s:
            return True
        seen, until = self._absurd.get(slot, (0.0, 0.0))
        if seen != end:
            until = now + self.lease_s
            self._absurd[slot] = (end, until)
            self.counters["absurd_leases"] += 1
        return now < until

    def _enter(self, entry: Entry, action: str) -> Offer | None:
        name = entry.mm_hash
        # A name may be a client's own: nobody can ask for one that is no text.
        if not can_be_asked_for(name):
            self.counters["not_offered_name"] += 1
            return None
        if len(entry.extents) > MAX_EXTENTS:
            self.counters["not_offered_too_large"] += 1
            return None
        table, locks = self.table, self.locks
        for slot in table.places(0, table.hash_of(name)):
            if not locks.acquire(slot):
                continue
            try:
                offer = Offer(next(self._ids), slot, entry)
                if action == "Offer":
                    self.recorder.move(offer, "open")
                self._record(offer, action)
                table.write(slot, offer.state, name, entry.nbytes, entry.extents)
            finally:
                locks.release(slot)
            self._offers[entry.entry_id] = offer
            return offer
        self.counters["not_offered_no_slot"] += 1
        return None

    def _close(self, offer: Offer, now: float) -> bool:
        slot = offer.slot
        if not self.locks.acquire(slot):
            self.counters["slots_locked"] += 1
            return False
        try:
            if self._needed(slot, now):
                self.counters["slots_granted"] += 1
                return False
            self.recorder.move(offer, "close")
            self._record(offer, "Close", now=now)
            self.table.set_state(slot, offer.state)
        finally:
            self.locks.release(slot)
        self._absurd.pop(slot, None)
        return True

    def _record(self, offer: Offer, action: str, **args: Any) -> None:
        """Under the slot's lock, so that records come in the order of the lock."""
        self.recorder.touch(offer)
        self.recorder.action(action, offer=offer.offer_id, mm_hash=offer.entry.mm_hash, **args)
