# SPDX-License-Identifier: Apache-2.0
"""The schedules that break hand-written connectors, played on two linked ends.

Every byte of both regions is real: a wrong picture fails ``World.check``. F6 is in
``test_tier``, F7 in ``test_copies``, F9 in ``test_wire_fuzz``, F11 in
``test_producer``, and F10 concerns files and belongs to the connector.
"""

from __future__ import annotations

import pytest

from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, granted, reading, state_of
from tests.world.core import BLOCK, PRODUCER, World

#: Budget enough that a fence, not the budget, decides.
ROOMY = Timing(fetch_budget_s=1000.0)


def reuse_the_blocks_of(world: World, mm_hash: str) -> None:
    """The producer evicts the encoding and writes another into its very blocks."""
    tier = world.producer.tier
    entry = tier.get(mm_hash)
    extents = entry.extents
    fresh = world.producer.save("something-else", tier.num_blocks * BLOCK)
    assert entry.state == "freed"
    taken = {b for s, n in fresh.extents for b in range(s, s + n)}
    assert {b for s, n in extents for b in range(s, s + n)} <= taken


@pytest.mark.clause("EC-5.1", "EC-5.2")
def test_f1_the_ack_waits_longer_than_the_lease() -> None:
    world = World(timing=ROOMY)
    world.producer.save("h", N)
    world.fetch("h", N)
    world.carry_out()
    world.deliver_requests()
    world.advance(31.0)
    world.producer.grants.tick(world.now)
    reuse_the_blocks_of(world, "h")
    world.deliver_acks()
    assert world.prepared == {}, "not even prepared"
    assert world.reads.counters["fence_closed"] == 1
    world.tick(1.0)
    world.exchange()
    assert world.fetch("h", N) == "failed", "the producer no longer has it"
    world.check()


@pytest.mark.clause("EC-5.2")
def test_f1_the_prepared_read_waits_longer_than_the_lease() -> None:
    """The fence is asked again at the moment of posting."""
    world = World(timing=ROOMY)
    attempt = granted(world)
    world.advance(31.0)
    world.producer.grants.tick(world.now)
    reuse_the_blocks_of(world, "h")
    assert not world.post(attempt)
    assert world.posted == {}
    world.check()


@pytest.mark.clause("EC-5.5")
def test_f2_the_notice_of_an_attempt_that_is_over_releases_nothing(world: World) -> None:
    """Attempt 1 is lost, its lease ends, attempt 2 is granted, notice 1 arrives."""
    first = reading(world)
    command = world.posted[first]
    world.reads.read_error(first, world.now)
    world.tick(30.0)
    assert world.producer.grants.open_grants == 0
    second = reading(world, waiter="request-2")
    world.notices.append((command.agent_metadata, command.notice))
    world.deliver_notices()
    assert world.producer.grants.counters["stale_notices"] == 1
    assert world.producer.grants.open_grants == 1
    assert world.producer.tier.alloc("intruder", 16 * BLOCK) is None, "the source stays pinned"
    world.finish(second)
    assert state_of(world) == "pinned"
    world.check()


@pytest.mark.clause("EC-5.5")
def test_f2_the_notice_of_the_older_of_two_grants(world: World) -> None:
    """Attempt 1 is lost but its READ ends; attempt 2's grant is another one."""
    first = reading(world)
    world.reads.read_error(first, world.now)
    world.carry_out()
    second = reading(world, waiter="request-2")
    assert world.producer.grants.open_grants == 2
    world.finish(first)
    assert world.producer.grants.open_grants == 1
    assert world.producer.tier.alloc("intruder", 16 * BLOCK) is None
    world.finish(second)
    assert world.producer.grants.open_grants == 0
    world.check()


@pytest.mark.clause("EC-5.3")
def test_f3_a_read_that_is_done_after_its_lease_does_not_count() -> None:
    world = World(timing=ROOMY)
    attempt = reading(world)
    world.advance(31.0)
    world.producer.grants.tick(world.now)
    reuse_the_blocks_of(world, "h")
    world.finish(attempt)
    assert state_of(world) == "allocated"
    assert world.reads.counters["late_reads"] == 1
    world.check()


