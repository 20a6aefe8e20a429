# SPDX-License-Identifier: Apache-2.0
"""What the bench ``deaths`` found: figures, JSON document, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ec_connector.bench.ack import percentile
from ec_connector.bench.deaths_engines import LONGEST
from ec_connector.bench.rows import Row, machine

Role = Literal["server", "reader", "spare", "parent"]


@dataclass(frozen=True, slots=True)
class Death:
    """One death.

    Attributes:
        role: Who died.
        signal: Of what.
        served_s: From then until an encoding that was asked for later had landed; None:
            none did.
        fell_back: Requests that ended without their encoding until the round was over.
        whole: Whether everybody was there, or successors of others were still starting.
    """

    role: Role
    signal: str
    served_s: float | None
    fell_back: int
    whole: bool


@dataclass(frozen=True, slots=True)
class DeathsReport:
    """A run.

    Attributes:
        seed: Of the run.
        deaths: In order.
        outcomes: Requests by how they ended.
        wrong: Everything that must not be, in words.
        lasts: What producer and consumer said last; empty of one that said nothing.
        seconds: How long it took.
    """

    seed: int
    deaths: list[Death]
    outcomes: dict[str, int]
    wrong: list[str]
    lasts: list[dict[str, Any]]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def longest_ms(self) -> dict[str, float]:
        """The longest hooks of either engine; see ``deaths_engines.LONGEST``."""
        found = [last["longest"] for last in self.lasts if last]
        return {
            what: round(max((longest[what] for longest in found), default=0.0) * 1e3, 2)
            for what in LONGEST
        }

    def table(self) -> list[dict[str, Any]]:
        """A line for each role and signal, and one for all."""
        lines = []
        for role in ("server", "reader", "spare", "parent"):
            for how in ("SIGKILL", "SIGABRT", "SIGSEGV", "SIGSTOP"):
                those = [d for d in self.deaths if (d.role, d.signal) == (role, how)]
                lines.append({"role": role, "signal": how, **_line(those)})
        return [*lines, {"role": "all", "signal": "all", **_line(self.deaths)}]

    def rows(self) -> list[Row]:
        """As other benchmarks: until served again, beside an instance's start."""
        start_ms = max((last["start_s"] for last in self.lasts if last), default=0.0) * 1e3
        rows = []
        for name, stopped in (("killed", False), ("stopped, and found", True)):
            for state, whole in (("everybody is there", True), ("others still start", False)):
                served = [
                    d.served_s * 1e3
                    for d in self.deaths
                    if d.served_s is not None
                    and (d.signal == "SIGSTOP", d.whole) == (stopped, whole)
                ]
                for percent in (50, 99) if served else ():
                    case = f"one is {name}, {state}: p{percent} until served, beside a start"
                    rows.append(Row("deaths", case, _percentile(served, percent), start_ms, "ms"))
        return rows

    def document(self) -> dict[str, Any]:
        """As in the machine-readable output."""
        return {
            "machine": machine(),
            "rows": [row.document() for row in self.rows()],
            "ok": self.ok,
            "deaths": {
                "seed": self.seed,
                "count": len(self.deaths),
                "seconds": round(self.seconds, 1),
                "wrong": self.wrong,
                "requests": self.outcomes,
                "table": self.table(),
                "longest_hook_ms": self.longest_ms(),
                "hooks": sum(last["hooks"] for last in self.lasts if last),
            },
        }

    def print(self, console: Console) -> None:
        """For people."""
        table = Table(box=None, pad_edge=False)
        for heading in ("process", "signal"):
            table.add_column(heading)
        for heading in ("deaths", "unnoticed", "some fell back", "not served", "p50", "p99", "max"):
            table.add_column(heading, justify="right")
        for line in self.table():
            times = [_ms(line[name]) for name in ("p50_ms", "p99_ms", "max_ms")]
            counts = [str(line[n]) for n in ("deaths", "unnoticed", "fell_back", "not_served")]
            table.add_row(line["role"], line["signal"], *counts, *times)
        console.print(table)
        for row in self.rows():
            console.print(f"{row.case}: {row.ours:.0f} ms, {row.baseline:.0f} ms", markup=False)
        said = ", ".join(f"{number} {what}" for what, number in sorted(self.outcomes.items()))
        console.print(f"requests: {said}; every encoding that landed was compared", markup=False)
        took = self.longest_ms()
        console.print(
            f"longest hook: {took['wall']} ms, of which it computed {took['cpu']} ms at most; "
            f"one that starts a parent: {took['start_wall']} ms, {took['start_cpu']} ms",
            markup=False,
        )
        for text in self.wrong or ["nothing is wrong, and nothing is left"]:
            console.print(text, markup=False)


def _line(deaths: Sequence[Death]) -> dict[str, Any]:
    served = [d.served_s * 1e3 for d in deaths if d.served_s is not None]
    return {
        "deaths": len(deaths),
        "unnoticed": sum(d.served_s is not None and not d.fell_back for d in deaths),
        "fell_back": sum(d.served_s is not None and d.fell_back > 0 for d in deaths),
        "not_served": sum(d.served_s is None for d in deaths),
        "p50_ms": _percentile(served, 50),
        "p99_ms": _percentile(served, 99),
        "max_ms": max(served, default=0.0),
    }


def _percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return max(values, default=0.0)
    return percentile(values, percent)


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value else ""
