# SPDX-License-Identifier: Apache-2.0
"""The consumer and its peers: losses, old producers, idle connections, the end."""

from __future__ import annotations

import math

import msgspec
import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import AbandonRead, ClosePeer, OpenPeer, PrepareRead, SendReq
from ec_protocol.p2p.peers import IDLE_TTLS, MAX_PEERS
from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, granted, reading, state_of
from tests.ec_protocol.p2p.test_wire import OldAck
from tests.world.core import BLOCK, PRODUCER, START, World, content


# ------------------------------------------------------------------------- losses
@pytest.mark.clause("EC-9.1")
def test_a_lost_peer_fails_what_is_not_posted_and_quarantines_what_is(world: World) -> None:
    posted = reading(world, "posted")
    granted(world, "granted")
    world.fetch("requested", N)
    world.carry_out()
    world.reads.peer_lost(PRODUCER, world.now)
    for name in ("posted", "granted", "requested"):
        assert world.fetch(name, N) == "failed"
    assert (world.tier.quarantined_blocks, world.tier.free_blocks) == (2, 14)
    assert ClosePeer(PRODUCER) in world.carry_out()
    assert not world.post(2), "its command is still to be carried out"
    world.reads.attempts.dma_ended(posted, "endpoint_closed", world.now)
    assert world.reads.idle
    assert world.reads.attempts.peers.all() == []
    world.check()


@pytest.mark.clause("EC-9.4", "EC-7.3")
def test_a_lost_address_costs_requests_nothing_for_a_while(world: World) -> None:
    world.producer.save("h", N)
    world.fetch("h", N)
    world.reads.peer_lost(PRODUCER, world.now)
    world.carry_out()
    end = world.now + world.timing.retry_max_interval_s
    for i, now in enumerate((world.now, math.nextafter(end, 0.0))):
        world.now = now
        assert world.fetch("h", N, f"r{i}") == "failed"
        assert world.carry_out() == []
    assert world.reads.counters["peer_cooling"] == 2
    world.now = end
    assert world.fetch("h", N, "later") == "pending"
    assert [type(c) for c in world.carry_out()] == [OpenPeer, SendReq]


def test_the_loss_of_a_peer_nobody_knows_is_nothing(world: World) -> None:
    world.reads.peer_lost(("nobody", 1), world.now)
    world.reads.attempts.peers.heard_from(("nobody", 1))
    assert world.carry_out() == []
    assert world.reads.counters["peers_lost"] == 0


@pytest.mark.clause("EC-9.5")
def test_losses_are_forgotten_when_nobody_asks_for_those_addresses_again(world: World) -> None:
    """As in a fleet whose producers come and go, each with an address of its own."""
    for number in range(50):
        peer = (f"host-{number}", 5601)
        world.waiters.fetch(f"h{number}", peer, N, None, f"r{number}", world.now)
        world.reads.peer_lost(peer, world.now)
        world.waiters.leave(f"r{number}", world.now)
    assert len(world.reads.attempts.peers.rests._rests) == 50
    world.tick(world.timing.retry_max_interval_s + world.timing.heartbeat_timeout_s)
    assert world.reads.attempts.peers.rests._rests == {}


def test_any_traffic_makes_a_connection_live(world: World) -> None:
    world.fetch("h", N)
    (peer,) = world.reads.attempts.peers.all()
    assert peer.state == "connecting"
    world.reads.attempts.peers.heard_from(PRODUCER)
    assert peer.state == "live"


@pytest.mark.clause("EC-5.9")
def test_a_fetch_between_two_attempts_falls_back_when_its_address_cools(world: World) -> None:
    world.producer.tier.alloc("h", N)
    world.fetch("h", N)
    world.exchange()
    world.reads.peer_lost(PRODUCER, world.now)
    assert world.waiters.fetching("h")
    world.tick(world.timing.retry_interval_s)
    assert world.fetch("h", N) == "failed"
    assert (world.tier.free_blocks, world.reads.idle) == (16, True)
    assert not any(isinstance(c, OpenPeer) for c in world.commands[2:])
    world.check()


@pytest.mark.clause("EC-9.4")
def test_a_connection_after_a_loss_is_a_fresh_one(world: World) -> None:
    """A request queued in the old socket must not be answered in the new one."""
    world.producer.save("h", N)
    world.fetch("h", N)
    world.exchange()
    world.reads.peer_lost(PRODUCER, world.now)
    world.tick(world.timing.heartbeat_timeout_s)
    assert world.fetch("h", N, "r2") == "pending"
    opened, sent = world.carry_out()
    assert isinstance(opened, OpenPeer)
    assert isinstance(sent, SendReq)
    assert sent.req.session_id == "c1.2"


