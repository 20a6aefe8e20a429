# SPDX-License-Identifier: Apache-2.0
"""Checks trace files and folders, and explains what was rejected."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import TraceError
from ec_protocol.tables.files import tla_dir
from ec_verify.models.pool import side_by_side
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.coverage import Coverage, edges_of, total
from ec_verify.traces.load import Record, RecordError, Run, load_run, named, trace_files
from ec_verify.traces.merge import merged
from ec_verify.traces.mutants import Judge, mutants
from ec_verify.traces.replay import Blame, Replayed, Task, Verdict, replay
from ec_verify.traces.tla import Mutant, make_clock

#: Records that one start of TLC gets, together.
_BATCH: Final = 20_000
_DEFINED: Final = re.compile(r"^(\w+)(?:\([^)]*\))? ==", re.MULTILINE)
_INVARIANT: Final = re.compile(r"^\w+Inv$")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a trace was rejected, for people.

    Attributes:
        number: The record, counted in the merged order from 1; None if it is no matter
            of one record.
        file: Where the record was read; ``""`` likewise.
        line: The record's line; 0 likewise.
        process: Whose record it is; ``""`` likewise.
        action: Its action.
        conjunct: What does not hold.
        expected: What the specification wants; ``""`` if the conjunct is no comparison.
        logged: What the record tells.
        advice: What to do next.
    """

    number: int | None
    conjunct: str
    file: str = ""
    line: int = 0
    process: str = ""
    action: str = ""
    expected: str = ""
    logged: str = ""
    advice: str = ""


