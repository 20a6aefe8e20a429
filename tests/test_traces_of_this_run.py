# SPDX-License-Identifier: Apache-2.0
"""What the nodes of all other tests did is what the specification allows.

Comes last in every session. Each test that runs a node leaves a trace (``recording``);
here TLC checks them all. So a change of the core that no test was written for is still
found, if any test makes it show. A session that recorded nothing is skipped; a module of
``RECORDS`` whose tests ran and that left nothing is an error.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ec_protocol.tlc.runner import TlcRunner
from ec_protocol.tracecheck.check import Report, check
from ec_protocol.tracecheck.together import together

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(900)]

FAILURES = Path(__file__).resolve().parent / "traces" / "failures"


def runs_of(module: Path) -> list[tuple[Path, ...]]:
    """The runs that a module's tests left; a node to which nothing happened left none."""
    files = [p for p in sorted(module.rglob("*.ndjson")) if p.read_bytes().count(b"\n") > 1]
    real = [path for path in files if path.parent.name != "played"]
    return [*together(real), *((path,) for path in files if path not in real)]


@pytest.fixture(scope="module")
def runs(session_traces: Path) -> dict[str, list[tuple[Path, ...]]]:
    left = {path.name: runs_of(path) for path in sorted(session_traces.iterdir())}
    left = {name: found for name, found in left.items() if found}
    if not left:
        pytest.skip("no test of this session ran a node")
    return left


@pytest.fixture(scope="module")
def reports(runs: dict[str, list[tuple[Path, ...]]]) -> list[Report]:
    return check([files for found in runs.values() for files in found], TlcRunner())


def test_every_run_is_accepted(
    runs: dict[str, list[tuple[Path, ...]]], reports: list[Report]
) -> None:
    """A run that is not is kept where ``test_trace_recorded`` finds it from then on."""
    keep = Path(os.environ.get("EC_TRACE_FAILURES") or FAILURES)
    files = [files for found in runs.values() for files in found]
    rejected = {}
    for run, report in zip(files, reports, strict=True):
        if report.rejection is not None:
            folder = keep / f"{run[0].parts[-2]}-{run[0].stem}"
            folder.mkdir(parents=True, exist_ok=True)
            for path in run:
                shutil.copyfile(path, folder / path.name)
            rejected[str(folder)] = report.rejection
    assert rejected == {}
