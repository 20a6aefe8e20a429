# SPDX-License-Identifier: Apache-2.0
"""The tables of tla/README.md, and what they must not leave open."""

import json

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.models.config import Config
from ec_verify.models.generate import tables
from ec_verify.models.manifest import load_manifest, write_pins
from tests.ec_verify.models.tlc.helpers import copy_models, rewrite

MANIFEST = load_manifest(tla_dir())


def test_every_property_has_a_config_that_must_fail():
    failing = tables.must_fail(MANIFEST)
    assert [key for key in tables.checked(MANIFEST) if key not in failing] == []


def test_a_config_that_must_fail_is_about_something_that_must_hold():
    holding = tables.checked(MANIFEST)
    lonely = [
        key
        for key in tables.must_fail(MANIFEST)
        if key not in holding and not key[1].startswith(tables.REACH)
    ]
    assert lonely == []


def test_the_invariants_of_the_design_are_all_there():
    named = {prop.removesuffix("Inv").removesuffix("Prop") for _, prop in tables.checked(MANIFEST)}
    assert named >= {
        "NoOverlap",
        "Conserved",
        "NoWrongBytes",
        "NoReuseUnderDMA",
        "PinSafety",
        "ServeReadyOnly",
        "FencedAccept",
        "AttemptIdentity",
        "PromiseKept",
        "AnnounceWhole",
        "Progress",
    }


@pytest.mark.parametrize("module", ["Tier", "PeerRead", "Fleet", "Offers", "Loans"])
def test_the_protocol_refines_the_store_and_need_not(module):
    assert (module, "StoreSpec") in tables.checked(MANIFEST)
    assert tables.must_fail(MANIFEST)[module, "StoreSpec"]


def test_faults_break_the_refinement():
    broken = {m.fault for m in MANIFEST.models if m.expected == "StoreSpec"}
    assert broken >= {"F1", "F2", "F3", "F5", "F8"}


def test_the_document_is_current():
    assert not tables.stale(tla_dir()), "run ec-protocol diagram --write"


def test_blocks_are_filled_and_the_rest_is_kept(tmp_path):
    folder = copy_models(tmp_path / "models")
    (folder / "README.md").write_text("before\n<!-- models -->\nold\n<!-- /models -->\nafter\n")
    assert tables.stale(folder)
    assert tables.write(folder)
    text = (folder / "README.md").read_text()
    assert text.startswith("before\n<!-- models -->\n| model | mode |")
    assert text.endswith("|\n<!-- /models -->\nafter\n")
    assert "old" not in text
    assert "| 6 | 3 |" in text  # states and depth of "ok"
    assert "| 5 walks | ≤ 20 |" in text
    assert not tables.stale(folder)
    assert not tables.write(folder)
    write_pins(load_manifest(folder), {"ok": {"depth": 99}})
    assert tables.stale(folder)


def test_a_fault_leads_to_the_file_that_its_schedule_stands_in(tmp_path):
    folder = copy_models(tmp_path / "models")
    first, second = "initial", "stutter"
    for name in (first, second):
        head = f"[model.{name}]\n"
        rewrite(folder / "small" / "models.toml", (head, f'{head}fault = "F1"\n'))
    (folder / "README.md").write_text("<!-- faults -->\n<!-- /faults -->\n")
    files = folder / tables.SCENARIOS
    files.mkdir(parents=True)
    (files / f"{first}.json").write_text(json.dumps({"cases": [{"id": first, "also": [second]}]}))
    tables.write(folder)
    rows = (folder / "README.md").read_text().splitlines()[3:-1]
    link = f"[{first}.json]({tables.SCENARIOS}/{first}.json)"
    assert [(row.split(" | ")[1], link in row) for row in rows] == [
        (f"`{first}`", True),
        (f"`{second}`", True),
    ]


def test_bounds_leave_out_safeguards():
    constants = {"A": "A", "Blocks": "{b1}", "Size": "<- SizeOne", "Fence": "TRUE"}
    assert tables.bounds(Config(constants=constants)) == "Blocks {b1}; Size SizeOne"
