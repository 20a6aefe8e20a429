# SPDX-License-Identifier: Apache-2.0
"""Events without sockets: the queue, the messages, and their order at the subscriber."""

from __future__ import annotations

import random

import msgspec
import pytest

from ec_connector.events.codec import (
    MAX_PAYLOAD_BYTES,
    Event,
    EventBatch,
    decode,
    encode,
    pack_number,
    unpack_number,
)
from ec_connector.events.log import EventLog, as_events
from ec_connector.events.stream import MAX_HELD, EventStream, Update
from ec_protocol.errors import RemoteProtocolError
from ec_protocol.tier.encodings import EncodingTier

BLOCK = 64


def tier_with(log: EventLog, blocks: int = 4) -> EncodingTier:
    tier = EncodingTier(blocks, BLOCK)
    tier.listener = log.add
    return tier


def save(tier: EncodingTier, name: str, blocks: int = 1) -> None:
    entry = tier.alloc(name, blocks * BLOCK, (blocks, 16))
    assert entry is not None
    tier.begin_write(entry, ("save", entry.entry_id))
    tier.write_landed(entry, ("save", entry.entry_id))


def told(log: EventLog) -> list[tuple[str, str]]:
    return [(event.event, event.mm_hash) for event in taken(log)]


def taken(log: EventLog) -> list[Event]:
    """What a server would publish of the oldest events."""
    events, missing = log.take()
    return as_events([*events, missing] if missing else [*events])


# -------------------------------------------------------------------------- the tier
@pytest.mark.clause("EC-13.2")
def test_stored_and_evicted_in_the_order_in_which_they_happened() -> None:
    log = EventLog(100)
    tier = tier_with(log)
    for name in ("a", "b", "c"):
        save(tier, name, 2)
    assert told(log) == [("stored", "a"), ("stored", "b"), ("evicted", "a"), ("stored", "c")]
    assert not log.pending


@pytest.mark.clause("EC-13.2")
def test_a_save_that_never_lands_is_lost() -> None:
    log = EventLog(100)
    tier = tier_with(log)
    entry = tier.alloc("a", BLOCK)
    assert entry is not None
    tier.begin_write(entry, ("save", 1))
    tier.write_ended(entry, ("save", 1))
    tier.drop_allocated(entry)
    assert told(log) == [("lost", "a")]


@pytest.mark.clause("EC-13.2")
def test_quarantined_retired_and_recovered() -> None:
    log = EventLog(100)
    tier = tier_with(log)
    for name in ("proven", "late"):
        entry = tier.alloc(name, BLOCK)
        assert entry is not None
        tier.begin_write(entry, ("read", 1))
        tier.write_lost(entry, ("read", 1))
        if name == "proven":
            tier.dma_ended(entry)
        else:
            tier.retire(entry)
            tier.reclaim(entry.entry_id)
    assert told(log) == [
        ("quarantined", "proven"),
        ("recovered", "proven"),
        ("quarantined", "late"),
        ("retired", "late"),
        ("recovered", "late"),
    ]
    tier.check()


def test_an_event_says_how_large_the_encoding_is() -> None:
    log = EventLog(100)
    save(tier_with(log), "a", 3)
    (event,) = taken(log)
    assert event == Event(event="stored", mm_hash="a", nbytes=3 * BLOCK, shape=[3, 16])


# ------------------------------------------------------------------------- the queue
@pytest.mark.clause("EC-13.5")
def test_a_full_queue_drops_and_says_how_many() -> None:
    log = EventLog(2)
    tier = tier_with(log, 8)
    for name in "abcde":
        save(tier, name)
    events = taken(log)
    assert [(e.event, e.mm_hash, e.count) for e in events] == [
        ("stored", "a", 0),
        ("stored", "b", 0),
        ("dropped", "", 3),
    ]
    assert log.dropped == 3
    save(tier, "f")
    assert told(log) == [("stored", "f")]


@pytest.mark.parametrize("name", ["", "x" * 513, "y" * (1 << 20), "a\ud800"])
def test_names_that_nobody_can_ask_for_are_not_published(name: str) -> None:
    log = EventLog(10)
    save(tier_with(log), name)
    assert not log.pending


@pytest.mark.clause("EC-13.5")
def test_what_cannot_be_handed_on_comes_back_in_its_place() -> None:
    log = EventLog(3)
    tier = tier_with(log, 8)
    for name in "abcde":
        save(tier, name)
    first, missing = log.take(2)
    assert ([event[1] for event in first], missing) == (["a", "b"], 0)
    log.put_back(first, missing)
    assert [(e.event, e.mm_hash, e.count) for e in taken(log)] == [
        ("stored", "a", 0),
        ("stored", "b", 0),
        ("stored", "c", 0),
        ("dropped", "", 2),
    ]
    some, missing = [("stored", "x", 1, None)], 4
    log.put_back(some, missing)
    save(tier, "f")
    assert log.take() == (some, 5), "nothing goes before what is known to be missing"


# ---------------------------------------------------------------------- the messages
@pytest.mark.clause("EC-13.1")
def test_a_message_is_a_plain_map() -> None:
    batch = EventBatch(
        ts=1.5,
        engine_id="e",
        incarnation="i",
        host="h",
        port=5601,
        events=[Event(event="evicted", mm_hash="a", nbytes=64)],
    )
    assert msgspec.msgpack.decode(encode(batch)) == {
        "type": "EcEvents",
        "version": 1,
        "ts": 1.5,
        "engine_id": "e",
        "incarnation": "i",
        "host": "h",
        "port": 5601,
        "events": [{"event": "evicted", "mm_hash": "a", "nbytes": 64}],
    }
    assert decode(encode(batch)) == batch


