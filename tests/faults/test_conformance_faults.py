# SPDX-License-Identifier: Apache-2.0
"""Every seeded fault is noticed by the cases that it names, which the sound core passes."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.needs import needs

needs("msgspec", "zmq")

import ec_protocol
import ec_protocol.p2p.wire
import ec_verify.kit.on_node
from ec_verify.adapters.ours.adapter import make
from ec_verify.cli import app
from ec_verify.kit.command import quiet_implementation
from ec_verify.kit.language.clauses import clauses
from ec_verify.kit.language.schedule import all_cases
from ec_verify.kit.runner import Result, Verdict, run_case
from ec_verify.kit.world.links import InProcess
from tests.faults import FAULTS, HERE, Fault, read
from tests.faults.__main__ import HEADER, difference
from tests.faults.patched import ROOT, PatchError, paths

CASES = {case.id: case for case in all_cases(None)}
GRANTS = "ec_protocol/p2p/grants.py"


def play(case: str, factory: Any) -> Result:
    with quiet_implementation():
        return run_case(CASES[case], lambda node: InProcess(factory))


def unnoticed(fault: Fault) -> list[str]:
    """What cases do not say that should: nothing, of a fault that is one."""
    wrong = []
    factory = fault.make
    for case, verdict in fault.caught_by.items():
        result = play(case, factory)
        if result.verdict is not verdict:
            wrong.append(f"{case} is {result.verdict}, not {verdict}")
        # What raises by mistake, since a name is gone, would always be noticed.
        raised = re.search(r"the implementation failed: \w+ raised (\w+)", result.detail)
        if raised and raised[1] not in fault.raises:
            wrong.append(f"{case}: {result.detail}")
    return wrong


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_is_noticed_by_the_cases_that_it_names(name: str) -> None:
    fault = FAULTS[name]
    assert fault.caught_by
    assert unnoticed(fault) == [], f"{fault.text} ({fault.clause})"


@pytest.mark.parametrize("case", sorted({c for f in FAULTS.values() for c in f.caught_by}))
def test_without_the_fault_the_case_is_passed(case: str) -> None:
    result = play(case, make)
    assert result.verdict is Verdict.OK, result.detail


def test_there_are_enough_faults_of_every_kind() -> None:
    assert len(FAULTS) >= 92
    assert {fault.clause for fault in FAULTS.values()} <= set(clauses())
    # F10 is about files, which these faults do not touch.
    kinds = {fault.tag for fault in FAULTS.values()}
    assert {f"F{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11)} <= kinds
    assert all(fault.text.endswith(".") for fault in FAULTS.values())
    assert all(fault.symptom.endswith(".") for fault in FAULTS.values())
    files = Counter(path for fault in FAULTS.values() for path in paths(fault.patch))
    for part in ("p2p/acks", "p2p/attempts", "p2p/fetches", "p2p/grants"):
        assert files[f"ec_protocol/{part}.py"] >= 3, part
    for part in ("tier/encodings", "tier/copies", "tier/holds"):
        assert files[f"ec_protocol/{part}.py"] >= 3, part


# ----------------------------------------------------------------- patches and worlds
def seeded(folder: Path, old: str, new: str, **header: str) -> Fault:
    """A fault of ``grants.py``, in a folder of its own."""
    text = (ROOT / GRANTS).read_text(encoding="utf-8")
    assert old in text
    lines = {"Clause": "EC-5.7", "Fault": "One.", "Symptom": "One.", "Caught-by": "EC-5.7/1"}
    head = "".join(f"{name}: {said}\n" for name, said in {**lines, **header}.items())
    patch = folder / "seeded.patch"
    diff = difference({GRANTS: text}, {GRANTS: text.replace(old, new)})
    patch.write_text(f"{head}\n{diff}", encoding="utf-8")
    return read(patch)


def test_a_patch_without_effect_is_noticed(tmp_path: Path) -> None:
    fault = seeded(tmp_path, "Every outstanding grant", "Each outstanding grant")
    assert unnoticed(fault) == ["EC-5.7/1 is OK, not FAILED"]


def test_a_patch_that_calls_what_is_gone_is_noticed(tmp_path: Path) -> None:
    fault = seeded(tmp_path, "= self._judge(", "= self._no_such_method(")
    (wrong,) = unnoticed(fault)
    assert "AttributeError" in wrong


def test_a_patch_that_does_not_apply_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    fault = seeded(tmp_path, "def on_request", "def on_request_")
    text = fault.patch.read_text(encoding="utf-8")
    fault.patch.write_text(text.replace("-    def on_request", "-    def was_called"))
    with pytest.raises(PatchError, match=r"seeded.patch does not apply any more: .*\n?.*refresh"):
        _ = fault.make
    fault.patch.write_text(text.replace(GRANTS, "ec_protocol/p2p/gone.py"), encoding="utf-8")
    with pytest.raises(PatchError, match=r"ec_protocol/p2p/gone.py is gone"):
        _ = fault.make
    fault.patch.write_text(text.partition("diff --git")[0], encoding="utf-8")
    with pytest.raises(PatchError, match="changes nothing"):
        _ = fault.make
    fault.patch.write_text("", encoding="utf-8")
    with pytest.raises(PatchError, match=r"seeded.patch: above the diff is no line \w+, "):
        read(fault.patch)


def test_a_patch_that_cannot_be_imported_is_no_fault(tmp_path: Path) -> None:
    fault = seeded(
        tmp_path, "from ec_protocol.p2p import wire", "from ec_protocol.p2p import wires"
    )
    with pytest.raises(ImportError):
        _ = fault.make


def test_the_packages_as_they_are_stay_as_they_are() -> None:
    """Also those that a function of a faulty implementation imports when it runs."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("ec_")}
    fault = FAULTS["compatibility-is-not-checked"]
    assert unnoticed(fault) == []
    after = {name: module for name, module in sys.modules.items() if name.startswith("ec_")}
    assert {name: after[name] for name in before} == before
    assert ec_verify.kit.on_node.Node is ec_protocol.Node
    assert play(next(iter(fault.caught_by)), make).verdict is Verdict.OK


def test_the_header_of_a_new_fault_has_every_field() -> None:
    wanted = set(re.findall(r"^([\w-]+):", HEADER, re.MULTILINE))
    for patch in HERE.glob("*.patch"):
        head = patch.read_text(encoding="utf-8").partition("diff --git")[0]
        assert set(re.findall(r"^([\w-]+):", head, re.MULTILINE)) <= wanted, patch.name


# --------------------------------------------------------------------- the command
def test_the_command_reports_the_rate() -> None:
    done = CliRunner().invoke(
        app, ["conformance", "faults", "accepts-late-reads", "no-quarantine", "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["totals"] == {"faults": 2, "caught": 2}
    assert document["faults"][0]["clause"] == "EC-5.3"
    assert document["faults"][0]["caught_by"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["no-quarantin"], "no fault is called 'no-quarantin'; did you mean no-quarantine, "),
        (["--faults", "nowhere:AT_ALL"], "nowhere"),
        (["--faults", "json"], "module:mapping"),
    ],
)
def test_senseless_options_are_refused(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["conformance", "faults", *options])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_without_a_checkout_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ec_verify.kit.faults.checkout_dir", lambda: None)
    done = CliRunner().invoke(app, ["conformance", "faults"])
    assert done.exit_code == 2
    assert "run this from a checkout" in " ".join(done.output.split())
