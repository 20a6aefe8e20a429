# SPDX-License-Identifier: Apache-2.0
"""Failures of random walks: told apart, shortened, and kept.

A walk that fails comes out as a case of the schedule language, so that it can be played,
and kept, like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language.schedule import LANGUAGE_VERSION, Case
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.runner import Result, Verdict, run_case, save_history
from ec_verify.kit.walks import Step, new_case, walk
from ec_verify.kit.world.links import Link

#: Replays that shortening a walk may take.
SHORTENING: Final = 400


def shorten(result: Result, connect: Callable[[str], Link]) -> Result:
    """The same failure with as few steps as can be found.

    Steps are left out in ever smaller pieces, as long as what remains still fails for
    the same reason.
    """
    best, left = result, SHORTENING
    size = max(1, len(best.case.steps) // 2)
    while size and left:
        at, smaller = 0, False
        while at < len(best.case.steps) and left:
            left -= 1
            steps = best.case.steps[:at] + best.case.steps[at + size :]
            tried = _replay(best.case, steps, connect)
            if tried is not None and reason(tried) == reason(result):
                best, smaller = tried, True
            else:
                at += size
        if not smaller or size > 1:
            size //= 2
    return best


def _replay(case: Case, steps: list[Step], connect: Callable[[str], Link]) -> Result | None:
    shorter = new_case(int(case.id.removeprefix("walk-")))
    shorter.steps = steps
    try:
        result = run_case(shorter, connect)
    except (ScheduleError, Unsupported):
        return None
    return result if result.verdict in (Verdict.FAILED, Verdict.NON_STRICT) else None


def reason(result: Result) -> tuple[str, str]:
    """What makes two failures the same one."""
    if result.invariant:
        return result.invariant, ""
    words = result.expected or result.detail
    return result.clause, words.split(" ")[0]


@dataclass(slots=True)
class Found:
    """One way to fail: the first walk that did, shortened, and how many did."""

    result: Result
    walks: int = 1


def find_failures(
    seeds: Iterable[int],
    length: int,
    connect: Callable[[str], Link],
    *,
    every: bool,
    done: Callable[[int], None],
) -> list[Found]:
    """Take walks, until one fails or with ``every`` all of them; the ways to fail.

    Raises:
        Unsupported: The implementation lacks an operation that walks need.
    """
    found: dict[tuple[str, str], Found] = {}
    for seed in seeds:
        failure = walk(seed, length, connect)
        done(seed)
        if failure is None:
            continue
        known = found.get(reason(failure))
        if known is not None:
            known.walks += 1
            continue
        found[reason(failure)] = Found(shorten(failure, connect))
        if not every:
            break
    return list(found.values())


def document(name: str, seed: int, taken: int, length: int, found: list[Found]) -> dict[str, Any]:
    """The machine-readable report (``conformance walk --json``)."""
    return {
        "adapter": name,
        "ok": not found,
        "seed": seed,
        "walks": taken,
        "steps": length,
        "failures": [
            {
                **one.result.row(),
                "invariant": one.result.invariant,
                "walks": one.walks,
                "schedule": one.result.case.steps,
            }
            for one in found
        ],
    }


def save(failure: Result, name: str, folder: Path) -> None:
    """A case file that plays the schedule again, and the history of its last play."""
    folder.mkdir(parents=True, exist_ok=True)
    failure.case.file = ""
    case = msgspec.to_builtins(failure.case)
    case["clause"] = failure.clause
    case["note"] = f"found in {name}: {failure.detail}"
    case = {key: value for key, value in case.items() if value not in ("", [])}
    document = {"version": LANGUAGE_VERSION, "cases": [case]}
    path = folder / f"{failure.file_name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    save_history(failure, name, folder / "histories" / path.name)
