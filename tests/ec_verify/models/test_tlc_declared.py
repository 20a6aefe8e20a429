# SPDX-License-Identifier: Apache-2.0
"""``models.toml`` says of every model what its config and its manifest entry said."""

import json
import re

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.models.config import Config
from ec_verify.models.declared import read_models

ENTRIES = {
    entry["name"]: entry
    for entry in json.loads((tla_dir() / "manifest.json").read_text())["models"]
}
DECLARED = {
    name: table
    for path in sorted(tla_dir().glob("*/models.toml"))
    for name, table in read_models(path).items()
}
#: What is measured stays in the manifest.
PINS = {"distinct_states", "depth", "seconds", "steps"}
LISTS = ("invariants", "properties")


def config_of(table):
    known = {key: table[key] for key in Config.__dataclass_fields__ if key in table}
    return Config(**known | {key: tuple(table.get(key, ())) for key in LISTS})


def bare(text):
    """The lines without comments, and with one blank between words."""
    lines = [" ".join(line.partition("\\*")[0].split()) for line in text.splitlines()]
    return [line for line in lines if line]


def comment(text):
    found = re.findall(r"\\\*(.*)", text)
    return " ".join(" ".join(line for line in found if "SPDX" not in line).split())


def test_every_model_is_declared_once():
    assert DECLARED.keys() == ENTRIES.keys()
    assert {f"{name}.cfg" for name in DECLARED} == {p.name for p in tla_dir().glob("*.cfg")}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_config_is_the_same(name):
    old = (tla_dir() / ENTRIES[name]["cfg"]).read_text(encoding="utf-8")
    table = DECLARED[name]
    new = config_of(table).text(table.get("about", ""))
    assert bare(new) == bare(old)
    assert comment(new) == comment(old) == " ".join(table.get("about", "").split())


@pytest.mark.parametrize("name", ENTRIES)
def test_the_entry_is_the_same(name):
    table, entry = DECLARED[name], ENTRIES[name]
    config = config_of(table)
    said = {
        "name": name,
        "cfg": f"{name}.cfg",
        "tier": "pr",
        "clauses": [],
        "expected": config.checked[0] if table["mode"] == "bug" else "ok",
        "fault": "",
        "allow_dead": [],
        "timeout": 900,
        "deadlock": True,
    } | {key: table[key] for key in table if key in entry or key in ("timeout", "deadlock")}
    default = {"fault": "", "allow_dead": [], "timeout": 900, "deadlock": True}
    wanted = default | {key: value for key, value in entry.items() if key not in PINS}
    assert said == wanted
    assert table["mode"] != "bug" or len(config.checked) == 1
