# SPDX-License-Identifier: Apache-2.0
"""Random traffic through the real scheduler delegate and workers leaves traces that TLC accepts."""

from __future__ import annotations

import json
import os
import secrets
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from ec_protocol.trace import Trace
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check_runs
from ec_verify.traces.load import make_run
from tests.ec_connector.test_harness_random import ConsumerMachine, EngineMachine, ProducerMachine
from tests.world.engine import Engine

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(600)]

Raw = dict[str, Any]


@pytest.fixture(scope="module")
def number() -> int:
    return int(os.environ.get("EC_TRACE_SEED") or secrets.randbelow(1 << 32))


@pytest.fixture(scope="module")
def reports(number: int) -> list[Report]:
    traces: list[list[Raw]] = []

    def trace(engine: Engine) -> Trace:
        records: list[Raw] = []
        traces.append(records)
        return Trace(
            "engine",
            lambda: engine.clock(),
            lambda record: records.append(json.loads(json.dumps(record))),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "trace", trace)
        for role, machine in enumerate((EngineMachine, ConsumerMachine, ProducerMachine)):
            run_state_machine_as_test(
                # Of one seed all roles would do much the same.
                seed(number + role)(machine),
                settings=settings(
                    # In half of them nothing happens.
                    max_examples=40,
                    stateful_step_count=50,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
    runs = []
    for index, records in enumerate(traces):
        if records:
            runs.append(make_run(f"seed-{number}-{index}", [(f"seed-{number}-{index}", records)]))
    return check_runs(runs, TlcRunner())


def test_random_traffic_is_accepted(number, reports, capsys):
    with capsys.disabled():
        sys.stderr.write(f"\nEC_TRACE_SEED={number}\n")
    rejected = {report.name: report.rejection for report in reports if report.rejection}
    assert rejected == {}


def test_it_is_traffic_of_every_role(reports):
    assert len(reports) > 10
    seen = {action for report in reports for action in report.actions}
    assert {"Reserve", "PlanLoad", "LoadLanded", "SaveLanded", "Hold"} <= seen
    assert {"Offer", "Close", "Lend", "Landed", "Failed"} <= seen
