# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol conformance``: list the cases, run them, judge a history again.

The kit itself is imported when a command runs: it needs ``msgspec``, which the other
commands of ``ec-protocol`` do without.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ec_protocol.errors import ECError
from ec_verify.console import console

app = typer.Typer(
    name="conformance",
    help="Play the conformance cases against an implementation.",
    no_args_is_help=True,
)

_Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Case ids, clauses (EC-5.3), tags (F1) or areas; all if left out."),
]
_Adapter = Annotated[str | None, typer.Option("--adapter", help="ours, vllm, or module:factory.")]
_AdapterCmd = Annotated[
    str | None, typer.Option("--adapter-cmd", help="A command that speaks JSON lines.")
]
_Scenarios = Annotated[
    Path | None, typer.Option("--scenarios", help="Also the *.json files of this folder.")
]
_Json = Annotated[bool, typer.Option("--json", help="JSON alone on standard output.")]


@contextmanager
def _errors() -> Iterator[None]:
    """A command line that makes no sense ends with status 2 and one line."""
    try:
        if importlib.util.find_spec("msgspec") is None:
            raise ECError("the kit needs msgspec: pip install 'ec-connector[conformance]'")
        yield
    except ECError as exc:
        console(stderr=True).print(f"[red]error:[/red] {escape(str(exc))}")
        raise typer.Exit(2) from exc


@app.command("list")
def list_cases(ids: _Ids = None, scenarios: _Scenarios = None, as_json: _Json = False) -> None:
    """List cases with their clause, level and area."""
    with _errors():
        from ec_verify.kit import terminal

        terminal.list_cases(ids or [], scenarios, as_json=as_json)


@app.command("run")
def run(
    ids: _Ids = None,
    adapter: _Adapter = None,
    adapter_cmd: _AdapterCmd = None,
    scenarios: _Scenarios = None,
    as_json: _Json = False,
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
    with _errors():
        from ec_verify.kit import terminal

        ok = terminal.run(
            ids or [],
            scenarios,
            adapter,
            adapter_cmd,
            as_json=as_json,
            histories=histories,
            junit=junit,
            html=html,
        )
    if not ok:
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
    as_json: _Json = False,
) -> None:
    """Try the kit: play the cases against seeded faults; exit status 0 if all are caught."""
    with _errors():
        from ec_verify.kit import terminal_faults

        ok = terminal_faults.run(names or [], mapping, sound, every=every, as_json=as_json)
    if not ok:
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
    as_json: _Json = False,
) -> None:
    """Compare two runs; exit status 0 if every failure of the second is explained."""
    with _errors():
        from ec_verify.kit import terminal_compare

        ok = terminal_compare.run(
            (left, right, findings, shipped),
            names,
            markdown=markdown,
            write=write,
            check=check,
            as_json=as_json,
        )
    if not ok:
        raise typer.Exit(1)


@app.command("recheck")
def recheck(
    files: Annotated[list[Path], typer.Argument(help="Histories that a run has saved.")],
    as_json: _Json = False,
) -> None:
    """Judge saved histories again, without the implementation."""
    with _errors():
        from ec_verify.kit import terminal

        ok = terminal.judge(files, as_json=as_json)
    if not ok:
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
    as_json: _Json = False,
) -> None:
    """Play random schedules; exit status 0 if no invariant breaks and nothing is left."""
    with _errors():
        from ec_verify.kit import terminal_walks

        ok = terminal_walks.run(
            adapter,
            adapter_cmd,
            seed=seed,
            walks=walks,
            length=steps,
            every=every,
            save=save,
            as_json=as_json,
        )
    if not ok:
        raise typer.Exit(1)
