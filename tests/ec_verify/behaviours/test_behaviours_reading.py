# SPDX-License-Identifier: Apache-2.0
"""Which messages a step sent and took: what pictures and schedules both go by."""

import dataclasses

from ec_verify.behaviours.fleet import FleetEvent
from ec_verify.behaviours.models import model_of
from ec_verify.behaviours.peer import PeerEvent
from ec_verify.behaviours.peer_read import PeerReadEvent
from ec_verify.behaviours.reading import Event, Message, read, state_of
from ec_verify.models.output import parse_output
from tests import ROOT

RECORDED = ROOT / "tests" / "ec_verify" / "pictures" / "recorded"


def events_of(name: str, kind: type[Event]) -> list[Event]:
    (path,) = RECORDED.glob(f"{name}.*.txt")
    trace = parse_output(path.read_text(), int(path.suffixes[0][1:])).trace
    moves = [(step.action, state_of(step)) for step in trace]
    assert model_of(moves[0][1]).event is kind
    return read(moves, kind)


def first(events: list[Event], action: str) -> Event:
    return next(event for event in events if event.action == action)


def test_the_first_event_changes_nothing():
    start, then, *_ = events_of("BugPeerReadF1", PeerReadEvent)
    assert (start.number, start.sent, start.taken, start.changed("entry")) == (1, [], [], [])
    assert then.before is start.after


def test_a_request_is_sent_then_taken_by_the_grant_that_sends_an_ack():
    events = events_of("BugPeerReadF1", PeerReadEvent)
    asked, granted, heard = (first(events, a) for a in ("RequestRead", "Grant", "AckOk"))
    assert list(asked.sent) == list(granted.taken) == [Message("request", 1)]
    assert list(granted.sent) == list(heard.taken) == [Message("ok", 1, 1)]
    assert granted.sent[0].channel == "P>C"


def test_an_ack_that_only_another_attempt_has_is_the_one_that_was_taken():
    """A model without EC-5.6 lets an attempt take the ack of another."""
    events = events_of("BugPeerReadF1", PeerReadEvent)
    heard = first(events, "AckOk")
    renamed = [{**m, "of": 2} if m["type"] == "ok" else m for m in heard.before["net"]]
    stray = dataclasses.replace(heard, before={**heard.before, "net": renamed})
    assert stray.attempt == 1
    assert list(stray.taken) == [Message("ok", 2, 1)]


def test_a_notice_that_only_another_attempt_has_is_the_one_that_was_taken():
    events = events_of("BugPeerReadF1", PeerReadEvent)
    granted = first(events, "Grant")
    notice = {"type": "notice", "of": 2, "inc": 1}
    before = {**granted.after, "net": [*granted.after["net"], notice]}
    ended = {**before, "grant": tuple("completed" for _ in granted.after["grant"])}
    done = PeerReadEvent(9, "Complete", before, ended)
    assert done.attempt == 1
    assert list(done.taken) == [Message("notice", 2)]


def test_of_two_acks_for_one_read_the_consumer_took_the_one_that_it_goes_by():
    events = events_of("BugPeerFailReads", PeerEvent)
    asked = first(events, "RequestRead")
    (number,) = asked.changed("read")
    index = list(asked.after["read"]).index(asked.now("read", number))
    reads = list(asked.after["read"])
    reads[index] = {**reads[index], "st": "granted", "meta": 2}
    heard = PeerEvent(9, "AckOk", asked.after, {**asked.after, "read": tuple(reads)})
    assert list(heard.taken) == [Message("ok", number, 2)]


def test_a_notice_that_ends_anothers_grant_is_the_others():
    """EC-5.5: the notice of attempt 1 arrives when the grant of attempt 2 is open."""
    events = events_of("BugFleetNoticeBytes", FleetEvent)
    done = first(events, "Complete")
    assert (done.attempt, [message.of for message in done.taken]) == (2, [1])
    assert {m.channel for m in done.taken} == {"c1~p1"}
