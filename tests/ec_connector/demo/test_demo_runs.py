# SPDX-License-Identifier: Apache-2.0
"""The demo for real: processes, regions, ZMQ, NIXL, and a SIGKILL in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.needs import needs

needs("nixl", "PIL")

from ec_connector.demo.encoder import output_bytes
from ec_connector.demo.errors import DemoError
from ec_connector.demo.images import Picture
from ec_connector.demo.main import run_demo
from tests import recording

pytestmark = pytest.mark.timeout(180)


def picture(index: int) -> Picture:
    width, height = 96 + 32 * index, 64
    return Picture(f"small-{index}", width, height, os.urandom(3 * width * height))


def regions() -> set[str]:
    """This process's own: other demos may be running."""
    return {path.name for path in Path("/dev/shm").glob(f"vllm_ec_demo-{os.getpid()}-*")}


def test_all_three_runs_move_the_right_bytes_and_leave_nothing() -> None:
    pictures = [picture(index) for index in range(3)]
    before = regions()
    rows = run_demo(
        pictures,
        runs=["p2p", "local", "producer-killed"],
        timeout_s=120.0,
        keep_logs=False,
        traces=recording.folder(),
    )
    assert [row.name for row in rows] == ["p2p", "local", "producer-killed"]
    total = sum(output_bytes(item) for item in pictures)
    for row in rows:
        assert row.ok, row
        assert (row.encodings, row.bytes, row.wrong_bytes) == (3, total, 0)
    pulled, local, killed = rows
    assert pulled.outcome == "3 pulled"
    assert pulled.ack_ms is not None
    assert pulled.read_ms is not None
    assert local.outcome == "3 loaded"
    assert local.ack_ms is None
    # The fetch under way when it died may have landed; none after it can.
    assert killed.outcome in ("1 pulled, 2 fell back", "2 pulled, 1 fell back")
    assert "killed (-9)" in killed.note
    assert regions() <= before


def test_a_run_that_takes_too_long_is_stopped_and_says_so() -> None:
    before = regions()
    with pytest.raises(DemoError, match="--timeout"):
        run_demo([picture(0)], runs=["p2p"], timeout_s=0.01, keep_logs=False)
    assert regions() <= before
