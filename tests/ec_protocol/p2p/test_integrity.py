# SPDX-License-Identifier: Apache-2.0
"""Checksums in the core: who is asked for one, what is refused, and what other bytes lead to."""

from __future__ import annotations

import math

import msgspec
import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.terms import XXH3_128, Terms
from tests.world.core import COMPAT, CONSUMER, PRODUCER, START, World

pytestmark = pytest.mark.clause("EC-8.11")
NBYTES = 100
SUM = f"{XXH3_128}:{'0' * 32}"
DEMANDS = Terms(checksum=XXH3_128)


@pytest.fixture
def world() -> World:
    """A consumer that demands a checksum has asked for ``h``."""
    world = World()
    world.reads.attempts.terms = DEMANDS
    world.producer.save("h", NBYTES)
    world.fetch("h", NBYTES)
    world.carry_out()
    return world


def answer(world: World, checksum: str) -> None:
    world.deliver_requests()
    ack = wire.decode_ack([b"", world.acks.pop()])
    world.reads.on_ack(PRODUCER, msgspec.structs.replace(ack, checksum=checksum), world.now)
    world.carry_out()


def reading(world: World) -> None:
    answer(world, SUM)
    assert world.prepared[1].checksum == SUM
    assert world.post(1)


# ----------------------------------------------------------------------- consumer
@pytest.mark.parametrize("said", ["", XXH3_128, f"crc32:{'0' * 32}", SUM[:-1], SUM[:-1] + "G"])
def test_without_one_nothing_is_read(world: World, said: str) -> None:
    answer(world, said)
    assert not world.prepared
    assert world.fetch("h", NBYTES) == "failed"
    assert world.reads.counters["acks_without_checksum"] == 1
    assert len(world.notices) == 1, "the grant is given back"
    world.check()


def test_who_demands_none_compares_nothing() -> None:
    world = World()
    world.producer.save("h", NBYTES)
    world.fetch("h", NBYTES)
    world.carry_out()
    answer(world, SUM)
    assert world.prepared[1].checksum == ""


def test_other_bytes_are_dropped_and_nobody_asks_again(world: World) -> None:
    reading(world)
    world.move_bytes(1)
    world.reads.read_corrupt(1, world.now)
    world.tick(world.timing.retry_max_interval_s)
    assert world.fetch("h", NBYTES) == "failed"
    assert world.reads.counters["checksum_mismatches"] == 1
    assert world.reads.counters["reads_done"] == 0
    assert (world.tier.free_blocks, world.reads.idle) == (16, True)
    assert not world.requests
    assert 1 not in world.posted, "its handle is released"


@pytest.mark.clause("EC-5.3")
def test_a_read_that_ended_late_is_late_whatever_it_brought(world: World) -> None:
    reading(world)
    attempt = world.reads.attempts.get(1)
    assert attempt is not None
    world.reads.read_corrupt(1, attempt.fence)
    assert world.reads.counters["late_reads"] == 1
    assert world.reads.counters["checksum_mismatches"] == 0


@pytest.mark.clause("EC-5.3")
def test_what_comparing_takes_is_not_counted_against_the_fence(world: World) -> None:
    reading(world)
    attempt = world.reads.attempts.get(1)
    assert attempt is not None
    world.move_bytes(1)
    seen = math.nextafter(attempt.fence, 0.0)
    world.now = attempt.fence + 1.0
    world.reads.read_done(1, seen)
    entry = world.tier.get("h")
    assert entry is not None
    assert entry.servable


@pytest.mark.clause("EC-6.5")
@pytest.mark.parametrize("right", [True, False])
def test_comparing_that_ends_in_quarantine_is_the_proof_and_no_more(
    world: World, right: bool
) -> None:
    reading(world)
    world.move_bytes(1)
    world.reads.peer_lost(PRODUCER, world.now)
    world.carry_out()
    assert world.reads.attempts.quarantined == 1
    (world.reads.read_done if right else world.reads.read_corrupt)(1, world.now)
    assert world.reads.counters["checksum_mismatches"] == 0
    assert (world.reads.attempts.quarantined, world.tier.free_blocks) == (0, 16)
    assert world.tier.get("h") is None


# ----------------------------------------------------------------------- producer
def request(attempt: int = 1, checksum: str = XXH3_128) -> XferReq:
    return XferReq("h", COMPAT, f"s.{attempt}", 2, attempt, "c", checksum=checksum)


def test_the_first_answer_waits_and_the_next_ones_do_not() -> None:
    producer = World().producer
    producer.save("h", NBYTES)
    grants = producer.grants
    grants.terms = Terms(checksum=XXH3_128)
    first = request()
    ack = grants.on_request(CONSUMER, first, START)
    found = grants.unhashed(first, ack)
    assert found is not None
    since = grants.kept_since(found)
    assert since is not None
    assert grants.hashed(found, since, SUM)
    again = grants.on_request(CONSUMER, first, START)
    other = grants.on_request(b"other", request(2), START)
    assert again.checksum == other.checksum == SUM
    assert grants.unhashed(request(2), other) is None
    unasked = grants.on_request(b"other", request(3, ""), START)
    assert (unasked.status, unasked.checksum) == (XferStatus.OK, "")
    assert grants.unhashed(request(3, ""), unasked) is None


def test_one_is_forgotten_with_the_last_grant_on_its_entry() -> None:
    producer = World().producer
    producer.save("h", NBYTES)
    grants = producer.grants
    grants.terms = Terms(checksum=XXH3_128)
    found = grants.unhashed(request(), grants.on_request(CONSUMER, request(), START))
    assert found is not None
    since = grants.kept_since(found)
    assert since is not None
    assert grants.hashed(found, since, SUM)
    assert grants.on_request(CONSUMER, request(2), START).checksum == SUM
    grants.on_notice(b"s.1:h", START)
    assert grants.kept_since(found) == since
    grants.on_notice(b"s.2:h", START)
    assert grants.kept_since(found) is None
    # Another encoding may have been in its place meanwhile.
    ack = grants.on_request(CONSUMER, request(3), START)
    assert not grants.hashed(found, since, SUM)
    assert grants.unhashed(request(3), ack) is not None
    assert grants.on_request(CONSUMER, request(3), START).checksum == ""


@pytest.mark.parametrize("offered", ["", "crc32"])
def test_who_does_not_offer_it_answers_as_if_not_asked(offered: str) -> None:
    producer = World().producer
    producer.save("h", NBYTES)
    producer.grants.terms = Terms(checksum=offered)
    ack = producer.grants.on_request(CONSUMER, request(), START)
    assert (ack.status, ack.checksum) == (XferStatus.OK, "")
    assert producer.grants.unhashed(request(), ack) is None


def test_refusals_and_the_old_form_wait_for_none() -> None:
    producer = World().producer
    producer.save("h", NBYTES)
    grants = producer.grants
    grants.terms = Terms(checksum=XXH3_128)
    for asked in (
        XferReq("unknown", COMPAT, "s.1", 2, 1, "c", checksum=XXH3_128),
        XferReq("h", COMPAT, "old", checksum=XXH3_128),
    ):
        ack: XferAck = grants.on_request(CONSUMER, asked, START)
        assert grants.unhashed(asked, ack) is None
        assert ack.checksum == ""