@pytest.mark.clause("EC-9.1", "EC-6.4")
def test_f4_a_peer_dies_under_a_read(world: World) -> None:
    """Nothing is lost for ever: not the blocks, not the name, and the engine goes idle."""
    attempt = reading(world)
    world.restart_producer()
    world.reads.peer_lost(PRODUCER, world.now)
    world.carry_out()
    assert world.fetch("h", N) == "failed", "at once, not after the read timeout"
    world.tick(world.timing.heartbeat_timeout_s)
    world.producer.save("h", N)
    again = reading(world, waiter="request-2")
    world.finish(again)
    assert state_of(world) == "pinned"
    world.check()
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    assert world.tier.quarantined_blocks == 0
    assert world.reads.idle
    assert [p.state for p in world.reads.attempts.peers.all()] == ["live"]
    world.check()


@pytest.mark.clause("EC-6.3")
def test_f5_a_dma_that_lands_after_quarantine_meets_nobody() -> None:
    world = World(blocks=4)
    attempt = reading(world)
    world.tick(world.timing.read_timeout_s)
    world.tick(world.timing.quarantine_s)
    assert world.tier.retired_blocks == 2
    # Everything that is left is used for other encodings ...
    for name in ("x", "y"):
        world.save(name, BLOCK)
    assert world.tier.alloc("z", 4 * BLOCK) is None
    # ... and then the old READ writes into its blocks after all.
    world.move_bytes(attempt)
    world.check()
    world.reads.read_done(attempt, world.now)
    assert (world.tier.retired_blocks, world.tier.free_blocks) == (0, 2)
    world.check()


@pytest.mark.clause("EC-6.1")
def test_f5_a_dma_that_lands_during_quarantine_meets_nobody() -> None:
    world = World(blocks=4)
    attempt = reading(world)
    world.tick(world.timing.read_timeout_s)
    for name in ("x", "y"):
        world.save(name, BLOCK)
    world.move_bytes(attempt)
    world.check()


@pytest.mark.clause("EC-9.3")
def test_f8_descriptors_of_a_process_that_is_gone_are_not_used(world: World) -> None:
    """The producer is restarted between the grant and the posting; nobody noticed yet."""
    first = granted(world)
    old = world.prepared[first]
    world.restart_producer()
    world.producer.save("h", N)
    world.fetch("other", N)
    world.exchange()
    assert not world.post(first)
    assert world.fetch("h", N) == "failed"
    second = granted(world, waiter="request-2")
    new = world.prepared[second]
    assert new.agent_metadata != old.agent_metadata
    assert new.remote != old.remote
    assert world.post(second)
    world.finish(second)
    world.check()


def test_a_slow_save_costs_latency_and_no_recompute() -> None:
    """NACK_NOT_READY until the save lands; nothing is evicted meanwhile."""
    world = World(blocks=4)
    world.save("old", 2 * BLOCK)
    entry = world.producer.tier.alloc("h", N)
    assert entry is not None
    world.producer.tier.begin_write(entry, ("save", 1))
    world.fetch("h", N)
    for _ in range(50):
        world.exchange()
        world.tick(world.timing.retry_max_interval_s * 1.25)
    world.producer.fill(entry)
    world.producer.tier.write_landed(entry, ("save", 1))
    world.exchange()
    (attempt,) = world.prepared
    assert world.post(attempt)
    world.finish(attempt)
    assert state_of(world) == "pinned"
    assert world.reads.counters["fallbacks"] == 0
    assert (state_of(world, "old"), world.tier.evictions) == ("ready", 0)
    world.check()


def test_a_lossy_network_ends_every_fetch_one_way_or_the_other(world: World) -> None:
    """Every second message is lost, and every READ takes long."""
    for i in range(20):
        world.producer.save(f"h{i}", N)
    outcomes = []
    for i in range(20):
        world.fetch(f"h{i}", N, f"r{i}")
        world.carry_out()
        if i % 2:
            world.requests.clear()
        world.deliver_requests()
        if i % 3 == 0:
            world.acks.clear()
        world.deliver_acks()
        for attempt in list(world.prepared):
            if world.post(attempt):
                world.advance(1.0)
                world.finish(attempt)
        world.tick(world.timing.ack_timeout_s)
        landed = state_of(world, f"h{i}") in ("ready", "pinned")
        outcomes.append(landed or world.fetch(f"h{i}", N, f"r{i}") == "failed")
        world.waiters.leave(f"r{i}", world.now)
        world.check()
    assert all(outcomes)
    assert world.reads.idle
    world.tick(world.timing.lease_s)
    assert world.producer.grants.open_grants == 0
