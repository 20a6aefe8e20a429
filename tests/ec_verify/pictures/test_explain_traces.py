# SPDX-License-Identifier: Apache-2.0
"""Traces of several processes: merged by what caused what, and told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol.errors import TraceError
from ec_protocol.trace import TRACE_VERSION
from ec_verify.pictures.from_trace import merged as merge
from ec_verify.pictures.from_trace import session_of, short, story_of_traces
from ec_verify.pictures.source import UnknownInput, make_story
from tests.world.core import PRODUCER, World


def record_run() -> list[dict]:
    """One READ that ends well, one whose peer is lost, one that the fence turns away."""
    records: list[dict] = []
    world = World(sink=lambda record: records.append(json.loads(json.dumps(record))))
    world.producer.save("one", 300)
    world.fetch("one", 300)
    world.exchange()
    (attempt,) = world.prepared
    world.post(attempt)
    world.finish(attempt)
    world.tick(5.0)
    world.producer.save("two", 300)
    world.fetch("two", 300)
    world.exchange()
    (attempt,) = world.prepared
    world.post(attempt)
    world.reads.peer_lost(PRODUCER, world.now)
    world.tick(61.0)
    world.producer.save("three", 300)
    world.fetch("three", 300)
    world.exchange()
    world.advance(40)
    (attempt,) = world.prepared
    world.post(attempt)
    world.tick(0.1)
    return records


RUN = record_run()


def write(path, records):
    lines = [json.dumps({"trace_version": TRACE_VERSION}), *map(json.dumps, records)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def files(tmp_path):
    return [
        write(tmp_path / f"{node}.ndjson", [r for r in RUN if r["node"] == node])
        for node in ("consumer", "producer")
    ]


@given(skew=st.floats(-1000, 1000), swapped=st.booleans())
def test_the_merged_order_never_depends_on_clocks_alone(skew, swapped):
    """EC-7.1: a producer whose clock is far off still grants after it was asked."""
    streams = []
    for node in ("consumer", "producer"):
        offset = skew if node == "producer" else 0.0
        streams.append([{**r, "t": r["t"] + offset} for r in RUN if r["node"] == node])
    merged = [record for _, record in merge(streams[::-1] if swapped else streams)]
    assert len(merged) == len(RUN)
    for node in ("consumer", "producer"):
        numbers = [r["seq"] for r in merged if r["node"] == node]
        assert numbers == sorted(numbers)
    at = {(r["action"], session_of(r)): number for number, r in enumerate(merged)}
    sessions = {session_of(r) for r in merged if r["action"] == "Grant"}
    assert len(sessions) == 3
    for session in sessions:
        assert at["RequestRead", session] < at["Grant", session] < at["AckOk", session]
        if ("Complete", session) in at:
            assert at["PostRead", session] < at["Complete", session]


def test_equal_clocks_give_the_order_of_time():
    streams = [[r for r in RUN if r["node"] == node] for node in ("consumer", "producer")]
    times = [record["t"] for _, record in merge(streams)]
    assert times == sorted(times)


def test_a_notice_that_overtakes_what_the_consumer_sees_stands_at_its_time():
    """It is no cause: the READ is over for both sides, whoever says so first."""
    streams = [[r for r in RUN if r["node"] == node] for node in ("consumer", "producer")]
    done = next(i for i, r in enumerate(streams[0]) if r["action"] == "ReadDone")
    session = session_of(streams[0][done])
    late = [{**r, "t": r["t"] + (i >= done)} for i, r in enumerate(streams[0])]
    order = [(r["action"], session_of(r)) for _, r in merge([late, streams[1]])]
    assert order.index(("Complete", session)) < order.index(("ReadDone", session))


def test_messages_join_the_processes(files):
    story = story_of_traces(files)
    row = {(s.lane, s.label, s.subject): n for n, s in enumerate(story.steps)}
    (request,) = [a for a in story.arrows if a.label == "request 1 (one)"]
    (ack,) = [a for a in story.arrows if a.label == "OK 1"]
    (notice,) = [a for a in story.arrows if a.label == "notice 1"]
    grant = row["producer/data", "Grant", "attempt 1 · one"]
    assert (request.source, request.target, request.end) == (
        "consumer/engine", "producer/data", grant,
    )  # fmt: skip
    assert (ack.start, ack.end) == (grant, row["consumer/data", "AckOk", "attempt 1 · one"])
    assert notice.source == "consumer/dma"
    assert notice.end == row["producer/data", "Complete", "attempt 1 · one"]
    assert not any("elsewhere" in (a.source, a.target) for a in story.arrows)


def test_leases_fences_and_quarantine_are_bars(files):
    story = story_of_traces(files)
    row = {(s.label, s.subject): n for n, s in enumerate(story.steps)}
    found = {(b.lane, b.label): (b.style, b.start, b.end) for b in story.bars}
    assert found["producer/lease", "lease 2"] == (
        "lease", row["Grant", "attempt 2 · two"], row["Expire", "attempt 2 · two"],
    )  # fmt: skip
    lost, retired = row["ReadLost", "attempt 2 · two"], row["Retire", "attempt 2 · two"]
    assert found["consumer/fence", "read 2: quarantined"] == ("quarantine", lost, retired)
    assert found["consumer/dma", "READ 2"][2] == retired, "nobody knows when it ended"
    assert found["consumer/dma", "READ 1"][2] == row["ReadDone", "attempt 1 · one"]


def test_one_side_alone_talks_to_somebody_elsewhere(files):
    story = story_of_traces(files[:1])
    (request,) = [a for a in story.arrows if a.label == "request 1 (one)"]
    assert (request.target, request.end) == ("elsewhere", request.start)
    acks = [a for a in story.arrows if a.kind == "ack"]
    assert {a.source for a in acks} == {"elsewhere"}


def test_the_state_ends_as_the_last_records_say(files):
    story = story_of_traces(files)
    state: dict[str, str] = {}
    for step in story.steps:
        for name, text in step.changes.items():
            if text is None:
                state.pop(name)
            else:
                state[name] = text
    tier = [r["vars"]["tier"] for r in RUN if r["node"] == "consumer" and "tier" in r["vars"]][-1]
    assert state["consumer: tier|free"] == str(tier["free"])
    assert state["consumer: tier|retired"] == str(tier["retired"]) == "5"
    assert "consumer: read 1|state" not in state, "it was over long ago"


def test_a_folder_holds_the_traces_of_one_run(files, tmp_path):
    assert [s.label for s in make_story([str(tmp_path)]).steps] == [
        s.label for s in story_of_traces(files).steps
    ]
    (tmp_path / "none").mkdir()
    with pytest.raises(UnknownInput, match="no trace in this folder"):
        make_story([str(tmp_path / "none")])


def test_the_specification_judges_a_trace(files):
    verdict = make_story([str(path) for path in files], check=True).verdict
    assert (verdict.headline, verdict.bad) == ("Accepted.", False)
    assert f"{len(RUN)} records of 2 process(es)" in verdict.sentence


def test_a_rejected_record_is_marked(files):
    consumer = files[0]
    lines = consumer.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if '"ReadDone"' in line)
    record = json.loads(lines[number])
    record["vars"]["entry:1"]["extents"] = [[1, 5]]
    lines[number] = json.dumps(record)
    consumer.write_text("\n".join(lines) + "\n")
    story = make_story([str(path) for path in files], check=True)
    assert story.verdict.bad
    assert story.steps[story.verdict.row].label == "ReadDone"
    assert dict(story.verdict.facts)["record"] == f"{consumer}, line {number + 1}"


def test_a_record_that_no_trace_can_have_is_rejected_whole(files):
    record = json.loads(json.dumps(RUN[0]))
    record["action"] = "Teleport"
    verdict = make_story([str(write(files[0].parent / "odd.ndjson", [record]))], check=True).verdict
    assert (verdict.bad, verdict.row, verdict.headline) == (True, None, "Rejected.")


def test_names_that_are_hashes_are_cut():
    assert short("4c15b749e0261d738e844501b9c325f5") == "4c15b749"
    assert short("02d9bc85-3055-477a-89d6-ce00eb806b51") == "02d9bc85"
    assert short("picture") == "picture"
    assert len(short("a picture with a very long name")) <= 20


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda r: r.pop("vars"), "line 2: a record without 'vars'"),
        (lambda r: r.update(vars=[]), "line 2: a field has a wrong type"),
        (lambda r: r.update(vars={"tier": 1}), "line 2: a field has a wrong type"),
        (lambda r: r.update(t="soon"), "line 2: a field has a wrong type"),
        (lambda r: r.update(action=None), "line 2: a field has a wrong type"),
    ],
)
def test_damaged_records_are_named(tmp_path, damage, says):
    record = json.loads(json.dumps(RUN[0]))
    damage(record)
    with pytest.raises(TraceError, match=says):
        make_story([str(write(tmp_path / "x.ndjson", [record]))])


def test_a_trace_without_records_shows_nothing(tmp_path):
    with pytest.raises(TraceError, match="nothing to show"):
        make_story([str(write(tmp_path / "x.ndjson", []))])


def test_empty_and_foreign_files_are_refused(tmp_path, files):
    empty = tmp_path / "empty.ndjson"
    empty.write_text("")
    with pytest.raises(TraceError, match="empty"):
        make_story([str(empty)])
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    with pytest.raises(UnknownInput, match="neither a trace"):
        make_story([str(foreign)])
    with pytest.raises(UnknownInput, match="only traces can be shown together"):
        make_story([str(files[0]), str(foreign)])
