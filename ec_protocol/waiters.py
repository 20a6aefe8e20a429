# SPDX-License-Identifier: Apache-2.0
"""Who waits for which encoding to be fetched, and until when.

A request asks in every step; the first that asks for an encoding has it fetched, all that
ask meanwhile wait for the same fetch. It ends in one of two ways: the encoding has landed,
and is held for each of them until it is loaded (EC-3.5); or it has not, and each encodes
for itself and is told so from then on. None waits longer than ``fetch_budget_s`` (EC-5.9).

Who fetches, and how, is a ``Fetcher``'s business: attempts in this process
(``p2p.fetches``) or a reader in a process of its own (``loans``).

One call at a time: the engine's thread, and where attempts are made in the same process
also the network's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from ec_protocol.announcements import Address
from ec_protocol.names import encoding_of
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable

FetchState = Literal["pending", "failed"]


@dataclass(slots=True, eq=False)
class Wanted:
    """One encoding that is being fetched.

    Attributes:
        mm_hash: The encoding.
        source: Where from.
        nbytes: Bytes that the announcement promised.
        shape: Rows × width, if known.
        deadline: End of the budget, seconds.
        waiters: Requests that wait.
    """

    mm_hash: str
    source: Address
    nbytes: int
    shape: tuple[int, ...] | None
    deadline: float
    waiters: set[str]


class Fetcher(Protocol):
    """Who fetches. Every fetch that was begun ends by ``landed`` or ``failed``, once."""

    def begin(self, wanted: Wanted, now: float) -> bool:
        """Begin to fetch; False after counting why not."""

    def unwanted(self, wanted: Wanted, now: float) -> None:
        """Nobody waits any more."""


class Waiters:
    """Every request that waits for a fetch.

    Args:
        fetcher: Who fetches.
        holds: Keep what has landed for those who wait.
        timing: ``fetch_budget_s`` and ``fetched_hold_s`` are used.
        counters: Where to count.

    Attributes:
        deferrals: Since when each request waits.
    """

    def __init__(
        self, fetcher: Fetcher, holds: HoldTable, timing: Timing, counters: Counter[str]
    ) -> None:
        self.deferrals = Deferrals()
        self._fetcher = fetcher
        self._holds = holds
        self._timing = timing
        self._counters = counters
        self._wanted: dict[str, Wanted] = {}
        self._failed: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def fetch(
        self,
        mm_hash: str,
        source: Address,
        nbytes: int,
        shape: tuple[int, ...] | None,
        waiter: str,
        now: float,
    ) -> FetchState:
        """Ask for an encoding that is not in the tier, or how that is going.

        Called once per engine step by every request that waits. Engine thread.

        Args:
            mm_hash: The encoding.
            source: Its producer.
            nbytes: Bytes announced.
            shape: Rows × width announced, if known.
            waiter: The request's id.
            now: Seconds.

        Returns:
            ``pending``: wait. ``failed``: encode locally; the same answer is given
            to this waiter until it leaves.
        """
        if mm_hash in self._failed.get(waiter, ()):
            return "failed"
        wanted = self._wanted.get(mm_hash)
        if not self.within_budget(waiter, mm_hash, now):
            self._counters["budget_spent"] += 1
        elif wanted is None:
            deadline = now + self._timing.fetch_budget_s
            wanted = Wanted(mm_hash, source, nbytes, shape, deadline, {waiter})
            self._wanted[mm_hash] = wanted
            if self._fetcher.begin(wanted, now):
                self._counters["fetches"] += 1
                return "pending"
            del self._wanted[mm_hash]
        elif wanted.nbytes != nbytes:
            # One name, two sizes: whoever is wrong, this request encodes for itself.
            self._counters["contradicting_sizes"] += 1
            self._fall_back(mm_hash, [waiter])
            return "failed"
        elif now < wanted.deadline:
            wanted.waiters.add(waiter)
            return "pending"
        self._fall_back(mm_hash, [waiter])
        self._withdraw(mm_hash, waiter, now)
        return "failed"

    def within_budget(self, waiter: str, mm_hash: str, now: float) -> bool:
        """Whether the request may be deferred on for this encoding, by whose word ever (EC-5.9)."""
        budget_s = self._timing.fetch_budget_s
        return self.deferrals.within(waiter, encoding_of(mm_hash), now, budget_s)

    def fetching(self, mm_hash: str) -> bool:
        """Whether a fetch of ``mm_hash`` is under way."""
        return mm_hash in self._wanted

    def consumed(self, waiter: str, mm_hash: str) -> None:
        """The waiter's load of a fetched encoding is planned: its hold ends."""
        self._holds.release(("fetched", mm_hash, waiter))
        self.deferrals.served(waiter, encoding_of(mm_hash))

    def leave(self, waiter: str, now: float) -> None:
        """The request finished or was aborted: it waits for nothing any more."""
        self._failed.pop(waiter, None)
        self.deferrals.forget(waiter)
        for mm_hash in list(self._wanted):
            self._withdraw(mm_hash, waiter, now)
        self._holds.release_where(lambda key: key[0] == "fetched" and key[2] == waiter)

    # -------------------------------------------------------------------- the fetcher
    def landed(self, wanted: Wanted, entry: Entry, now: float) -> None:
        """The encoding is there: it is held for those who wait."""
        del self._wanted[wanted.mm_hash]
        for waiter in wanted.waiters:
            key = ("fetched", wanted.mm_hash, waiter)
            self._holds.hold(key, entry, now + self._timing.fetched_hold_s)

    def failed(self, wanted: Wanted) -> None:
        """The encoding does not come: all who wait for it fall back."""
        del self._wanted[wanted.mm_hash]
        self._fall_back(wanted.mm_hash, wanted.waiters)

    # --------------------------------------------------------------------- internals
    def _fall_back(self, mm_hash: str, waiters: Collection[str]) -> None:
        """These requests encode for themselves, and are told so from now on."""
        self._counters["fallbacks"] += len(waiters)
        for waiter in waiters:
            self._failed.setdefault(waiter, set()).add(mm_hash)

    def _withdraw(self, mm_hash: str, waiter: str, now: float) -> None:
        """A request waits no more; what the last one waited for is not asked for any more."""
        wanted = self._wanted.get(mm_hash)
        if wanted is not None and waiter in wanted.waiters:
            wanted.waiters.remove(waiter)
            if not wanted.waiters:
                self._fetcher.unwanted(wanted, now)
