# SPDX-License-Identifier: Apache-2.0
"""bench/core.py: its JSON, and the targets that hold on any machine because they are ratios."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "core.py"


@pytest.fixture(scope="module")
def document():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--json"], check=True, capture_output=True, text=True, timeout=100
    )
    return json.loads(done.stdout)


def rows(document, bench):
    return [row for row in document["rows"] if row["bench"] == bench]


def test_json_follows_the_contract(document):
    assert set(document) == {"machine", "rows"}
    for row in document["rows"]:
        assert set(row) == {"bench", "case", "ours", "baseline", "unit", "ratio"}
        assert row["ratio"] == pytest.approx(row["ours"] / row["baseline"])


def test_the_dispatcher_costs_a_tenth_of_a_trigger_at_most(document):
    (row,) = rows(document, "dispatch")
    assert row["ratio"] <= 0.1


def test_the_tier_beats_block_lists_and_is_flat_in_blocks(document):
    small, middle, large = rows(document, "tier")
    assert small["ratio"] < 1
    assert middle["ratio"] < 1
    assert large["ratio"] < 1
    assert large["ours"] < 3 * small["ours"], "16 times the blocks"


def test_an_ack_is_small_whatever_the_region(document):
    small, large = rows(document, "ack")
    assert large["ours"] < 1024
    assert large["ours"] - small["ours"] < 32


def test_an_unknown_name_is_refused():
    done = subprocess.run(
        [sys.executable, SCRIPT, "tears"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "choose from dispatch, tier, ack" in done.stderr
