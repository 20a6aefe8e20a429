# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol mutants``: what notices a wrong table, and a wrong line of the core."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ec_protocol.errors import ECError
from ec_protocol.tables.files import checkout_dir, tla_dir
from ec_verify.console import AsJson, console, echo_json, errors, fail, progress, table
from ec_verify.models.manifest import load_manifest
from ec_verify.models.terminable import terminable
from ec_verify.mutants import core, source
from ec_verify.mutants.explanations import (
    Explanation,
    Side,
    load_explanations,
    matches,
    reason_for,
    stale,
    unknown_patterns,
)
from ec_verify.mutants.models import (
    EXPLAINED,
    FAILED,
    KILLED,
    SURVIVED,
    ModelJudge,
    Result,
    run_mutants,
)
from ec_verify.mutants.operators import OPERATORS, QUICK, Mutant, all_mutants
from ec_verify.mutants.safeguards import Safeguard, safeguards
from ec_verify.mutants.trials import Outcome, run_trials
from ec_verify.nearest import did_you_mean

_COLORS = {KILLED: "green", EXPLAINED: "yellow", SURVIVED: "red", FAILED: "red"}


def mutants(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Ids, or patterns with *; else all of the tier."),
    ] = None,
    tier: Annotated[
        str, typer.Option(help="pr: every guard, edge and effect once; full: everything.")
    ] = "pr",
    python: Annotated[
        bool, typer.Option("--python", help="Ask the tests of the Python core, not TLC.")
    ] = False,
    sources: Annotated[
        bool, typer.Option("--source", help="Mutate the core's source instead of the tables.")
    ] = False,
    as_json: AsJson = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many mutants at once.")] = min(
        2, os.cpu_count() or 1
    ),
    list_only: Annotated[bool, typer.Option("--list", help="Only list the mutants.")] = False,
) -> None:
    """Change the tables, or the core, in one place at a time: something must notice."""
    err = console(stderr=True)
    if tier not in ("pr", "full"):
        fail(f"--tier is pr or full, not {tier!r}", 2)
    if sources:
        _sources(names or [], jobs, as_json=as_json, list_only=list_only)
        return
    with _errors(as_json):
        # Those that are written by hand are part of the picture of the models as a whole.
        by_hand = [] if python or names else safeguards(load_manifest(tla_dir()))
        chosen = _chosen(names or [], tier, python=python)
        side: Side = "core" if python else "models"
        explanations = load_explanations(tla_dir())[side]
        if list_only:
            typer.echo("\n".join(mutant.id for mutant in chosen))
            return
        with progress(err, "mutants", len(chosen), every=10, jobs=jobs) as step, terminable():
            results = _judged(
                chosen, python=python, jobs=jobs, done=lambda r: step(r.mutant.id, r.seconds)
            )
    results = [_explained(result, explanations) for result in results]
    old = unknown_patterns(explanations, all_mutants())
    old += stale(explanations, [r.mutant for r in results if r.verdict == KILLED])
    for pattern in old:
        err.print(f"[red]stale:[/red] tla/mutants.json explains {escape(pattern)} for nothing")
    bare = [s for s in by_hand if not s.configs]
    ok = not old and not bare and all(r.verdict in (KILLED, EXPLAINED) for r in results)
    totals = Counter(result.verdict for result in results)
    if as_json:
        echo_json(
            {
                "ok": ok,
                "mutants": [result.as_json() for result in results],
                "totals": {v: totals[v] for v in _COLORS},
                "safeguards": [safeguard.as_json() for safeguard in by_hand],
                "stale": old,
            }
        )
    else:
        console().print(_table(results), soft_wrap=False)
        if by_hand:
            console().print(_safeguard_table(by_hand), soft_wrap=False)
    for safeguard in bare:
        err.print(f"[red]no config lacks[/red] {safeguard.module}.{safeguard.name}")
    for result in results:
        if result.verdict in (SURVIVED, FAILED):
            said = f": {result.detail}" if result.detail else ""
            err.print(f"[red]{result.verdict}[/red] {escape(result.mutant.id)}{escape(said)}")
    if not ok:
        raise typer.Exit(1)


