# SPDX-License-Identifier: Apache-2.0
"""Counterexamples as stories, from recorded output of TLC."""

from pathlib import Path

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.behaviours.models import _MODELS
from ec_verify.behaviours.story import Story
from ec_verify.kit.language.clauses import clauses
from ec_verify.models.manifest import load_manifest
from ec_verify.models.output import Output, Step, parse_output
from ec_verify.models.tla_value import parse
from ec_verify.pictures.from_tlc import NothingToExplain, property_comment, story_of_counterexample
from ec_verify.pictures.source import UnknownInput, make_story

RECORDED = Path(__file__).resolve().parent / "recorded"


def story_of(name: str) -> Story:
    (path,) = RECORDED.glob(f"{name}.*.txt")
    return make_story([str(path)])


def arrows(story: Story) -> dict[str, tuple[str, int, str, int | None]]:
    return {a.label: (a.source, a.start, a.target, a.end) for a in story.arrows}


def bars(story: Story) -> dict[str, tuple[str, int, int | None]]:
    return {bar.label: (bar.style, bar.start, bar.end) for bar in story.bars}


def test_f1_shows_the_lease_that_ends_before_the_read():
    """The diagram tells the schedule of EC-5.2: who waited, what ended, what was read."""
    story = story_of("BugPeerReadF1")
    row = {step.label: number for number, step in enumerate(story.steps)}
    sent = arrows(story)
    assert len(sent) == len(story.arrows), "each message is one arrow"
    assert sent["request 1 (A)"] == ("c.engine", row["RequestRead"], "p.server", row["Grant"])
    assert sent["OK 1"] == ("p.server", row["Grant"], "c.reader", row["AckOk"])
    assert sent["notice 1"] == ("dma", row["DmaFinish"], "p.server", None)
    assert sent["reads wrong bytes"] == ("p.region", row["DmaCopy"], "dma", row["DmaCopy"])
    lasting = bars(story)
    assert lasting["lease 1"] == ("lease", row["Grant"], row["Expire"])
    assert lasting["fence 1 closed"][0] == "wrong"
    assert lasting["fence 1 open"][1] == row["RequestRead"]
    assert row["Expire"] < row["PostRead"]
    assert lasting["A: wrong bytes"] == ("wrong", row["ReadDone"], None)


def test_f1_names_the_property_and_the_step_that_broke_it():
    story = story_of("BugPeerReadF1")
    verdict = story.verdict
    assert (verdict.title, verdict.row, verdict.bad) == ("NoWrongBytesInv", 15, True)
    assert story.steps[15].label == "ReadDone"
    assert "EC-2.2" in verdict.sentence
    assert ("fault", "F1") in verdict.facts
    assert story.about.startswith("Expected to fail (F1)")


def test_the_state_beside_it_is_the_state_of_tlc():
    """Adding up the changes gives what TLC printed last."""
    story = story_of("BugPeerReadF1")
    (path,) = RECORDED.glob("BugPeerReadF1.*.txt")
    last = parse_output(path.read_text(), 12).trace[-1].state
    state: dict[str, str] = {}
    for step in story.steps:
        for name, text in step.changes.items():
            if text is None:
                del state[name]
            else:
                state[name] = text
    read = parse(last["read"])
    assert state["attempt 1|read"] == read[0] == "done"
    assert state["attempt 1|fence"] == str(parse(last["fence"])[0])
    assert state["consumer’s block b1|bytes"] == parse(last["bytes"])["b1"] == "torn"
    assert state["network|OK 1"] == "sent"
    assert not any(name.startswith("attempt 2|") for name in state), "it was never made"


def test_every_state_is_a_step_with_its_number():
    story = story_of("BugPeerReadF1")
    assert [step.time for step in story.steps] == [str(n) for n in range(1, 17)]
    assert story.steps[0].kind == "start"
    assert [step.kind for step in story.steps if step.label == "Tick"] == ["clock", "clock"]
    assert {s.label for s in story.steps if s.kind == "environment"} == {
        "SaveBegin", "SaveEnd", "DmaCopy", "DmaFinish",
    }  # fmt: skip


def test_a_behaviour_for_ever_says_where_it_returns_to():
    verdict = story_of("BugPeerReadNoSettle").verdict
    assert (verdict.title, verdict.row, verdict.back_to) == ("AttemptsSettleProp", None, 14)
    assert "returns to state 15 for ever" in verdict.sentence


def test_tier_shows_ranks_and_copies():
    story = story_of("BugTierPinLoads")
    row = {step.label: number for number, step in enumerate(story.steps)}
    loads = [a for a in story.arrows if a.label == "load A"]
    assert [(a.source, a.target, a.start) for a in loads] == [
        ("engine", "rank 1", row["SubmitLoad"]),
        ("engine", "rank 2", row["SubmitLoad"]),
    ]
    assert ("rank 1", "engine", row["SaveLanded"]) in [
        (a.source, a.target, a.start) for a in story.arrows if a.label == "report"
    ]
    assert bars(story)["load A: in_flight"] == ("transfer", row["SubmitLoad"], None)
    assert story.steps[row["RankCopies"]].lane == "rank 1"


