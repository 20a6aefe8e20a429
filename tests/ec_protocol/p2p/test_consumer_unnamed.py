# SPDX-License-Identifier: Apache-2.0
"""Refusals that name no attempt, as vLLM's producer sends them (EC-5.6)."""

from __future__ import annotations

import pytest

from ec_protocol.p2p.peers import Unanswered
from ec_protocol.p2p.wire import XferAck, XferStatus
from tests.world.core import PRODUCER, World

pytestmark = pytest.mark.clause("EC-5.6")

N = 100


def refuse(world: World, status: XferStatus, mm_hash: str = "h") -> None:
    world.reads.on_ack(PRODUCER, XferAck(mm_hash=mm_hash, status=int(status)), world.now)
    world.carry_out()


def ask(world: World, waiter: str) -> None:
    assert world.fetch("h", N, waiter) == "pending"
    world.carry_out()


def test_a_refusal_answers_the_one_request_there_is(world):
    ask(world, "a")
    refuse(world, XferStatus.NACK_MISSING)
    assert world.fetch("h", N, "a") == "failed"
    assert world.reads.counters["refused"] == 1


def test_not_ready_is_asked_for_again(world):
    ask(world, "a")
    refuse(world, XferStatus.NACK_NOT_READY)
    world.tick(world.timing.retry_interval_s)
    world.producer.save("h", N)
    world.requests.pop(0)
    world.exchange()
    assert list(world.prepared) == [2]


def test_version_1_is_tried_once(world):
    ask(world, "a")
    refuse(world, XferStatus.NACK_VERSION)
    world.tick(world.timing.retry_interval_s)
    refuse(world, XferStatus.NACK_VERSION)
    assert world.fetch("h", N, "a") == "failed"
    assert len(world.requests) == 2


def test_a_late_refusal_does_not_touch_the_next_attempt(world):
    """Two requests, the first given up: the first refusal is the first one's."""
    ask(world, "a")
    world.tick(world.timing.ack_timeout_s)
    ask(world, "b")
    refuse(world, XferStatus.NACK_MISSING)
    assert world.reads.counters["stale_acks"] == 1
    assert world.fetch("h", N, "b") == "pending"
    refuse(world, XferStatus.NACK_MISSING)
    assert world.fetch("h", N, "b") == "failed"


def test_a_named_answer_counts_as_the_answer_of_the_older_ones_too(world):
    """The producer keeps the order, so what it left out was lost."""
    world.producer.save("h", N)
    ask(world, "a")
    world.tick(world.timing.ack_timeout_s)
    ask(world, "b")
    world.requests.pop(0)
    world.exchange()
    assert list(world.prepared) == [2]
    refuse(world, XferStatus.NACK_MISSING)
    assert world.reads.counters["foreign_acks"] == 1


@pytest.mark.parametrize("mm_hash", ["other", "h"])
def test_a_refusal_that_answers_nothing_is_dropped(world, mm_hash):
    if mm_hash != "h":
        ask(world, "a")
    refuse(world, XferStatus.NACK_MISSING, mm_hash)
    assert world.reads.counters["refused"] == 0


def test_an_ok_without_a_name_is_never_taken(world):
    ask(world, "a")
    refuse(world, XferStatus.OK)
    assert world.reads.counters["foreign_acks"] == 1
    assert world.fetch("h", N, "a") == "pending"


def test_what_was_asked_on_a_lost_connection_is_forgotten(world):
    ask(world, "a")
    world.reads.peer_lost(PRODUCER, world.now)
    world.tick(world.timing.heartbeat_timeout_s)
    ask(world, "b")
    refuse(world, XferStatus.NACK_MISSING)
    assert world.fetch("h", N, "b") == "failed"


@pytest.mark.clause("EC-9.5")
def test_beyond_the_bound_an_older_one_is_found_never_a_younger_one():
    unanswered = Unanswered()
    for number in range(1000):
        unanswered.sent("h", str(number))
    found = [unanswered.take_oldest("h") for _ in range(300)]
    assert found == [str(number) for number in range(256)] + [""] * 44
    unanswered.sent("h", "next")
    assert unanswered.take_oldest("h") == "next"


@pytest.mark.clause("EC-9.5")
def test_of_names_that_have_their_answers_nothing_is_kept():
    """A connection lives for days and carries a name only once."""
    unanswered = Unanswered()
    for number in range(1000):
        for session in ("lost", "answered", "refused"):
            unanswered.sent(f"h{number}", f"{session}-{number}")
        unanswered.answered(f"h{number}", f"answered-{number}")
        assert unanswered.take_oldest(f"h{number}") == f"refused-{number}"
    assert (unanswered._by_hash, unanswered._size) == ({}, 0)


def test_a_named_answer_leaves_the_younger_ones_waiting():
    unanswered = Unanswered()
    for session in ("1", "2", "3", "4"):
        unanswered.sent("h", session)
    unanswered.answered("h", "2")
    assert [unanswered.take_oldest("h") for _ in range(3)] == ["3", "4", ""]


def test_names_do_not_mix():
    unanswered = Unanswered()
    unanswered.sent("a", "1")
    unanswered.sent("b", "2")
    unanswered.answered("b", "1")
    assert unanswered.take_oldest("b") == "2"
    assert unanswered.take_oldest("a") == "1"