def _errors(as_json: bool) -> AbstractContextManager[None]:
    nothing: dict[str, Any] = {"ok": False, "mutants": [], "totals": {}}
    interrupted = "interrupted; every process was ended"
    return errors(1, document=nothing if as_json else None, interrupted=interrupted)


def _chosen(names: Sequence[str], tier: str, *, python: bool) -> list[Mutant]:
    known = [m for m in all_mutants() if not python or core.applicable(m)]
    if not names:
        return [m for m in known if tier == "full" or m.operator in QUICK]
    for name in names:
        if not any(fnmatchcase(m.id, name) for m in known):
            near = did_you_mean(name, [m.id for m in known])
            fail(f"no mutant is called {name!r}; {near} --list shows all", 2)
    return [m for m in known if any(fnmatchcase(m.id, name) for name in names)]


def _judged(
    chosen: Sequence[Mutant], *, python: bool, jobs: int, done: Callable[[Result], None]
) -> list[Result]:
    if python:
        root = checkout_dir()
        if root is None:
            raise ECError("--python needs a source checkout with its tests")
        return core.run_core(chosen, root, jobs=jobs, done=done)
    judge = ModelJudge(load_manifest(tla_dir()))
    judge.prepare(chosen)
    return run_mutants(chosen, judge, jobs=jobs, done=done)


def _explained(result: Result, explanations: Sequence[Explanation]) -> Result:
    if result.verdict == SURVIVED and (why := reason_for(explanations, result.mutant)):
        return replace(result, verdict=EXPLAINED, detail=why)
    return result


def _table(results: Sequence[Result]) -> Table:
    shown = table("table", "operator", numbers=tuple(_COLORS))
    shown.add_column("killed most by", overflow="fold")
    groups = dict.fromkeys((r.mutant.lifecycle, r.mutant.operator) for r in results)
    for lifecycle, operator in sorted(groups, key=lambda g: (g[0], list(OPERATORS).index(g[1]))):
        rows = [
            r for r in results if (r.mutant.lifecycle, r.mutant.operator) == (lifecycle, operator)
        ]
        counts = Counter(r.verdict for r in rows)
        killers = Counter((r.killed_by or "").split(",")[0] for r in rows if r.killed_by)
        shown.add_row(
            lifecycle,
            operator,
            *(f"[{_COLORS[v]}]{counts[v]}[/{_COLORS[v]}]" if counts[v] else "" for v in _COLORS),
            escape(", ".join(f"{name} {n}" for name, n in killers.most_common(3))),
        )
    shown.caption = _caption(results)
    return shown


def _caption(results: Sequence[Result] | Sequence[SourceRow]) -> str:
    totals = Counter(result.verdict for result in results)
    return (
        f"{len(results)} mutants: {totals[KILLED]} killed, {totals[EXPLAINED]} explained, "
        f"{totals[SURVIVED]} survived, {totals[FAILED]} without a verdict"
    )


def _safeguard_table(found: Sequence[Safeguard]) -> Table:
    shown = table("module", "safeguard", "without it TLC finds (ec-protocol check NAME)")
    for safeguard in found:
        without = ", ".join(f"{wanted} ({model})" for model, wanted in safeguard.configs[:2])
        shown.add_row(
            escape(safeguard.module),
            escape(safeguard.name),
            escape(without) or "[red]nothing[/red]",
        )
    shown.caption = f"{len(found)} safeguards of the modules, each removed by a config"
    return shown


