# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol trace``: check recorded traces, and check that the check can fail."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ec_protocol.errors import ECError
from ec_verify.console import console
from ec_verify.models.runner import TlcRunner
from ec_verify.models.terminable import terminable
from ec_verify.traces.check import Report, as_json, check, coverage, mutants_as_json
from ec_verify.traces.coverage import Coverage
from ec_verify.traces.grouping import by_run
from ec_verify.traces.load import trace_files

app = typer.Typer(
    name="trace",
    help="Check recorded traces against the TLA+ specification.",
    no_args_is_help=True,
)


_Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE…",
        help="Trace files (.ndjson, .ndjson.gz), each a run of its own; of a folder all traces "
        "are the processes of one run.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="JSON alone on standard output.")]


@app.command("check")
def check_command(
    files: _Files,
    as_json_: _Json = False,
    group: Annotated[
        bool,
        typer.Option(
            "--group", help="Take all files together, and find out which belong to one run."
        ),
    ] = False,
) -> None:
    """Replay traces: each record must be an action that the specification allows.

    Exit status 0 only if every trace is accepted. Says which actions, and which edges of
    the lifecycles, the accepted traces show together.
    """
    reports = _run(files, as_json_, group=group)
    ok = all(report.accepted for report in reports)
    if as_json_:
        shown = coverage(reports).as_json()
        _echo(ok, [as_json(report) for report in reports], coverage=shown)
    else:
        out = console()
        out.print(_table(reports), soft_wrap=False)
        _cover(out, coverage(reports))
        _explain(out, reports)
    if not ok:
        raise typer.Exit(1)


@app.command("mutate")
def mutate_command(
    files: _Files,
    count: Annotated[
        int, typer.Option(min=1, help="Mutants of each trace that must be rejected.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Which mutants; the same seed, the same ones.")] = 0,
    as_json_: _Json = False,
) -> None:
    """Make wrong copies of traces and have them rejected.

    Exit status 0 only if every trace is accepted and no mutant of one survives: each
    is rejected, or tells by a rule something else that is allowed.
    """
    reports = _run(files, as_json_, wanted=count, seed=seed)
    ok = all(_teeth(report, count) for report in reports)
    if as_json_:
        _echo(ok, [mutants_as_json(report) for report in reports], seed=seed)
    else:
        out = console()
        out.print(_mutants_table(reports), soft_wrap=False)
        _explain(out, reports)
        for report in reports:
            for mutant, rule in report.equivalent_mutants:
                out.print(f"  [dim]{escape(report.name)}: {escape(mutant.what)}: {rule}[/dim]")
            for mutant in report.survivors:
                out.print(f"[red]survived:[/red] {escape(report.name)}: {escape(mutant.what)}")
            if report.accepted and not report.survivors and report.rejected_mutants < count:
                out.print(
                    f"[red]too few:[/red] {escape(report.name)}: {report.rejected_mutants} mutants "
                    f"rejected, {count} wanted: record a longer trace, or ask for fewer"
                )
    if not ok:
        raise typer.Exit(1)


def _teeth(report: Report, count: int) -> bool:
    return report.accepted and not report.survivors and report.rejected_mutants >= count


def _run(
    files: Sequence[Path], as_json_: bool, group: bool = False, **options: Any
) -> list[Report]:
    err = console(stderr=True)
    try:
        runs: Sequence[Path | Sequence[Path]] = files
        if group:
            runs = by_run([file for path in files for file in trace_files(path)])
        with _progress(err, len(runs)) as tell, terminable():
            return check(runs, TlcRunner(), on_report=tell, **options)
    except KeyboardInterrupt:
        err.print("[red]error:[/red] interrupted; TLC was killed")
        raise typer.Exit(130) from None
    except ECError as exc:
        if as_json_:
            _echo(False, [])
        err.print(f"[red]error:[/red] {escape(str(exc))}")
        raise typer.Exit(1) from exc


def _echo(ok: bool, traces: list[dict[str, Any]], **more: Any) -> None:
    typer.echo(json.dumps({"ok": ok, "traces": traces, **more}, indent=2))


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Report], None]]:
    """A live line on a terminal; otherwise a line per trace."""
    done = 0
    with contextlib.ExitStack() as stack:
        live: Progress | None = None
        if console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            live = stack.enter_context(Progress(*columns, console=console, transient=True))
            task = live.add_task(f"0 of {total} traces")

        def tell(report: Report) -> None:
            nonlocal done
            done += 1
            if live is not None:
                live.update(task, description=f"{done} of {total} traces")
            else:
                mark = "ok  " if report.accepted else "FAIL"
                console.print(f"{mark} {done:>2}/{total} {escape(report.name)}")

        yield tell


def _table(reports: Sequence[Report]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("trace", overflow="fold")
    table.add_column("processes", justify="right")
    table.add_column("records", justify="right")
    table.add_column("actions", justify="right")
    table.add_column("result", overflow="fold")
    for report in reports:
        at = report.rejection.number if report.rejection else None
        where = f" at record {at}" if at else ""
        result = "[green]accepted[/green]" if report.accepted else f"[red]rejected[/red]{where}"
        table.add_row(
            escape(report.name),
            str(report.processes or ""),
            f"{report.records:,}" if report.records else "",
            str(len(report.actions) or ""),
            result,
        )
    good = sum(report.accepted for report in reports)
    table.caption = f"{good} of {len(reports)} traces are accepted"
    return table


def _mutants_table(reports: Sequence[Report]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("trace", overflow="fold")
    for name in ("records", "mutants", "rejected", "equivalent", "survived"):
        table.add_column(name, justify="right")
    for report in reports:
        left = len(report.survivors)
        table.add_row(
            escape(report.name),
            f"{report.records:,}",
            str(len(report.mutants)),
            str(report.rejected_mutants),
            str(len(report.equivalent_mutants)),
            f"[red]{left}[/red]" if left else "0",
        )
    made = sum(len(report.mutants) for report in reports)
    rejected = sum(report.rejected_mutants for report in reports)
    same = sum(len(report.equivalent_mutants) for report in reports)
    table.caption = f"{rejected} of {made} mutants are rejected, {same} tell what is allowed too"
    return table


def _cover(console: Console, shown: Coverage) -> None:
    """What the traces show, and what none of them does."""
    for what, counts, missing in (
        ("actions", shown.actions, shown.missing_actions),
        ("edges of the lifecycles", shown.edges, shown.missing_edges),
    ):
        seen = len(counts) - len(missing)
        console.print(f"  {seen} of {len(counts)} {what} are shown", end="")
        console.print(f"; [dim]not: {escape(', '.join(missing))}[/dim]" if missing else "")


def _explain(console: Console, reports: Sequence[Report]) -> None:
    for report in reports:
        rejection = report.rejection
        if rejection is None:
            continue
        where = escape(
            f"{rejection.file}, line {rejection.line}" if rejection.file else report.name
        )
        what = f": {rejection.action} of {rejection.process}" if rejection.action else ""
        console.print(f"\n[bold]{where}[/bold]{escape(what)}")
        console.print(f"  [red]does not hold:[/red] {escape(rejection.conjunct)}")
        if rejection.expected or rejection.logged:
            console.print(f"  expected: {escape(rejection.expected)}")
            console.print(f"  recorded: {escape(rejection.logged)}")
        console.print(f"  next: {escape(rejection.advice)}")
