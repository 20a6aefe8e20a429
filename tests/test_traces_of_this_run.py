# SPDX-License-Identifier: Apache-2.0
"""What the nodes of all other tests did is what the specification allows.

Comes last in every session. Each test that runs a node leaves a trace (``recording``);
here TLC checks them all. So a change of the core that no test was written for is still
found, if any test makes it show. The census of modules stands in ``tla/traces/README.md``.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check, coverage
from ec_verify.traces.grouping import by_run
from tests import needs, recording

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.e2e, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parent
#: Where rejected runs are kept to be looked at; git ignores it.
REJECTED = TESTS.parent / "out" / "rejected-traces"
Runs = dict[str, list[tuple[Path, ...]]]

#: What builds a node, or a part of one: module and name.
BUILDERS = {
    ("ec_verify.adapters.ours.adapter", "Ours"),
    ("ec_connector.demo.main", "run_demo"),
    ("ec_connector.instance", "SchedulerInstance"),
    ("ec_protocol", "Node"),
    ("ec_protocol.node", "Node"),
    ("ec_protocol.offers.engine", "Offers"),
    ("ec_protocol.loans", "Loans"),
    ("ec_protocol.p2p.peers", "PeerTable"),
    ("ec_protocol.p2p.reader", "Reader"),
    ("ec_protocol.processes", "Processes"),
    ("ec_protocol.tier.encodings", "EncodingTier"),
    ("tests.world", "instance"),
    ("tests.world", "vllm"),
    ("tests.world.delegate", "Engine"),
    ("tests.world.instance", "Producer"),
    ("tests.world.instance", "Node"),
    ("tests.ec_connector.processes.on_device", "DeviceNode"),
    ("tests.ec_connector.processes.played_parent", "Played"),
    ("tests.world.core", "Pair"),
    ("tests.world.core", "World"),
    ("tests.world.plain", "connector"),
    ("tests.world.ghosts", "Node"),
    ("tests.world.schedules", "ConnectorMachine"),
    ("tests.ec_protocol.offers.world", "World"),
    ("tests.ec_verify.traces.instances", "Instances"),
    ("tests.ec_verify.traces.traced", "Recorded"),
    ("tests.world.engine", "Engine"),
    ("tests.world.engine", "engine"),
    ("tests.interop.driver", "Ours"),
}


def census() -> dict[str, str]:
    """Module to what the table says of its traces."""
    text = (tla_dir() / "traces" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| tests | what runs | trace |")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        _, modules, _, trace, _ = line.split("|")
        for module in re.findall(r"`(\w+)`", modules):
            assert module not in found, f"{module} stands there twice"
            found[module] = trace.strip()
    return found


CENSUS = census()
RECORDED = {module for module, trace in CENSUS.items() if trace.startswith("recorded")}


def builds_nodes(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if not any(name in text for _, name in BUILDERS):
        return False
    tree = ast.parse(text)
    return any(
        (node.module, name.name) in BUILDERS
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    )


def test_the_census_has_every_module_that_builds_a_node():
    building = {path.stem for path in TESTS.rglob("test_*.py") if builds_nodes(path)}
    assert sorted(building - set(CENSUS)) == []
    there = {path.stem for path in TESTS.rglob("test_*.py")} | {"e2e"}
    assert sorted(set(CENSUS) - there) == []
    for trace in CENSUS.values():
        assert trace.partition(":")[0] in ("recorded", "elsewhere", "none"), trace


# ------------------------------------------------------------- the traces of this session
def runs_of(module: Path) -> list[tuple[Path, ...]]:
    """The runs that a module's tests left; a node to which nothing happened left none."""
    files = [p for p in sorted(module.rglob("*.ndjson")) if p.read_bytes().count(b"\n") > 1]
    real = [path for path in files if path.parent.name != "played"]
    return [*by_run(real), *((path,) for path in files if path not in real)]


@pytest.fixture(scope="module")
def runs(session_traces: Path) -> Runs:
    left = {path.name: runs_of(path) for path in sorted(session_traces.iterdir()) if path.is_dir()}
    left = {name: found for name, found in left.items() if found}
    ran = any(recording.ran[module] for module in RECORDED)
    needs.optional(bool(left) or ran, "no test of this session ran a node")
    return left


@pytest.fixture(scope="module")
def reports(runs: Runs) -> list[Report]:
    files = [files for found in runs.values() for files in found]
    return check(files, TlcRunner(), jobs=os.cpu_count() or 1)


def without_traces(left: Iterable[str]) -> list[str]:
    """Modules that are to leave traces, all of whose tests ran, and that left none."""
    ran = {m for m in RECORDED if recording.ran[m] and not recording.deselected[m]}
    return sorted(ran - set(left))


def test_every_module_that_ran_left_traces(request, runs):
    whole = recording.shared or not any("::" in arg for arg in request.config.args)
    needs.optional(bool(whole), "only some tests of a module were asked for")
    assert without_traces(runs) == []


def test_a_session_without_a_single_trace_is_noticed(monkeypatch):
    monkeypatch.setattr(recording, "ran", Counter({"test_pair": 3, "test_tier": 1}))
    monkeypatch.setattr(recording, "deselected", Counter())
    assert without_traces([]) == ["test_pair"]
    recording.deselected["test_pair"] += 1
    assert without_traces([]) == []


def test_nothing_is_left_that_the_census_does_not_know(runs):
    assert sorted(set(runs) - set(CENSUS)) == []


def test_every_run_is_accepted(runs, reports, session_traces, capsys):
    """A run that is not is kept; if the checker was wrong it belongs into ``traces/failures``."""
    files = [files for found in runs.values() for files in found]
    rejected = {}
    for run, report in zip(files, reports, strict=True):
        if report.rejection is not None:
            first = run[0].relative_to(session_traces).with_suffix("")
            REJECTED.mkdir(parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="-".join(first.parts) + "-", dir=REJECTED)
            for path in run:
                shutil.copyfile(path, Path(folder) / path.name)
            rejected[folder] = report.rejection
    shown = coverage(reports)
    with capsys.disabled():
        seen = len(shown.actions) - len(shown.missing_actions)
        taken = len(shown.edges) - len(shown.missing_edges)
        sys.stderr.write(
            f"\n{len(reports)} runs of {len(runs)} modules, "
            f"{sum(report.records for report in reports)} records of "
            f"{sum(report.processes for report in reports)} processes, "
            f"{seen} of {len(shown.actions)} actions, {taken} of {len(shown.edges)} edges\n"
        )
    assert rejected == {}


#: Modules that together go through everything but ``NEVER``: of those that need no more than
#: a plain machine.
WHOLE = RECORDED - {
    *("test_both_ways", "test_reading_from_builtin", "test_serving_builtin", "test_vllm_engine"),
    "test_device_data",
}
#: Edges that no node of these tests takes, with the reason; ``test_trace_check`` plays them.
NEVER = {
    "copy: planned -skip-> skipped": "the delegate hands a copy over in the step that plans it"
}
#: Edges that only random schedules or a race bring about, so that a session may lack them.
RARELY = {
    "peer: connecting -close-> down",
    "read: granted -abort-> failed",
    "read: granted -peer_lost-> failed",
}


def test_the_traces_show_every_action_and_edge(reports):
    """Of a whole session: actions and edges that no real run shows were never compared."""
    absent = sorted(module for module in WHOLE if not recording.ran[module])
    needs.optional(not absent, f"not a whole session: without {', '.join(absent)}")
    shown = coverage(reports)
    assert shown.missing_actions == []
    assert sorted(set(shown.missing_edges) - RARELY) == sorted(NEVER)
