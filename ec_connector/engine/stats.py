# SPDX-License-Identifier: Apache-2.0
"""What the pump has seen: counts, and the last few thousand latencies."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from typing import Final

logger = logging.getLogger(__name__)

_SAMPLES: Final = 4096


class PumpStats:
    """Counters and latency samples of one pump.

    Written by the pump thread, read by any: a small lock of its own, never held
    while another one is taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._noted: Counter[str] = Counter()
        self._samples: dict[str, deque[float]] = {
            "ack": deque(maxlen=_SAMPLES),
            "read": deque(maxlen=_SAMPLES),
        }

    def count(self, what: str, by: int = 1) -> int:
        """Add to a counter; what it is then."""
        with self._lock:
            self._counts[what] += by
            return self._counts[what]

    def malformed(self, what: str, error: Exception) -> None:
        """Count a message that was none; every so often it is logged as well."""
        with self._lock:
            self._counts["malformed_frames"] += 1
            number = self._counts["malformed_frames"]
        if number & (number - 1) == 0:
            # The 1st, 2nd, 4th, 8th …: whoever sends garbage must not fill the log.
            logger.warning("%s dropped, no. %d: %s", what, number, error)

    def sample(self, what: str, seconds: float) -> None:
        """Note a latency: ``ack`` (request to answer) or ``read`` (post to done)."""
        with self._lock:
            self._samples[what].append(seconds)
            self._noted[what] += 1

    def counts(self) -> dict[str, int]:
        """All counters."""
        with self._lock:
            return dict(self._counts)

    def samples(self, what: str) -> list[float]:
        """The latest latencies of a kind, seconds, oldest first."""
        with self._lock:
            return list(self._samples[what])

    def since(self, what: str, seen: int) -> tuple[list[float], int]:
        """The latencies of a kind that were noted after the first ``seen``.

        Returns:
            Those of them that are still kept, and how many were noted in all: what to
            pass the next time.
        """
        with self._lock:
            noted = self._noted[what]
            kept = self._samples[what]
            new = min(noted - seen, len(kept))
            return list(kept)[len(kept) - new :], noted

    def summary(self) -> dict[str, float]:
        """Mean and percentiles of each latency, in milliseconds, and all counters."""
        result: dict[str, float] = {}
        for what in ("ack", "read"):
            values = sorted(self.samples(what))
            if values:
                result[f"{what}_ms"] = sum(values) / len(values) * 1e3
                result[f"{what}_p50_ms"] = values[len(values) // 2] * 1e3
                result[f"{what}_p99_ms"] = (
                    values[min(len(values) - 1, len(values) * 99 // 100)] * 1e3
                )
        result.update(self.counts())
        return result
