# SPDX-License-Identifier: Apache-2.0
"""Timers of ``spec/timing.toml`` and the inequalities between them (EC-7).

All values are seconds of one monotonic clock. A ``Timing`` that breaks an
inequality cannot be made: the error names the offending pair, so a deployment
with a lease shorter than its read timeout stops at start-up and not as a wrong
picture later.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from ec_protocol.errors import ConfigError, SpecError
from ec_protocol.tables.files import spec_path

#: No timer is longer: a lease must fit into an ack, whose bound this is (EC-8.8).
MAX_TIMER_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Inequality:
    """``sum(left) op sum(right)`` over timer names; ``op`` is ``<`` or ``<=``."""

    id: str
    left: tuple[str, ...]
    op: str
    right: tuple[str, ...]
    why: str

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether the inequality holds for the given timers."""
        left = sum(values[name] for name in self.left)
        right = sum(values[name] for name in self.right)
        return left < right if self.op == "<" else left <= right

    def __str__(self) -> str:
        return f"{' + '.join(self.left)} {self.op} {' + '.join(self.right)}"


@dataclass(frozen=True, slots=True)
class TimerSpec:
    """One timer: its default (seconds), its configuration key and its meaning."""

    name: str
    default: float
    key: str
    doc: str


@cache
def _document() -> dict[str, Any]:
    with open(spec_path("timing.toml"), "rb") as file:
        return tomllib.load(file)


@cache
def timer_specs() -> Mapping[str, TimerSpec]:
    """All timers by name, in the file's order."""
    return {
        name: TimerSpec(name, float(row["default"]), row["key"], row["doc"])
        for name, row in _document()["timers"].items()
    }


@cache
def inequalities() -> tuple[Inequality, ...]:
    """All inequalities, in the file's order.

    Raises:
        SpecError: One names an unknown timer or operator.
    """
    result = []
    for row in _document()["inequalities"]:
        item = Inequality(row["id"], tuple(row["left"]), row["op"], tuple(row["right"]), row["why"])
        unknown = set(item.left + item.right) - set(timer_specs())
        if unknown or item.op not in ("<", "<="):
            raise SpecError(
                f"timing.toml {item.id}: unknown timers {unknown} or operator {item.op}"
            )
        result.append(item)
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The timers of one process, in seconds; see ``spec/timing.toml`` for each.

    Raises:
        ConfigError: A value is not a positive number of at most a day, or an
            inequality does not hold; the message names the timers and the fix
            (EC-7.2).
    """

    ack_timeout_s: float = timer_specs()["ack_timeout_s"].default
    read_timeout_s: float = timer_specs()["read_timeout_s"].default
    quarantine_s: float = timer_specs()["quarantine_s"].default
    lease_s: float = timer_specs()["lease_s"].default
    lease_margin_s: float = timer_specs()["lease_margin_s"].default
    min_read_s: float = timer_specs()["min_read_s"].default
    retry_interval_s: float = timer_specs()["retry_interval_s"].default
    retry_max_interval_s: float = timer_specs()["retry_max_interval_s"].default
    fetch_budget_s: float = timer_specs()["fetch_budget_s"].default
    announce_hold_s: float = timer_specs()["announce_hold_s"].default
    fetched_hold_s: float = timer_specs()["fetched_hold_s"].default
    heartbeat_interval_s: float = timer_specs()["heartbeat_interval_s"].default
    heartbeat_timeout_s: float = timer_specs()["heartbeat_timeout_s"].default
    heartbeat_ttl_s: float = timer_specs()["heartbeat_ttl_s"].default
    start_s: float = timer_specs()["start_s"].default
    stall_s: float = timer_specs()["stall_s"].default
    lived_s: float = timer_specs()["lived_s"].default
    drain_s: float = timer_specs()["drain_s"].default

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            spec = timer_specs()[name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"{spec.key}={value!r}: expected seconds as a number")
            if not 0 < value <= MAX_TIMER_S:
                raise ConfigError(
                    f"{spec.key}={value!r}: expected a positive number of seconds, "
                    f"at most {MAX_TIMER_S:.0f}"
                )
        for item in inequalities():
            if not item.holds(values):
                shown = ", ".join(
                    f"{timer_specs()[name].key}={values[name]:g}" for name in item.left + item.right
                )
                raise ConfigError(
                    f"timers break {item.id}: {item} does not hold ({shown}). {item.why} "
                    f"Raise {' or '.join(timer_specs()[n].key for n in item.right)}, or lower "
                    f"{' or '.join(timer_specs()[n].key for n in item.left)}."
                )

    def retry_pause(self, retries: int, seed: str) -> float:
        """How long to wait before the next attempt for one encoding (EC-5.8).

        Args:
            retries: Attempts that were made again so far.
            seed: Names the attempt; different for every attempt of every process, so
                that those who were turned away together do not come back together.

        Returns:
            Seconds; ``retry_interval_s`` at first, never less.
        """
        if retries == 0:
            return self.retry_interval_s
        longest = max(self.retry_interval_s, self.retry_max_interval_s)
        pause = min(self.retry_interval_s * 2.0 ** min(retries, 60), longest)
        return pause * (1 + zlib.crc32(seed.encode()) / 2**34)

    def fence(self, sent_at: float, lease_s: float) -> float:
        """The last moment at which a READ of this lease may be seen finished (EC-5.1).

        Counted from *sending* the request: the grant was made later, so the
        producer's lease ends no sooner than this plus the margin.
        """
        return sent_at + lease_s - self.lease_margin_s
