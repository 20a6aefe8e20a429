# SPDX-License-Identifier: Apache-2.0
"""``models.toml``: what a table takes over from its base, and what it must not say."""

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.models.config import Config
from ec_verify.models.declared import FIELDS, read_models
from ec_verify.models.errors import ManifestError
from ec_verify.models.manifest import load_manifest
from ec_verify.models.model import parse_model

TEXT = """
[base.Tier]
module = "MCTier.tla"
view = "View"
clauses = ["x"]
about = "not taken over"
[base.Tier.constants]
Enc = "{A}"
Slot = ""
Size = "<- SizeOne"
Copies = 2
Pins = true

[base.Live]
base = "Tier"
view = ""
constants = { Slot = "<- Lowest", Copies = 3 }

[model.First]
base = "Live"
about = "The first."
clauses = []
constants = { More = "{}", Pins = false }

[model.Second]
base = "First"
"""


def written(tmp_path, text):
    path = tmp_path / "models.toml"
    path.write_text(text)
    return path


def test_a_model_takes_over_what_it_does_not_say(tmp_path):
    found = read_models(written(tmp_path, TEXT))
    assert list(found) == ["First", "Second"]
    assert found["First"] == {
        "about": "The first.",
        "module": "MCTier.tla",
        "view": "",
        "clauses": [],
        "constants": {
            "Enc": "{A}",
            "Slot": "<- Lowest",
            "Size": "<- SizeOne",
            "Copies": "3",
            "Pins": "FALSE",
            "More": "{}",
        },
    }
    # The order is that of the config; what a model is about is its own.
    assert list(found["First"]["constants"])[:3] == ["Enc", "Slot", "Size"]
    assert found["Second"] == {k: v for k, v in found["First"].items() if k != "about"}


def test_a_constant_without_a_text_is_left_out(tmp_path):
    text = TEXT + '[model.Third]\nbase = "Tier"\nconstants = { Copies = "" }\n'
    constants = read_models(written(tmp_path, text))["Third"]["constants"]
    assert constants == {"Enc": "{A}", "Size": "<- SizeOne", "Pins": "TRUE"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "no TOML"),
        ("[models.X]", "'models' is not expected there: a table is [base.NAME] or [model.NAME]"),
        ("model = 1", "'model' is not expected there"),
        ("[base.X]\n[model.X]", "'X' is both a base and a model: rename one"),
        ("[model.X]\n[model.X]", "no TOML"),
        ("[model]\nX = 3", "[model.X] is 3, expected a table"),
        ('[model."a b"]', "[model.a b]: a name must be a word of letters"),
        ('[model.X]\nsafegaurd = "x"', "[model.X]: unknown field 'safegaurd'; did you mean safeg"),
        ("[base.X]\ncheck_deadlock = true", "[base.X]: unknown field 'check_deadlock'; did you"),
        ("[model.X]\nconstants = 3", "[model.X]: constants is 3, expected a table"),
        ("[model.X]\nconstants = { A = 1.5 }", "constants.A is 1.5, expected true, false, a whole"),
        ("[model.X]\nconstants = { A = [] }", "constants.A is [], expected true, false, a whole"),
        ("[model.X]\nconstants.'A B' = 1", "constants.A B is no name that TLA+ knows"),
        (
            '[base.Tier]\n[model.X]\nbase = "Teir"',
            "X: base is 'Teir', which this file does not have; did you mean Tier or X?",
        ),
        ("[model.X]\nbase = 3", "X: base is 3, which this file does not have"),
        ('[model.X]\nbase = "X"', "X: base is 'X', which leads back to it: X -> X"),
        (
            '[base.A]\nbase = "B"\n[base.B]\nbase = "A"\n[model.X]\nbase = "A"',
            "B: base is 'A', which leads back to it: X -> A -> B -> A",
        ),
    ],
)
def test_malformed_files_name_the_table_and_the_field(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ManifestError) as caught:
        read_models(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_every_field_is_one_that_a_model_has():
    table = {"module": "X.tla", "mode": "exhaustive"}
    texts = {"about": "a", "fault": "", "view": "v", "init": "i", "next": "n"}
    model = parse_model("X", {**table, **texts}, {})
    for name in set(FIELDS) - {"base"}:
        assert hasattr(model, name) or hasattr(model.config, name), name


def test_the_text_of_a_config():
    config = Config(
        specification="Spec",
        constants={"A": "A", "Size": "<- One", "Fence": "TRUE", "Blocks": "{b1, b2}"},
        constraint="Bound",
        view="View",
        symmetry="Symmetry",
        action_constraint="Quick",
        invariants=("TypeOK", "PinInv"),
        properties=("EndsProp",),
    )
    assert config.text("why " * 25) == (
        "\\* " + " ".join(["why"] * 19) + "\n\\* " + " ".join(["why"] * 6) + "\n"
        "SPECIFICATION Spec\n"
        "CONSTANTS\n    A = A\n    Size <- One\n    Fence = TRUE\n    Blocks = {b1, b2}\n"
        "CONSTRAINT Bound\nVIEW View\nSYMMETRY Symmetry\nACTION_CONSTRAINT Quick\n"
        "INVARIANTS\n    TypeOK\n    PinInv\nPROPERTIES\n    EndsProp\n"
    )
    assert config.checked == ("TypeOK", "PinInv", "EndsProp")
    assert config.assigned == {"A": "A", "Fence": "TRUE", "Blocks": "{b1, b2}"}
    assert config.replaced == {"Size": "One"}
    assert Config(init="Init", next="Next").text() == "INIT Init\nNEXT Next\n"


def test_every_shipped_base_is_used():
    for path in tla_dir().glob("*/models.toml"):
        text = path.read_text(encoding="utf-8")
        bases = [line[6:-1] for line in text.splitlines() if line.startswith("[base.")]
        unused = [name for name in bases if "." not in name and f'base = "{name}"' not in text]
        assert unused == [], path


def test_every_shipped_model_sets_the_same_constants_as_its_kin():
    """But for operators that it replaces."""
    kin = {}
    for model in load_manifest(tla_dir()).models:
        kin.setdefault(model.module, {})[model.name] = list(model.config.assigned)
    for module, constants in kin.items():
        assert len({tuple(sorted(names)) for names in constants.values()}) == 1, module
