# SPDX-License-Identifier: Apache-2.0
"""TLC accepts what the code does and rejects what it must never do."""

from __future__ import annotations

import pytest

from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check_runs, coverage
from tests.ec_verify.traces.trace_cases import CASES
from tests.ec_verify.traces.traced import Recorded

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    runs = []
    for name, (scenario, _) in CASES.items():
        world = Recorded()
        scenario(world)
        runs.append(world.run(name))
    return {report.name: report for report in check_runs(runs, TlcRunner())}


@pytest.mark.parametrize("name", CASES)
def test_a_case(reports, name):
    rejection = reports[name].rejection
    wanted = CASES[name][1]
    if wanted is None:
        assert rejection is None, rejection
    else:
        assert rejection is not None, "accepted"
        assert rejection.conjunct.startswith(wanted), rejection


def test_the_accepted_cases_replay_every_action_and_edge(reports):
    """Nothing of the trace specification is dead."""
    shown = coverage(reports.values())
    assert shown.missing_actions == []
    assert shown.missing_edges == []


def test_a_trace_that_is_rejected_alone_is_rejected_beside_others(reports):
    """One start of TLC judges all; none of them speaks for another."""
    assert sum(report.accepted for report in reports.values()) == sum(
        wanted is None for _, wanted in CASES.values()
    )


def test_a_rejection_says_where_and_what_to_do(reports):
    rejection = reports["an_ack_that_names_other_blocks"].rejection
    assert (rejection.action, rejection.process) == ("AckOk", "consumer")
    assert rejection.line == (rejection.number or 0) + 1
    assert "AckOk in tla/traces/TraceRead.tla, line" in rejection.advice
    assert "ec-protocol explain" in rejection.advice


def test_an_invariant_blames_the_record_that_broke_it(reports):
    rejection = reports["a_source_reused_under_a_read_that_is_accepted"].rejection
    assert (rejection.action, rejection.process) == ("ReadDone", "consumer")


def test_a_comparison_shows_both_sides(reports):
    rejection = reports["retired_blocks_that_are_not_counted"].rejection
    assert (rejection.expected, rejection.logged) == ("1", "0")
