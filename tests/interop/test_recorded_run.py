# SPDX-License-Identifier: Apache-2.0
"""The recorded run of vLLM's connector is what the installed release gives today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ec_verify.kit.language.schedule import all_cases
from tests.e2e.platform import ROOT
from tests.interop.driver import PATIENCE_S, RELEASE, fork_server, marks
from tests.interop.forked import command_line

pytestmark = marks

RECORDED = ROOT / "docs" / "conformance"
REPORTS = ["ours", f"vllm-{RELEASE}", f"vllm-{RELEASE}-shipped"]
#: A peer connects and then says nothing, until a moment before it counts as lost and after it.
#: Nobody gives the expected answer then: a history is kept of what is not OK only.
SILENCE = {
    "setup": {"nodes": {"C": {}, "P": {"played": "kit", "role": "producer", "holds": ["A"]}}},
    "steps": [
        {"request": "r1", "at": "C", "items": ["A"], "from": "P"},
        {"step": "C", "run": ["r1"], "expect": {"r1": "deferred"}},
        {"peer": "heard", "at": "C", "of": "P"},
        {"peer": "silent", "at": "C", "of": "P"},
        {"advance": "heartbeat_interval_s + heartbeat_timeout_s - eps"},
        {"step": "C", "run": ["r1"], "expect": {"r1": "deferred"}},
        {"advance": "eps"},
        {"step": "C", "run": ["r1"], "expect": {"r1": "load"}},
    ],
}


def recorded(report: str) -> dict[str, str]:
    """Verdicts by case."""
    path = RECORDED / f"{report}.json"
    return {case["id"]: case["verdict"] for case in json.loads(path.read_text())["cases"]}


def play(output: Path, *cases: str, **options: Any) -> dict[str, str]:
    """Verdicts of the installed release by case; everything it plays if none is named."""
    words = ["conformance", "run", "--adapter", "vllm", "--json", *cases]
    run = fork_server().Process(target=command_line, args=(str(output), words), kwargs=options)
    run.start()
    try:
        run.join(PATIENCE_S)
        assert run.exitcode is not None, f"no report after {PATIENCE_S} s"
    finally:
        run.kill()
        run.join()
    seen = {case["id"]: case["verdict"] for case in json.loads(output.read_text())["cases"]}
    assert run.exitcode == ("FAILED" in seen.values())
    return seen


@pytest.mark.parametrize("report", REPORTS)
def test_every_case_of_the_kit_is_recorded_and_nothing_else(report: str):
    assert set(recorded(report)) == {case.id for case in all_cases()}


def test_verdicts_are_those_that_were_recorded(tmp_path: Path):
    seen, told = play(tmp_path / "report.json"), recorded(f"vllm-{RELEASE}")
    differ = seen.keys() | told.keys()
    assert {i: (told.get(i), seen.get(i)) for i in differ if told.get(i) != seen.get(i)} == {}


def lost_at(history: Path) -> list[float]:
    """When a connection was given up, seconds from the start."""
    records = json.loads(history.read_text())["history"]
    calls = [record for record in records if "op" in record]
    return [
        call["args"]["now"] - calls[0]["args"]["now"]
        for call in calls
        for output in call["result"]["out"]
        if output["kind"] == "close"
    ]


@pytest.mark.parametrize("in_time", [False, True])
def test_with_its_heartbeats_set_in_time_it_would_miss_a_silent_peer(tmp_path: Path, in_time: bool):
    """``no-heartbeat`` is of its code, not of the sockets that the adapter gives it.

    It would not pass the kit's cases of silence: what it does about a lost peer are findings
    of their own (``asks-on``, ``lost-session``).
    """
    case = {"id": "silence", "clause": "EC-9.1", "title": "A peer falls silent", **SILENCE}
    cases = {"version": 1, "area": "peer loss and restart", "cases": [case]}
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "silence.json").write_text(json.dumps(cases))
    words = ["--scenarios", str(tmp_path / "cases"), "--histories", str(tmp_path), "silence"]
    seen = play(tmp_path / "report.json", *words, heartbeats_in_time=in_time)
    assert seen == {"silence": "FAILED"}
    # Its intervals are 2 s, and it gives an answer 4 s.
    assert lost_at(tmp_path / "silence.json") == ([6.0] if in_time else [])
