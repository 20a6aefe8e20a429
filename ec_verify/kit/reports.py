# SPDX-License-Identifier: Apache-2.0
"""JUnit and HTML reports of a run; the JSON one is ``runner.report``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import junitparser
import msgspec

from ec_protocol import __version__
from ec_protocol.errors import ConfigError
from ec_verify.kit.language.clauses import clauses
from ec_verify.kit.language.schedule import AREAS
from ec_verify.kit.runner import Result, Verdict

#: The sequence diagram of a result of an adapter as SVG, or ``""``.
Draw = Callable[[Result, str], str]
_PAGE = Path(__file__).resolve().parent / "page" / "report.html.j2"


def write_junit(adapter: str, results: Sequence[Result], path: Path) -> None:
    """Write a JUnit file: a suite per area, NON-STRICT and UNSUPPORTED as skipped.

    Raises:
        ConfigError: The file cannot be written.
    """
    document = junitparser.JUnitXml(name=f"conformance of {adapter}")
    for area in AREAS:
        suite = junitparser.TestSuite(area)
        for result in results:
            if result.case.area == area:
                suite.add_testcase(_testcase(result))
        if len(suite):
            document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]
    _make_folder(path)
    try:
        document.write(str(path), pretty=True)
    except OSError as exc:
        raise ConfigError(f"--junit {path}: {exc.strerror}; name a writable file") from exc


def _testcase(result: Result) -> junitparser.TestCase:
    case = result.case
    made = junitparser.TestCase(f"{case.id} {case.title}", classname=case.area, time=result.seconds)
    if result.verdict is Verdict.FAILED:
        failure = junitparser.Failure(_line(result), result.invariant or result.clause)
        failure.text = (
            f"{result.clause}: {clauses().get(result.clause, '')}\n"
            f"expected: {result.expected}\nseen: {result.seen}\n{result.detail}"
        )
        made.result = [failure]
    elif result.verdict is not Verdict.OK:
        made.result = [junitparser.Skipped(_line(result), str(result.verdict))]
    return made


def _line(result: Result) -> str:
    return " ".join(f"{result.verdict}: {result.detail}".split())


def write_html(adapter: str, results: Sequence[Result], path: Path, draw: Draw) -> None:
    """Write one self-contained page: totals, verdicts by area, and each case.

    Args:
        adapter: Its name.
        results: Of its run.
        path: The page.
        draw: Draws what failed.

    Raises:
        ConfigError: The file cannot be written.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_PAGE.read_text(encoding="utf-8"))
    areas = []
    for area in AREAS:
        here = [result for result in results if result.case.area == area]
        if here:
            counts = Counter(result.verdict for result in here)
            areas.append(
                {
                    "name": area,
                    "total": len(here),
                    "counts": [(str(verdict), counts[verdict]) for verdict in Verdict],
                    "cases": [_details(result, adapter, draw) for result in here],
                }
            )
    totals = Counter(result.verdict for result in results)
    text = template.render(
        adapter=adapter,
        version=__version__,
        ok=bool(results) and not totals[Verdict.FAILED],
        total=len(results),
        totals=[(str(verdict), totals[verdict]) for verdict in Verdict],
        seconds=sum(result.seconds for result in results),
        areas=areas,
    )
    _make_folder(path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--html {path}: {exc.strerror}; name a writable file") from exc


def _details(result: Result, adapter: str, draw: Draw) -> dict[str, Any]:
    case = result.case
    failed = result.verdict in (Verdict.FAILED, Verdict.NON_STRICT)
    own = clauses().get(result.clause, "")
    return {
        "id": case.id,
        "title": case.title,
        "level": case.level,
        "clause": result.clause,
        "tags": case.tags,
        "note": case.note,
        "requirement": own if failed and own else case.requirement,
        "verdict": str(result.verdict),
        "ms": result.seconds * 1000,
        "detail": result.detail,
        "expected": result.expected,
        "seen": result.seen,
        "invariant": result.invariant,
        "where": result.where,
        "steps": [
            {"number": number, "text": json.dumps(step, ensure_ascii=False)}
            for number, step in enumerate(case.steps, 1)
        ],
        "failed_step": _step_number(result.where),
        "setup": json.dumps(msgspec.to_builtins(case.setup)["nodes"], ensure_ascii=False),
        "diagram": draw(result, adapter) if failed else "",
    }


def _step_number(where: str) -> int:
    """The number in ``step 4[0].3 (…)``; 0 if there is none."""
    digits = "".join(c if c.isdigit() else " " for c in where.removeprefix("step "))
    return int(digits.split()[0]) if where.startswith("step ") and digits.split() else 0


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"{path.parent}: {exc.strerror}; name a writable folder") from exc
