# SPDX-License-Identifier: Apache-2.0
"""What operators see of the data processes: sums over those that are, and those that were.

A data process says what it has counted on its status page. It may be under a stranger's
control, so what it says is taken for numbers and nothing else, and never makes a total
fall or a table grow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

#: Parts of a page that are counters.
COUNTERS: Final = ("stats", "grants", "reads")
#: Parts that are amounts.
GAUGES: Final = ("open_grants", "granted_blocks", "active_reads", "lost", "peers")
#: Names of counters that there may be of a part; ours are a few dozen. They become labels.
_MAX_NAMES: Final = 256
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
#: Latencies that are kept until they are taken.
_MAX_SAMPLES: Final = 4096


class Figures:
    """Totals, amounts and latencies of all data processes of an engine. Engine thread."""

    def __init__(self) -> None:
        self.exits: Counter[str] = Counter()
        self._past: dict[str, Counter[str]] = {part: Counter() for part in COUNTERS}
        self._now: dict[int, dict[str, Counter[str]]] = {}
        self._gauges: dict[int, Counter[str]] = {}
        self._noted: dict[int, Counter[str]] = {}
        self._samples: dict[str, list[float]] = {"ack": [], "read": []}

    def update(self, process: int, kind: str, page: Mapping[str, Any]) -> None:
        """A process's page says this by now; nothing, if it could not be read."""
        if not page:
            return
        parts = self._now.setdefault(process, {part: Counter() for part in COUNTERS})
        for part in COUNTERS:
            said = page.get(part)
            for name, count in said.items() if isinstance(said, dict) else ():
                known = parts[part]
                if isinstance(name, str) and (name in known or _may_be(name, known)):
                    known[name] = max(known[name], _number(count))
        self._gauges[process] = Counter({name: _number(page.get(name)) for name in GAUGES})
        self._take_samples(process, page)

    def gone(self, process: int, kind: str, page: Mapping[str, Any]) -> None:
        """It has exited; this was its last page."""
        self.update(process, kind, page)
        for part, counts in self._now.pop(process, {}).items():
            past = self._past[part]
            for name, count in counts.items():
                if name in past or _may_be(name, past):
                    past[name] += count
        self._gauges.pop(process, None)
        self._noted.pop(process, None)
        self.exits[kind] += 1

    def totals(self, part: str) -> Counter[str]:
        """Counters of a part: ``stats``, ``grants`` or ``reads``."""
        total = Counter(self._past[part])
        for counts in self._now.values():
            total.update(counts[part])
        return total

    def gauge(self, name: str) -> int:
        """An amount, over all processes."""
        return sum(gauges[name] for gauges in self._gauges.values())

    def take_samples(self, what: str) -> list[float]:
        """Latencies in seconds, ``ack`` or ``read``, since the last call."""
        taken, self._samples[what] = self._samples[what], []
        return taken

    def _take_samples(self, process: int, page: Mapping[str, Any]) -> None:
        noted = page.get("noted")
        seen = self._noted.setdefault(process, Counter())
        for what, kept in self._samples.items():
            values = page.get(what)
            number = _number(noted.get(what)) if isinstance(noted, dict) else 0
            new = min(number - seen[what], _MAX_SAMPLES)
            if new > 0 and isinstance(values, list):
                seen[what] = number
                kept += [float(v) for v in values[-new:] if isinstance(v, float) and 0 <= v < 1e6]
                del kept[:-_MAX_SAMPLES]


def _may_be(name: str, known: Mapping[str, int]) -> bool:
    return len(known) < _MAX_NAMES and _NAME.fullmatch(name) is not None


def _number(value: object) -> int:
    return min(value, 1 << 62) if isinstance(value, int) and value > 0 else 0
