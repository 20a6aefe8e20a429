# SPDX-License-Identifier: Apache-2.0
"""Runs models and judges each result against what it must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ec_protocol.errors import ECError
from ec_verify.models.edges import differences
from ec_verify.models.manifest import PINNED, Model
from ec_verify.models.output import Output, Step
from ec_verify.models.pool import side_by_side
from ec_verify.models.runner import Job, Run, TlcRunner

#: Results beside "ok", "deadlock" and names of invariants and properties.
STATES_CHANGED: Final = "states_changed"
DEAD_ACTIONS: Final = "dead_actions"
EDGES_DIFFER: Final = "edges_differ"
TIMEOUT: Final = "timeout"

#: Modes in which every action must be taken. The other modes stop early, or run
#: a specification that one of these covers already.
COVERED: Final = frozenset({"exhaustive", "edges"})

#: Models that the manifest says to be quicker than this run with a Java that
#: starts quickly.
SHORT_SECONDS: Final = 8.0

_UPDATE_HINT = (
    "if the change of the spec is meant, run `ec-protocol check {name} --update-manifest` and say "
    "why in CHANGELOG.md"
)


@dataclass(frozen=True, slots=True)
class Report:
    """The judgement on one model.

    Attributes:
        model: What was run.
        result: In the words of ``expected``; otherwise what went wrong.
        problems: Sentences for the reader, empty when the result is expected.
        output: What TLC said; ``None`` if it did not come to that.
        seconds: Wall time.
    """

    model: Model
    result: str
    problems: tuple[str, ...]
    output: Output | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the result is the expected one."""
        return self.result == self.model.expected

    @property
    def trace(self) -> tuple[Step, ...]:
        """The counterexample, if there is one."""
        return self.output.trace if self.output else ()

    @property
    def property_name(self) -> str | None:
        """What TLC violated, if anything."""
        if self.output is None or self.output.kind not in ("invariant", "property", "deadlock"):
            return None
        return "deadlock" if self.output.kind == "deadlock" else self.output.name

    def as_json(self) -> dict[str, Any]:
        """The model's object in the output of ``ec-protocol check --json``."""
        return {
            "name": self.model.name,
            "mode": self.model.mode,
            "expected": self.model.expected,
            "result": self.result,
            "property": self.property_name,
            "distinct_states": self.output.distinct if self.output else None,
            "depth": self.output.depth if self.output else None,
            "seconds": round(self.seconds, 2),
        }


class Watcher(Protocol):
    """Told how the runs go on; called from the running threads."""

    def started(self, model: Model) -> None:
        """The model's run begins."""

    def progress(self, model: Model, distinct: int) -> None:
        """So many states were found."""

    def finished(self, report: Report) -> None:
        """The model is judged."""


def job_for(model: Model, folder: Path) -> Job:
    """The TLC run that a model asks for."""
    return Job(
        folder=folder,
        module=model.module,
        config=model.config,
        name=model.name,
        deadlock=model.deadlock,
        coverage=model.mode in COVERED,
        final_liveness=model.mode == "liveness",
        dump=model.mode == "edges",
        simulate=model.simulate,
        short=model.seconds is not None and model.seconds < SHORT_SECONDS,
        timeout=model.timeout,
    )


def judge(model: Model, run: Run) -> Report:
    """Compare a run with what the model expects."""
    result, problems = _outcome(model, run)
    if result == model.expected:
        problems = []
    elif not problems:
        problems = [f"expected {model.expected}, got {result}"]
    return Report(model, result, tuple(problems), run.output, run.seconds)


def _outcome(model: Model, run: Run) -> tuple[str, list[str]]:
    output = run.output
    if run.timed_out:
        return TIMEOUT, [f"killed after {model.timeout:g} s; see `timeout` in models.toml"]
    if output.kind in ("invariant", "property"):
        return output.name or output.kind, []
    if output.kind == "deadlock":
        return "deadlock", []
    if output.kind != "ok":
        return f"{output.kind}_error" if output.kind != "crash" else "crash", [output.message]
    if run.graph is not None:
        found = differences(
            run.graph,
            lifecycles=model.lifecycles,
            modules=model.modules or (),
            allow_dead=model.allow_dead,
        )
        if found:
            return EDGES_DIFFER, found
    if found := _coverage_problems(model, output):
        return DEAD_ACTIONS, found
    if found := _pin_problems(model, output):
        return STATES_CHANGED, found
    return "ok", []


def _coverage_problems(model: Model, output: Output) -> list[str]:
    if model.mode not in COVERED:
        return []
    if not output.coverage:
        return ["TLC reported no action at all; is this a jar that this parser does not know?"]
    dead = set(output.dead_actions)
    found = [
        f"{name} is never enabled; mend the model, or name it in allow_dead"
        for name in sorted(dead - set(model.allow_dead))
    ]
    alive = set(output.coverage) - dead
    found += [
        f"{name} is in allow_dead but is taken: remove it there"
        for name in model.allow_dead
        if name in alive
    ]
    return found


def _pin_problems(model: Model, output: Output) -> list[str]:
    if model.mode not in PINNED:
        return []
    pairs = (
        ("distinct_states", model.distinct_states, output.distinct),
        ("depth", model.depth, output.depth),
    )
    found = [
        f"{key} is {now}, the manifest says {'nothing' if pinned is None else pinned}"
        for key, pinned, now in pairs
        if pinned != now
    ]
    return [*found, _UPDATE_HINT.format(name=model.name)] if found else []


def pins(reports: Iterable[Report]) -> dict[str, Mapping[str, Any]]:
    """The manifest values to write for runs that differ in nothing but the pins."""
    return {
        report.model.name: {
            "distinct_states": report.output.distinct,
            "depth": report.output.depth,
            "seconds": round(report.seconds, 1),
        }
        for report in reports
        if report.result == STATES_CHANGED and report.output is not None
    }


def steps(reports: Iterable[Report]) -> dict[str, Mapping[str, Any]]:
    """How many steps each counterexample has, where the manifest says something else.

    They are not compared: a change of the model may well find a shorter one. The seconds
    come with them, where the manifest has none.
    """
    return {
        report.model.name: {
            **({"seconds": round(report.seconds, 1)} if report.model.seconds is None else {}),
            "steps": len(report.trace) - 1,
        }
        for report in reports
        if report.model.mode == "bug"
        and report.ok
        and len(report.trace) > 1
        and report.model.steps != len(report.trace) - 1
    }


def run_models(
    models: Sequence[Model], folder: Path, *, jobs: int, watcher: Watcher
) -> list[Report]:
    """Run models side by side, the longest first.

    Args:
        models: What to run.
        folder: Where their files lie.
        jobs: How many TLC processes at once.
        watcher: Told how it goes.

    Returns:
        The reports in the order of ``models``.

    Raises:
        KeyboardInterrupt: After every TLC process was killed.
        ToolMissing: There is no Java or no TLC.
    """
    runner = TlcRunner()

    def one(model: Model) -> Report:
        watcher.started(model)
        try:
            run = runner.run(job_for(model, folder), lambda n: watcher.progress(model, n))
            report = judge(model, run)
        except (ECError, OSError) as exc:
            report = Report(model, "crash", (str(exc),), None, 0.0)
        watcher.finished(report)
        return report

    longest_first = sorted(models, key=lambda m: m.seconds or 0.0, reverse=True)
    reports = side_by_side(longest_first, one, jobs=jobs, stop=runner.stop)
    by_name = {report.model.name: report for report in reports}
    return [by_name[model.name] for model in models]