@dataclass(slots=True)
class Report:
    """What became of one file or folder.

    Attributes:
        name: The file or folder.
        files: What was read; empty if that could not be found out.
        records: Records read.
        processes: Processes they belong to.
        actions: How often each action is told.
        edges: How often each edge of the tables is taken, see ``coverage``.
        rejection: None if the trace was accepted.
        mutants: Mutants with what became of each.
    """

    name: str
    records: int = 0
    processes: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    edges: Counter[str] = field(default_factory=Counter)
    rejection: Rejection | None = None
    mutants: list[tuple[Mutant, Verdict, str]] = field(default_factory=list)
    files: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the specification allows the trace."""
        return self.rejection is None

    @property
    def rejected_mutants(self) -> int:
        """How many mutants were rejected."""
        return sum(not verdict.accepted for _, verdict, _ in self.mutants)

    @property
    def equivalent_mutants(self) -> list[tuple[Mutant, str]]:
        """Accepted mutants that tell something the specification allows, with the rule."""
        return [(m, rule) for m, verdict, rule in self.mutants if verdict.accepted and rule]

    @property
    def survivors(self) -> list[Mutant]:
        """Accepted mutants that fall under no rule: holes in the specification."""
        return [m for m, verdict, rule in self.mutants if verdict.accepted and not rule]


def check(
    paths: Sequence[str | Path | Sequence[Path]],
    runner: TlcRunner,
    *,
    wanted: int = 0,
    seed: int = 0,
    jobs: int = 1,
    on_report: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Check traces, and ``wanted`` mutants of each.

    Args:
        paths: Trace files, and folders with those of the processes of one run; or the
            files of one run (see ``grouping``).
        runner: Runs TLC.
        wanted: How many mutants of each accepted trace are to be rejected.
        seed: Which mutants.
        jobs: How many TLC processes at once.
        on_report: Called with each report as soon as it is there, one at a time, in
            threads if there are several ``jobs``.

    Returns:
        The reports, in the order of ``paths``.
    """
    reports: dict[int, Report] = {}
    loaded: list[tuple[int, Run]] = []

    files: dict[int, list[Path]] = {}

    lock = threading.Lock()

    def done(index: int, report: Report) -> None:
        report.files = tuple(map(str, files.get(index, ())))
        with lock:
            reports[index] = report
            on_report(report)

    for index, path in enumerate(paths):
        try:
            files[index] = trace_files(path)
            loaded.append((index, load_run(files[index], named(path))))
        except TraceError as exc:
            done(index, _unreadable(named(path), exc))

    def one(batch: list[tuple[int, Run]]) -> None:
        judged = check_runs([run for _, run in batch], runner, wanted, seed)
        for (index, _), report in zip(batch, judged, strict=True):
            done(index, report)

    batches = _batches(loaded, _BATCH // 10 if wanted else _BATCH)
    side_by_side(batches, one, jobs=jobs, stop=runner.stop)
    return [reports[index] for index in range(len(paths))]


def coverage(reports: Iterable[Report]) -> Coverage:
    """What the accepted traces show together."""
    return total((report.actions, report.edges) for report in reports if report.accepted)


def _batches(loaded: Sequence[tuple[int, Run]], size: int) -> list[list[tuple[int, Run]]]:
    batches: list[list[tuple[int, Run]]] = []
    room = 0
    for item in loaded:
        if item[1].records > room or not batches:
            batches.append([])
            room = size
        batches[-1].append(item)
        room -= item[1].records
    return batches


def check_runs(
    runs: Sequence[Run], runner: TlcRunner, wanted: int = 0, seed: int = 0
) -> list[Report]:
    """Check runs that were read already, in one start of TLC if all goes well."""
    tasks: list[Task] = []
    for run in runs:
        log = merged(run)
        tasks.append((run, log, mutants(log, wanted * 5 // 4 + 10, seed) if wanted else ()))
    try:
        reports = [_report(*item) for item in zip(tasks, replay(tasks, runner), strict=True)]
    except TraceError as exc:
        if len(runs) > 1:
            # One of them is to blame; the others must not be.
            half = len(runs) // 2
            parts = (runs[:half], runs[half:])
            return [r for part in parts for r in check_runs(part, runner, wanted, seed)]
        return [_unreadable(runs[0].name, exc, runs[0])]
    for index, report in enumerate(reports):
        if wanted and report.accepted and report.rejected_mutants < wanted:
            run, records, first = tasks[index]
            more = mutants(records, len(first) * 3, seed)
            if len(more) > len(first):
                task = (run, records, more)
                reports[index] = _report(task, replay([task], runner)[0])
    return reports


def _unreadable(name: str, exc: TraceError, run: Run | None = None) -> Report:
    number = exc.number if isinstance(exc, RecordError) else None
    advice = "spec/TRACE.md describes the format; record the trace again"
    rejection = Rejection(number, str(exc), advice=advice)
    return Report(name, records=run.records if run else 0, rejection=rejection)


def _report(task: Task, done: Replayed) -> Report:
    run, log, made = task
    report = Report(
        run.name,
        records=len(log),
        processes=len(run.facts),
        actions=Counter(record.action for record in log),
        edges=edges_of(log),
    )
    if done.verdict.blame is not None:
        report.rejection = _rejection(run, log, done.verdict.blame)
    else:
        judge = Judge(log) if made else None
        report.mutants = [
            (m, v, judge.rule(m) if judge and v.accepted else "")
            for m, v in zip(made, done.mutants, strict=True)
        ]
    return report


def _rejection(run: Run, log: Sequence[Record], blame: Blame) -> Rejection:
    # An invariant is looked at when the next record is about to be replayed.
    invariant = _INVARIANT.match(blame.what)
    number = blame.position - 1 if invariant else blame.position
    record = log[number - 1]
    operator = blame.what if invariant else record.action
    unit = make_clock(run, log).unit
    advice = (
        f"read {_definition(operator)}; ec-protocol explain {run.name} draws the run; times "
        f"count from the first record of {record.process}, in units of {unit:g} s"
    )
    return Rejection(
        number=number,
        conjunct=blame.what,
        file=record.file,
        line=record.line,
        process=record.process,
        action=record.action,
        expected=blame.expected,
        logged=blame.logged,
        advice=advice,
    )


def _definition(operator: str) -> str:
    return f"{operator} in {_definitions().get(operator, 'tla/traces/Trace.tla')}"


@cache
def _definitions() -> dict[str, str]:
    """Operator to file and line of the specification."""
    found = {}
    for path in sorted((tla_dir() / "traces").glob("*.tla")):
        text = path.read_text(encoding="utf-8")
        for match in _DEFINED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found[match[1]] = f"tla/traces/{path.name}, line {line}"
    return found


def as_json(report: Report) -> dict[str, Any]:
    """The report as ``--json`` shows it; the first five are the contract."""
    rejection = report.rejection
    result: dict[str, Any] = {
        "file": report.name,
        "files": list(report.files),
        "records": report.records,
        "accepted": report.accepted,
        "failed_at": rejection.number if rejection else None,
        "processes": report.processes,
        "actions": dict(report.actions),
    }
    if rejection:
        result |= {
            "failed_file": rejection.file or None,
            "failed_line": rejection.line or None,
            "process": rejection.process or None,
            "action": rejection.action or None,
            "conjunct": rejection.conjunct,
            "expected": rejection.expected,
            "logged": rejection.logged,
            "advice": rejection.advice,
        }
    return result


def mutants_as_json(report: Report) -> dict[str, Any]:
    """The report with its mutants, as ``mutate --json`` shows it."""
    made = Counter(m.operator for m, _, _ in report.mutants)
    rejected = Counter(m.operator for m, v, _ in report.mutants if not v.accepted)
    judged = len(report.mutants) - len(report.equivalent_mutants)
    return as_json(report) | {
        "mutants": len(report.mutants),
        "rejected": report.rejected_mutants,
        "rate": report.rejected_mutants / judged if judged else None,
        "operators": {
            name: {"mutants": made[name], "rejected": rejected[name]} for name in sorted(made)
        },
        "equivalent": [
            {"mutant": mutant.what, "rule": rule} for mutant, rule in report.equivalent_mutants
        ],
        "survivors": [mutant.what for mutant in report.survivors],
    }
