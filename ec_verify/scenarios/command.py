# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol scenario``: make scenario files from models, and play them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from ec_protocol.errors import ECError
from ec_protocol.tables.files import checkout_dir, tla_dir
from ec_verify.console import AsJson, echo_json, errors

app = typer.Typer(
    name="scenario",
    help="Behaviours of the models as schedules that an implementation must survive.",
    no_args_is_help=True,
)


@app.command()
def make(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models that must fail, or simulations; else all."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say which files are not what they would be.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of spec/scenarios.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="TLC processes at once.")] = 2,
) -> None:
    """Run models and write what they found as scenario files."""
    from concurrent.futures import ThreadPoolExecutor

    from ec_verify.behaviours.errors import NotExpressible, ScenarioError
    from ec_verify.models.manifest import Model, load_manifest
    from ec_verify.models.runner import TlcRunner
    from ec_verify.models.terminable import terminable
    from ec_verify.scenarios import files
    from ec_verify.scenarios import make as maker

    with errors():
        manifest = load_manifest(tla_dir())
        asked = list(manifest.select(names, "full")) if names else maker.candidates(manifest)
        for model in asked:
            if model.mode not in ("bug", "simulation"):
                raise ScenarioError(
                    f"{model.name} is expected to hold: name a model of mode bug or simulation"
                )
        folder = out or files.scenario_dir()
        if out is None and checkout_dir() is None:
            raise ScenarioError("this needs a source checkout, or --out DIR")
        old = files.there(folder)
        models = files.relatives(asked, manifest, old) if names else asked
        runner = TlcRunner()

        def one(model: Model) -> list[maker.Made]:
            try:
                made = maker.make(model, manifest.folder, runner)
            except NotExpressible as exc:
                if names and model in asked:
                    raise
                typer.echo(f"{model.name}: left out: {exc}", err=True)
                return []
            typer.echo(f"{model.name}: {len(made)} scenario(s)", err=True)
            return made

        with terminable(), ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                found = list(pool.map(one, models))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                runner.stop()
                raise
        now = {model.name for model in models} if names else old.keys()
        cases = files.settled(
            [made for some in found for made in some],
            {name: some for name, some in old.items() if name not in now},
            manifest,
        )
        # Others' files as well: one of them may hold what was found now, or be held.
        wanted = files.texts(cases, [*old, *(model.name for model in models)], folder)
        changed = files.stale(wanted)
        if not check:
            files.write(wanted)
            kept = sum(text is not None for text in wanted.values())
            typer.echo(f"wrote {len(changed)} of {kept} files in {folder}")
            return
    for path in changed:
        gone = "should not be there" if wanted[path] is None else "is not what its model says now"
        typer.secho(f"{path.name} {gone}", err=True, fg="red")
    if changed:
        raise typer.Exit(1)
    typer.echo(f"the files of {len(models)} models are current")


@app.command()
def run(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Scenario files; all of spec/scenarios if left out."),
    ] = None,
    adapter: Annotated[
        str, typer.Option(help="ours, node, vllm or module:factory; see docs/conformance/kit.md.")
    ] = "ours",
    as_json: AsJson = False,
) -> None:
    """Play scenarios against an implementation, on a virtual clock."""
    with errors():
        if importlib.util.find_spec("msgspec") is None:
            raise ECError("playing scenarios needs msgspec: pip install 'ec-connector[nixl]'")
        from ec_verify.kit.language.schedule import load_file
        from ec_verify.kit.runner import Verdict, connector, report, run_case
        from ec_verify.scenarios.files import scenario_dir

        chosen = paths or sorted(scenario_dir().glob("*.json"))
        cases = [case for path in chosen for case in load_file(path)]
        if not cases:
            raise ECError(f"{scenario_dir()} holds no scenario: run `ec-protocol scenario make`")
        name, connect = connector(adapter, None)
        results = []
        for case in cases:
            result = run_case(case, connect)
            results.append(result)
            if not as_json:
                skipped = sum(record.get("event") == "impossible" for record in result.history)
                typer.echo(
                    f"{result.verdict:<11} {case.id}: {len(case.steps)} steps"
                    + (f", {skipped} of them not possible" if skipped else "")
                    + (f"\n            {result.detail}" if result.detail else "")
                )
        summary = report(name, results)
        if as_json:
            echo_json(summary)
        else:
            good = sum(result.verdict is Verdict.OK for result in results)
            typer.echo(f"{name}: survived {good} of {len(results)} scenarios")
    if not summary["ok"]:
        raise typer.Exit(1)
