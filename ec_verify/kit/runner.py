# SPDX-License-Identifier: Apache-2.0
"""Runs cases against an adapter and gives verdicts; judges histories again."""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from ec_protocol.errors import ConfigError
from ec_protocol.tables.files import checkout_dir
from ec_verify.kit.adapter import Factory, Unsupported
from ec_verify.kit.language.clauses import clauses, strictest
from ec_verify.kit.language.schedule import Case
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play.player import play
from ec_verify.kit.world.checks import CheckFailed
from ec_verify.kit.world.links import (
    HistoryError,
    ImplementationError,
    InProcess,
    Link,
    Recorded,
    Subprocess,
)

#: Adapters that can be named without their module.
BUILT_IN: Final = {
    "node": "ec_verify.kit.examples.connector_adapter:ConnectorAdapter",
    "ours": "ec_verify.adapters.ours.adapter:make",
    "vllm": "ec_verify.adapters.builtin.adapter:make",
}
HISTORY_VERSION: Final = 1


class Verdict(StrEnum):
    """What became of a case."""

    OK = "OK"
    FAILED = "FAILED"
    NON_STRICT = "NON-STRICT"
    UNSUPPORTED = "UNSUPPORTED"


@dataclass(slots=True)
class Result:
    """The verdict on one case.

    Attributes:
        case: The case.
        verdict: OK, FAILED, NON-STRICT or UNSUPPORTED.
        seconds: How long it took.
        clause: What was broken, or the case's own clause.
        detail: For people: expected and seen, or what is not supported; "" if OK.
        expected: What should have been.
        seen: What was.
        invariant: Invariant that broke, if the kit noticed it by itself.
        where: The step at which it was noticed.
        history: Every operation, answer and event.
    """

    case: Case
    verdict: Verdict
    seconds: float
    clause: str
    detail: str = ""
    expected: str = ""
    seen: str = ""
    invariant: str = ""
    where: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def requirement(self) -> str:
        """The text of what was broken, or of what the case tests."""
        own = self.clause == self.case.clause
        return self.case.requirement if own else clauses().get(self.clause, "")

    @property
    def file_name(self) -> str:
        """The case's id as a file name."""
        return "".join(c if c.isalnum() or c in "-._" else "-" for c in self.case.id)

    def row(self) -> dict[str, Any]:
        """The result as ``conformance run --json`` has it."""
        return {
            "id": self.case.id,
            "area": self.case.area,
            "level": self.case.level,
            "clause": self.clause,
            "verdict": str(self.verdict),
            "seconds": round(self.seconds, 4),
            "detail": self.detail,
        }


def connector(adapter: str | None, command: str | None) -> tuple[str, Callable[[str], Link]]:
    """How to reach an implementation.

    Args:
        adapter: A built-in name or ``module:factory``.
        command: A command that speaks JSON lines; it excludes ``adapter``.

    Returns:
        A name for reports, and what makes a link to a fresh instance.

    Raises:
        ConfigError: Neither or both are given, or there is no such factory.
    """
    if bool(adapter) == bool(command):
        raise ConfigError("give either --adapter NAME|module:factory or --adapter-cmd COMMAND")
    if command:
        return command, lambda node: Subprocess(command)
    assert adapter is not None
    factory = load_factory(adapter)
    return adapter, lambda node: InProcess(factory)


def load_factory(name: str) -> Factory:
    """The factory behind a built-in name or ``module:factory``.

    Raises:
        ConfigError: There is none.
    """
    target = BUILT_IN.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise ConfigError(
            f"adapter={name!r}: expected one of {', '.join(BUILT_IN)} or module:factory"
        )
    try:
        factory: Factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        missing = isinstance(exc, ModuleNotFoundError)
        ours = missing and target.startswith("ec_verify.adapters.ours.")
        fix = "; pip install 'ec-connector[nixl]' brings what our own connector needs"
        raise ConfigError(f"adapter={name!r}: {exc}{fix if ours else ''}") from exc
    if not callable(factory):
        raise ConfigError(f"adapter={name!r}: {target} is not callable")
    return factory


