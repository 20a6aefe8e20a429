# SPDX-License-Identifier: Apache-2.0
"""The demo's report: the JSON contract, the table, what counts as success."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from ec_connector.demo.report import (
    JSON_FIELDS,
    RUN_NAMES,
    RunRow,
    all_ok,
    print_report,
    progress_bar,
    to_json,
)

P2P = RunRow(
    name="p2p",
    expected=True,
    outcome="4 pulled",
    encodings=4,
    bytes=13_271_040,
    wrong_bytes=0,
    ack_ms=0.81234567,
    read_ms=4.5,
    load_ms=1.25,
    recompute_ms=812.0,
    gb_per_s=2.9,
)
LOCAL = dataclasses.replace(P2P, name="local", outcome="4 loaded", ack_ms=None, read_ms=None)
KILLED = dataclasses.replace(
    P2P, name="producer-killed", outcome="1 pulled, 3 recomputed", note="the producer went down"
)


def printed(rows) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    print_report(rows, console)
    return console.file.getvalue()


def test_json_has_exactly_the_documented_fields():
    document = json.loads(to_json([P2P, LOCAL, KILLED]))
    assert set(document) == {"ok", "runs"}
    assert document["ok"] is True
    assert [run["name"] for run in document["runs"]] == list(RUN_NAMES)
    for run in document["runs"]:
        assert tuple(run) == JSON_FIELDS
    assert document["runs"][0]["ack_ms"] == 0.8123
    assert document["runs"][1]["ack_ms"] is None
    assert document["runs"][0]["bytes"] == 13_271_040


def test_json_is_one_line():
    assert "\n" not in to_json([P2P])


@pytest.mark.parametrize(
    "change", [{"wrong_bytes": 1}, {"encodings": 0}, {"expected": False}], ids=str
)
def test_a_bad_run_fails_the_whole(change):
    bad = dataclasses.replace(LOCAL, **change)
    assert not bad.ok
    assert not all_ok([P2P, bad])
    assert json.loads(to_json([P2P, bad]))["ok"] is False
    assert "FAILED: local" in printed([P2P, bad])


def test_no_runs_are_no_success():
    assert not all_ok([])
    assert json.loads(to_json([])) == {"ok": False, "runs": []}


def test_not_a_number_never_reaches_the_json():
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json([dataclasses.replace(P2P, read_ms=float("nan"))])


def test_table_shows_every_run_and_measurement():
    text = printed([P2P, LOCAL, KILLED])
    for expected in ("p2p", "4 pulled", "13.3", "0.81", "4.50", "812", "2.90", "–"):
        assert expected in text
    assert "producer-killed: the producer went down" in text
    assert "All 12 encodings are bit-identical" in text


def test_outcomes_are_not_read_as_markup():
    text = printed([dataclasses.replace(P2P, outcome="[red]4", note="[/oops]")])
    assert "[red]4" in text
    assert "[/oops]" in text


def test_progress_goes_to_stderr_one_line_per_activity(capsys):
    with progress_bar(3) as step:
        step("encoding")
        step("encoding", done=1)
        step("pulling", done=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["encoding", "pulling"]
