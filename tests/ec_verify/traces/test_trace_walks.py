# SPDX-License-Identifier: Apache-2.0
"""Random schedules leave traces; a sample of them is replayed by TLC.

The seed is new each time and printed (``EC_TRACE_SEED`` sets it). A trace that is
rejected is written to ``out/rejected-traces`` (``EC_TRACE_FAILURES`` names another
folder). Where the checker was wrong it belongs into ``tests/traces/failures``, so that
``test_trace_recorded`` finds it from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from ec_protocol.trace import TRACE_VERSION
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check_runs
from ec_verify.traces.load import make_run
from tests import ROOT
from tests.ec_verify.traces.traced import Raw, Recorded, TracedMachine

# Slow: TLC replays long random schedules.
pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(600), pytest.mark.slow]

REJECTED = ROOT / "out" / "rejected-traces"
SCHEDULES = 60
SAMPLE = 25
STEPS = 60


def schedules(number: int, machine: type[TracedMachine] = TracedMachine) -> list[list[Raw]]:
    """The records of random schedules, longest first.

    Args:
        number: Decides which.
        machine: Whose. If it looks at nothing, schedules on which the core fails count too.
    """
    found: list[list[Raw]] = []

    class Machine(machine):
        finished = staticmethod(found.append)

    with contextlib.suppress(*([] if machine is TracedMachine else [Exception])):
        run_state_machine_as_test(
            seed(number)(Machine),
            settings=settings(
                max_examples=SCHEDULES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    return sorted(found, key=len, reverse=True)


@pytest.fixture(scope="module")
def number() -> int:
    return int(os.environ.get("EC_TRACE_SEED") or secrets.randbelow(1 << 32))


@pytest.fixture(scope="module")
def sample(number: int) -> list[list[Raw]]:
    """Some of the longer half of the schedules."""
    found = schedules(number)
    half = found[: max(SAMPLE, len(found) // 2)]
    return random.Random(number).sample(half, min(SAMPLE, len(half)))


@pytest.fixture(scope="module")
def reports(number: int, sample: list[list[Raw]]) -> list[Report]:
    runs = [
        make_run(f"seed-{number}-{i}", [(f"seed-{number}-{i}", r)]) for i, r in enumerate(sample)
    ]
    return check_runs(runs, TlcRunner())


def keep(records: list[Raw], name: str, folder: Path) -> Path:
    """Write records as a trace file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ndjson"
    lines = [json.dumps(item) for item in ({"trace_version": TRACE_VERSION}, *records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_random_schedules_are_accepted(number, sample, reports, capsys):
    with capsys.disabled():
        sys.stderr.write(f"\nEC_TRACE_SEED={number}\n")
    folder = Path(os.environ.get("EC_TRACE_FAILURES") or REJECTED)
    kept = [
        (report.rejection, str(keep(records, report.name, folder)))
        for records, report in zip(sample, reports, strict=True)
        if report.rejection is not None
    ]
    assert kept == [], f"EC_TRACE_SEED={number} makes these again"


def test_they_are_many_and_long_enough_to_mean_something(reports):
    assert len(reports) == SAMPLE
    assert sum(report.records for report in reports) > SAMPLE * 40
    assert max(report.processes for report in reports) >= 4


def test_a_rejected_schedule_is_kept_as_a_trace(tmp_path):
    world = Recorded()
    world.save("a", 64)
    path = keep(world.records, "kept", tmp_path / "failures")
    assert make_run("kept", [("kept", world.records)]).records == 4
    assert path.read_text().count("\n") == 5
