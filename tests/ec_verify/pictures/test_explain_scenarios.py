# SPDX-License-Identifier: Apache-2.0
"""Scenarios as they were played, against a sound core and a faulty one."""

import json

import pytest
from typer.testing import CliRunner

from ec_protocol.errors import ECError
from ec_verify.cli import app
from ec_verify.kit.language.schedule import load_file
from ec_verify.kit.runner import connector, run_case, save_history
from ec_verify.pictures.page import page
from ec_verify.pictures.source import UnknownInput, make_story
from ec_verify.scenarios.files import scenario_dir

F3 = scenario_dir() / "BugPeerReadF3.json"
FAULTY = "tests.faults:accepts-late-reads"
RUN = CliRunner()


def test_messages_and_reads_of_a_played_scenario():
    story = make_story([str(F3)])
    row = {(step.lane, step.label, step.subject): n for n, step in enumerate(story.steps)}
    request, answer = story.arrows[0], story.arrows[1]
    assert (request.source, request.target, request.label) == ("C/data", "P/data", "request")
    assert request.start == row["C/engine", "engine step", "r2"]
    assert request.end == answer.start == row["P/data", "receives", "C>P"]
    (read,) = [bar for bar in story.bars if bar.label == "READ C#1"]
    assert read.start == answer.end
    assert read.end == row["C/dma", "READ done", "C#1"]


def test_a_survived_scenario_says_so():
    verdict = make_story([str(F3)]).verdict
    assert (verdict.bad, verdict.row, verdict.headline) == (False, None, "Survived.")
    assert "<b>Survived.</b>" in page(make_story([str(F3)]))


def test_a_fault_is_shown_where_it_was_noticed():
    story = make_story([str(F3)], adapter=FAULTY)
    assert story.verdict.title in ("FencedAccept", "NoWrongBytes")
    assert story.verdict.bad
    assert story.verdict.row == len(story.steps) - 1
    assert len(story.steps) < len(make_story([str(F3)]).steps), "the rest was not played"


def test_what_had_become_impossible_is_told_with_its_reason():
    story = make_story([str(scenario_dir() / "BugPeerReadF1.json")])
    refused = [step for step in story.steps if "not possible any more" in step.notes]
    assert refused
    assert any("READ C#1" in str(step.changes["schedule|not possible"]) for step in refused)
    assert all(step.kind == "environment" for step in refused)


def test_a_history_is_drawn_without_the_implementation(tmp_path):
    (case,) = load_file(F3)
    name, connect = connector("ours", None)
    path = tmp_path / "history.json"
    save_history(run_case(case, connect), name, path)
    told, played = make_story([str(path)]), make_story([str(F3)])
    assert [step.label for step in told.steps] == [step.label for step in played.steps]
    assert told.verdict == played.verdict


def test_a_file_of_several_cases_asks_which(tmp_path):
    document = json.loads(F3.read_text())
    document["cases"].append({**document["cases"][0], "id": "second"})
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UnknownInput, match="2 cases with --case, for example BugPeerReadF3"):
        make_story([str(path)])
    with pytest.raises(UnknownInput, match="'secnd'; did you mean second or BugPeerReadF3"):
        make_story([str(path)], case="secnd")
    assert make_story([str(path)], case="second").title == "second"


@pytest.mark.parametrize("text", ["{", '{"version": 1}', '{"version": 9, "cases": []}'])
def test_json_that_is_no_scenario_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ECError, match=r"x\.json"):
        make_story([str(path)])
    done = RUN.invoke(app, ["explain", str(path)])
    assert done.exit_code == 2