# --------------------------------------------------------------------- the source
def _sources(names: Sequence[str], jobs: int, *, as_json: bool, list_only: bool) -> None:
    """Judge mutants of the core's source by the core's tests."""
    root = checkout_dir()
    if root is None:
        fail("--source needs a source checkout with its tests", 2)
    with _errors(as_json):
        found = _sources_chosen(names)
        explanations = load_explanations(tla_dir())["source"]
        if list_only:
            typer.echo("\n".join(mutant.id for mutant in found))
            return
        trials = [mutant.trial() for mutant in found]
        err = console(stderr=True)
        with progress(err, "mutants", len(trials), every=10, jobs=jobs) as step, terminable():
            outcomes = run_trials(
                trials,
                root,
                parallel=jobs,
                done=lambda index, outcome: step(found[index].id, outcome.seconds),
            )
    rows = [SourceRow.of(m, outcomes[index], explanations) for index, m in enumerate(found)]
    old = stale(explanations, [row.mutant for row in rows if row.verdict == KILLED])
    if not names:
        old += unknown_patterns(explanations, found)
    totals = Counter(row.verdict for row in rows)
    ok = not old and not totals[SURVIVED] and not totals[FAILED]
    if as_json:
        echo_json(
            {
                "ok": ok,
                "mutants": [row.as_json() for row in rows],
                "totals": {v: totals[v] for v in _COLORS},
                "stale": old,
            }
        )
    else:
        console().print(_source_table(rows))
    err = console(stderr=True)
    for pattern in old:
        err.print(f"[red]stale:[/red] tla/mutants.json explains {escape(pattern)} for nothing")
    for row in rows:
        if row.verdict in (SURVIVED, FAILED):
            where = f"{row.mutant.module}.py:{row.mutant.line} {row.mutant.id}"
            said = f": {row.detail}" if row.detail else ""
            err.print(f"[red]{row.verdict}[/red] {escape(where + said)}", soft_wrap=True)
    if not ok:
        raise typer.Exit(1)


def _sources_chosen(names: Sequence[str]) -> list[source.SourceMutant]:
    """The mutants of these modules, or of these names within modules; else all."""
    asked = list(dict.fromkeys(name.partition(":")[0] for name in names))
    known = [m for module in asked or source.FILES for m in source.source_mutants(module)]
    patterns = [name for name in names if ":" in name]
    for name in patterns:
        if not any(matches(m.id, name) for m in known):
            near = did_you_mean(name, [m.id for m in known])
            fail(f"no mutant is called {name!r}; {near} --list shows all", 2)
    whole = set(names).difference(patterns) if names else set(source.FILES)
    return [m for m in known if m.module in whole or any(matches(m.id, p) for p in patterns)]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A mutant of the source and what became of it."""

    mutant: source.SourceMutant
    verdict: str
    outcome: Outcome
    detail: str = ""

    @classmethod
    def of(
        cls,
        mutant: source.SourceMutant,
        outcome: Outcome,
        explanations: Sequence[Explanation],
    ) -> SourceRow:
        """The verdict on one mutant."""
        if outcome.broken:
            return cls(mutant, FAILED, outcome, outcome.broken)
        if outcome.killed_by is not None:
            return cls(mutant, KILLED, outcome)
        if (reason := reason_for(explanations, mutant)) is not None:
            return cls(mutant, EXPLAINED, outcome, reason)
        return cls(mutant, SURVIVED, outcome, "" if outcome.asked else "no test comes to it")

    def as_json(self) -> dict[str, object]:
        """The row in ``ec-protocol mutants --source --json``."""
        return {
            "id": self.mutant.id,
            "file": f"{self.mutant.module}.py",
            "line": self.mutant.line,
            "change": self.mutant.change,
            "verdict": self.verdict,
            "killed_by": self.outcome.killed_by,
            "seconds": round(self.outcome.seconds, 2),
            "detail": self.detail,
        }


def _source_table(rows: Sequence[SourceRow]) -> Table:
    shown = table("file", numbers=("mutants", KILLED, EXPLAINED, SURVIVED))
    for module in dict.fromkeys(row.mutant.module for row in rows):
        counts = Counter(row.verdict for row in rows if row.mutant.module == module)
        numbers = (counts.total(), counts[KILLED], counts[EXPLAINED], counts[SURVIVED])
        shown.add_row(f"{module}.py", *map(str, numbers))
    shown.caption = _caption(rows)
    return shown
