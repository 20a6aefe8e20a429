# SPDX-License-Identifier: Apache-2.0
"""Every seeded fault is caught by the kit, and by a case that the sound core passes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from ec_verify.adapters.ours.adapter import make
from ec_verify.adapters.ours.faulty import FAULTS
from ec_verify.cli import app
from ec_verify.kit.command import quiet_implementation
from ec_verify.kit.faults import Hunt, hunt
from ec_verify.kit.language.clauses import clauses
from ec_verify.kit.language.schedule import all_cases, select
from ec_verify.kit.runner import Verdict, run_case
from ec_verify.kit.world.links import InProcess

# All faults are hunted in the first test that asks.
# Slow: the whole kit against each of the seeded faults.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


@pytest.fixture(scope="module")
def hunts() -> dict[str, Hunt]:
    cases = select(all_cases(None), [])
    with quiet_implementation():
        return {one.name: one for one in hunt(FAULTS, cases, make)}


def test_there_are_enough_faults_of_every_kind() -> None:
    assert len(FAULTS) >= 25
    assert {fault.clause for fault in FAULTS.values()} <= set(clauses())
    # F10 is about files, which a variant of the core does not have.
    kinds = {fault.tag for fault in FAULTS.values()}
    assert {f"F{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11)} <= kinds
    assert all(fault.text.endswith(".") for fault in FAULTS.values())
    parts = Counter(fault.part for fault in FAULTS.values())
    assert (
        min(parts[p] for p in ("attempts", "acks", "fetches", "grants", "tier", "copies", "holds"))
        >= 3
    )


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_is_caught(hunts: dict[str, Hunt], name: str) -> None:
    found = hunts[name]
    assert found.caught, f"{found.fault.text} ({found.fault.clause}) {found.cases} cases played"
    first = found.results[0]
    if first.verdict is Verdict.FAILED:
        assert first.detail


def test_what_catches_a_fault_is_passed_without_it(hunts: dict[str, Hunt]) -> None:
    with quiet_implementation():
        for name, found in hunts.items():
            again = run_case(found.results[0].case, lambda node: InProcess(make))
            assert again.verdict is Verdict.OK, (name, again.case.id, again.detail)


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
