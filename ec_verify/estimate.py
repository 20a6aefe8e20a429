# SPDX-License-Identifier: Apache-2.0
"""How long the rest of a run will take, for those who wait."""

from __future__ import annotations

from collections.abc import Mapping


class Estimate:
    """Corrects what the parts once took by what those that are done have taken now.

    Args:
        recorded: Seconds that each part took once, by name. Where nothing was recorded,
            the same number for all does.
        jobs: Parts that run at once.
    """

    def __init__(self, recorded: Mapping[str, float], jobs: int) -> None:
        self._pending = dict(recorded)
        self._jobs = jobs
        self._recorded_s = 0.0
        self._took_s = 0.0

    def finished(self, name: str, seconds: float) -> None:
        """A part is done, and took this long."""
        self._recorded_s += self._pending.pop(name)
        self._took_s += seconds

    @property
    def left_s(self) -> float:
        """Seconds until all is done."""
        slower = self._took_s / self._recorded_s if self._recorded_s else 1.0
        return slower * sum(self._pending.values()) / min(self._jobs, len(self._pending) or 1)

    def __str__(self) -> str:
        """As a clause after what is done; empty when nothing is left."""
        return f", about {duration(self.left_s)} left" if self._pending else ""


def duration(seconds: float) -> str:
    """Roughly, in the unit that people would take."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
