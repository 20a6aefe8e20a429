# SPDX-License-Identifier: Apache-2.0
"""Who says which encoder is theirs, who demands it, and what becomes of a READ then."""

from __future__ import annotations

from typing import Any

import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.terms import Terms
from tests.world.core import COMPAT, CONSUMER, PRODUCER, START, World

pytestmark = pytest.mark.clause("EC-8.10")
NBYTES = 100

#: (producer says, demands, consumer says, demands) and whether they exchange, and whether
#: the one that does not know of the other's counts it: producer, consumer.
PAIRS: list[tuple[str, bool, str, bool, bool, bool, bool]] = [
    ("", False, "", False, True, False, False),
    ("a", False, "a", False, True, False, False),
    ("a", True, "a", True, True, False, False),
    ("a", False, "b", False, False, False, False),
    ("a", True, "b", True, False, False, False),
    ("a", False, "", False, True, True, True),
    ("", False, "a", False, True, True, True),
    ("a", True, "", False, False, False, False),
    ("", False, "a", True, False, True, False),
    ("", True, "", False, False, False, False),
    ("", False, "", True, False, False, False),
]


def world_of(producer: Terms, consumer: Terms) -> World:
    world = World()
    world.producer.grants.terms = producer
    world.reads.attempts.terms = consumer
    world.producer.save("h", NBYTES)
    assert world.fetch("h", NBYTES) == "pending"
    return world


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_exchanged(pair: Any) -> None:
    says, demands, asks, wants, exchanged, producer_counts, consumer_counts = pair
    world = world_of(
        Terms(encoder_hash=says, encoder_required=demands),
        Terms(encoder_hash=asks, encoder_required=wants),
    )
    world.exchange()
    if exchanged:
        assert world.post(1)
        world.finish(1)
    entry = world.tier.get("h")
    assert (entry is not None and entry.servable) == exchanged
    assert exchanged or world.fetch("h", NBYTES) == "failed"
    assert not world.prepared
    assert bool(world.producer.grants.counters["encoders_unproven"]) == producer_counts
    assert bool(world.reads.counters["encoders_unproven"]) == consumer_counts
    differ = (
        world.producer.grants.counters["encoders_differ"] + world.reads.counters["encoders_differ"]
    )
    assert differ == (0 if exchanged else 1)
    # What was granted in vain is given back.
    world.deliver_notices()
    assert world.producer.grants.open_grants == 0
    world.check()


def test_a_consumer_looks_for_itself_whatever_the_producer_let_pass() -> None:
    world = world_of(Terms(), Terms(encoder_hash="ours"))
    world.carry_out()
    world.deliver_requests()
    ack = wire.decode_ack([b"", world.acks.pop()])
    assert ack.status == XferStatus.OK
    said = {name: getattr(ack, name) for name in ack.__struct_fields__}
    world.reads.on_ack(PRODUCER, XferAck(**{**said, "encoder_hash": "theirs"}), world.now)
    world.carry_out()
    assert world.fetch("h", NBYTES) == "failed"
    assert (world.reads.counters["encoders_differ"], world.tier.free_blocks) == (1, 16)


def test_a_refusal_and_the_old_form_say_nothing_of_it() -> None:
    world = World()
    world.producer.save("h", NBYTES)
    grants = world.producer.grants
    grants.terms = Terms(encoder_hash="secret")
    for encoder, mm_hash in (("other", "h"), ("secret", "unknown"), ("", "unknown")):
        asked = XferReq(mm_hash, COMPAT, "s.1", 2, 1, "c", encoder)
        ack = grants.on_request(CONSUMER, asked, START)
        assert ack.status != XferStatus.OK
        assert b"secret" not in wire.encode(ack)
    old = grants.on_request(CONSUMER, XferReq("h", COMPAT, "old"), START)
    assert old.status == XferStatus.OK
    assert b"secret" not in wire.encode(old)
