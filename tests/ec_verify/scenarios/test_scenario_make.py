# SPDX-License-Identifier: Apache-2.0
"""Making scenarios: the translations, the files, and that both keep in step with the models."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_protocol.tables.files import spec_dir, tla_dir
from ec_verify.behaviours import fleet, peer_read_schedule, reads, tier
from ec_verify.behaviours.errors import NotExpressible, ScenarioError
from ec_verify.behaviours.reading import state_of
from ec_verify.behaviours.schedule import Draft
from ec_verify.cli import app
from ec_verify.kit.language.schedule import load_file
from ec_verify.models.manifest import load_manifest
from ec_verify.models.output import Output, parse_output
from ec_verify.models.runner import Run
from ec_verify.scenarios.files import scenario_dir, text
from ec_verify.scenarios.make import _only_walk, candidates, make
from tests import ROOT

RUN = CliRunner()
RECORDED = ROOT / "tests" / "ec_verify" / "pictures" / "recorded"
LINK = re.compile(r"\]\(\.\./(spec/(?:scenarios|conformance)/[\w.-]+)")


#: Models whose behaviours the schedule language or our implementation cannot show.
LEFT_OUT = {
    "BugFleetOneMeaning": "an old consumer asks",
    "BugQuotaLargeTurns": "no schedule ends a lease alone",
    "BugQuotaLargePause": "no schedule ends a lease alone",
    "BugQuotaNames": "which name is whose: EC-15.1/1",
    "BugQuotaNamesOthers": "which name is whose: EC-15.1/1",
}


def moves_of(name: str):
    (path,) = RECORDED.glob(f"{name}.*.txt")
    output = parse_output(path.read_text(), int(path.suffixes[0][1:]))
    return [(step.action, state_of(step)) for step in output.trace]


def others(path: Path) -> list[str]:
    """The models that share a file with the one it is called by."""
    return [name for case in load_file(path) for name in case.also]


def flat(steps: list[dict]) -> list[dict]:
    """Steps with those that are tried in their places."""
    return [inner for step in steps for inner in step.get("try", [step])]


def place(steps: list[dict], **wanted) -> int:
    return next(
        number
        for number, step in enumerate(flat(steps))
        if all(step.get(key) == value for key, value in wanted.items())
    )


# ------------------------------------------------------------------- translations
def test_f1_keeps_the_order_that_does_the_harm():
    """EC-5.2: granted, the lease over, the space given away, and only then the ack."""
    steps = peer_read_schedule.schedule(moves_of("BugPeerReadF1")).steps
    order = [
        place(steps, deliver="C>P"),
        place(steps, tick="P"),
        place(steps, store="other1"),
        place(steps, deliver="P>C"),
        place(steps, dma="C#1", do="move", blocks=1),
        place(steps, dma="C#1", do="done"),
        place(steps, load="A") if any("load" in s for s in steps) else place(steps, request="r3"),
        place(steps, room=2),
    ]
    assert order == sorted(order)


def test_times_lie_on_the_right_side_of_the_fence():
    steps = flat(peer_read_schedule.schedule(moves_of("BugPeerReadF1")).steps)
    moments = [step["until"] for step in steps if step.get("quiet")]
    assert moments == [
        "asked1 + lease_s - lease_margin_s - min_read_s + eps",
        "asked1 + lease_s - lease_margin_s + eps",
        "granted1 + lease_s",
    ]


def test_a_clock_is_ahead_only_where_the_model_needs_it():
    """EC-5.1: the lease ends before the fence, which only the margin covers."""
    (case,) = load_file(scenario_dir() / "BugPeerReadNoMargin.json")
    moments = [step["until"] for step in flat(case.steps) if step.get("quiet")]
    assert "granted1 + lease_s - 0.5 * lease_margin_s" in moments


def test_each_step_says_which_state_it_comes_from():
    steps = peer_read_schedule.schedule(moves_of("BugPeerReadF1")).steps
    notes = [step["note"] for step in steps if step.get("note", "").startswith("state ")]
    numbers = [int(note.split()[1].rstrip(":")) for note in notes]
    assert numbers == sorted(numbers)
    assert "state 13: PostRead" in notes


def test_a_liveness_behaviour_ends_with_everything_free():
    steps = peer_read_schedule.schedule(moves_of("BugPeerReadNoSettle")).steps
    assert steps[-1] == {"idle": "P", "expect": True, "clause": "EC-5.9"}


def test_a_step_of_the_tier_asks_for_everything_that_it_plans():
    draft = tier.schedule(moves_of("BugTierPinLoads"))
    requests = [step["items"] for step in draft.steps if "request" in step]
    assert requests[:3] == [["A"], ["A"], ["other1"]], "saved, loaded, then evicted for another"
    assert draft.nodes["E"]["ranks"] == 2


def test_each_instance_of_a_fleet_is_a_node():
    constants = {"OldConsumers": "{}", "Consumers": "{c1}"}
    draft = fleet.schedule(moves_of("BugFleetNoticeBytes"), constants)
    assert set(draft.nodes) == {"c1", "p1"}
    assert draft.nodes["p1"]["rate"] > 1.0, "its lease ends within the margin"
    steps = draft.steps
    order = [
        place(steps, deliver="c1>p1", nth=2),
        place(steps, deliver="p1>c1", nth=2),
        place(steps, deliver="c1~p1", nth=1),
        place(steps, store="other1"),
        place(steps, dma="c1#1", do="move"),
    ]
    assert order == sorted(order), "the late notice comes between the READ and the eviction"


def test_an_old_consumer_is_not_ours():
    constants = {"OldConsumers": "{c1}", "Consumers": "{c1}"}
    with pytest.raises(NotExpressible, match="an old consumer"):
        fleet.schedule(moves_of("BugFleetNoticeBytes"), constants)


def test_a_read_into_the_tier_is_not_expressible():
    moves = moves_of("BugTierPinLoads")
    with pytest.raises(NotExpressible, match="RemoteBegins is a READ"):
        tier.schedule([*moves, ("RemoteBegins", moves[-1][1])])


def test_requests_of_a_killed_process_are_not_finished():
    draft = Draft({"P": {"blocks": 2}}, ["A"], {})
    draft.request("P", ["A"])
    draft.restart("P")
    draft.nothing_is_left()
    assert not any("finish" in step for step in draft.steps)


def test_a_walk_keeps_the_constants_and_checks_its_end_only():
    (model,) = load_manifest(tla_dir()).select(["SIMPeerRead"], "full")
    walk = _only_walk(model.config)
    assert walk.constants["MaxAttempts"] == "4"
    assert walk.specification == "Spec"
    assert walk.checked == ("WalkEnds",)


# -------------------------------------------------------------------------- files
def test_files_have_one_step_a_line():
    steps = [{"mark": "a"}, {"try": [{"deliver": "C>P"}]}]
    laid = text([{"id": "x", "clause": "EC-2.2", "steps": steps}])
    assert json.loads(laid)["cases"][0]["steps"] == steps
    assert '\n    {"mark": "a"},\n    {"try": [{"deliver": "C>P"}]}\n' in laid


def test_every_fault_that_can_be_told_has_its_file():
    """The other models' files are compared by ``ec-protocol scenario make --check``."""
    models = candidates(load_manifest(tla_dir()))
    files = {path.stem for path in scenario_dir().glob("*.json")}
    assert files - {model.name for model in models} == set(), "scenarios of models that are gone"
    named = files | {name for path in scenario_dir().glob("*.json") for name in others(path)}
    lacking = {m.name for m in models if m.fault and m.name not in named}
    assert lacking == set(LEFT_OUT), "run `ec-protocol scenario make NAME`"


