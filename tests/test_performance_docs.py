# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md: its tables are the recorded runs."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT


def test_the_tables_are_what_the_runs_printed() -> None:
    tool = ROOT / "tools" / "make_performance_tables.py"
    done = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, "run tools/make_performance_tables.py"
