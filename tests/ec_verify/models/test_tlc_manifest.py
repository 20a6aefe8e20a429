# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ec_protocol.tables.files import spec_dir, tla_dir
from ec_verify.models.configs import parse_config, with_properties
from ec_verify.models.manifest import (
    ManifestError,
    dump_manifest,
    load_manifest,
    parse_model,
    problems,
    write_pins,
)
from tests.ec_verify.models.tlc.helpers import copy_models

# In two halves, so that these examples do not count as citations of clauses.
CLAUSE, NO_CLAUSE = "EC-" + "2.1", "EC-" + "99.1"

ENTRY = {
    "name": "MCTier",
    "module": "MCTier.tla",
    "cfg": "MCTier.cfg",
    "mode": "exhaustive",
    "tier": "pr",
    "expected": "ok",
    "distinct_states": 10,
    "depth": 3,
    "seconds": 1.5,
    "clauses": [CLAUSE],
}
BUG = {"mode": "bug", "expected": "PinInv", "distinct_states": None, "depth": None}


@pytest.fixture
def folder(tmp_path):
    return copy_models(tmp_path / "models")


def without(*keys):
    return {key: value for key, value in ENTRY.items() if key not in keys}


def test_entry():
    model = parse_model(ENTRY)
    assert (model.name, model.distinct_states, model.clauses) == ("MCTier", 10, (CLAUSE,))
    assert (model.deadlock, model.allow_dead, model.timeout) == (True, (), 900.0)
    bug = parse_model({**ENTRY, **BUG, "fault": "F1", "safeguard": "the fence"})
    assert (bug.fault, bug.safeguard) == ("F1", "the fence")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (without("module"), "field 'module' is missing"),
        ({**ENTRY, "name": "a b"}, "`name` must be a word"),
        ({**ENTRY, "name": None}, "`name` must be a word"),
        ({**ENTRY, "safegaurd": "x"}, "unknown field 'safegaurd'; did you mean 'safeguard'"),
        ({**ENTRY, "mode": "fast"}, "mode is 'fast', expected one of exhaustive, liveness"),
        ({**ENTRY, "tier": "nightly"}, "tier is 'nightly', expected one of pr, full"),
        ({**ENTRY, "cfg": 3}, "cfg is 3, expected a string"),
        ({**ENTRY, "clauses": "one"}, "clauses is 'one', expected a list of strings"),
        ({**ENTRY, "clauses": ["1.1"]}, "clause '1.1' is not of the form EC-"),
        ({**ENTRY, "distinct_states": 0}, "distinct_states is 0, expected a positive whole"),
        ({**ENTRY, "distinct_states": True}, "distinct_states is True"),
        ({**ENTRY, "depth": 1.5}, "depth is 1.5"),
        ({**ENTRY, "seconds": "3"}, "seconds is '3', expected a positive number"),
        ({**ENTRY, "timeout": None}, "timeout is None"),
        ({**ENTRY, "deadlock": 0}, "deadlock is 0, expected true or false"),
        ({**ENTRY, "expected": "PinInv"}, 'expected must be "ok"'),
        ({**ENTRY, "fault": "F1"}, "fault and safeguard belong to mode bug only"),
        ({**ENTRY, **BUG, "expected": "ok"}, 'expected must be "ok"'),
        ({**ENTRY, **BUG}, "safeguard must say what was removed"),
        ({**ENTRY, **BUG, "safeguard": "x", "fault": "1"}, "fault is '1', expected F1, F2"),
        ({**ENTRY, **BUG, "safeguard": "x", "depth": 3}, "must be null for mode bug"),
        ({**ENTRY, "lifecycles": ["entry"]}, "lifecycles must be given for mode edges"),
        ({**ENTRY, "mode": "edges", "modules": []}, "lifecycles must be given for mode edges"),
        ({**ENTRY, "mode": "edges", "lifecycles": ["entry"]}, "modules must be given"),
        (
            {**ENTRY, "mode": "edges", "lifecycles": ["entri"], "modules": []},
            "unknown lifecycle 'entri'; known: entry",
        ),
        (
            {**ENTRY, "mode": "edges", "lifecycles": ["entry"], "modules": ["MCTier"]},
            "no action is in module 'MCTier'; known: ",
        ),
        ({**ENTRY, "mode": "simulation"}, "simulate must be given"),
        ({**ENTRY, "simulate": {"traces": 1}}, "expected an object with exactly traces, depth"),
        ({**ENTRY, "simulate": {"traces": 1, "depth": 2, "seed": "x"}}, "expected whole numbers"),
    ],
)
def test_malformed_entries_name_the_model_and_the_field(entry, message):
    with pytest.raises(ManifestError) as caught:
        parse_model(entry)
    assert message in str(caught.value)
    assert str(entry["name"]) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[]", 'expected {"version": 1'),
        ('{"version": 2, "models": []}', 'expected {"version": 1'),
        ('{"version": 1, "models": {}}', "`models` must be a list of objects"),
        ('{"version": 1, "models": [1]}', "`models` must be a list of objects"),
        (dump_manifest([ENTRY, ENTRY]), "'MCTier' appears twice"),
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


