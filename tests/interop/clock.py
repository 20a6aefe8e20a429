# SPDX-License-Identifier: Apache-2.0
"""The time that a connector under test sees."""

from __future__ import annotations

import time

#: Seconds in one of the host's of a clock that stands still: nothing to any bound that a
#: test looks at, and enough for traces to show what came after what.
_STILL = 1e-9


class Clock:
    """Monotonic seconds that go by slowly, unless a test moves them on.

    A busy host makes a process wait for a core, and a timer must not run out because of
    that: a second of this clock takes ten. Where a timer is to run out, or where a test
    looks at both sides of a bound, it says so. Any thread may read it.

    Args:
        rate: Seconds of this clock in one of the host's.
    """

    def __init__(self, rate: float = 0.1) -> None:
        # In one piece, so that no reader sees half of a change.
        self._line = (0.0, time.monotonic(), rate)

    def __call__(self) -> float:
        start, since, rate = self._line
        return start + (time.monotonic() - since) * rate

    def advance(self, seconds: float) -> None:
        self._line = (self() + seconds, time.monotonic(), self._line[2])

    def stand_still(self, at: float | None = None) -> float:
        """Move only when told to from here on.

        Args:
            at: The exact time to stand at; None for what it is.
        """
        now = self() if at is None else at
        self._line = (now, time.monotonic(), _STILL)
        return now
