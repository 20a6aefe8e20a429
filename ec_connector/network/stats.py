# SPDX-License-Identifier: Apache-2.0
"""What one data process has met on the network: counts, and the latest latencies."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Final

logger = logging.getLogger(__name__)

_SAMPLES: Final = 256


class NetworkStats:
    """Counters and latencies of one data process. Its one thread only.

    Attributes:
        counts: By name.
        noted: Latencies of each kind in all, also those that are not kept any more.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self._samples: dict[str, deque[float]] = {
            "ack": deque(maxlen=_SAMPLES),
            "read": deque(maxlen=_SAMPLES),
        }

    def malformed(self, what: str, error: Exception) -> None:
        """Count a message that was none; every so often it is logged as well."""
        self.counts["malformed_frames"] += 1
        number = self.counts["malformed_frames"]
        if number & (number - 1) == 0:
            # The 1st, 2nd, 4th, 8th …: whoever sends garbage must not fill the log.
            logger.warning("%s dropped, no. %d: %s", what, number, error)

    def sample(self, what: str, seconds: float) -> None:
        """Note a latency: ``ack`` (request to answer) or ``read`` (post to done)."""
        self._samples[what].append(seconds)
        self.noted[what] += 1

    def samples(self, what: str) -> list[float]:
        """The latest latencies of a kind, seconds, oldest first."""
        return list(self._samples[what])