def test_files_are_laid_out_as_the_command_lays_them_out():
    for path in scenario_dir().glob("*.json"):
        content = path.read_text(encoding="utf-8")
        assert text(json.loads(content)["cases"]) == content, path.name
        for case in load_file(path):
            assert case.note, path.name
            assert case.id.startswith(path.stem)


def test_the_files_are_what_the_models_say_now():
    """Two of them here; all of them with ``ec-protocol scenario make --check``."""
    done = RUN.invoke(app, ["scenario", "make", "--check", "BugPeerReadF1", "BugTierSkipReport"])
    assert done.exit_code == 0, done.output
    assert "the files of 3 models are current" in done.output, "BugPeerStoreF1 has the file of F1"


def test_the_same_behaviour_is_found_each_time():
    """With checks on the way, what TLC finds of a liveness model depends on the machine."""
    jobs = []

    class Runner:
        def run(self, job):
            jobs.append(job)
            return Run(Output(), 0.0, 0)

    manifest = load_manifest(tla_dir())
    (model,) = manifest.select(["BugTierSkipReportIdle"], "full")
    with pytest.raises(ScenarioError, match="no behaviour"):
        make(model, manifest.folder, Runner())
    assert [job.final_liveness for job in jobs] == [True]


def test_a_changed_translation_is_noticed(monkeypatch):
    monkeypatch.setitem(reads.TIMERS, "lease_s", 299.0)
    done = RUN.invoke(app, ["scenario", "make", "--check", "BugPeerReadF1"])
    assert done.exit_code == 1
    assert "BugPeerReadF1.json is not what its model says now" in done.stderr


def test_links_of_the_track_record_exist():
    text = (tla_dir() / "README.md").read_text(encoding="utf-8")
    for link in LINK.findall(text):
        assert (spec_dir().parent / link).is_file(), link


# ------------------------------------------------------------------------ commands
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["make", "BugPeerReadF11"], "no model is called 'BugPeerReadF11'"),
        (["make", "MCTier"], "MCTier is expected to hold"),
        (["make", "BugRegionLockFirst"], "no translation knows this model's variables"),
        (["run", "lost.json"], "lost.json"),
        (["run", "--adapter", "nobody"], "nobody"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(words, says):
    done = RUN.invoke(app, ["scenario", *words])
    assert done.exit_code == 2, done.output
    assert says in done.stderr


def test_run_reports_as_json():
    path = scenario_dir() / "BugPeerReadF1.json"
    done = RUN.invoke(app, ["scenario", "run", "--json", str(path)])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert [case["id"] for case in answer["cases"]] == ["BugPeerReadF1"]


def test_run_fails_when_a_scenario_is_not_survived():
    path = scenario_dir() / "BugPeerReadF3.json"
    adapter = "tests.faults:accepts-late-reads"
    done = RUN.invoke(app, ["scenario", "run", "--adapter", adapter, str(path)])
    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "survived 0 of 1" in done.stdout
