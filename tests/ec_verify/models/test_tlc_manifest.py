# SPDX-License-Identifier: Apache-2.0
"""The models as a whole: their form, their pins, and the files around them."""

import json

import pytest

from ec_protocol.tables.files import spec_dir, tla_dir
from ec_verify.models.manifest import ManifestError, dump_pins, load_manifest, problems, write_pins
from ec_verify.models.model import parse_model
from tests.ec_verify.models.tlc.helpers import copy_models, rewrite

# In two halves, so that these examples do not count as citations of clauses.
CLAUSE, NO_CLAUSE = "EC-" + "2.1", "EC-" + "99.1"

TABLE = {
    "about": "An example.",
    "module": "MCTier.tla",
    "mode": "exhaustive",
    "clauses": [CLAUSE],
    "invariants": ["PinInv"],
}
BUG = {"mode": "bug", "safeguard": "x"}
PINS = {"distinct_states": 10, "depth": 3, "seconds": 1.5}


@pytest.fixture
def folder(tmp_path):
    return copy_models(tmp_path / "models")


def without(key):
    return {other: value for other, value in TABLE.items() if other != key}


def test_a_model_with_its_pins():
    model = parse_model("MCTier", TABLE, PINS)
    assert (model.name, model.distinct_states, model.clauses) == ("MCTier", 10, (CLAUSE,))
    assert (model.seconds, model.depth, model.steps) == (1.5, 3, None)
    assert (model.tier, model.deadlock, model.allow_dead, model.timeout) == ("pr", True, (), 900.0)
    assert model.config.invariants == ("PinInv",)