# ------------------------------------------------------------------ old producers
def old_answer(world: World) -> bytes:
    """As an old producer answers the request under way from the same region."""
    request = wire.decode_request([b"", world.requests.pop(0)])
    producer = world.producer
    entry = producer.tier.get(request.mm_hash)
    if entry is None:
        return msgspec.msgpack.encode(OldAck(request.mm_hash, 1, request.session_id))
    indices = [b for start, n in entry.extents for b in range(start, start + n)]
    rows = [(producer.base_addr + i * BLOCK, BLOCK, 0) for i in range(producer.tier.num_blocks)]
    ack = OldAck(
        request.mm_hash,
        0,
        request.session_id,
        indices,
        producer.metadata,
        msgspec.msgpack.encode(rows),
    )
    return msgspec.msgpack.encode(ack)


@pytest.mark.clause("EC-8.7", "EC-5.1")
def test_an_old_producer_is_read_under_the_fence_of_our_own_configuration(world: World) -> None:
    world.producer.save("h", N)
    world.fetch("h", N)
    world.carry_out()
    world.acks.append(old_answer(world))
    world.deliver_acks()
    (command,) = world.prepared.values()
    assert isinstance(command, PrepareRead)
    assert command.incarnation == ""
    assert command.notice == b"c1.1:h", "the attempt is named in what it echoes"
    assert world.post(1)
    world.finish(1)
    assert state_of(world) == "pinned"
    assert world.holds_encoding(next(iter(world.tier.entries())))
    world.check()


def test_an_old_producer_without_the_encoding(world: World) -> None:
    world.fetch("h", N)
    world.carry_out()
    world.acks.append(old_answer(world))
    world.deliver_acks()
    assert world.fetch("h", N) == "failed"


@pytest.mark.clause("EC-5.2")
def test_f1_against_an_old_producer(world: World) -> None:
    """Its ack waits in our socket while its lease ends and the block is reused."""
    source = world.producer.save("h", N)
    world.fetch("h", N)
    world.carry_out()
    ack = old_answer(world)
    world.advance(31.0)
    world.producer.bytes[:N] = content("another", N)
    world.producer.fill(source)
    world.acks.append(ack)
    world.deliver_acks()
    assert (world.prepared, world.posted) == ({}, {})
    world.check()


# ------------------------------------------------------------ idle connections
@pytest.mark.clause("EC-9.5")
def test_a_connection_that_nobody_uses_is_closed(world: World) -> None:
    world.finish(reading(world))
    world.waiters.leave("request-1", world.now)
    end = START + IDLE_TTLS * world.timing.heartbeat_ttl_s
    assert world.reads.next_deadline() == end
    world.reads.tick(math.nextafter(end, 0.0))
    assert world.carry_out() == []
    world.reads.tick(end)
    assert world.carry_out() == [ClosePeer(PRODUCER)]
    assert world.reads.attempts.peers.all() == []
    assert world.reads.next_deadline() is None
    # Closed by us, not lost: the next request opens it again at once.
    assert world.fetch("other", N) == "pending"
    assert [type(c) for c in world.carry_out()] == [OpenPeer, SendReq]


@pytest.mark.clause("EC-9.5")
def test_a_connection_is_idle_from_its_last_request_on(world: World) -> None:
    idle = IDLE_TTLS * world.timing.heartbeat_ttl_s
    world.fetch("a", N, "r1")
    world.exchange()
    world.advance(idle - 1.0)
    world.fetch("b", N, "r2")
    world.exchange()
    world.tick(1.0)
    assert ClosePeer(PRODUCER) not in world.commands
    world.tick(idle - 1.0)
    assert ClosePeer(PRODUCER) in world.commands


@pytest.mark.clause("EC-9.5")
@pytest.mark.parametrize("how", ["idle", "shutdown"])
def test_every_connection_is_closed(world: World, how: str) -> None:
    peers = [(f"host-{number}", 5601) for number in range(3)]
    for peer in peers:
        world.waiters.fetch(str(peer), peer, N, None, str(peer), world.now)
        if how == "idle":
            world.waiters.leave(str(peer), world.now)
    world.carry_out()
    if how == "idle":
        world.reads.tick(START + IDLE_TTLS * world.timing.heartbeat_ttl_s)
    else:
        world.reads.shutdown(world.now)
    assert world.carry_out() == [ClosePeer(peer) for peer in peers]
    assert (world.reads.attempts.peers.all(), world.reads.idle) == ([], True)


@pytest.mark.clause("EC-6.2")
def test_shutdown_leaves_a_peer_that_is_down_to_its_reads(world: World) -> None:
    """Its READ is in quarantine; another peer is connected, and only that one is closed."""
    attempt = reading(world)
    world.reads.peer_lost(PRODUCER, world.now)
    world.waiters.fetch("other", ("elsewhere", 1), N, None, "r2", world.now)
    world.commands.clear()
    world.reads.shutdown(world.now)
    world.carry_out()
    assert [c for c in world.commands if isinstance(c, ClosePeer)][-1].peer == ("elsewhere", 1)
    assert world.tier.quarantined_blocks == 2
    (peer,) = world.reads.attempts.peers.all()
    assert (peer.state, peer.attempts) == ("down", {attempt})
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    assert (world.reads.idle, world.reads.attempts.peers.all()) == (True, [])
    world.check()