def test_selection(folder):
    manifest = load_manifest(folder)
    assert "endless" not in [m.name for m in manifest.select([], "pr")]
    assert "endless" in [m.name for m in manifest.select([], "full")]
    assert [m.name for m in manifest.select(["live", "ok", "live"], "pr")] == ["live", "ok"]
    with pytest.raises(ManifestError, match=r"'invarient'; did you mean invariant"):
        manifest.select(["invarient"], "pr")
    with pytest.raises(ManifestError, match=r"'zzz'; known: ok, pins"):
        manifest.select(["zzz"], "pr")


def test_new_pins_keep_what_was_edited_meanwhile(folder):
    loaded = load_manifest(folder)
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 5'))
    write_pins(loaded, {"pins": {"distinct_states": 6}})
    assert '"seed": 5' in path.read_text()


def test_new_pins_change_nothing_else(folder):
    before = (folder / "manifest.json").read_text()
    write_pins(load_manifest(folder), {"pins": {"distinct_states": 6}})
    after = (folder / "manifest.json").read_text()
    assert after == before.replace('"distinct_states": 7', '"distinct_states": 6')
    assert json.loads(after)["version"] == 1


def test_agreement_with_the_files(folder):
    assert set(problems(load_manifest(folder), None)) == {"broken", "nonsense"}


def test_files_nobody_uses_and_entries_without_files(folder):
    (folder / "Forgotten.tla").write_text("")
    (folder / "old.cfg").write_text("")
    (folder / "TraceX.cfg").write_text("")  # run by `ec-protocol trace check`
    (folder / "live.cfg").unlink()
    found = problems(load_manifest(folder), None)
    assert [text.split(" uses ")[1] for text in found[""]] == [
        "Forgotten.tla: add one or remove it",
        "old.cfg: add one or remove it",
    ]
    assert found["live"][0].startswith("live.cfg is missing: expected it in")


def test_configs_that_cannot_do_what_the_entry_says(folder):
    def add(name, text):
        with open(folder / f"{name}.cfg", "a") as file:
            file.write(text)

    add("edges", "VIEW v\nSYMMETRY s\n")
    add("ok", "CHECK_DEADLOCK FALSE\n")
    add("live", "SYMMETRY s\n")
    (folder / "deadlock.cfg").write_text("SPECIFICATION Spec")
    (folder / "invariant.cfg").write_text("SPECIFICATION Spec\nINVARIANT TypeOK")
    (folder / "stutter.cfg").write_text("SPECIFICATION Spec")
    found = problems(load_manifest(folder), None)
    assert found["edges"] == [
        "edges.cfg: a model compared with the tables must not use SYMMETRY",
        "edges.cfg: a model compared with the tables must not use VIEW",
    ]
    assert found["ok"] == ["ok.cfg: TLC 2.15 does not know CHECK_DEADLOCK"]
    assert found["live"] == ["live.cfg: SYMMETRY makes TLC's liveness results wrong"]
    assert found["invariant"] == ["invariant.cfg checks no SmallInv, so it cannot be violated"]
    assert found["stutter"] == ["stutter.cfg checks no PassesTwoProp, so it cannot be violated"]
    assert "deadlock" not in found


def test_liveness_needs_a_property(folder):
    (folder / "live.cfg").write_text("SPECIFICATION FairSpec")
    found = problems(load_manifest(folder), None)
    assert found["live"] == ["live.cfg: a liveness model needs a PROPERTY"]


def test_clauses_must_exist(folder, tmp_path):
    document = json.loads((folder / "manifest.json").read_text())
    document["models"][0]["clauses"] = [CLAUSE, NO_CLAUSE]
    (folder / "manifest.json").write_text(json.dumps(document))
    protocol = tmp_path / "PROTOCOL.md"
    assert "ok" not in problems(load_manifest(folder), protocol)  # there is no such file yet
    protocol.write_text(f"**{CLAUSE}** MUST ...")
    assert problems(load_manifest(folder), protocol)["ok"] == [
        f"clause {NO_CLAUSE} is not in {protocol}"
    ]


def test_the_shipped_manifest_agrees_with_its_files():
    assert problems(load_manifest(tla_dir()), spec_dir() / "PROTOCOL.md") == {}


CFG = r"""
\* INVARIANT NotThis
CONSTANTS A = "INVARIANT x"  B <- BDef
SPECIFICATION Spec (* PROPERTY NorThis *)
INVARIANTS TypeOK PinInv
PROPERTIES
    EndsProp   \* comment
    OtherProp
CONSTRAINT Bound
"""


def test_config_sections():
    config = parse_config(CFG)
    assert config.invariants == ("TypeOK", "PinInv")
    assert config.properties == ("EndsProp", "OtherProp")
    assert config.sections == {"CONSTANT", "SPECIFICATION", "INVARIANT", "PROPERTY", "CONSTRAINT"}
    assert config.unsupported == ()


def test_config_with_one_property():
    config = parse_config(with_properties(CFG, ["OtherProp"]))
    assert config.properties == ("OtherProp",)
    assert config.invariants == ("TypeOK", "PinInv")
    assert "CONSTRAINT" in config.sections
