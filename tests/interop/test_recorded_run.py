# SPDX-License-Identifier: Apache-2.0
"""The recorded run of vLLM's connector is what the installed release gives today."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from e2e.server import ROOT
from tests.interop.driver import RELEASE, marks

pytestmark = [*marks, pytest.mark.timeout(900)]

#: Areas that together take a few seconds and show every sort of verdict.
AREAS = ["tier", "grant", "lease and fence"]


def test_verdicts_are_those_that_were_recorded():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ec_protocol.cli", "conformance", "run"),
            *("--adapter", "vllm", "--json", *AREAS),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    report = json.loads(done.stdout)
    path = ROOT / "docs" / "conformance" / f"vllm-{RELEASE}.json"
    recorded = {case["id"]: case for case in json.loads(path.read_text())["cases"]}
    seen = {case["id"]: case["verdict"] for case in report["cases"] if case["id"] in recorded}
    assert len(seen) > 50
    assert {i: v for i, v in seen.items() if recorded[i]["verdict"] != v} == {}
    assert done.returncode == 1
