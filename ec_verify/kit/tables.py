# SPDX-License-Identifier: Apache-2.0
"""What the ``conformance`` commands print for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ec_verify.console import console
from ec_verify.kit.compare import Comparison
from ec_verify.kit.faults import Hunt
from ec_verify.kit.language.schedule import AREAS, Case
from ec_verify.kit.runner import Result, Verdict
from ec_verify.kit.walk_failures import Found

_STYLE = {
    Verdict.OK: "green",
    Verdict.FAILED: "bold red",
    Verdict.NON_STRICT: "yellow",
    Verdict.UNSUPPORTED: "dim",
}


def print_cases(cases: Sequence[Case]) -> None:
    """Cases with their clause, level and area."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("id", "level", "area", "title"):
        table.add_column(name, overflow="fold")
    for case in cases:
        tags = f" ({', '.join(case.tags)})" if case.tags else ""
        table.add_row(case.id, case.level, case.area, escape(case.title + tags))
    console().print(table)
    areas = Counter(case.area for case in cases)
    counts = ", ".join(f"{area} {areas[area]}" for area in AREAS if areas[area])
    console().print(f"{len(cases)} cases: {counts}")


def print_result(out: Console, result: Result) -> None:
    """A case that is not OK, with the clause that it is about."""
    case = result.case
    out.print(
        f"[{_STYLE[result.verdict]}]{result.verdict}[/] {escape(case.id)} {escape(case.title)}"
    )
    if result.clause:
        out.print(f"    {result.clause}: {escape(result.requirement)}", style="dim")
    out.print(f"    {escape(result.detail)}")


def summary(results: Sequence[Result]) -> Table:
    """Verdicts per area."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("area")
    for verdict in Verdict:
        table.add_column(str(verdict), justify="right", style=_STYLE[verdict])
    for area in AREAS:
        counts = Counter(r.verdict for r in results if r.case.area == area)
        if counts:
            table.add_row(area, *(str(counts[verdict] or "") for verdict in Verdict))
    return table


def faults(hunts: Sequence[Hunt], *, every: bool) -> Table:
    """Who was caught by what."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("fault", "clause", "kind", "caught by", "cases noticing" if every else "noticed"):
        table.add_column(name, overflow="fold")
    for one in hunts:
        about = (one.name, one.fault.clause, one.fault.tag)
        if not one.caught:
            table.add_row(*about, "[bold red]nobody[/]", "")
            continue
        first = one.results[0]
        noticed = first.invariant or f"{first.verdict}, {first.clause}"
        table.add_row(*about, first.case.id, str(len(one.results)) if every else noticed)
    return table


def print_comparison(result: Comparison, names: tuple[str, str]) -> None:
    """Where two runs differ, and what of that nobody has explained."""
    out = Console(highlight=False)
    table = Table("case", *names, "finding")
    for id_, left, right, finding in result.rows():
        if left != right:
            table.add_row(id_, left, right, finding)
    out.print(table)
    for case in result.unexplained:
        out.print(f"[red]not explained:[/red] {escape(case)}")
    for case in result.unexplained_shipped:
        out.print(f"[red]not explained, with shipped timers:[/red] {escape(case)}")


def print_walks(name: str, seed: int, taken: int, length: int, failures: Sequence[Found]) -> None:
    """What became of random walks: each way to fail, with the shortest schedule found."""
    out = console()
    if not failures:
        out.print(
            f"[green]OK[/green] {escape(name)}: {taken} walks of {length} steps, seeds {seed} to "
            f"{seed + taken - 1}, broke no invariant and left nothing behind"
        )
    for one in failures:
        result = one.result
        out.print(f"[bold red]FAILED[/] {escape(result.case.id)}, {one.walks} of {taken} walks")
        out.print(f"    {result.clause}: {escape(result.requirement)}", style="dim")
        out.print(f"    {escape(result.detail)}")
        for step in result.case.steps:
            out.print(f"    {escape(json.dumps(step))}")