def test_what_must_fail_is_the_one_thing_that_is_checked():
    bug = parse_model("Bug", {**TABLE, **BUG, "fault": "F1", "safeguard": "the\nfence"}, {})
    assert (bug.fault, bug.safeguard, bug.expected) == ("F1", "the fence", "PinInv")
    more = {**TABLE, **BUG, "properties": ["EndsProp"]}
    with pytest.raises(ManifestError, match=r"expected is missing: .* here are PinInv, EndsProp"):
        parse_model("Bug", more, {})
    with pytest.raises(ManifestError, match=r"expected is missing: .* here are none"):
        parse_model("Bug", {**TABLE, **BUG, "invariants": []}, {})
    assert parse_model("Bug", {**more, "expected": "EndsProp"}, {}).expected == "EndsProp"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (without("module"), "field 'module' is missing, and no base has it"),
        (without("mode"), "field 'mode' is missing, and no base has it"),
        ({**TABLE, "mode": "fast"}, "mode is 'fast', expected one of exhaustive, liveness"),
        ({**TABLE, "tier": "nightly"}, "tier is 'nightly', expected one of pr, full"),
        ({**TABLE, "view": 3}, "view is 3, expected a string"),
        ({**TABLE, "clauses": "one"}, "clauses is 'one', expected a list of strings"),
        ({**TABLE, "invariants": [1]}, "invariants is [1], expected a list of strings"),
        ({**TABLE, "clauses": ["1.1"]}, "clause '1.1' is not of the form EC-"),
        ({**TABLE, "timeout": "3"}, "timeout is '3', expected a positive number"),
        ({**TABLE, "timeout": 0}, "timeout is 0"),
        ({**TABLE, "deadlock": 0}, "deadlock is 0, expected true or false"),
        ({**TABLE, "expected": "PinInv"}, 'expected must be "ok"'),
        ({**TABLE, "fault": "F1"}, "fault and safeguard belong to mode bug only"),
        ({**TABLE, **BUG, "expected": "ok"}, 'expected must be "ok"'),
        ({**TABLE, "mode": "bug"}, "safeguard must say what was removed"),
        ({**TABLE, **BUG, "fault": "1"}, "fault is '1', expected F1, F2"),
        ({**TABLE, "lifecycles": ["entry"]}, "lifecycles must be given for mode edges"),
        ({**TABLE, "mode": "edges", "modules": []}, "lifecycles must be given for mode edges"),
        ({**TABLE, "mode": "edges", "lifecycles": ["entry"]}, "modules must be given"),
        (
            {**TABLE, "mode": "edges", "lifecycles": ["entri"], "modules": []},
            "unknown lifecycle 'entri'; did you mean entry, ",
        ),
        (
            {**TABLE, "mode": "edges", "lifecycles": ["entry"], "modules": ["MCTier"]},
            "no action is in module 'MCTier'; did you mean Tier, ",
        ),
        ({**TABLE, "mode": "simulation"}, "simulate must be given"),
        ({**TABLE, "simulate": {"traces": 1}}, "expected a table with exactly traces, depth"),
        ({**TABLE, "simulate": {"traces": 1, "depth": 2, "seed": "x"}}, "expected whole numbers"),
    ],
)
def test_malformed_models_name_the_model_and_the_field(table, message):
    with pytest.raises(ManifestError) as caught:
        parse_model("MCTier", table, {})
    assert str(caught.value).startswith("model MCTier: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("table", "pins", "message"),
    [
        (TABLE, {"distinct_states": 0}, "distinct_states is 0, expected a positive whole"),
        (TABLE, {"distinct_states": True}, "distinct_states is True"),
        (TABLE, {"depth": 1.5}, "depth is 1.5"),
        (TABLE, {"seconds": "3"}, "seconds is '3', expected a positive number"),
        (TABLE, {"seconds": None}, "seconds is None"),
        (TABLE, {"mode": "bug"}, "manifest.json: unknown field 'mode'; did you mean"),
        (TABLE, {"steps": 3}, "steps is the length of a counterexample: for mode bug only"),
        ({**TABLE, **BUG}, {"depth": 3}, "mode bug has no distinct_states and no depth"),
    ],
)
def test_malformed_pins_name_the_model_and_the_field(table, pins, message):
    with pytest.raises(ManifestError) as caught:
        parse_model("MCTier", table, pins)
    assert str(caught.value).startswith("model MCTier: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[]", 'expected {"version": 2'),
        ('{"version": 1, "models": []}', 'expected {"version": 2'),
        ('{"version": 2, "models": []}', "`models` must be an object of objects"),
        ('{"version": 2, "models": {"x": 1}}', "`models` must be an object of objects"),
    ],
)
def test_malformed_files(tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(tmp_path)
    assert message in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(ManifestError, match=r"manifest\.json is missing"):
        load_manifest(tmp_path)


def test_a_model_is_in_one_folder(folder):
    (folder / "other").mkdir()
    (folder / "other" / "models.toml").write_text('[model.live]\nmode = "bug"\n')
    with pytest.raises(ManifestError, match=r"small/models.toml: model 'live' is in .*other"):
        load_manifest(folder)


def test_the_order_is_the_manifests_and_new_models_come_last(folder):
    names = [model.name for model in load_manifest(folder).models]
    pins = dict(reversed(json.loads((folder / "manifest.json").read_text())["models"].items()))
    del pins["live"]
    (folder / "manifest.json").write_text(dump_pins(pins))
    expected = [*(name for name in reversed(names) if name != "live"), "live"]
    assert [model.name for model in load_manifest(folder).models] == expected


def test_selection(folder):
    manifest = load_manifest(folder)
    assert "endless" not in [m.name for m in manifest.select([], "pr")]
    assert "endless" in [m.name for m in manifest.select([], "full")]
    assert [m.name for m in manifest.select(["live", "ok", "live"], "pr")] == ["live", "ok"]
    with pytest.raises(
        ManifestError, match=r"'invarient'; did you mean invariant, \w+ or [\w-]+\?"
    ):
        manifest.select(["invarient"], "pr")


def test_new_pins_keep_what_was_edited_meanwhile(folder):
    loaded = load_manifest(folder)
    path = folder / "manifest.json"
    rewrite(path, ('"live": {"distinct_states": 6', '"live": {"distinct_states": 5'))
    write_pins(loaded, {"pins": {"distinct_states": 6}})
    assert '"live": {"distinct_states": 5' in path.read_text()


def test_new_pins_change_nothing_else(folder):
    before = (folder / "manifest.json").read_text()
    write_pins(load_manifest(folder), {"pins": {"distinct_states": 6}})
    after = (folder / "manifest.json").read_text()
    assert after == before.replace('"distinct_states": 7', '"distinct_states": 6')
    assert json.loads(after)["version"] == 2


def test_the_first_pins_of_a_model_come_last(folder):
    write_pins(load_manifest(folder), {"fresh": {"seconds": 2.0}})
    text = (folder / "manifest.json").read_text()
    assert text.endswith('},\n    "fresh": {"seconds": 2.0}\n  }\n}\n')


def test_the_shipped_pins_are_laid_out_as_they_are_written():
    text = (tla_dir() / "manifest.json").read_text()
    assert dump_pins(load_manifest(tla_dir()).pins) == text


def test_agreement_with_the_files(folder):
    assert set(problems(load_manifest(folder), None)) == {"broken"}


def test_files_nobody_uses_and_models_without_files(folder):
    (folder / "small" / "Forgotten.tla").write_text("")
    (folder / "small" / "old.cfg").write_text("")
    (folder / "small" / "TraceX.tla").write_text("")  # run by `ec-protocol trace check`
    (folder / "small" / "Endless.tla").unlink()
    rewrite(folder / "small" / "models.toml", ("[model.stutter]", "[model.stammer]"))
    found = problems(load_manifest(folder), None)
    assert found[""] == [
        "no model uses small/Forgotten.tla: add one or remove it",
        "small/old.cfg: configs are made from models.toml; remove it",
        "manifest.json pins stutter, which no models.toml has: remove it there",
    ]
    assert found["endless"] == [f"Endless.tla is missing: expected it in {folder}"]


@pytest.mark.parametrize(
    ("model", "line", "says"),
    [
        ("edges", 'view = "v"', "view is 'v': it hides what is compared with the tables"),
        ("edges", 'symmetry = "s"', "symmetry is 's': it hides what is compared with the tables"),
        ("live", 'symmetry = "s"', "symmetry is 's': it makes TLC's liveness results wrong"),
        ("live", "properties = []", "a liveness model needs properties"),
        ("ok", "invariants = []", "it checks nothing: give it invariants or properties"),
        ("invariant", 'invariants = ["TypeOK"]', "it checks no SmallInv, so it cannot be violated"),
        ("ok", 'about = ""', "about is missing: say what TLC is asked, or what it finds"),
        ("ok", 'specification = ""', "it needs a specification, or init and next, and not both"),
        ("ok", 'init = "I"\nnext = "N"', "it needs a specification, or init and next, and not"),
    ],
)
def test_configs_that_cannot_do_what_the_model_says(folder, model, line, says):
    """Each line stands in a model of its own, which has another for its base."""
    extra = f"\n[model.changed]\nbase = {model!r}\n"
    extra += "" if line.startswith("about") else 'about = "changed"\n'
    extra += 'expected = "SmallInv"\n' if model == "invariant" else ""
    with open(folder / "small" / "models.toml", "a") as file:
        file.write(f"{extra}{line}\n")
    (sentence,) = problems(load_manifest(folder), None)["changed"]
    assert sentence.startswith(says)


def test_clauses_must_exist(folder, tmp_path):
    rewrite(
        folder / "small" / "models.toml",
        ("[model.ok]\n", f'[model.ok]\nclauses = ["{CLAUSE}", "{NO_CLAUSE}"]\n'),
    )
    protocol = tmp_path / "PROTOCOL.md"
    assert "ok" not in problems(load_manifest(folder), protocol)  # there is no such file yet
    protocol.write_text(f"**{CLAUSE}** MUST ...")
    assert problems(load_manifest(folder), protocol)["ok"] == [
        f"clause {NO_CLAUSE} is not in {protocol}"
    ]


def test_the_shipped_models_agree_with_their_files():
    assert problems(load_manifest(tla_dir()), spec_dir() / "PROTOCOL.md") == {}


def test_configs_and_pins_are_short():
    """A base says once what models share: without it these were 43 lines for each model."""
    files = [
        *tla_dir().rglob("models.toml"),
        *tla_dir().rglob("*.cfg"),
        tla_dir() / "manifest.json",
    ]
    lines = sum(path.read_text().count("\n") for path in files)
    assert lines <= 12 * len(load_manifest(tla_dir()).models)