@pytest.mark.clause("EC-13.1")
def test_unknown_fields_and_events_are_no_error() -> None:
    payload = msgspec.msgpack.encode(
        {"type": "EcEvents", "new": [1], "events": [{"event": "polished", "by": "me"}]}
    )
    assert decode(payload).events == [Event(event="polished")]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "XferAck"}),
        msgspec.msgpack.encode({"type": "EcEvents", "events": 5}),
        msgspec.msgpack.encode({"type": "EcEvents", "events": [{"mm_hash": "a"}]}),
        b"\x91" * 100_000,
        b"\x00" * (MAX_PAYLOAD_BYTES + 1),
    ],
    ids=["empty", "reserved", "another", "no list", "no kind", "deep", "long"],
)
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(payload)


def test_numbers_are_eight_bytes_big_endian() -> None:
    assert pack_number(258) == b"\0\0\0\0\0\0\1\2"
    assert unpack_number(pack_number(1 << 40)) == 1 << 40
    with pytest.raises(RemoteProtocolError):
        unpack_number(b"\0")


# ------------------------------------------------------------------- the subscriber
def message(number: int, incarnation: str = "one") -> EventBatch:
    return EventBatch(incarnation=incarnation, events=[Event(event="stored", mm_hash=f"{number}")])


def quiet(incarnation: str = "one") -> EventBatch:
    return EventBatch(incarnation=incarnation)


def heard(updates: list[Update]) -> list[object]:
    """Updates as numbers of messages, and words."""
    result: list[object] = []
    for update in updates:
        if update.kind == "events" and update.batch is not None:
            result.append(int(update.batch.events[0].mm_hash) if update.batch.events else "quiet")
        else:
            result.append((update.kind, update.count))
    return result


@pytest.mark.clause("EC-13.3")
def test_messages_in_order() -> None:
    stream = EventStream()
    assert heard(stream.feed(0, message(0)) + stream.feed(1, message(1))) == [0, 1]
    assert heard(stream.feed(2, quiet())) == ["quiet"]
    assert heard(stream.feed(2, message(2))) == [2]
    assert stream.feed(1, message(1)) == []


@pytest.mark.clause("EC-13.3")
def test_a_gap_is_told_and_then_it_goes_on() -> None:
    stream = EventStream()
    stream.feed(0, message(0))
    assert heard(stream.feed(3, message(3))) == [("missed", 2), 3]
    assert heard(stream.feed(4, message(4))) == [4]


@pytest.mark.clause("EC-13.3")
def test_a_quiet_stream_shows_what_is_missing() -> None:
    stream = EventStream()
    stream.feed(0, message(0))
    assert heard(stream.feed(5, quiet())) == [("missed", 4), "quiet"]
    assert heard(stream.feed(5, message(5))) == [5]


def test_who_comes_late_is_told_so_and_learns_who_speaks() -> None:
    stream = EventStream()
    assert heard(stream.feed(7, quiet())) == [("missed", 7), "quiet"]


@pytest.mark.clause("EC-13.3")
def test_another_incarnation_begins_anew_and_the_old_one_is_not_heard_again() -> None:
    stream = EventStream()
    stream.feed(0, message(0))
    assert heard(stream.feed(0, message(0, "two"))) == [("restarted", 0), 0]
    assert stream.feed(1, message(1)) == []
    assert heard(stream.feed(1, message(1, "two"))) == [1]


@pytest.mark.clause("EC-13.4")
def test_with_replay_the_gap_is_filled_before_anything_goes_on() -> None:
    stream = EventStream(replay=True)
    stream.feed(0, message(0))
    assert stream.feed(3, message(3)) == []
    assert stream.take_request() == 1
    assert stream.take_request() is None
    assert stream.waiting
    assert heard(stream.feed(1, message(1))) == [1]
    assert heard(stream.feed(2, message(2))) == [2, 3]
    assert stream.replay_over() == []
    assert heard(stream.feed(4, message(4))) == [4]


@pytest.mark.clause("EC-13.4")
def test_what_is_not_kept_any_more_is_missed() -> None:
    stream = EventStream(replay=True)
    assert stream.feed(9, message(9)) == []
    assert stream.take_request() == 0
    assert heard(stream.feed(6, message(6))) == []
    assert heard(stream.replay_over()) == [("missed", 6), 6]
    # Between 6 and 9 something is missing still; it is asked for with the next message.
    assert stream.feed(10, message(10)) == []
    assert stream.take_request() == 7


@pytest.mark.clause("EC-13.4")
def test_a_replay_that_never_comes_is_a_miss() -> None:
    stream = EventStream(replay=True)
    stream.feed(0, message(0))
    assert stream.feed(4, quiet()) == []
    assert stream.take_request() == 1
    assert heard(stream.replay_over()) == [("missed", 3)]
    assert heard(stream.feed(4, message(4))) == [4]


def test_what_is_held_back_is_bounded() -> None:
    stream = EventStream(replay=True)
    updates: list[Update] = []
    for number in range(1, MAX_HELD + 3):
        updates = stream.feed(number, message(number))
        if updates:
            break
    assert updates[0].kind == "missed"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_nothing_is_told_twice_or_out_of_order(seed: int) -> None:
    """A stream that loses, repeats and restarts; every loss is accounted for."""
    rng = random.Random(seed)
    stream = EventStream()
    for incarnation in ("one", "two", "three"):
        expected = 0
        for number in range(60):
            if rng.random() < 0.3:
                continue
            for _ in range(rng.randint(1, 2)):
                for item in heard(stream.feed(number, message(number, incarnation))):
                    if isinstance(item, tuple):
                        expected += item[1]
                    else:
                        assert item == expected
                        expected += 1
