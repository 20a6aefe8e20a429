# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol trace``: its JSON, its exit status, and its words for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ec_protocol.trace import TRACE_VERSION
from ec_verify.cli import app
from ec_verify.models.runner import TlcRunner
from tests.ec_verify.traces.test_trace_walks import keep
from tests.ec_verify.traces.traced import Recorded

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, args)])


def json_of(result: Result) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    world = Recorded()
    world.finish(world.fetched())
    good = keep(world.records, "good", folder)
    for record in world.records:
        if record["action"] == "ReadDone":
            record["vars"]["entry:1"]["state"] = "pinned"
    return {"good": good, "bad": keep(world.records, "bad", folder)}


@pytest.fixture(scope="module")
def checked(traces: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("broken")
    empty = folder / "empty.ndjson"
    empty.write_text(json.dumps({"trace_version": TRACE_VERSION}) + "\n")
    torn = folder / "torn.ndjson"
    torn.write_text("\n".join(traces["good"].read_text().splitlines()[:4]) + '\n{"seq": 3, "t"')
    result = run("check", "--json", *traces.values(), empty, torn, folder / "none.ndjson")
    assert result.exit_code == 1
    answer = json_of(result)
    assert answer["ok"] is False
    return {Path(trace["file"]).stem: trace for trace in answer["traces"]}


def test_the_answer_has_what_scripts_rely_on(checked):
    assert list(checked) == ["good", "bad", "empty", "torn", "none"]
    for trace in checked.values():
        assert {"file", "records", "accepted", "failed_at"} <= set(trace)
        assert trace["files"] == [trace["file"]]
    good = checked["good"]
    assert (good["accepted"], good["failed_at"]) == (True, None)
    assert good["records"] == checked["bad"]["records"] == 16


def test_a_rejected_trace_says_where(checked):
    bad = checked["bad"]
    assert (bad["accepted"], bad["action"]) == (False, "ReadDone")
    assert bad["conjunct"] == "entry 1 state"
    assert (bad["expected"], bad["logged"]) == ("ready", "pinned")
    assert bad["failed_line"] == bad["failed_at"] + 1


@pytest.mark.parametrize(
    ("name", "failed_at", "words"),
    [
        ("empty", None, "an empty trace proves nothing"),
        ("torn", 4, "line 5: not JSON"),
        ("none", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_not_accepted(checked, name, failed_at, words):
    trace = checked[name]
    assert (trace["accepted"], trace["failed_at"]) == (False, failed_at)
    assert words in trace["conjunct"]


def test_all_accepted_is_status_0(traces):
    result = run("check", traces["good"])
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "1 of 1 traces are accepted" in text
    assert "actions are shown; not: " in text
    assert "edges of the lifecycles are shown; not: " in text


@pytest.mark.parametrize("names", [("bad",), ("good", "bad")])
def test_people_get_the_reason_and_not_what_a_bad_trace_does_not_show(traces, names):
    result = run("check", *(traces[name] for name in names))
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "ReadDone of consumer" in text
    assert "does not hold: entry 1 state expected: ready recorded: pinned next: read" in text
    assert "are shown" not in text


def test_mutants_are_counted(traces):
    answer = json_of(run("mutate", "--json", "--count", "30", "--seed", "4", traces["good"]))
    (trace,) = answer["traces"]
    assert (answer["ok"], answer["seed"]) == (True, 4)
    assert trace["rejected"] >= 30
    assert trace["survivors"] == []
    assert trace["rejected"] + len(trace["equivalent"]) == trace["mutants"]
    assert trace["rate"] == 1.0
    assert sum(item["mutants"] for item in trace["operators"].values()) == trace["mutants"]


def test_a_rejected_trace_has_no_mutants(traces):
    result = run("mutate", "--json", "--count", "5", traces["bad"])
    assert result.exit_code == 1
    assert json_of(result)["traces"][0]["mutants"] == 0


def test_ctrl_c_ends_with_130(traces, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TlcRunner, "run", interrupted)
    assert run("check", traces["good"]).exit_code == 130
