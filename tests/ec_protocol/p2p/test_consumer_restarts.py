# SPDX-License-Identifier: Apache-2.0
"""The consumer and producers that start again at the same address (EC-9.2)."""

from __future__ import annotations

import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import ClosePeer
from ec_protocol.p2p.peers import MAX_FORMER
from ec_protocol.p2p.wire import XferAck
from tests.ec_protocol.p2p.test_consumer import N, granted, reading, state_of
from tests.world.core import PRODUCER, World


@pytest.mark.clause("EC-9.2")
def test_f8_another_incarnation_voids_what_the_old_one_granted(world: World) -> None:
    """Restart on the same address while one attempt is in each state."""
    posted = reading(world, "posted")
    waiting = granted(world, "granted")
    world.fetch("requested", N)
    world.carry_out()
    world.restart_producer()
    world.producer.save("requested", N)
    world.exchange()
    assert world.reads.counters["peers_replaced"] == 1
    # The READ may still be moving bytes; the grant is void; the request is answered.
    assert world.fetch("posted", N) == "failed"
    assert world.fetch("granted", N) == "failed"
    assert world.fetch("requested", N) == "pending"
    assert not world.post(waiting)
    assert world.tier.quarantined_blocks == 2
    (attempt,) = world.prepared
    command = world.prepared[attempt]
    assert command.agent_metadata == world.producer.metadata
    assert command.remote[0][0] >= world.producer.base_addr
    assert world.post(attempt)
    world.finish(attempt)
    assert state_of(world, "requested") == "pinned"
    world.reads.attempts.dma_ended(posted, "endpoint_closed", world.now)
    world.check()


@pytest.mark.clause("EC-9.2")
def test_requests_that_the_new_process_may_answer_go_on(world: World) -> None:
    for name in ("a", "b", "c"):
        world.fetch(name, N)
    world.carry_out()
    world.producer.save("a", N)
    first, *rest = world.requests
    world.requests = [first]
    world.exchange()
    world.restart_producer()
    for name in ("b", "c"):
        world.producer.save(name, N)
    world.requests = rest
    world.exchange()
    assert world.reads.counters["peers_replaced"] == 1
    assert [world.fetch(name, N) for name in "abc"] == ["failed", "pending", "pending"]
    for attempt in (2, 3):
        assert world.post(attempt)
        world.finish(attempt)
    world.check()
    assert [p.incarnation for p in world.reads.attempts.peers.all()] == [
        world.producer.grants.incarnation
    ]
    assert ClosePeer(PRODUCER) not in world.commands, "it is the same connection"


@pytest.mark.clause("EC-9.2")
def test_a_late_ack_of_a_process_that_was_replaced_does_not_replace_its_successor(
    world: World,
) -> None:
    for name in ("a", "b"):
        world.fetch(name, N)
        world.producer.save(name, N)
    world.carry_out()
    first, second = world.requests
    world.requests = [first]
    world.deliver_requests()
    late = list(world.acks)  # the old process answers a, and the answer is slow
    world.acks.clear()
    reading(world, "c", "request-c")  # the old process is known by now
    world.restart_producer()
    world.producer.save("b", N)
    world.requests = [second]
    world.exchange()
    assert world.reads.counters["peers_replaced"] == 1
    (attempt,) = world.prepared
    assert world.post(attempt)
    world.acks = late
    world.deliver_acks()
    assert world.reads.counters["former_incarnations"] == 1
    assert world.reads.counters["peers_replaced"] == 1, "the new process stays"
    assert world.fetch("a", N) == "failed"
    world.finish(attempt)
    assert state_of(world, "b") == "pinned"
    world.check()


@pytest.mark.clause("EC-9.1", "EC-9.2")
def test_the_loss_of_the_new_process_ends_what_it_was_asked(world: World) -> None:
    """Requests that were sent to the old one and that it took over, answered or not."""
    for name in ("a", "b", "c"):
        world.fetch(name, N)
    world.carry_out()
    first, second, _ = world.requests
    world.requests = [first]
    world.exchange()
    world.restart_producer()
    world.producer.save("b", N)
    world.requests = [second]
    world.exchange()
    assert world.reads.counters["peers_replaced"] == 1
    (peer,) = world.reads.attempts.peers.all()
    assert (peer.incarnation, peer.attempts) == (world.producer.grants.incarnation, {2, 3})
    world.reads.peer_lost(PRODUCER, world.now)
    assert [world.fetch(name, N) for name in "abc"] == ["failed"] * 3
    assert (world.reads.idle, world.reads.attempts.peers.all()) == (True, [])
    assert world.tier.free_blocks == 16
    world.check()


@pytest.mark.clause("EC-9.5")
def test_of_many_processes_at_one_address_the_last_few_are_remembered(world: World) -> None:
    """Each answers late once more: only those that are remembered are told apart."""
    names = [f"n{i}" for i in range(2 * MAX_FORMER)]
    for name in (*names, "late"):
        world.fetch(name, 1, name)
    world.carry_out()
    world.requests.clear()
    for i, name in enumerate(names):
        ack = XferAck(name, 1, f"c1.{i + 1}", incarnation=name)
        world.reads.on_ack(PRODUCER, ack, world.now)
    peer = world.reads.attempts.peers.current(PRODUCER)
    assert peer.incarnation == names[-1]
    assert peer.former == tuple(names[-1 - MAX_FORMER : -1])


@pytest.mark.clause("EC-9.2")
def test_an_answer_that_does_not_say_whose_it_is_replaces_nobody(world: World) -> None:
    """A refusal without a name, as vLLM sends it, voids no grant."""
    attempt = granted(world)
    world.fetch("missing", N, "r2")
    world.carry_out()
    world.requests.clear()
    world.reads.on_ack(PRODUCER, XferAck("missing", 1), world.now)
    assert world.fetch("missing", N, "r2") == "failed"
    assert world.reads.counters["peers_replaced"] == 0
    assert world.post(attempt)
    world.finish(attempt)
    assert state_of(world) == "pinned"
    world.check()


def test_several_restarts_in_a_row(world: World) -> None:
    for name in ("a", "b", "c"):
        world.fetch(name, N)
    world.carry_out()
    requests = list(world.requests)
    for name, payload in zip("abc", requests, strict=True):
        world.restart_producer()
        world.producer.save(name, N)
        world.requests = [payload]
        world.deliver_requests()
        # The acks are seen before any sign of life of the connection.
        ack = wire.decode_ack([b"", world.acks.pop()])
        world.reads.on_ack(PRODUCER, ack, world.now)
        world.carry_out()
    assert world.reads.counters["peers_replaced"] == 2
    assert [world.fetch(name, N) for name in "abc"] == ["failed", "failed", "pending"]
    assert world.post(3)
    world.finish(3)
    world.check()


@pytest.mark.clause("EC-9.2")
def test_a_new_incarnation_may_speak_another_version(world: World) -> None:
    world.fetch("a", N)
    world.fetch("b", N)
    world.carry_out()
    nack = XferAck("a", 3, "c1.1", attempt_id=1, incarnation="old")
    world.reads.on_ack(PRODUCER, nack, world.now)
    world.reads.on_ack(PRODUCER, XferAck("b", 5, "c1.2", incarnation="new"), world.now)
    peer = world.reads.attempts.peers.current(PRODUCER)
    assert (peer.incarnation, peer.version) == ("new", wire.PREFERRED_VERSION)
