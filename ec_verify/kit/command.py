# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol conformance``: list the cases, run them, judge a history again.

The kit itself is imported when a command runs: it needs ``msgspec``, which the other
commands of ``ec-protocol`` do without.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ec_protocol.errors import ConfigError, ECError
from ec_verify.console import AsJson, console, echo_json, errors, progress

app = typer.Typer(
    name="conformance",
    help="Play the conformance cases against an implementation.",
    no_args_is_help=True,
)

_Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Case ids, clauses (EC-5.3), tags (F1) or areas; all if left out."),
]
_Adapter = Annotated[
    str | None, typer.Option("--adapter", help="ours, node, vllm, or module:factory.")
]
_AdapterCmd = Annotated[
    str | None, typer.Option("--adapter-cmd", help="A command that speaks JSON lines.")
]
_Scenarios = Annotated[
    Path | None, typer.Option("--scenarios", help="Also the *.json files of this folder.")
]


@contextmanager
def _kit() -> Iterator[None]:
    """The kit is there, and a command line that makes no sense ends with one line."""
    with errors():
        if importlib.util.find_spec("msgspec") is None:
            raise ECError("the kit needs msgspec: pip install 'ec-connector[conformance]'")
        yield


@contextmanager
def quiet_implementation() -> Iterator[None]:
    """What an implementation logs is the kit's doing, and would drown the verdicts."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@app.command("list")
def list_cases(ids: _Ids = None, scenarios: _Scenarios = None, as_json: AsJson = False) -> None:
    """List cases with their clause, level and area."""
    with _kit():
        from ec_verify.kit import tables
        from ec_verify.kit.language.schedule import all_cases, select

        cases = select(all_cases(scenarios), ids or [])
        if not as_json:
            tables.print_cases(cases)
            return
        fields = ("id", "area", "level", "clause", "title", "requirement", "tags")
        rows = [{field: getattr(case, field) for field in fields} for case in cases]
        echo_json({"cases": rows}, indent=None)


@app.command("run")
def run(
    ids: _Ids = None,
    adapter: _Adapter = None,
    adapter_cmd: _AdapterCmd = None,
    scenarios: _Scenarios = None,
    as_json: AsJson = False,
    histories: Annotated[
        Path | None,
        typer.Option("--histories", help="Folder for the histories of what is not OK."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="PATH", help="Also write a JUnit file.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Also write one page with diagrams."),
    ] = None,
) -> None:
    """Run cases against an implementation; exit status 0 only if no case FAILED."""
    with _kit():
        from ec_verify.kit import tables
        from ec_verify.kit.language.schedule import all_cases, select
        from ec_verify.kit.runner import Verdict, connector, report, run_cases, save_history

        cases = select(all_cases(scenarios), ids or [])
        name, connect = connector(adapter, adapter_cmd)
        results = []
        out = console(stderr=as_json)
        with quiet_implementation(), progress(out, "conformance", len(cases)) as step:
            for result in run_cases(cases, connect):
                results.append(result)
                step(result.case.id)
                if result.verdict in (Verdict.FAILED, Verdict.NON_STRICT):
                    tables.print_result(out, result)
                    if histories is not None:
                        save_history(result, name, histories / f"{result.file_name}.json")
        if junit is not None or html is not None:
            from ec_verify.kit import reports

            if junit is not None:
                reports.write_junit(name, results, junit)
            if html is not None:
                from ec_verify.pictures.from_history import drawing_of_result

                reports.write_html(name, results, html, drawing_of_result)
        document = report(name, results)
        if as_json:
            echo_json(document, indent=None)
        else:
            out.print(tables.summary(results))
            totals = ", ".join(f"{v} {k}" for k, v in document["totals"].items())
            spent = sum(result.seconds for result in results)
            out.print(f"{escape(name)}: {len(results)} cases in {spent:.1f} s: {totals}")
    if not document["ok"]:
        raise typer.Exit(1)


@app.command("faults")
def faults(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FAULT", help="Faults; all if left out.")
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option("--faults", metavar="MODULE:MAPPING", help="Seeded faults; ours if left out."),
    ] = None,
    sound: Annotated[
        str,
        typer.Option("--sound", metavar="ADAPTER", help="The implementation without a fault."),
    ] = "ours",
    every: Annotated[
        bool, typer.Option("--every", help="Play every case, not only until one notices.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try the kit: play the cases against seeded faults; exit status 0 if all are caught."""
    with _kit():
        from ec_verify.kit import faults as kit
        from ec_verify.kit import tables
        from ec_verify.kit.language.schedule import all_cases, select
        from ec_verify.kit.runner import load_factory

        chosen = kit.choose(kit.load_faults(mapping or kit.DEFAULT), names or [])
        factory = load_factory(sound)
        hunts = []
        out = console(stderr=as_json)
        with quiet_implementation(), progress(out, "faults", len(chosen)) as step:
            for one in kit.hunt(chosen, select(all_cases(None), []), factory, every=every):
                hunts.append(one)
                step(one.name)
        document = kit.report(hunts)
        if as_json:
            echo_json(document, indent=None)
        else:
            out.print(tables.faults(hunts, every=every))
            totals = document["totals"]
            out.print(
                f"{totals['caught']} of {totals['faults']} faults are caught by cases that "
                f"{escape(sound)} passes, in {sum(one.seconds for one in hunts):.1f} s"
            )
    if not document["ok"]:
        raise typer.Exit(1)


