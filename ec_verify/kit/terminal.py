# SPDX-License-Identifier: Apache-2.0
"""What the ``conformance`` commands do and print; ``cli`` has their options."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from ec_verify.console import console
from ec_verify.kit.language.schedule import AREAS, Case, all_cases, select
from ec_verify.kit.runner import (
    Result,
    Verdict,
    connector,
    recheck,
    report,
    run_cases,
    save_history,
)
from ec_verify.kit.world.links import HistoryError

_STYLE = {
    Verdict.OK: "green",
    Verdict.FAILED: "bold red",
    Verdict.NON_STRICT: "yellow",
    Verdict.UNSUPPORTED: "dim",
}


def list_cases(ids: list[str], scenarios: Path | None, *, as_json: bool) -> None:
    """Print the cases.

    Raises:
        CaseError: A case file is wrong, or an id names nothing.
    """
    cases: list[Case] = select(all_cases(scenarios), ids)
    if as_json:
        rows = [
            {
                "id": case.id,
                "area": case.area,
                "level": case.level,
                "clause": case.clause,
                "title": case.title,
                "requirement": case.requirement,
                "tags": case.tags,
            }
            for case in cases
        ]
        typer.echo(json.dumps({"cases": rows}))
        return
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


def run(
    ids: list[str],
    scenarios: Path | None,
    adapter: str | None,
    command: str | None,
    *,
    as_json: bool,
    histories: Path | None,
    junit: Path | None = None,
    html: Path | None = None,
) -> bool:
    """Play the cases and print the verdicts; returns whether none is FAILED.

    Raises:
        ECError: A case file, an id or an adapter is wrong.
    """
    cases = select(all_cases(scenarios), ids)
    name, connect = connector(adapter, command)
    results: list[Result] = []
    out = console(stderr=as_json)
    with quiet_implementation(), progress_bar(out) as progress:
        task = progress.add_task("conformance", total=len(cases))
        for result in run_cases(cases, connect):
            results.append(result)
            progress.update(task, advance=1, description=result.case.id)
            if result.verdict in (Verdict.FAILED, Verdict.NON_STRICT):
                _print_failure(progress.console, result)
                if histories is not None:
                    save_history(result, name, histories / f"{result.file_name}.json")
    if junit is not None or html is not None:
        from ec_verify.kit import reports

        if junit is not None:
            reports.write_junit(name, results, junit)
        if html is not None:
            reports.write_html(name, results, html)
    document = report(name, results)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        console().print(summary_table(results))
        totals = ", ".join(f"{v} {k}" for k, v in document["totals"].items())
        spent = sum(result.seconds for result in results)
        console().print(f"{escape(name)}: {len(results)} cases in {spent:.1f} s: {totals}")
    return bool(document["ok"])


def judge(files: list[Path], *, as_json: bool) -> bool:
    """Judge histories again; returns whether none is FAILED.

    Raises:
        HistoryError: A file is no history, or cannot be judged any more.
    """
    results = []
    for path in files:
        try:
            results.append(recheck(path))
        except HistoryError as exc:
            raise HistoryError(f"{path}: {exc}") from exc
    document = report("histories", results)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        for result in results:
            if result.verdict is Verdict.OK:
                console().print(f"[green]OK[/green] {escape(result.case.id)}")
            else:
                _print_failure(console(), result)
    return bool(document["ok"])


def progress_bar(out: Console) -> Progress:
    """A bar that goes away when it is done; nothing where there is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


@contextmanager
def quiet_implementation() -> Iterator[None]:
    """What an implementation logs is the kit's doing, and would drown the verdicts."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _print_failure(console: Console, result: Result) -> None:
    case = result.case
    console.print(
        f"[{_STYLE[result.verdict]}]{result.verdict}[/] {escape(case.id)} {escape(case.title)}"
    )
    if result.clause:
        console.print(f"    {result.clause}: {escape(result.requirement)}", style="dim")
    console.print(f"    {escape(result.detail)}")


def summary_table(results: list[Result]) -> Table:
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
