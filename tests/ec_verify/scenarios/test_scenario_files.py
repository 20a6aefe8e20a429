# SPDX-License-Identifier: Apache-2.0
"""Which file a schedule stands in, which clause it cites, and what is no schedule at all."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_protocol.tables.files import tla_dir
from ec_verify.behaviours.errors import NotExpressible
from ec_verify.cli import app
from ec_verify.models.config import Config
from ec_verify.models.manifest import load_manifest
from ec_verify.scenarios.expressible import beside_the_protocol, clause_of
from ec_verify.scenarios.files import (
    relatives,
    scenario_dir,
    schedule,
    settled,
    stale,
    text,
    texts,
    there,
    write,
)
from ec_verify.scenarios.make import Made, _levelled, candidates, make

RUN = CliRunner()


def made_of(manifest, name: str, steps: list[dict]) -> Made:
    """A scenario that the model might have."""
    (model,) = manifest.select([name], "full")
    case = {"id": name, "tags": [*([model.fault] if model.fault else []), "model"], "note": "n"}
    return Made(name, model, {**case, "setup": {}, "steps": steps})


def test_stale_files_are_found_and_mended(tmp_path):
    good, old, lost, more, none = (tmp_path / f"{n}.json" for n in "glomn")
    good.write_text("now")
    old.write_text("then")
    more.write_text("then")
    wanted = {good: "now", old: "now", lost: "now", more: None, none: None}
    assert stale(wanted) == [old, lost, more]
    write(wanted)
    assert stale(wanted) == []
    assert not more.exists()


def test_no_schedule_stands_in_two_files():
    manifest = load_manifest(tla_dir())
    files = there(scenario_dir())
    assert settled([], files, manifest) == files, "run `ec-protocol scenario make`"
    schedules = [schedule(case) for cases in files.values() for case in cases]
    assert len(schedules) == len(set(schedules))


def test_of_one_schedule_the_first_fault_has_the_file():
    """AckIdentity comes first of the three in the manifest, but is no fault."""
    manifest = load_manifest(tla_dir())
    names = ("BugPeerReadAckIdentity", "BugPeerStoreF1", "BugPeerStoreF2")
    for order in itertools.permutations(names):
        made = [made_of(manifest, name, [{"mark": "x", "note": name}]) for name in order]
        found = settled([*made, made_of(manifest, "BugPeerReadF3", [])], {}, manifest)
        assert found.keys() == {"BugPeerStoreF1", "BugPeerReadF3"}
        (case,) = found["BugPeerStoreF1"]
        assert case["also"] == ["BugPeerReadAckIdentity", "BugPeerStoreF2"]
        assert case["steps"][0]["note"] == "BugPeerStoreF1"
        assert list(case) == ["id", "tags", "note", "also", "setup", "steps"]


def test_a_schedule_keeps_the_tags_of_all_its_models():
    manifest = load_manifest(tla_dir())
    made = [made_of(manifest, name, []) for name in ("BugPeerReadF3", "BugPeerReadF1")]
    ((case,),) = settled(made, {}, manifest).values()
    assert (case["id"], case["tags"]) == ("BugPeerReadF1", ["F1", "F3", "model"])


def test_what_is_made_alone_is_compared_with_the_files_that_are_there():
    manifest = load_manifest(tla_dir())
    old = settled([made_of(manifest, name, []) for name in ("BugPeerReadF3",)], {}, manifest)
    later = settled([made_of(manifest, "BugPeerStoreF1", [])], old, manifest)
    assert [case["also"] for case in later["BugPeerReadF3"]] == [["BugPeerStoreF1"]]
    first = settled([made_of(manifest, "BugPeerReadF1", [])], old, manifest)
    assert [case["also"] for case in first["BugPeerReadF1"]] == [["BugPeerReadF3"]]
    assert "BugPeerReadF3" not in first
    assert texts(first, old, Path())[Path("BugPeerReadF3.json")] is None


def test_who_shares_a_file_is_made_together():
    manifest = load_manifest(tla_dir())
    old = {
        "BugPeerReadF1": [{"also": ["BugPeerStoreF1"]}],
        "BugPeerReadF2": [{"also": ["SIMPeerRead-3"]}],
        "SIMPeerRead": [{}, {"also": ["BugPeerReadF3"]}],
    }
    asked = {
        "BugPeerStoreF1": ["BugPeerReadF1", "BugPeerStoreF1"],
        "BugPeerReadF3": ["SIMPeerRead", "BugPeerReadF2", "BugPeerReadF3"],
        "BugPeerReadF5": ["BugPeerReadF5"],
    }
    for name, together in asked.items():
        models = relatives(manifest.select([name], "full"), manifest, old)
        assert {model.name for model in models} == set(together), name


def test_only_files_of_the_command_are_looked_at(tmp_path):
    (tmp_path / "mine.json").write_text('{"version": 1, "note": "mine", "cases": []}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "made.json").write_text(text([{"id": "made", "steps": []}]))
    assert list(there(tmp_path)) == ["made"]


@pytest.mark.parametrize(
    ("specification", "constants", "says"),
    [
        ("Spec", {}, ""),
        ("FairSpec", {}, ""),
        ("NoTickSpec", {}, ""),
        ("HastySpec", {}, "HastySpec has an action beside Next"),
        ("ChattySpec", {}, "ChattySpec has an action beside Next"),
        ("Spec", {"CanRead": "<- DeafCanRead"}, "DeafCanRead is another table"),
        ("Spec", {"Size": "<- SizeOne", "CanKill": "{p}"}, ""),
    ],
)
def test_what_a_model_does_beside_the_protocol_is_shown_by_no_schedule(
    tmp_path, specification, constants, says
):
    (tmp_path / "MC.tla").write_text(
        "Next == FALSE\n"
        'NoTickSpec == Spec /\\ FairnessBut("Tick")\n'
        "HastySpec == Init /\\ [][Next \\/ \\E a \\in Attempts : Moves(a)]_vars\n"
        "ChattySpec ==\n    Init /\\ [][Next \\/ \\E a \\in Attempts :\n"
        "                   Says(a)]_vars\n"
    )
    config = Config(specification=specification, constants=constants)
    model = replace(load_manifest(tla_dir()).models[0], module="MC.tla", config=config)
    assert beside_the_protocol(model, tmp_path) == says
    if says:
        with pytest.raises(NotExpressible, match="which no schedule shows"):
            make(model, tmp_path, None)


def test_no_model_with_an_action_of_its_own_is_a_candidate():
    manifest = load_manifest(tla_dir())
    assert {beside_the_protocol(model, manifest.folder) for model in candidates(manifest)} == {""}


def test_a_schedule_in_which_nothing_happens_claims_what_its_end_asks():
    asks = [{"request": "r1", "at": "C"}, {"step": "C", "run": ["r1"]}, {"try": [{"mark": "x"}]}]
    heard = [*asks, {"try": [{"mark": "y"}, {"deliver": "C>P"}]}]
    assert clause_of(["EC-5.11"], heard) == "EC-5.11"
    assert clause_of([], heard) == "EC-1.1"
    assert clause_of(["EC-5.11"], asks) == "EC-1.1"
    assert clause_of(["EC-8.5", "EC-5.9"], asks) == "EC-5.9"


def test_in_a_case_of_a_should_what_a_must_asks_is_one():
    steps = [{"room": 2, "clause": "EC-2.1"}, {"mark": "x"}]
    assert _levelled(steps, "EC-5.4") == steps
    assert _levelled(steps, "EC-11.3") == [{**steps[0], "level": "MUST"}, steps[1]]


def test_a_file_that_should_not_be_there_is_noticed_and_goes(tmp_path):
    """Its schedule stands in another: the command leaves one of the two."""
    words = ["scenario", "make", "--out", str(tmp_path), "BugTierStepReservation"]
    assert RUN.invoke(app, words).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    copied = json.loads(path.read_text())["cases"]
    copied[0]["id"] = "BugTierEvictOnlyReady"
    (tmp_path / "BugTierEvictOnlyReady.json").write_text(text(copied))
    done = RUN.invoke(app, [*words, "--check"])
    assert done.exit_code == 1
    assert "BugTierEvictOnlyReady.json should not be there" in done.stderr
    assert "BugTierStepReservation.json is not what its model says now" in done.stderr
    assert RUN.invoke(app, words).exit_code == 0
    assert [left.name for left in tmp_path.glob("*.json")] == [path.name]
    (case,) = json.loads(path.read_text())["cases"]
    assert case["also"] == ["BugTierEvictOnlyReady"]
    words[-1] = "BugTierEvictOnlyReady"
    done = RUN.invoke(app, [*words, "--check"])
    assert done.exit_code == 0, done.output
    assert "the files of 2 models are current" in done.output, "they share one"
