# SPDX-License-Identifier: Apache-2.0
"""bench/tier.py: its JSON, and what must hold on any machine because it is counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "tier.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=100
    )


@pytest.fixture(scope="module")
def document():
    done = run("--json", "880", "4096")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_follows_the_contract(document):
    assert set(document) == {"machine", "rows"}
    assert len(document["rows"]) == 4
    for row in document["rows"]:
        assert set(row) == {"bench", "case", "ours", "baseline", "unit", "ratio"}


def test_the_tier_costs_less_than_block_lists_under_churn(document):
    rows = [row for row in document["rows"] if row["bench"] == "tier churn"]
    assert all(row["ratio"] < 1 for row in rows)


@pytest.mark.clause("EC-2.7")
def test_entries_lie_in_one_or_two_pieces_and_not_in_dozens(document):
    rows = [row for row in document["rows"] if row["bench"] == "pieces per entry"]
    assert all(row["ours"] < 2 < row["baseline"] for row in rows)


def test_a_senseless_size_is_refused():
    done = run("1")
    assert done.returncode == 2
    assert "BLOCKS=1" in done.stderr
