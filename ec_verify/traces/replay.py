# SPDX-License-Identifier: Apache-2.0
"""Has TLC replay runs and their mutants, and reads what became of each.

One start of TLC takes as many runs as one likes. The specification prints
``@accepted`` when the last record of a log was replayed, and ``@blame`` with the
conjunct that failed where a log cannot go on. A log is accepted only if the former
was printed for it, and rejected only if the latter was; anything else means that
the check itself went wrong, and is an error.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import TraceError
from ec_protocol.tables.files import tla_dir
from ec_verify.models.config import Config
from ec_verify.models.modules import copy_modules
from ec_verify.models.runner import Job, TlcRunner
from ec_verify.models.tla_value import as_text, parse
from ec_verify.traces.load import Record, Run
from ec_verify.traces.tla import Mutant, module

_DATA: Final = "TraceData"
#: Beyond so many records in one start a Java that starts slowly is the quicker one.
_SHORT: Final = 3_000
_INTERVAL: Final = re.compile(r'"[^"]*"|(?P<first>-?\d+)\.\.(?P<last>-?\d+)')


@dataclass(frozen=True, slots=True)
class Blame:
    """Why a log could not go on.

    Attributes:
        position: Number of the record in the log, from 1.
        inserted: Number among the mutant's own records; 0 outside of them.
        what: The conjunct that failed.
        expected: What the specification wants; empty if it is no comparison.
        logged: What the record tells.
    """

    position: int
    inserted: int
    what: str
    expected: str
    logged: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one log: accepted, or the reason why not."""

    accepted: bool
    blame: Blame | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run's own verdict and those of its mutants, in their order."""

    run: Run
    log: Sequence[Record]
    verdict: Verdict
    mutants: tuple[Verdict, ...] = ()


#: A run, its merged log, its mutants.
Task = tuple[Run, Sequence[Record], Sequence[Mutant]]


def replay(
    tasks: Sequence[Task],
    runner: TlcRunner,
    timeout: float = 600.0,
    *,
    believe: bool = False,
) -> list[Replayed]:
    """Replay every run and every mutant in one run of TLC.

    Mutants of a rejected run share its fate unless they differ from it before the
    record that was rejected.

    Args:
        tasks: What to replay.
        runner: Runs TLC.
        timeout: Seconds before TLC is killed.
        believe: Check the invariants alone (``tla/traces/TraceBelieve.tla``); for tests.

    Raises:
        TraceError: TLC failed, or said nothing about some log; also a time that does
            not fit (see ``tla.make_clock``).
        RunStopped: The runner was stopped.
    """
    text = module(_DATA, tasks, "TraceBelieve" if believe else "Trace")
    config = Config(init="Init", next="BelieveNext" if believe else "Next")
    size = sum(len(log) * (1 + len(mutants) // 50) for _, log, mutants in tasks)
    with tempfile.TemporaryDirectory(prefix="ec-trace-") as temporary:
        folder = Path(temporary)
        for part in ("common", "traces"):
            copy_modules(tla_dir() / part, folder)
        (folder / f"{_DATA}.tla").write_text(text, encoding="ascii")
        job = Job(
            folder,
            f"{_DATA}.tla",
            config,
            deadlock=False,
            short=size < _SHORT,
            timeout=timeout,
        )
        done = runner.run(job)
    output = done.output
    if output.kind != "ok":
        raise TraceError(f"TLC could not replay the traces ({output.kind}): {output.message}")
    return _results(tasks, _printed(output.printed))


def _results(tasks: Sequence[Task], printed: Iterable[tuple[Any, ...]]) -> list[Replayed]:
    accepted: set[tuple[int, int]] = set()
    blamed: dict[tuple[int, int], Blame] = {}
    for mark, run, mutant, *rest in printed:
        if mark == "@accepted":
            accepted.add((run, mutant))
        else:
            position, inserted, what, expected, logged = rest
            text = what if isinstance(what, str) else " ".join(str(part) for part in what)
            # The first word counts: what else is printed explains the same failure.
            blamed.setdefault(
                (run, mutant),
                Blame(position, inserted, text, as_text(expected), as_text(logged)),
            )
    results = []
    for number, (run, log, mutants) in enumerate(tasks, 1):
        verdicts: list[Verdict] = []
        for index in range(len(mutants) + 1):
            key = (number, index)
            base = verdicts[0] if index else None
            if key in accepted:
                verdict = Verdict(True)
            elif key in blamed:
                verdict = Verdict(False, blamed[key])
            elif base is not None and base.blame and base.blame.position < mutants[index - 1].first:
                verdict = base
            else:
                raise TraceError(f"{run.name}: TLC gave no verdict (mutant {index})")
            verdicts.append(verdict)
        results.append(Replayed(run, log, verdicts[0], tuple(verdicts[1:])))
    return results


def _interval(match: re.Match[str]) -> str:
    """TLC prints a set of neighbouring numbers as ``0..3``; strings stay as they are."""
    if match["first"] is None:
        return match[0]
    numbers = range(int(match["first"]), min(int(match["last"]), int(match["first"]) + 63) + 1)
    return "{" + ", ".join(map(str, numbers)) + "}"


def _printed(lines: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """The marked values among the lines; TLC breaks long ones into several."""
    pending = ""
    for line in lines:
        start = line.lstrip()
        if not pending and not start.startswith(('<<"@', '<< "@')):
            continue
        pending += line + "\n"
        if pending.count("<<") == pending.count(">>"):
            yield parse(_INTERVAL.sub(_interval, pending))
            pending = ""
