# SPDX-License-Identifier: Apache-2.0
"""TLC accepts what the code does and rejects what it must never do."""

from __future__ import annotations

import pytest

from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check_runs, coverage
from tests.ec_verify.traces.instance_wrong_logs import CASES as INSTANCE_CASES
from tests.ec_verify.traces.instances import Instances
from tests.ec_verify.traces.trace_cases import CASES as WORLD_CASES
from tests.ec_verify.traces.traced import Recorded

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]

#: Conjunct by which each is rejected; None: accepted.
CASES = {name: wanted for name, (_, wanted) in (*WORLD_CASES.items(), *INSTANCE_CASES.items())}

#: Rejected only when the logs of several processes are put together: each alone is right.
ONLY_TOGETHER = {
    "a_failure_of_what_is_still_being_read",
    "a_grant_of_other_blocks_than_were_offered",
    "a_grant_on_a_slot_that_was_closed",
    "a_grant_on_another_slot",
    "a_landing_that_the_reader_did_not_say",
    "a_loan_of_other_blocks_than_were_lent",
    "a_loan_taken_up_before_it_was_lent",
    "a_loan_to_another_reader",
    "a_loss_that_the_reader_did_not_say",
    "a_proof_before_the_exit",
    "a_proof_that_the_reader_did_not_give",
    "a_server_that_grants_after_its_exit",
    "a_server_that_grants_before_its_place",
    "an_offer_closed_a_second_too_early",
    "an_offer_closed_under_a_lease",
    "an_offer_closed_under_the_lease_of_a_server_that_is_gone",
    "blocks_lent_to_a_reader_without_a_place",
}


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    runs = []
    for name, (scenario, _) in WORLD_CASES.items():
        world = Recorded()
        scenario(world)
        runs.append(world.run(name))
    for name, (play, _) in INSTANCE_CASES.items():
        instances = Instances()
        play(instances)
        runs.append(instances.run(name))
    return {report.name: report for report in check_runs(runs, TlcRunner())}


@pytest.fixture(scope="module")
def alone() -> dict[str, list[Report]]:
    """By case the reports on the log of each process by itself."""
    runs = []
    for name, (play, wanted) in INSTANCE_CASES.items():
        instances = Instances()
        play(instances)
        if wanted is not None and not instances.together:
            files = [node for node, records in instances.streams.items() if records]
            runs += [instances.run(f"{name}/{node}", only=(node,)) for node in files]
    reports: dict[str, list[Report]] = {}
    for report in check_runs(runs, TlcRunner()):
        reports.setdefault(report.name.partition("/")[0], []).append(report)
    return reports


@pytest.mark.parametrize("name", CASES)
def test_a_case(reports, name):
    rejection = reports[name].rejection
    wanted = CASES[name]
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
        wanted is None for wanted in CASES.values()
    )


def test_what_logs_show_only_together(alone: dict[str, list[Report]]) -> None:
    right = {name for name, reports in alone.items() if all(r.accepted for r in reports)}
    assert right == ONLY_TOGETHER


def test_a_rejection_says_where_and_what_to_do(reports: dict[str, Report]) -> None:
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
