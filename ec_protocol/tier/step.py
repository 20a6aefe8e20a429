# SPDX-License-Identifier: Apache-2.0
"""One engine step: what was promised in it, and which copies it will carry (EC-3)."""

from __future__ import annotations

from collections import Counter

from ec_protocol.items import Item
from ec_protocol.names import encoding_of
from ec_protocol.tier.copies import Copy, CopyTable
from ec_protocol.tier.encodings import EncodingTier


class Step:
    """Promises and planned copies between two ``build``. Engine thread, under the lock.

    Args:
        tier: Where promised encodings are reserved.
        copies: Where copies are planned.
        counters: Where it counts hits, misses and what was not saved.
    """

    def __init__(self, tier: EncodingTier, copies: CopyTable, counters: Counter[str]) -> None:
        self._tier = tier
        self._copies = copies
        self._counters = counters
        self._promised: set[str] = set()
        self._encodings: dict[str, str] = {}  # that are promised, and under which name
        self._loads: set[str] = set()
        self._planned: list[Copy] = []

    def promise(self, mm_hash: str) -> bool:
        """Whether a load of ``mm_hash`` in this step cannot fail any more (EC-3.2)."""
        if not self.free_for(mm_hash) or not self._tier.reserve(mm_hash):
            return False
        self._promised.add(mm_hash)
        self._encodings[encoding_of(mm_hash)] = mm_hash
        return True

    def free_for(self, mm_hash: str) -> bool:
        """Whether the step promises the encoding under no other name than this one.

        A rank keeps one thing for an encoding: two loads would be one for both.
        """
        return self._encodings.get(encoding_of(mm_hash), mm_hash) == mm_hash

    def promised(self, mm_hash: str) -> bool:
        """Whether ``promise`` said True in this step."""
        return mm_hash in self._promised

    def load(self, mm_hash: str) -> Copy | None:
        """Plan the load of what was promised; None if the step loads it already."""
        if mm_hash in self._loads:
            return None
        self._loads.add(mm_hash)
        self._counters["hits"] += 1
        copy = self._copies.plan_load(mm_hash)
        self._planned.append(copy)
        return copy

    def save(self, item: Item, *, wanted: bool) -> Copy | None:
        """Plan the save of what will be encoded, if that is wanted; None if there is none."""
        self._counters["misses"] += 1
        if not wanted or item.nbytes <= 0:
            return None
        if not item.named_by_content:
            self._counters["not_named_by_content"] += 1
            return None
        copy = self._copies.plan_save(item.mm_hash, item.nbytes, item.shape)
        if copy is not None:
            self._planned.append(copy)
        elif self._tier.get(item.mm_hash) is None:
            self._counters["saves_without_room"] += 1
        return copy

    def build(self) -> tuple[Copy, ...]:
        """The copies of the step, in flight from here on; its promises end (EC-3.4)."""
        for copy in self._planned:
            self._copies.submit(copy)
        self._tier.end_step()
        planned = tuple(self._planned)
        self._planned.clear()
        self._loads.clear()
        self._promised.clear()
        self._encodings.clear()
        return planned
