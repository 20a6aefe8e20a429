# SPDX-License-Identifier: Apache-2.0
"""Reading runs: every field checked, processes told apart, files merged by causality."""

from __future__ import annotations

import copy
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ec_protocol.errors import TraceError
from ec_protocol.trace import TRACE_VERSION
from ec_verify.traces.load import RecordError, load_run, make_run
from ec_verify.traces.merge import attempt_of, merged
from ec_verify.traces.tla import make_clock, module
from tests.ec_protocol.world import BLOCK
from tests.ec_verify.traces.traced import Raw, Recorded

pytestmark = pytest.mark.clause("EC-1.3")


@pytest.fixture
def records() -> list[Raw]:
    world = Recorded()
    world.finish(world.fetched())
    return world.records


def find(records: list[Raw], action: str) -> Raw:
    return next(record for record in records if record["action"] == action)


@pytest.mark.parametrize(
    ("action", "path", "value", "message"),
    [
        ("Alloc", ("seq",), -1, "record.seq=-1: expected a number from 0"),
        ("Alloc", ("t",), "soon", "record.t='soon': expected seconds as a number"),
        ("Alloc", ("t",), math.inf, "record.t=inf: expected seconds"),
        ("Alloc", ("t",), True, "record.t=True: expected seconds"),
        ("Alloc", ("action",), "Teleport", "action='Teleport': the table of actions"),
        ("Alloc", ("args", "blocks"), "2", "args.blocks='2': expected a number"),
        ("Alloc", ("args", "more"), 1, "args: unknown more"),
        ("Alloc", ("vars", "entry:1", "extents"), [[0]], "vars.entry:1.extents"),
        ("Alloc", ("vars", "entry:1", "holders"), 3, "expected a list"),
        ("Alloc", ("vars", "entry:x"), {}, "vars.entry:x: expected tier or kind:id"),
        ("Alloc", ("vars", "tier:1"), {}, "vars.tier:1: expected tier or kind:id"),
        ("Alloc", ("vars", "tier", "free"), True, "vars.tier.free=True: expected a number"),
        ("Alloc", ("vars", "tier"), [], "vars.tier: expected an object"),
        ("Alloc", ("facts", "moon"), {}, "facts.moon: unknown"),
        ("Alloc", ("facts", "tier", "total"), None, "facts.tier.total=None"),
        ("Alloc", ("extra",), 1, "unknown extra"),
        ("SaveLanded", ("fired",), [{}], "fired[0]: expected exactly"),
        ("SaveLanded", ("fired",), {}, "fired: expected a list"),
        ("Grant", ("vars", "grant:1", "notice"), "nocolon", "expected session:mm_hash"),
        ("SaveLanded", ("vars", "copy:1", "all_landed"), 1, "expected true or false"),
        ("SaveLanded", ("vars", "copy:1", "waiting"), [1, 1], "without repetition"),
    ],
)
def test_a_wrong_field_is_named(
    records: list[Raw], action: str, path: tuple[str, ...], value: Any, message: str
) -> None:
    wrong = copy.deepcopy(records)
    record = find(wrong, action)
    target = record
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(RecordError) as caught:
        make_run("run", [("file.ndjson", wrong)])
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"file.ndjson, line {wrong.index(record) + 2}: ")
    assert caught.value.number == wrong.index(record) + 1


def test_a_missing_field_is_named(records: list[Raw]) -> None:
    del records[2]["vars"]
    with pytest.raises(RecordError, match="line 4: vars missing"):
        make_run("run", [("f", records)])


def test_facts_do_not_change(records: list[Raw]) -> None:
    records[1]["facts"] = {"tier": {"total": 99, "block_size": 64}}
    with pytest.raises(RecordError, match=r"facts\.tier: .* contradicts"):
        make_run("run", [("f", records)])


def test_an_empty_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="an empty trace proves nothing"):
        make_run("run", [("f", [])])
    with pytest.raises(TraceError, match=r"no trace in this folder"):
        load_run(tmp_path)


def test_a_folder_is_one_run_packed_or_not(tmp_path: Path, records: list[Raw]) -> None:
    header = json.dumps({"trace_version": TRACE_VERSION})
    for node in ("producer", "consumer"):
        lines = [header, *(json.dumps(r) for r in records if r["node"] == node)]
        data = ("\n".join(lines) + "\n").encode()
        if node == "producer":
            (tmp_path / f"{node}.ndjson.gz").write_bytes(gzip.compress(data))
        else:
            (tmp_path / f"{node}.ndjson").write_bytes(data)
    (tmp_path / "log.txt").write_text("no trace")
    run = load_run(tmp_path)
    assert run.records == len(records)
    assert sorted(run.facts) == ["consumer", "producer@2"]


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson.gz"
    path.write_bytes(gzip.compress(b'{"trace_version": 2}\n' * 50)[:-20])
    with pytest.raises(TraceError, match=r"x\.ndjson\.gz"):
        load_run(path)
    path.write_bytes(b"plain text")
    with pytest.raises(TraceError, match="damaged gzip"):
        load_run(path)


