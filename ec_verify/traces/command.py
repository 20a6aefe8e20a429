# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol trace``: check recorded traces, and check that the check can fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ec_verify.console import AsJson, console, echo_json, errors, progress, table
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


@app.command("check")
def check_command(
    files: _Files,
    as_json_: AsJson = False,
    group: Annotated[
        bool,
        typer.Option(
            "--group", help="Take all files together, and find out which belong to one run."
        ),
    ] = False,
) -> None:
    """Replay traces: each record must be an action that the specification allows.

    Exit status 0 only if every trace is accepted. Then says which actions, and which edges
    of the lifecycles, the traces show together.
    """
    reports = _run(files, as_json_, group=group)
    ok = all(report.accepted for report in reports)
    if as_json_:
        shown = coverage(reports).as_json()
        traces = [as_json(report) for report in reports]
        echo_json({"ok": ok, "traces": traces, "coverage": shown})
    else:
        out = console()
        out.print(_table(reports), soft_wrap=False)
        if ok:
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
    as_json_: AsJson = False,
) -> None:
    """Make wrong copies of traces and have them rejected.

    Exit status 0 only if every trace is accepted and no mutant of one survives: each
    is rejected, or tells by a rule something else that is allowed.
    """
    reports = _run(files, as_json_, wanted=count, seed=seed)
    ok = all(_teeth(report, count) for report in reports)
    if as_json_:
        traces = [mutants_as_json(report) for report in reports]
        echo_json({"ok": ok, "traces": traces, "seed": seed})
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
    nothing = {"ok": False, "traces": []} if as_json_ else None
    done = 0

    def tell(report: Report) -> None:
        nonlocal done
        done += 1
        step(report.name)
        if not err.is_terminal:
            mark = "ok  " if report.accepted else "FAIL"
            err.print(f"{mark} {done:>2}/{len(runs)} {escape(report.name)}")

    with errors(1, document=nothing, interrupted="interrupted; TLC was killed"):
        runs: Sequence[Path | Sequence[Path]] = files
        if group:
            runs = by_run([file for path in files for file in trace_files(path)])
        with progress(err, "traces", len(runs)) as step, terminable():
            return check(runs, TlcRunner(), on_report=tell, **options)


def _table(reports: Sequence[Report]) -> Table:
    shown = table("trace", numbers=("processes", "records", "actions"))
    shown.add_column("result", overflow="fold")
    for report in reports:
        at = report.rejection.number if report.rejection else None
        where = f" at record {at}" if at else ""
        result = "[green]accepted[/green]" if report.accepted else f"[red]rejected[/red]{where}"
        shown.add_row(
            escape(report.name),
            str(report.processes or ""),
            f"{report.records:,}" if report.records else "",
            str(len(report.actions) or ""),
            result,
        )
    good = sum(report.accepted for report in reports)
    shown.caption = f"{good} of {len(reports)} traces are accepted"
    return shown


def _mutants_table(reports: Sequence[Report]) -> Table:
    shown = table("trace", numbers=("records", "mutants", "rejected", "equivalent", "survived"))
    for report in reports:
        left = len(report.survivors)
        shown.add_row(
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
    shown.caption = f"{rejected} of {made} mutants are rejected, {same} tell what is allowed too"
    return shown


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
