# SPDX-License-Identifier: Apache-2.0
"""Recorded traces of real processes, and wrong copies of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ec_protocol.tables.lifecycle import load_actions
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check, check_runs
from ec_verify.traces.load import load_run
from ec_verify.traces.merge import merged
from ec_verify.traces.mutants import Judge, mutants
from tests import ROOT
from tests.ec_verify.traces.traced import Recorded

# Slow: TLC judges whole recorded runs and many wrong copies of them.
pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(600), pytest.mark.slow]

FOLDER = ROOT / "tests" / "traces"
RECORDED = sorted(path for path in FOLDER.iterdir() if path.name not in ("README.md", "failures"))
FAILURES = sorted((FOLDER / "failures").glob("*"))
MUTANTS = 200


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    done = check(RECORDED, TlcRunner(), wanted=MUTANTS, seed=20)
    return {Path(report.name).name: report for report in done}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_run_is_accepted(reports: dict[str, Report], path: Path) -> None:
    report = reports[path.name]
    assert report.rejection is None, report.rejection
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    assert report.processes == len(files)
    assert report.records == load_run(path).records > 50


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_its_mutants_are_rejected(reports: dict[str, Report], path: Path) -> None:
    report = reports[path.name]
    assert [mutant.what for mutant in report.survivors] == []
    assert report.rejected_mutants >= MUTANTS
    assert len(report.equivalent_mutants) < len(report.mutants) / 5
    operators = {mutant.operator for mutant, _, _ in report.mutants}
    assert operators == {"swap", "drop", "duplicate", "alter"}


def test_the_recorded_runs_go_through_most_of_the_protocol(reports: dict[str, Report]) -> None:
    """The rest is in ``test_trace_check`` and ``test_trace_walks``."""
    seen = {action for report in reports.values() for action in report.actions}
    assert len(seen) >= 28, sorted(set(load_actions()) - seen)


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.name)
def test_what_was_rejected_once_is_accepted_now(path: Path) -> None:
    (report,) = check([path], TlcRunner())
    assert report.rejection is None, report.rejection


def test_a_corrupted_copy_is_rejected(tmp_path: Path) -> None:
    """One digit of one field, in the middle of one process's file."""
    source = FOLDER / "e2e-guide"
    copies = []
    for path in source.iterdir():
        run = load_run(path)
        assert run.records
        copies.append(path)
        (tmp_path / path.name).write_bytes(path.read_bytes())
    victim = tmp_path / "guide-consumer.ndjson.gz"
    lines = gzip.decompress(victim.read_bytes()).decode().splitlines()
    number = next(i for i, line in enumerate(lines) if '"action":"PostRead"' in line)
    record = json.loads(lines[number])
    (key,) = (key for key in record["vars"] if key.startswith("entry:"))
    record["vars"][key]["extents"][0][0] += 1
    lines[number] = json.dumps(record)
    victim.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    (report,) = check([tmp_path], TlcRunner())
    assert (report.rejection.line, report.rejection.action) == (number + 1, "PostRead")
    assert Path(report.rejection.file).name == victim.name
    assert report.rejection.conjunct == f"entry {key.removeprefix('entry:')} extents"


def test_mutants_follow_from_their_seed() -> None:
    log = merged(load_run(FOLDER / "e2e-guide"))
    first = [mutant.what for mutant in mutants(log, 60, 1)]
    assert first == [mutant.what for mutant in mutants(log, 60, 1)]
    assert first != [mutant.what for mutant in mutants(log, 60, 2)]
    assert len(set(first)) == 60


def test_an_accepted_mutant_without_a_rule_is_a_survivor() -> None:
    """The rules do not excuse everything: most mutants fall under none."""
    log = merged(load_run(FOLDER / "e2e-guide"))
    judge = Judge(log)
    made = mutants(log, 300, 5)
    excused = [mutant for mutant in made if judge.rule(mutant)]
    assert len(excused) < len(made) / 3


def test_a_short_trace_gets_as_many_mutants_as_it_has() -> None:
    world = Recorded()
    world.save("a", 64)
    (report,) = check_runs([world.run()], TlcRunner(), wanted=40, seed=1)
    assert report.accepted
    assert report.survivors == []
    assert report.rejected_mutants >= 40
