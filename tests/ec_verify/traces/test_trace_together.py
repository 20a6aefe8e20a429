# SPDX-License-Identifier: Apache-2.0
"""A heap of traces: which of them belong to one run, and what all of them show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_protocol.tables.lifecycle import load_actions, load_lifecycles
from ec_verify.cli import app
from ec_verify.traces.coverage import edges_of, label, total
from ec_verify.traces.grouping import by_run
from ec_verify.traces.load import load_run
from ec_verify.traces.merge import merged
from tests.ec_verify.traces.test_trace_walks import keep
from tests.ec_verify.traces.traced import Raw, Recorded
from tests.world.core import BLOCK

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]


def streams(records: list[Raw], name: str, folder: Path) -> list[Path]:
    """A file for each process."""
    nodes = sorted({record["node"] for record in records})
    return [
        keep([r for r in records if r["node"] == node], f"{name}-{node}", folder) for node in nodes
    ]


def renamed(records: list[Raw], session: str, incarnation: str) -> list[Raw]:
    """The same run of processes that call themselves otherwise."""
    text = json.dumps(records).replace("c1.", f"{session}.").replace('"c1"', f'"{session}"')
    for record in records:
        if "grants" in record.get("facts", {}):
            text = text.replace(record["facts"]["grants"]["incarnation"], incarnation)
    result: list[Raw] = json.loads(text)
    return result


@pytest.fixture
def heap(tmp_path: Path) -> list[Path]:
    """Two runs of two processes each, and a process that spoke with nobody."""
    world = Recorded()
    world.finish(world.fetched())
    alone = Recorded()
    alone.save("z", BLOCK)
    records = json.loads(json.dumps(alone.records).replace('"c1"', '"lonely"'))
    lonely = keep(records, "alone", tmp_path)
    one = streams(renamed(world.records, "s1", "i1"), "one", tmp_path)
    two = streams(renamed(world.records, "s2", "i2"), "two", tmp_path)
    return [one[0], two[1], lonely, two[0], one[1]]


def test_who_spoke_with_whom_is_one_run(heap: list[Path]) -> None:
    assert by_run(heap) == [(heap[0], heap[4]), (heap[1], heap[3]), (heap[2],)]


def test_what_cannot_be_read_stands_alone(heap: list[Path], tmp_path: Path) -> None:
    torn = tmp_path / "torn.ndjson"
    torn.write_text(heap[0].read_text()[:-20])
    odd = tmp_path / "odd.ndjson"
    odd.write_text('{"trace_version": 2}\n{"vars": 7}\n')
    assert by_run([torn, odd, heap[4], heap[0]]) == [(torn,), (odd,), (heap[4], heap[0])]


def test_the_command_groups_them(heap: list[Path]) -> None:
    result = CliRunner().invoke(app, ["trace", "check", "--json", "--group", *map(str, heap)])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["ok"]) == (0, True)
    assert [trace["processes"] for trace in answer["traces"]] == [2, 2, 1]
    assert [len(trace["files"]) for trace in answer["traces"]] == [2, 2, 1]
    assert {file for trace in answer["traces"] for file in trace["files"]} == set(map(str, heap))
    shown = answer["coverage"]
    assert shown["actions"]["ReadDone"] == 2
    assert "Retire" in shown["missing_actions"]
    assert "read: quarantined -retire-> settled" in shown["missing_edges"]
    assert shown["edges"]["read: reading -read_done [in_lease]-> done"] == 2


def test_a_producer_cut_off_before_its_grant_is_noticed(heap: list[Path]) -> None:
    """A trace that stops early does not pass for the whole, if anybody relied on the rest."""
    producer = heap[4]
    lines = producer.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if '"action": "Grant"' in line)
    producer.write_text("\n".join(lines[:number]) + "\n")
    # The ack still names the incarnation that the producer's facts tell.
    command = ["trace", "check", "--json", "--group", str(heap[0]), str(producer)]
    (trace,) = json.loads(CliRunner().invoke(app, command).stdout)["traces"]
    assert (trace["accepted"], trace["action"]) == (False, "AckOk")
    assert trace["conjunct"] == "granted before it is acknowledged"


def test_every_edge_of_a_lifecycle_that_traces_tell_of_has_a_label() -> None:
    empty = total([])
    tables = load_lifecycles()
    wanted = {label(n, e) for n, t in tables.items() if n != "region" for e in t.edges}
    assert set(empty.edges) == wanted
    assert len(wanted) == sum(len(t.edges) for n, t in tables.items() if n != "region")
    assert set(empty.actions) == set(empty.missing_actions) == set(load_actions())


def test_edges_are_told_apart_by_their_guards(tmp_path: Path) -> None:
    world = Recorded()
    attempt = world.fetched()
    world.advance(40.0)
    world.reads.read_done(attempt, world.now)
    log = merged(load_run(keep(world.records, "late", tmp_path)))
    taken = edges_of(log)
    assert taken["read: reading -read_done [not in_lease]-> retryable"] == 1
    assert taken["read: reading -read_done [in_lease]-> done"] == 0
