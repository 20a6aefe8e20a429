# SPDX-License-Identifier: Apache-2.0
"""What the unit tests of both ends do is what the specification allows.

They run once more in a process of their own, each ``World`` recording, and TLC replays
every trace. Tests that reach into the core to bring a moment about are named here with
the conjunct that notices it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ec_protocol.tables.files import spec_dir
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check
from tests.test_traces_of_this_run import CENSUS

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(600)]

ROOT = spec_dir().parent
CORE_TESTS = ROOT / "tests" / "ec_protocol"
MODULES = (
    "schedules",
    "consumer",
    "consumer_acks",
    "consumer_peers",
    "consumer_reads",
    "consumer_records",
    "consumer_restarts",
    "consumer_unnamed",
    "consumer_waiters",
    "encoder_hash",
    "integrity",
    "producer",
    "producer_limits",
)
#: Move entries without an action; the recorder refuses that.
NO_ACTIONS = (
    "test_consumer_waiters.py::test_who_fell_back_is_not_deferred_again[no_room-1]",
    "test_producer_limits.py::test_an_entry_in_more_pieces_than_an_ack_may_name_is_refused_and_not_pinned",
    "test_producer_limits.py::test_an_entry_in_as_many_pieces_as_an_ack_may_name_is_granted",
    "test_schedules.py::test_a_slow_save_costs_latency_and_no_recompute",
    "test_consumer.py::test_the_budget_is_the_requests_even_if_its_encoding_is_evicted_again_and_again",
)
NOTICED = {
    "test_after_a_long_attempt_the_next_one_need_not_wait": "fence_open",
    # Nobody saves under such a name.
    "test_what_a_stranger_has_sent_is_granted_to_nobody_by_whatever_name": "NoWrongBytesInv",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    folder = tmp_path_factory.mktemp("unit")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.ec_protocol.record_worlds"]
    places = {path.name: str(path.relative_to(ROOT)) for path in CORE_TESTS.rglob("test_*.py")}
    command += [places[f"test_{name}.py"] for name in MODULES]
    for test in NO_ACTIONS:
        file, _, name = test.partition("::")
        command += [f"--deselect={places[file]}::{name}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "EC_TRACE_FOLDER": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A world in which nothing happens leaves a header alone.
    files = [path for path in sorted(folder.iterdir()) if path.read_bytes().count(b"\n") > 1]
    return check(files, TlcRunner())


def test_every_trace_is_accepted(reports: list[Report]) -> None:
    wrong = {}
    for report in reports:
        test = Path(report.name).stem.partition("-")[2].rpartition("-")[0]
        conjunct = report.rejection.conjunct if report.rejection else ""
        if not conjunct.startswith(NOTICED.get(test, "")) or bool(conjunct) != (test in NOTICED):
            wrong[test] = report.rejection
    assert wrong == {}


def test_they_are_those_of_the_census() -> None:
    named = {module for module, trace in CENSUS.items() if "test_trace_unit" in trace}
    assert named == {f"test_{module}" for module in MODULES}


def test_they_are_the_unit_tests(reports: list[Report]) -> None:
    assert len(reports) > 120
    assert sum(report.records for report in reports) > 3000
    seen = {action for report in reports for action in report.actions}
    assert {"AckRefused", "Retire", "Reclaim", "PeerDrained", "PostFailed", "Expire"} <= seen