@app.command("compare")
def compare(
    left: Annotated[Path, typer.Argument(help="A report of run --json.")],
    right: Annotated[Path, typer.Argument(help="Another, which the findings are about.")],
    findings: Annotated[
        Path | None, typer.Option("--findings", help="TOML: what is known about its failures.")
    ] = None,
    shipped: Annotated[
        Path | None, typer.Option("--shipped", help="A run of it with its own timers.")
    ] = None,
    names: Annotated[
        tuple[str, str] | None, typer.Option("--names", help="What to call the two.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="A section of a document.")] = False,
    write: Annotated[
        Path | None, typer.Option("--write", help="Fill the section into this document.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --write: only see whether it is up to date.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs; exit status 0 if every failure of the second is explained."""
    with _kit():
        from ec_verify.kit import compare as kit
        from ec_verify.kit import tables

        reports = kit.read_report(left), kit.read_report(right)
        result = kit.compare(
            *reports,
            None if findings is None else kit.read_findings(findings),
            None if shipped is None else kit.read_report(shipped),
        )
        names = names or (str(reports[0]["adapter"]), str(reports[1]["adapter"]))
        current = write is None or kit.fill(write, kit.markdown(result, names), check=check)
        if as_json:
            echo_json(result.as_json(), indent=1)
        elif markdown:
            sys.stdout.write(kit.markdown(result, names))
        else:
            tables.print_comparison(result, names)
            if not current:
                console().print(
                    f"[red]{escape(str(write))} is not up to date:[/red] run it without --check"
                )
    if not (result.ok and current):
        raise typer.Exit(1)


@app.command("recheck")
def recheck(
    files: Annotated[list[Path], typer.Argument(help="Histories that a run has saved.")],
    as_json: AsJson = False,
) -> None:
    """Judge saved histories again, without the implementation."""
    with _kit():
        from ec_verify.kit import tables
        from ec_verify.kit.runner import Verdict, report
        from ec_verify.kit.runner import recheck as judge_again
        from ec_verify.kit.world.links import HistoryError

        results = []
        for path in files:
            try:
                results.append(judge_again(path))
            except HistoryError as exc:
                raise HistoryError(f"{path}: {exc}") from exc
        document = report("histories", results)
        if as_json:
            echo_json(document, indent=None)
        for result in () if as_json else results:
            if result.verdict is Verdict.OK:
                console().print(f"[green]OK[/green] {escape(result.case.id)}")
            else:
                tables.print_result(console(), result)
    if not document["ok"]:
        raise typer.Exit(1)


@app.command("walk")
def walk(
    adapter: _Adapter = None,
    adapter_cmd: _AdapterCmd = None,
    walks: Annotated[int, typer.Option(min=1, help="How many walks.")] = 200,
    steps: Annotated[int, typer.Option(min=1, help="Random steps of each.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the first walk.")] = 0,
    every: Annotated[
        bool, typer.Option("--every", help="Take all walks, and tell the ways to fail apart.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", help="Folder for failing schedules, as cases.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play random schedules; exit status 0 if no invariant breaks and nothing is left."""
    with _kit():
        from ec_verify.kit import tables
        from ec_verify.kit import walk_failures as kit
        from ec_verify.kit.adapter import Unsupported
        from ec_verify.kit.runner import connector

        name, connect = connector(adapter, adapter_cmd)
        taken: list[int] = []
        with quiet_implementation(), progress(console(stderr=as_json), "walks", walks) as step:

            def done(number: int) -> None:
                taken.append(number)
                step(f"seed {number}")

            seeds = range(seed, seed + walks)
            try:
                found = kit.find_failures(seeds, steps, connect, every=every, done=done)
            except Unsupported as exc:
                raise ConfigError(f"{name} cannot walk: not supported: {exc}") from exc
        if save is not None:
            for one in found:
                kit.save(one.result, name, save)
        if as_json:
            echo_json(kit.document(name, seed, len(taken), steps, found), indent=None)
        else:
            tables.print_walks(name, seed, len(taken), steps, found)
    if found:
        raise typer.Exit(1)
