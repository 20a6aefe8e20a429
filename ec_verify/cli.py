# SPDX-License-Identifier: Apache-2.0
"""The ``ec-protocol`` command.

Tables and diagrams for people go to the terminal; with ``--json`` standard
output carries the JSON object alone. Exit status: 0 if all is as it should be,
1 if not, 2 for a command line that makes no sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ec_protocol.errors import ECError
from ec_protocol.tables.files import checkout_dir, spec_dir, tla_dir
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_verify.console import AsJson, console, echo_json, fail, table
from ec_verify.estimate import Estimate
from ec_verify.kit.command import app as conformance
from ec_verify.models.check import Report, pins, run_models, steps
from ec_verify.models.generate import diagrams, lifecycle_tla, tables, timing_tla
from ec_verify.models.graph import parse_fired
from ec_verify.models.manifest import (
    Manifest,
    ManifestError,
    Model,
    load_manifest,
    problems,
    with_seed,
    write_pins,
)
from ec_verify.models.output import INITIAL
from ec_verify.models.speed import of_speed, recorded
from ec_verify.models.terminable import terminable
from ec_verify.models.values import change
from ec_verify.mutants.command import mutants
from ec_verify.nearest import did_you_mean
from ec_verify.pictures.command import explain
from ec_verify.scenarios.command import app as scenario
from ec_verify.traces.command import app as trace

app = typer.Typer(
    name="ec-protocol",
    help="The encoder-cache protocol: its tables, its TLA+ models, its conformance tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class TierChoice(StrEnum):
    """Which models run without being named: of pull requests all, or those by speed."""

    pr = "pr"
    full = "full"
    quick = "quick"
    long = "long"


def _checkout() -> Path:
    root = checkout_dir()
    if root is None:
        fail("this needs a source checkout; an installed package is not to be changed", 2)
    return root


# ------------------------------------------------------------------- generate
@app.command()
def generate(
    check: Annotated[bool, typer.Option("--check", help="Only say whether it is current.")] = False,
) -> None:
    """Write tla/common/Lifecycle.tla and tla/common/Timing.tla from the tables in spec/."""
    for module, toml in ((lifecycle_tla, "lifecycle.toml"), (timing_tla, "timing.toml")):
        name = f"tla/{module.FOLDER}/{module.FILE_NAME}"
        if not check:
            _checkout()
            console().print(f"wrote {escape(str(module.write()))}")
        elif not module.is_current():
            fail(f"{name} is not what spec/{toml} says: run ec-protocol generate")
        else:
            console().print(f"{name} is current")


# -------------------------------------------------------------------- diagram
@app.command()
def diagram(
    lifecycle: Annotated[str | None, typer.Argument(help="One lifecycle; all if left out.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Fill docs/ and tla/README.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail if those are stale.")] = False,
) -> None:
    """Print state diagrams (mermaid), or fill the documents' marked blocks.

    Those of tla/README.md are tables of the models and their pins.
    """
    lifecycles = load_lifecycles()
    if lifecycle is not None and lifecycle not in lifecycles:
        fail(f"no lifecycle is called {lifecycle!r}; {did_you_mean(lifecycle, lifecycles)}", 2)
    if (write or check) and (lifecycle is not None or (write and check)):
        fail("--write and --check are for all documents, and one at a time", 2)
    try:
        if write:
            root = _checkout()
            changed = diagrams.write(root)
            if tables.write(root / "tla"):
                changed.append(root / "tla" / tables.DOCUMENT)
            for path in changed:
                console().print(f"wrote {escape(str(path))}")
        elif check:
            root = _checkout()
            old = diagrams.stale(root)
            if tables.stale(root / "tla"):
                old.append(root / "tla" / tables.DOCUMENT)
            if old:
                names = ", ".join(str(path) for path in old)
                fail(
                    f"not what spec/lifecycle.toml and the models of tla/ say: {names}: "
                    "run ec-protocol diagram --write"
                )
            console().print("all diagrams are current")
        else:
            shown = [lifecycle] if lifecycle else list(lifecycles)
            typer.echo("\n".join(diagrams.mermaid(lifecycles[name]) for name in shown), nl=False)
    except diagrams.DiagramError as exc:
        fail(str(exc))


# ---------------------------------------------------------------------- check
@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Models; else all of the tier.")
    ] = None,
    tier: Annotated[TierChoice, typer.Option(help="Which models run if none is named.")] = (
        TierChoice.pr
    ),
    as_json: AsJson = False,
    jobs: Annotated[int, typer.Option(min=1, help="TLC processes at once, one worker each.")] = min(
        2, os.cpu_count() or 1
    ),
    show: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this model and print its counterexample."),
    ] = None,
    cfg: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only print the config of this model, for the Toolbox."),
    ] = None,
    update_manifest: Annotated[
        bool, typer.Option("--update-manifest", help="Write changed state counts as new pins.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="For random walks, instead of the manifest's; it is printed."),
    ] = None,
) -> None:
    """Run the TLA+ models and compare every result with what it must be."""
    err = console(stderr=True)
    asked = [*(names or ()), *(show or ())]
    if cfg is not None and asked:
        fail("--cfg prints one config and runs nothing: name no other model", 2)
    try:
        manifest = load_manifest(tla_dir())
    except (ManifestError, FileNotFoundError) as exc:
        _stop(str(exc), as_json)
    try:
        models = manifest.select([cfg] if cfg else asked, "full" if tier == "full" else "pr")
        if not asked and tier in ("quick", "long"):
            models = of_speed(models, quick=tier == "quick")
        models = with_seed(models, seed)
    except ManifestError as exc:
        fail(str(exc), 2)
    if cfg:
        typer.echo(f"\\* {cfg}: a config for {models[0].module}\n{models[0].config_text}", nl=False)
        return
    sound = _print_problems(err, manifest, models, everything=not asked)
    try:
        with _Live(err, models, jobs) as live, terminable():
            reports = run_models(models, manifest.folder, jobs=jobs, watcher=live)
    except KeyboardInterrupt:
        fail("interrupted; every TLC process was killed", 130)
    except ECError as exc:
        _stop(str(exc), as_json)
    if update_manifest and (new := {**pins(reports), **steps(reports)}):
        try:
            write_pins(manifest, new)
        except ManifestError as exc:
            fail(str(exc))
        if pins(reports):
            err.print(f"new pins for {escape(', '.join(pins(reports)))}: run the check again")
    ok = sound and all(report.ok for report in reports)
    if as_json:
        echo_json({"ok": ok, "models": [r.as_json() for r in reports]})
    else:
        console().print(_table(reports), soft_wrap=False)
    out = err if as_json else console()
    for report in reports:
        if not report.ok or report.model.name in (show or ()):
            _explain(out, report)
    if not ok:
        raise typer.Exit(1)


def _stop(message: str, as_json: bool) -> NoReturn:
    """End without a single result; a reader of the JSON still gets its object."""
    if as_json:
        echo_json({"ok": False, "models": []})
    fail(message)


def _print_problems(
    err: Console, manifest: Manifest, models: Sequence[Model], *, everything: bool
) -> bool:
    """Print where manifest and files disagree.

    Returns:
        False if that concerns this run: all of it does unless models were named,
        then only what is said of those.
    """
    sound = True
    chosen = {model.name for model in models}
    for name, sentences in problems(manifest, spec_dir() / "PROTOCOL.md").items():
        concerns = everything or name in chosen
        sound = sound and not concerns
        for sentence in sentences:
            color = "red" if concerns else "yellow"
            err.print(
                f"[{color}]manifest:[/{color}] {escape(f'{name}: ' if name else '')}"
                f"{escape(sentence)}"
            )
    return sound


def _table(reports: Sequence[Report]) -> Table:
    shown = table(
        "model", "mode", "expected", "result", numbers=("distinct states", "depth", "seconds")
    )
    shown.columns[1].no_wrap, shown.columns[1].min_width = True, len("exhaustive")
    for report in reports:
        output = report.output
        color = "green" if report.ok else "red"
        shown.add_row(
            escape(report.model.name),
            report.model.mode,
            escape(report.model.expected),
            f"[{color}]{escape(report.result)}[/{color}]",
            f"{output.distinct:,}" if output and output.distinct else "",
            str(output.depth) if output and output.depth else "",
            f"{report.seconds:.1f}",
        )
    good = sum(report.ok for report in reports)
    shown.caption = f"{good} of {len(reports)} models are as expected"
    return shown


def _explain(out: Console, report: Report) -> None:
    """Print what is wrong with a result, and its counterexample."""
    mark = "[green]as expected[/green]" if report.ok else "[red]not as expected[/red]"
    out.print(f"\n[bold]{escape(report.model.name)}[/bold]: {escape(report.result)} ({mark})")
    if report.model.safeguard:
        out.print(f"  removed: {escape(report.model.safeguard)}")
    for problem in report.problems:
        out.print("  " + escape(problem.replace("\n", "\n  ")))
    before: dict[str, str] = {}
    for number, step in enumerate(report.trace, 1):
        fired = ""
        if step.action != INITIAL and "ev" in step.state:
            fired = ", ".join(str(item) for item in sorted(_fired(step.state["ev"])))
        out.print(
            f"  [dim]{number:>3}[/dim] [bold]{escape(step.action)}[/bold]"
            + (f"  [cyan]{escape(fired)}[/cyan]" if fired else "")
        )
        for name, value in step.state.items():
            # Events were printed beside the action already.
            if before.get(name) != value and not (name == "ev" and (fired or value == "{}")):
                for line in change(name, before.get(name), value):
                    out.print(f"        {escape(_indent(line))}")
        before.update(step.state)
    if report.output and report.output.loop:
        out.print(f"      then it {report.output.loop}")


def _fired(text: str) -> Sequence[Any]:
    try:
        return list(parse_fired(text))
    except ECError:
        return []


def _indent(text: str) -> str:
    return text.replace("\n", "\n            ")


class _Live:
    """Shows running models: a live display on a terminal, else a line per result."""

    def __init__(self, console: Console, models: Sequence[Model], jobs: int) -> None:
        self._console = console
        self._total = len(models)
        self._estimate = Estimate({model.name: recorded(model) for model in models}, jobs)
        self._done = 0
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TextColumn("{task.fields[states]:>12,} states"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> _Live:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def started(self, model: Model) -> None:
        if self._progress:
            self._tasks[model.name] = self._progress.add_task(escape(model.name), states=0)

    def progress(self, model: Model, distinct: int) -> None:
        if self._progress:
            self._progress.update(self._tasks[model.name], states=distinct)

    def finished(self, report: Report) -> None:
        self._done += 1
        self._estimate.finished(report.model.name, report.seconds)
        if self._progress:
            self._progress.remove_task(self._tasks.pop(report.model.name))
        mark = "[green]ok[/green]  " if report.ok else "[red]FAIL[/red]"
        self._console.print(
            f"{mark} {self._done:>2}/{self._total} {escape(report.model.name)}: "
            f"{escape(report.result)} in {report.seconds:.1f} s{_walks(report.model)}"
            f"{self._estimate}"
        )


def _walks(model: Model) -> str:
    """What one needs to take the same random walks again."""
    if model.simulate is None:
        return ""
    walks = model.simulate
    return f" ({walks.traces} walks of up to {walks.depth} steps, --seed {walks.seed})"


app.command()(explain)
app.command()(mutants)
app.add_typer(scenario)
app.add_typer(conformance)
app.add_typer(trace)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="ec-protocol")


if __name__ == "__main__":
    main()