def test_a_process_that_starts_again_is_another_one() -> None:
    world = Recorded()
    world.producer.save("a", BLOCK)
    world.restart_producer()
    world.producer.save("b", BLOCK)
    run = world.run()
    assert sorted(run.facts) == ["producer", "producer#2"]
    incarnations = {facts["grants"]["incarnation"] for facts in run.facts.values()}
    assert len(incarnations) == 2


# ----------------------------------------------------------------------- merging
def order(run: Any) -> list[tuple[str, str]]:
    return [(record.process.partition("@")[0], record.action) for record in merged(run)]


def test_one_file_keeps_its_order(records: list[Raw]) -> None:
    run = make_run("run", [("f", records)])
    assert [r.line for r in merged(run)] == list(range(2, len(records) + 2))


@pytest.mark.parametrize("offset", [-5000.0, 0.0, 5000.0])
def test_causes_come_first_whatever_the_clocks_say(offset: float) -> None:
    """Clocks of two processes have nothing to do with each other (EC-7.1)."""
    world = Recorded()
    producer = world.producer
    assert producer.tier.recorder.trace is not None
    producer.tier.recorder.trace.clock = lambda: world.now + offset
    world.finish(world.fetched())
    found = order(world.streams())
    position = {item: found.index(item) for item in found}
    assert position["consumer", "RequestRead"] < position["producer", "Grant"]
    assert position["producer", "Grant"] < position["consumer", "AckOk"]
    assert position["consumer", "ReadDone"] < position["producer", "Complete"]
    for node in ("consumer", "producer"):
        own = [r["action"] for r in world.records if r["node"] == node]
        assert [action for process, action in found if process == node] == own


def test_a_lease_ends_after_what_its_fence_allowed() -> None:
    world = Recorded()
    assert world.producer.tier.recorder.trace is not None
    world.producer.tier.recorder.trace.clock = lambda: world.now - 5000.0
    attempt = world.fetched()
    world.reads.read_done(attempt, world.now)
    world.tick(40.0)
    found = order(world.streams())
    assert found.index(("consumer", "ReadDone")) < found.index(("producer", "Expire"))


def test_an_order_that_cannot_be_had_loses_no_record(records: list[Raw]) -> None:
    """An effect before its cause in both files: TLC will say which record comes too early."""
    grant = find(records, "Grant")
    producer = [r for r in records if r["node"] == "producer"]
    consumer = [r for r in records if r["node"] == "consumer"]
    producer.remove(grant)
    producer.append(grant)
    run = make_run("run", [("p", producer), ("c", consumer)])
    assert sorted(r.place for r in merged(run)) == sorted(
        r.place for stream in run.streams for r in stream
    )


def test_both_sides_name_the_attempt_alike(records: list[Raw]) -> None:
    log = merged(make_run("run", [("f", records)]))
    named = {r.action: attempt_of(r) for r in log if attempt_of(r)}
    assert set(named) == {
        *("RequestRead", "Grant", "AckOk", "PostRead", "ReadDone", "Settle", "Complete")
    }
    assert set(named.values()) == {("c1.1", "a")}


# ------------------------------------------------------------------- the TLA+ text
def test_times_get_the_finest_unit_that_fits(records: list[Raw]) -> None:
    run = make_run("run", [("f", records)])
    clock = make_clock(run, merged(run))
    assert clock.unit == 1e-6
    assert clock.moment("producer", 1000.25) == 250_000
    assert clock.span(None) == -1
    records[-1]["t"] += 5000.0
    run = make_run("run", [("f", records)])
    assert make_clock(run, merged(run)).unit == 1e-4
    records[-1]["t"] += 1e9
    with pytest.raises(TraceError, match=r"line 17: a time 1000005\d+ s away"):
        make_clock(make_run("run", [("f", records)]), merged(make_run("run", [("f", records)])))


def test_no_text_of_a_trace_gets_out_of_its_string() -> None:
    world = Recorded()
    world.save('x" ] \\* é\n', BLOCK)
    run = world.run()
    text = module("Data", [(run, merged(run), ())])
    assert '"x%22 %5d %5c%2a %c3%a9%0a"' in text
    assert text.isascii()


def test_very_long_names_stay_apart() -> None:
    world = Recorded()
    for end in "ab":
        world.save("x" * 1_000_000 + end, BLOCK)
    run = world.run()
    text = module("Data", [(run, merged(run), ())])
    assert len(text) < 10_000
    told = {line.partition('mm_hash |-> "')[2].partition('"')[0] for line in text.splitlines()}
    first, second = sorted(told - {""})
    assert first.startswith("x" * 64 + "#")
    assert first != second
