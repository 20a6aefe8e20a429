# SPDX-License-Identifier: Apache-2.0
"""What the bench ``deaths`` found: figures, JSON document, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ec_connector.bench.ack import percentile
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
    """

    role: Role
    signal: str
    served_s: float | None
    fell_back: int


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

    def longest(self, what: str) -> tuple[float, str]:
        """The longest hook of either engine: seconds of ``wall`` or ``cpu`` time, and its name."""
        found = [last["longest"][what] for last in self.lasts if last]
        return max(found, default=(0.0, ""))

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
        stops = [d for d in self.deaths if d.signal == "SIGSTOP"]
        others = [d for d in self.deaths if d.signal != "SIGSTOP"]
        rows = []
        for name, those in (("killed", others), ("stopped, and found", stops)):
            served = [d.served_s * 1e3 for d in those if d.served_s is not None]
            for percent in (50, 99):
                if served:
                    case = f"one is {name}: p{percent} until served again, beside a start"
                    value = _percentile(served, percent)
                    rows.append(Row("deaths", case, value, start_ms, "ms"))
        return rows

    def document(self) -> dict[str, Any]:
        """As in the machine-readable output."""
        wall, cpu = self.longest("wall"), self.longest("cpu")
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
                "longest_hook_ms": {"wall": round(wall[0] * 1e3, 2), "hook": wall[1]},
                "longest_hook_cpu_ms": {"cpu": round(cpu[0] * 1e3, 2), "hook": cpu[1]},
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
        said = ", ".join(f"{number} {what}" for what, number in sorted(self.outcomes.items()))
        console.print(f"requests: {said}; every encoding that landed was compared", markup=False)
        for what in ("wall", "cpu"):
            took, hook = self.longest(what)
            console.print(f"longest hook, {what} time: {took * 1e3:.2f} ms ({hook})", markup=False)
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
