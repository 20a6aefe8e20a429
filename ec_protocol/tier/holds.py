# SPDX-License-Identifier: Apache-2.0
"""Holds: entries kept for a bounded time for somebody who is known to come.

A producer holds what it has announced, so that the announcement is worth
something; a consumer holds what it has fetched, until the request that waits for
it loads it. Each hold has a deadline, and all holds of a table together may keep
no more than a share of the region (EC-3.6), so holds can never pin the tier
solid. A hold may be wanted before the bytes are there: it then starts when the
write lands.

Engine thread.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Holder

#: What the hold is for, then whatever tells holds of that kind apart.
HoldKey = tuple[str, ...]


@dataclass(slots=True)
class _Hold:
    entry: Entry | None  # None while the write has not landed
    mm_hash: str
    holder: Holder
    deadline: float


class HoldTable:
    """Holds by key.

    Args:
        tier: The tier whose entries are held.
        max_share: Share of the region's blocks that all holds may keep, 0 to 1;
            the oldest hold gives way to a new one.
    """

    _ids = itertools.count(1)

    def __init__(self, tier: EncodingTier, max_share: float = 0.5) -> None:
        self.tier = tier
        self.max_blocks = int(tier.num_blocks * max_share)
        self.held_blocks = 0
        self.displaced = 0
        # An entry that several requests wait for takes its share once.
        self._held: Counter[Entry] = Counter()
        self._holds: dict[HoldKey, _Hold] = {}
        tier.recorder.facts("holds", max_blocks=self.max_blocks)

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, key: HoldKey) -> bool:
        return key in self._holds

    def hold(self, key: HoldKey, entry: Entry, deadline: float) -> bool:
        """Hold ``entry`` under ``key`` until ``deadline`` (same clock as ``tick``).

        A second hold of the same key moves the deadline. An entry that is still
        being written is held from the moment it lands (``landed``).

        Returns:
            False when the entry alone is larger than the share allows, or not
            worth holding (neither servable nor being written).
        """
        known = self._holds.get(key)
        if known is not None:
            # What is held has its name to itself, so the same name is the same entry.
            if known.mm_hash == entry.mm_hash:
                known.deadline = max(known.deadline, deadline)
                return True
            self.release(key)
        if entry.num_blocks > self.max_blocks:
            return False
        hold = _Hold(None, entry.mm_hash, ("hold", next(self._ids)), deadline)
        if entry.servable:
            self._apply(hold, entry)
        elif entry.state not in ("allocated", "saving"):
            return False
        self._holds[key] = hold
        return True

    def landed(self, entry: Entry) -> None:
        """Start the holds that were waiting for this entry's write."""
        if entry.num_blocks > self.max_blocks:
            # The name was allocated again, larger than when the hold was asked for.
            return
        for hold in list(self._holds.values()):
            if hold.entry is None and hold.mm_hash == entry.mm_hash:
                self._apply(hold, entry)

    def release(self, key: HoldKey) -> None:
        """End a hold; nothing happens when there is none under ``key``."""
        hold = self._holds.pop(key, None)
        if hold is not None and hold.entry is not None:
            self._held[hold.entry] -= 1
            if not self._held[hold.entry]:
                del self._held[hold.entry]
                self.held_blocks -= hold.entry.num_blocks
            self.tier.release_hold(hold.entry, hold.holder)

    def release_where(self, wanted: Callable[[HoldKey], bool]) -> None:
        """End every hold whose key ``wanted`` accepts."""
        for key in [key for key in self._holds if wanted(key)]:
            self.release(key)

    def tick(self, now: float) -> None:
        """End every hold whose deadline has come."""
        for key in [k for k, hold in self._holds.items() if hold.deadline <= now]:
            self.release(key)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do next."""
        return min((hold.deadline for hold in self._holds.values()), default=None)

    def _apply(self, hold: _Hold, entry: Entry) -> None:
        while entry not in self._held and self.held_blocks + entry.num_blocks > self.max_blocks:
            oldest = next(k for k, h in self._holds.items() if h.entry is not None)
            self.release(oldest)
            self.displaced += 1
        self.tier.hold(entry, hold.holder)
        if entry not in self._held:
            self.held_blocks += entry.num_blocks
        self._held[entry] += 1
        hold.entry = entry
