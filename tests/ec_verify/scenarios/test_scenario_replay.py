# SPDX-License-Identifier: Apache-2.0
"""Every scenario is survived by our core on a virtual clock, and by no core that lacks
the safeguard which its model lacks.
"""

import logging
from pathlib import Path

import pytest

from ec_verify.adapters.ours.adapter import make
from ec_verify.kit.language.schedule import Case, all_cases, load_dir
from ec_verify.kit.runner import Result, Verdict, run_case
from ec_verify.kit.world.links import InProcess
from ec_verify.scenarios.files import scenario_dir
from tests.faults import FAULTS, made_with

CASES = {case.id: case for case in load_dir(scenario_dir())}
#: By the name of any model whose behaviour it is.
SCENARIOS = {name: case for case in CASES.values() for name in (case.id, *case.also)}


#: Neither posting nor accepting asks for the fence, as in BugPeerReadF1.
FENCELESS = ("no-fence-before-posting", "accepts-late-reads")

#: Scenario -> what a core must lack to fall for it: the safeguard of the model.
TEETH = {
    "BugPeerReadF1": FENCELESS,
    "BugPeerReadF2": "any-notice-of-the-encoding",
    "BugPeerReadF3": "accepts-late-reads",
    "BugPeerReadF4": "handles-go-with-the-peer",
    "BugPeerReadF4Handle": "exits-prove-nothing",
    "BugPeerReadF5": "time-is-a-proof",
    "BugPeerReadF5Reuse": "time-is-a-proof",
    "BugPeerReadF8": "descriptors-of-the-first-ack",
    "BugPeerReadStaleAck": "any-ack-of-the-encoding",
    "BugPeerReadAckIdentity": "any-ack-of-the-encoding",
    "BugPeerReadFenceFromAck": "fence-from-the-ack",
    "BugPeerReadNoMargin": "no-margin",
    "BugPeerReadLateAccept": "accepts-late-reads",
    "BugPeerReadLatePost": "no-fence-before-posting",
    "BugPeerReadServeUnready": "serves-what-is-not-ready",
    "BugPeerReadServeUnreadyBytes": "serves-what-is-not-ready",
    "BugPeerReadNoProof": "no-quarantine",
    "BugPeerReadLostCount": "retired-blocks-are-reused",
    "BugPeerReadNoSettle": "handles-go-with-the-peer",
    "BugPeerReadNoLeaseEnd": "leases-never-end",
    "BugTierStepReservation": "promises-nothing-holds",
    "BugTierSkipReport": "skipped-saves-are-forgotten",
    "BugTierSkipReportIdle": "skipped-saves-are-forgotten",
    "BugTierPinLoads": "loads-are-not-pinned",
    "BugTierPinLoadsBytes": "loads-are-not-pinned",
    "BugTierEvictOnlyReady": "evicts-what-is-pinned",
    "BugTierWaitAllRanks": "first-rank-ends-a-load",
    "BugPeerIncarnation": "descriptors-of-the-first-ack",
    "BugPeerFailReads": "lost-peer-goes-unnoticed",
    "BugPeerQuarantine": "exits-prove-nothing",
    "BugFleetNoticeBytes": "any-notice-of-the-encoding",
    "BugFleetHeldQuarantineBytes": "time-is-a-proof",
    "BugFleetKeepHandles": "no-quarantine",
    "BugQuotaPeerShare": "one-peer-may-pin-everything",
    "BugQuotaGrantShare": "all-peers-may-pin-everything",
}


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def play(case: Case, *faults: str) -> Result:
    factory = made_with(*(FAULTS[name].patch for name in faults)) if faults else make
    return run_case(case, lambda node: InProcess(factory))


@pytest.mark.parametrize("name", CASES)
def test_our_core_survives(name):
    """Wherever the model goes on beyond a safeguard, the core refuses and ends well."""
    result = play(CASES[name])
    assert result.verdict is Verdict.OK, result.detail


@pytest.mark.parametrize(("name", "fault"), TEETH.items())
def test_a_core_without_the_safeguard_does_not(name, fault):
    result = play(SCENARIOS[name], *([fault] if isinstance(fault, str) else fault))
    assert result.verdict is Verdict.FAILED
    assert "unexpected shape" not in result.detail, "it should break the protocol, not the kit"


def test_what_the_fenceless_core_breaks_is_an_invariant():
    """EC-5.3: the bytes are accepted late, and with that the wrong picture is served."""
    result = play(CASES["BugPeerReadF1"], *FENCELESS)
    assert result.invariant in ("FencedAccept", "NoWrongBytes")


def test_every_schedule_that_breaks_connectors_has_a_case():
    """F9 is about frames and F10 about files: no model of READs has them, the kit does."""
    tags = {tag for case in CASES.values() for tag in case.tags}
    assert {f"F{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 11)} <= tags
    everywhere = {tag for case in all_cases() for tag in case.tags}
    assert {f"F{n}" for n in range(1, 12)} <= everywhere


def test_each_of_them_has_teeth():
    biting = {tag for name in TEETH for tag in SCENARIOS[name].tags}
    assert {f"F{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 11)} <= biting


def test_what_is_refused_is_left_out_and_the_rest_is_played():
    """In F1 the READ is not posted, so that it cannot move; everything before happens."""
    result = play(CASES["BugPeerReadF1"])
    impossible = [record for record in result.history if record.get("event") == "impossible"]
    assert any("READ C#1 to be posted" in record["why"] for record in impossible)
    delivered = [record for record in result.history if record.get("event") == "delivered"]
    assert {(record["to"], record["via"]) for record in delivered} >= {
        ("P", "request"),
        ("C", "answer"),
    }


def test_scenarios_are_where_the_kit_looks_for_them():
    assert {case.id for case in all_cases()} >= set(CASES)
    assert all(Path(case.file).suffix == ".json" for case in CASES.values())