def test_peer_shows_sessions_and_processes():
    story = story_of("BugPeerFailReads")
    assert bars(story)["process 1"][:2] == ("state", 0)
    assert any(label.endswith(": down") for label in bars(story))
    assert "request 1" in arrows(story)


def test_fleet_shows_whose_notice_ends_a_grant():
    """EC-5.5: the notice of attempt 1 arrives when the grant of attempt 2 is open."""
    story = story_of("BugFleetNoticeBytes")
    rows = {}
    for number, step in enumerate(story.steps):
        rows.setdefault(step.label, number)
    sent = arrows(story)
    assert sent["notice 1"] == ("c1/data", rows["AckOk"], "p1/data", rows["Complete"])
    assert bars(story)["lease 2"] == ("lease", rows["Grant"] + 4, rows["Complete"])
    assert story.steps[rows["Complete"]].subject == "attempt 2 (A)"
    assert story.steps[rows["Evict"]].lane == "p1/engine"
    assert bars(story)["A: wrong bytes"][1] == len(story.steps) - 1
    assert [lane.group for lane in story.lanes][::6] == ["p1", "c1"]


def test_an_unknown_model_is_told_all_the_same():
    states = [
        Step("Initial state", {"pc": "[p |-> \"off\", q |-> \"off\"]", "entry": "[e |-> \"freed\"]",
                               "note": "not ] a value", "ev": "{}"}),
        Step("Begin", {"pc": "[p |-> \"up\", q |-> \"off\"]", "entry": "[e |-> \"saving\"]",
                       "note": "still not ] one",
                       "ev": '{<<"entry", "allocated", "begin_write", "saving">>}'}),
        Step("Tick", {"pc": "[p |-> \"up\", q |-> \"off\"]", "entry": "[e |-> \"freed\"]",
                      "note": "still not ] one", "ev": "{}"}),
    ]  # fmt: skip
    output = Output()
    output.kind, output.name, output.trace = "invariant", "SomeInv", tuple(states)
    story = story_of_counterexample(output, "New", None, tla_dir())
    assert [(s.lane, s.subject) for s in story.steps] == [("", ""), ("pc p", "p, e"), ("", "e")]
    assert story.steps[1].notes == ["entry allocated → saving"]
    assert bars(story) == {"entry e saving": ("saving", 1, 2)}
    assert story.steps[1].changes["state|note"] == "still not ] one"


@pytest.mark.parametrize("model", _MODELS, ids=lambda m: m.event.__name__)
def test_events_know_the_variables_of_their_models(model):
    """A module that loses a variable would silently fall back to the plain reading."""
    text = "".join(path.read_text() for path in tla_dir().rglob("*.tla"))
    declared = set()
    for block in text.split("VARIABLE")[1:]:
        head = block.split("==")[0]
        declared |= {line.split("\\*")[0].strip(" ,S") for line in head.splitlines()}
    declared |= {name.strip() for line in declared for name in line.split(",")}
    assert model.event.needs <= declared


def test_every_known_action_of_the_environment_is_in_a_model():
    text = "".join(path.read_text() for path in tla_dir().rglob("*.tla"))
    for model in _MODELS:
        for action in model.picture.environment:
            assert f"\n{action}" in text, f"{model.picture.__name__}: {action}"


def test_a_reached_state_is_no_violation():
    model = next(m for m in load_manifest(tla_dir()).models if m.name == "ReachPeerReadDone")
    output = parse_output((RECORDED / "BugPeerReadF1.12.txt").read_text(), 12)
    output.name = "ReachDone"
    story = story_of_counterexample(output, model.name, model, tla_dir())
    assert not story.verdict.bad
    assert "safeguard removed" not in dict(story.verdict.facts)


def test_clauses_are_quoted():
    assert clauses()["EC-2.3"].startswith("An entry MUST be `saving`")


def test_the_comment_of_a_property_comes_from_its_own_module():
    peer_read = property_comment(tla_dir(), "MCPeerRead.tla", "NoWrongBytesInv")
    peer = property_comment(tla_dir(), "MCPeer.tla", "NoWrongBytesInv")
    assert peer_read.startswith("EC-2.2")
    assert peer
    assert peer != peer_read
    assert property_comment(tla_dir(), "MCPeer.tla", "NoSuchInv") == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("BugPeerReadF11", "did you mean BugPeerReadF1"),
        ("MCTier", "expected to hold"),
        ("no/such.ndjson", "no such file"),
        ("lost.ndjson", "no such file"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_a_way_out(name, says):
    with pytest.raises((UnknownInput, NothingToExplain), match=says):
        make_story([name])


def test_a_run_that_found_nothing_is_no_counterexample(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text(
        "@!@!@STARTMSG 2193:0 @!@!@\nModel checking completed.\n@!@!@ENDMSG 2193 @!@!@\n"
    )
    with pytest.raises(NothingToExplain, match="shows no behaviour"):
        make_story([str(path)])
