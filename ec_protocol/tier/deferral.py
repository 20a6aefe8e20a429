# SPDX-License-Identifier: Apache-2.0
"""How long a request has been deferred, and for which encoding (EC-5.9).

The budget runs from the first question on, whatever the request waits for, and is the
request's: an encoding that is fetched and evicted again and again must not defer anybody
for ever.
"""

from __future__ import annotations


class Deferrals:
    """Since when each request waits. Engine thread."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._since)

    def within(self, waiter: str, mm_hash: str, now: float, budget_s: float) -> bool:
        """Whether the request may be deferred on for this encoding.

        Args:
            waiter: The request's id.
            mm_hash: The encoding's own name; the first question starts its budget.
            now: Seconds.
            budget_s: ``fetch_budget_s``.
        """
        since = self._since.setdefault(waiter, {}).setdefault(mm_hash, now)
        return now < since + budget_s

    def served(self, waiter: str, mm_hash: str) -> None:
        """The request has got this encoding: its budget for it begins anew."""
        waiting = self._since.get(waiter)
        if waiting is not None:
            waiting.pop(mm_hash, None)
            if not waiting:
                del self._since[waiter]

    def forget(self, waiter: str) -> None:
        """The request is over."""
        self._since.pop(waiter, None)
