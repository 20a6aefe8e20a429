# SPDX-License-Identifier: Apache-2.0
"""The recorded run of vLLM's connector is what the installed release gives today."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.server import ROOT
from tests.interop.driver import RELEASE, forks, marks
from tests.interop.forked import command_line

pytestmark = marks

#: Areas that together take a few seconds and show every sort of verdict.
AREAS = ["tier", "grant", "lease and fence"]


def test_verdicts_are_those_that_were_recorded(tmp_path: Path):
    output = tmp_path / "report.json"
    words = ["conformance", "run", "--adapter", "vllm", "--json", *AREAS]
    run = forks().Process(target=command_line, args=(str(output), words))
    run.start()
    run.join()
    report = json.loads(output.read_text())
    path = ROOT / "docs" / "conformance" / f"vllm-{RELEASE}.json"
    recorded = {case["id"]: case for case in json.loads(path.read_text())["cases"]}
    seen = {case["id"]: case["verdict"] for case in report["cases"] if case["id"] in recorded}
    assert len(seen) > 50
    assert {i: v for i, v in seen.items() if recorded[i]["verdict"] != v} == {}
    assert run.exitcode == 1