def import_module(name: str) -> ModuleType:
    """A module that the command line names: also of this folder, and of our checkout."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    root = str(checkout_dir() or "")
    if root not in sys.path:
        sys.path.append(root)
    return importlib.import_module(name)


def run_case(case: Case, connect: Callable[[str], Link]) -> Result:
    """Play one case and judge it."""
    # Probes add encodings to the setup, and schedules change them: the case itself, which
    # the result names and a history keeps, must stay as it is.
    played = msgspec.convert(msgspec.to_builtins(case), Case)
    history: list[dict[str, Any]] = []
    began = time.perf_counter()
    result = Result(case, Verdict.OK, 0.0, case.clause, history=history)
    try:
        play(played, connect, history)
    except Unsupported as exc:
        result.verdict = Verdict.UNSUPPORTED
        result.detail = f"not supported: {exc}"
    except CheckFailed as exc:
        level = exc.level or case.level
        if not exc.level and strictest(clauses().get(exc.clause, "")) == "SHOULD":
            level = "SHOULD"
        result.verdict = Verdict.FAILED if level == "MUST" else Verdict.NON_STRICT
        result.clause = exc.clause or case.clause
        result.expected, result.seen = exc.expected, exc.seen
        result.invariant, result.where = exc.invariant, exc.where
        name = f"{exc.invariant}: " if exc.invariant else ""
        result.detail = f"{exc.where}: {name}{exc}"
    except ImplementationError as exc:
        result.verdict = Verdict.FAILED
        result.expected, result.seen = "an answer", str(exc)
        result.detail = f"the implementation failed: {exc}"
    except HistoryError:
        raise
    except ScheduleError as exc:
        result.verdict = Verdict.FAILED
        result.detail = f"the schedule cannot be played on: {exc}"
    except Exception as exc:
        # An answer of a shape that nothing here expects is the implementation's doing.
        result.verdict = Verdict.FAILED
        last = traceback.extract_tb(exc.__traceback__)[-1]
        result.detail = f"answers of an unexpected shape: {exc!r} ({last.name}:{last.lineno})"
    result.seconds = time.perf_counter() - began
    return result


def run_cases(cases: Iterable[Case], connect: Callable[[str], Link]) -> Iterator[Result]:
    """Play cases one after the other, each on fresh instances."""
    for case in cases:
        yield run_case(case, connect)


def report(adapter: str, results: list[Result]) -> dict[str, Any]:
    """The machine-readable report (``conformance run --json``)."""
    counts = {verdict: sum(r.verdict is verdict for r in results) for verdict in Verdict}
    return {
        "adapter": adapter,
        "ok": bool(results) and counts[Verdict.FAILED] == 0,
        "totals": {
            "ok": counts[Verdict.OK],
            "failed": counts[Verdict.FAILED],
            "non_strict": counts[Verdict.NON_STRICT],
            "unsupported": counts[Verdict.UNSUPPORTED],
        },
        "cases": [result.row() for result in results],
    }


# ------------------------------------------------------------------- histories
def save_history(result: Result, adapter: str, path: Path) -> None:
    """Write down what happened, with the case, so that it can be judged again."""
    document = {
        "version": HISTORY_VERSION,
        "adapter": adapter,
        "case": msgspec.to_builtins(result.case),
        "requirement": result.requirement,
        "result": {
            **result.row(),
            "expected": result.expected,
            "seen": result.seen,
            "invariant": result.invariant,
            "where": result.where,
        },
        "history": result.history,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def recheck(path: Path) -> Result:
    """Judge a history again, without the implementation.

    Raises:
        HistoryError: It is no history, or does not fit the case as it is played now.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != HISTORY_VERSION:
            raise ValueError(f"version {document['version']}")
        case = msgspec.convert(document["case"], Case)
        records = [record for record in document["history"] if "op" in record]
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise HistoryError(f"{path} is no history of this version: {exc}") from exc
    # Instances of a node follow each other; of several nodes they mix: one queue each.
    queues: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        queues.setdefault(record["node"], []).append(record)
    return run_case(case, lambda node: Recorded(queues.get(node, [])))
