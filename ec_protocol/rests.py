# SPDX-License-Identifier: Apache-2.0
"""Addresses that were lost a moment ago are not tried again for a while (EC-9.4).

That is as long as the connection was tried in vain, so that a dead producer costs each
request nothing instead of a timeout; less where the loss took less to see, since one that
refuses, as while another process takes its place, may soon be there again; and twice as
long as the last time if another loss follows soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ec_protocol.announcements import Address
from ec_protocol.tables.timing import Timing

#: Addresses that are remembered, at most: requests name them.
MAX_RESTS: Final = 1024


@dataclass(slots=True)
class _Rest:
    """Until when, and how long it is in all, seconds."""

    until: float
    rest_s: float


class Rests:
    """Every address that rests, or has rested a moment ago.

    Args:
        timing: ``retry_max_interval_s`` and ``heartbeat_timeout_s`` are used.
    """

    def __init__(self, timing: Timing) -> None:
        self._least_s = timing.retry_max_interval_s
        self._most_s = timing.heartbeat_timeout_s
        self._rests: dict[Address, _Rest] = {}

    def __len__(self) -> int:
        return len(self._rests)

    def __contains__(self, key: Address) -> bool:
        return key in self._rests

    def lost(self, key: Address, tried_s: float, now: float) -> None:
        """The address was lost, after it was tried in vain for so long; 0: it had answered."""
        last = self._rests.pop(key, None)
        while len(self._rests) >= MAX_RESTS:
            del self._rests[next(iter(self._rests))]
        rest_s = max(tried_s, self._least_s, 0.0 if last is None else 2 * last.rest_s)
        rest_s = min(rest_s, self._most_s)
        self._rests[key] = _Rest(now + rest_s, rest_s)

    def resting(self, key: Address, now: float) -> bool:
        """Whether it was lost too recently to be tried."""
        rest = self._rests.get(key)
        return rest is not None and now < rest.until

    def tried(self, key: Address, now: float) -> None:
        """It is tried again: it does not rest any more."""
        rest = self._rests.get(key)
        if rest is not None:
            rest.until = min(rest.until, now)

    def amount(self, now: float) -> int:
        """How many rest."""
        return sum(now < rest.until for rest in self._rests.values())

    def forget(self, now: float) -> None:
        """Drop those that another loss did not follow, so that nothing grows."""
        for key in [k for k, rest in self._rests.items() if now >= rest.until + self._most_s]:
            del self._rests[key]