def test_a_reader_that_sleeps_until_something_is_due_finds_something_to_do() -> None:
    """With a READ in quarantine for longer than a connection may be idle: no spinning."""
    world = World(timing=Timing(quarantine_s=100.0))
    attempt = reading(world)
    world.reads.read_error(attempt, world.now)
    world.waiters.leave("request-1", world.now)
    woken = []
    while (due := world.reads.next_deadline()) is not None:
        assert due > world.now
        world.now = due
        world.tick()
        woken.append(due - START)
    idle = IDLE_TTLS * world.timing.heartbeat_ttl_s
    assert idle < 100.0
    assert woken == [100.0], "retired, and with it the connection is closed"
    assert world.reads.attempts.peers.all() == []


def test_a_connection_with_a_quarantined_read_is_in_use() -> None:
    world = World(timing=Timing(quarantine_s=100.0))
    attempt = reading(world)
    world.reads.read_error(attempt, world.now)
    world.tick(IDLE_TTLS * world.timing.heartbeat_ttl_s + 1.0)
    assert ClosePeer(PRODUCER) not in world.commands
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    world.tick()
    assert world.commands[-1] == ClosePeer(PRODUCER)


@pytest.mark.clause("EC-9.5")
def test_nothing_grows_over_many_fetches_and_losses(world: World) -> None:
    for i in range(60):
        world.producer.save(f"h{i}", N)
        assert world.fetch(f"h{i}", N, f"r{i}") == "pending"
        world.exchange()
        attempt = max(world.prepared)
        assert world.post(attempt)
        if i % 3 == 0:
            world.reads.peer_lost(PRODUCER, world.now)
            world.carry_out()
            world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
        else:
            world.finish(attempt)
        world.waiters.leave(f"r{i}", world.now)
        world.tick(world.timing.lease_s)
    assert world.reads.idle
    assert len(world.reads.attempts.peers.all()) <= 1
    assert not world.reads._fetches
    for table in ("_wanted", "_failed"):
        assert not getattr(world.waiters, table), table
    for table in ("_attempts", "_retired", "_commands"):
        assert not getattr(world.reads.attempts, table), table
    assert len(world.holds) == 0
    assert world.reads.attempts.peers._down == {}
    world.check()


@pytest.mark.clause("EC-9.5")
def test_connections_are_bounded_whatever_hosts_requests_name() -> None:
    world = World(blocks=MAX_PEERS + 10)
    reads, waiters = world.reads, world.waiters

    def ask(number: int) -> str:
        peer = (f"host-{number}", 5601)
        return waiters.fetch(f"h{number}", peer, BLOCK, None, f"r{number}", world.now)

    assert [ask(number) for number in range(MAX_PEERS)] == ["pending"] * MAX_PEERS
    assert ask(MAX_PEERS) == "failed"
    assert reads.counters["too_many_peers"] == 1
    assert len(reads.attempts.peers.usable()) == MAX_PEERS
    # One that is connected is asked more, and none gives way for it.
    for number in (3, 5):
        world.now += 0.5
        peer = (f"host-{number}", 5601)
        assert waiters.fetch(f"more-{number}", peer, BLOCK, None, "more", world.now) == "pending"
    waiters.leave("more", world.now)
    assert not any(isinstance(c, ClosePeer) for c in world.carry_out())
    # One that nobody waits for any more gives way, the longest idle first.
    for number in (3, 7, 5):
        world.now += 0.5
        waiters.leave(f"r{number}", world.now)
    for number in (MAX_PEERS + 1, MAX_PEERS + 2):
        assert ask(number) == "pending"
    closed = [c.peer for c in world.carry_out() if isinstance(c, ClosePeer)]
    assert closed == [("host-7", 5601), ("host-3", 5601)], "by when they were asked last"
    assert len(reads.attempts.peers.usable()) == MAX_PEERS
    world.check()


# -------------------------------------------------------------------- shutdown
def test_shutdown_leaves_nobody_waiting_and_no_block_behind(world: World) -> None:
    """One attempt in each state; only the posted READ stays, quarantined."""
    posted = reading(world, "posted")
    granted(world, "granted")
    world.producer.tier.alloc("between", N)
    world.fetch("between", N)
    world.exchange()
    world.fetch("requested", N)
    world.carry_out()
    world.commands.clear()
    world.reads.shutdown(world.now)
    world.carry_out()
    for name in ("posted", "granted", "between", "requested"):
        assert world.fetch(name, N) == "failed"
    assert [type(c) for c in world.commands] == [ClosePeer, AbandonRead]
    assert (world.tier.free_blocks, world.tier.quarantined_blocks) == (14, 2)
    assert (
        world.reads.attempts.quarantined,
        world.reads.idle,
        world.reads.attempts.active_reads,
    ) == (1, False, 0)
    world.reads.attempts.dma_ended(posted, "endpoint_closed", world.now)
    assert (world.tier.free_blocks, world.reads.idle) == (16, True)
    assert world.reads.attempts.peers.all() == []
    world.reads.shutdown(world.now)
    world.check()


def test_shutdown_of_nothing_is_nothing(world: World) -> None:
    world.reads.shutdown(world.now)
    assert world.carry_out() == []
    assert world.reads.next_deadline() is None
