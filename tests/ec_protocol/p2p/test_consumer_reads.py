# SPDX-License-Identifier: Apache-2.0
"""The consumer and its READs: the fence at posting and at the end, and quarantine."""

from __future__ import annotations

import math

import pytest

from ec_protocol.p2p.commands import AbandonRead, ForgetRead, ReleaseGrant
from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, around, granted, reading, state_of
from tests.world.core import PRODUCER, START, World

FENCE = START + 30.0 - 0.5
#: Timers under which neither the budget nor the read timeout is in the way of the fence.
ROOMY = Timing(fetch_budget_s=1000.0)


# --------------------------------------------------------------- the fence at posting
@pytest.mark.clause("EC-5.2")
@pytest.mark.parametrize("now", around(FENCE - 0.25))
def test_a_read_is_posted_only_with_time_left_before_the_fence(now: float) -> None:
    world = World(timing=ROOMY)
    attempt = granted(world)
    world.now = now
    in_time = now < FENCE - 0.25
    assert world.post(attempt) == in_time
    if in_time:
        assert (state_of(world), world.reads.attempts.active_reads) == ("saving", 1)
        return
    assert (state_of(world), world.reads.attempts.active_reads) == ("allocated", 0)
    assert world.reads.counters["fence_closed"] == 1
    assert world.fetch("h", N) == "pending", "it is asked for again"
    world.deliver_notices()
    assert world.producer.grants.open_grants == 0
    world.check()


def test_a_read_is_posted_once(world: World) -> None:
    attempt = reading(world)
    assert not world.reads.post_read(attempt, world.now)
    assert world.reads.attempts.active_reads == 1


@pytest.mark.clause("EC-5.11")
def test_a_read_that_cannot_be_prepared_falls_back_and_releases_its_grant(world: World) -> None:
    attempt = granted(world)
    world.reads.post_failed(attempt, world.now)
    commands = world.carry_out()
    assert commands == [ReleaseGrant(PRODUCER, world.producer.metadata, b"c1.%d:h" % attempt)]
    assert world.fetch("h", N) == "failed"
    assert (world.tier.free_blocks, world.reads.idle) == (16, True)
    world.reads.post_failed(attempt, world.now)
    assert world.reads.counters["post_failed"] == 1
    world.check()


# --------------------------------------------------------------- the fence at the end
@pytest.mark.clause("EC-5.3")
@pytest.mark.parametrize("now", around(FENCE))
def test_bytes_count_only_if_the_end_was_seen_before_the_fence(now: float) -> None:
    world = World(timing=ROOMY)
    attempt = reading(world)
    world.move_bytes(attempt)
    world.now = now
    world.reads.read_done(attempt, now)
    assert world.carry_out()[-1] == ForgetRead(attempt)
    if now < FENCE:
        assert state_of(world) == "pinned"
        assert world.reads.counters["reads_done"] == 1
    else:
        assert state_of(world) == "allocated"
        assert world.reads.counters["late_reads"] == 1
        assert world.reads.counters["reads_done"] == 0
        assert world.fetch("h", N) == "pending"
    assert world.reads.attempts.active_reads == 0
    world.check()


def test_a_late_read_is_tried_again_in_the_same_blocks() -> None:
    world = World(timing=ROOMY)
    attempt = reading(world)
    entry = world.tier.get("h")
    assert entry is not None
    world.advance(29.75)
    world.reads.read_done(attempt, world.now)
    world.tick()
    world.exchange()
    (again,) = world.prepared
    assert world.tier.get("h") is entry
    assert world.post(again)
    world.finish(again)
    assert state_of(world) == "pinned"
    world.check()


def test_a_late_read_that_nobody_waits_for_is_not_tried_again() -> None:
    world = World(timing=ROOMY)
    attempt = reading(world)
    world.waiters.leave("request-1", world.now)
    world.advance(29.75)
    world.reads.read_done(attempt, world.now)
    assert (world.reads.idle, world.tier.free_blocks) == (True, 16)
    world.check()


def test_a_late_read_without_budget_falls_back(world: World) -> None:
    attempt = reading(world)
    world.advance(29.75)
    world.reads.read_done(attempt, world.now)
    world.carry_out()
    assert (state_of(world), world.tier.free_blocks, world.reads.idle) == (None, 16, True)
    assert world.fetch("h", N) == "failed"
    world.check()


def test_done_is_seen_once(world: World) -> None:
    attempt = reading(world)
    world.finish(attempt)
    world.reads.read_done(attempt, world.now)
    assert world.carry_out() == []
    assert (world.reads.counters["reads_done"], world.reads.attempts.active_reads) == (1, 0)


# -------------------------------------------------------------------------- quarantine
def lose(world: World, attempt: int, how: str) -> None:
    match how:
        case "error":
            world.reads.read_error(attempt, world.now)
        case "timeout":
            world.advance(world.timing.read_timeout_s)
            world.reads.tick(world.now)
        case "peer":
            world.reads.peer_lost(PRODUCER, world.now)
        case "shutdown":
            world.reads.shutdown(world.now)
    world.carry_out()


LOSSES = ["error", "timeout", "peer", "shutdown"]


@pytest.mark.clause("EC-6.1", "EC-6.4")
@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_read_is_quarantined_and_the_request_falls_back(world: World, how: str) -> None:
    attempt = reading(world)
    world.commands.clear()
    lose(world, attempt, how)
    assert AbandonRead(attempt) in world.commands
    assert ForgetRead(attempt) not in world.commands, "the handle is kept"
    assert world.fetch("h", N) == "failed"
    assert (state_of(world), world.tier.quarantined_blocks) == (None, 2)
    assert (world.reads.attempts.quarantined, world.reads.attempts.active_reads) == (1, 0)
    assert world.reads.counters["quarantined"] == 1
    world.check()


@pytest.mark.clause("EC-6.2", "EC-6.5")
@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("proof", ["done", "completed", "endpoint_closed"])
def test_a_proof_frees_the_blocks_and_never_promotes_the_bytes(
    world: World, how: str, proof: str
) -> None:
    attempt = reading(world)
    lose(world, attempt, how)
    world.move_bytes(attempt)
    if proof == "done":
        world.reads.read_done(attempt, world.now)
        proof = "completed"
    else:
        world.reads.attempts.dma_ended(attempt, proof, world.now)  # type: ignore[arg-type]
    assert world.carry_out() == [ForgetRead(attempt)]
    assert world.reads.counters[f"quarantine_ended_{proof}"] == 1
    assert (state_of(world), world.tier.free_blocks) == (None, 16)
    assert (world.reads.idle, world.reads.attempts.quarantined) == (True, 0)
    world.reads.attempts.dma_ended(attempt, "completed", world.now)
    assert world.carry_out() == []
    world.check()


def test_an_error_of_a_quarantined_read_is_no_proof(world: World) -> None:
    attempt = reading(world)
    lose(world, attempt, "timeout")
    world.reads.read_error(attempt, world.now)
    assert (world.reads.attempts.quarantined, world.tier.quarantined_blocks) == (1, 2)
    assert world.reads.counters["read_errors"] == 0


@pytest.mark.clause("EC-6.2")
def test_the_death_of_the_peer_is_no_proof(world: World) -> None:
    attempt = reading(world)
    lose(world, attempt, "timeout")
    world.reads.peer_lost(PRODUCER, world.now)
    assert (world.reads.attempts.quarantined, world.tier.quarantined_blocks) == (1, 2)
    (peer,) = world.reads.attempts.peers.all()
    assert (peer.state, peer.attempts) == ("down", {attempt})
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    assert (world.tier.free_blocks, world.reads.attempts.peers.all()) == (16, [])


@pytest.mark.clause("EC-6.1")
def test_the_name_can_be_fetched_again_beside_its_quarantined_blocks(world: World) -> None:
    first = reading(world)
    lose(world, first, "error")
    second = reading(world, waiter="request-2")
    entries = list(world.tier.entries())
    assert [e.state for e in entries] == ["saving", "quarantined"]
    assert {e.extents for e in entries} == {((0, 2),), ((2, 2),)}
    world.move_bytes(first)
    world.finish(second)
    assert state_of(world) == "pinned"
    world.reads.attempts.dma_ended(first, "completed", world.now)
    world.check()


# ------------------------------------------------------------------- timers of READs
@pytest.mark.clause("EC-7.3")
def test_the_read_timeout_runs_out_at_its_bound(world: World) -> None:
    world.producer.save("h", N)
    world.fetch("h", N)
    world.exchange()
    world.advance(1.5)
    assert world.post(1)
    end = START + 1.5 + world.timing.read_timeout_s
    assert world.reads.next_deadline() == end
    world.reads.tick(math.nextafter(end, 0.0))
    assert (world.reads.attempts.quarantined, world.fetch("h", N)) == (0, "pending")
    world.reads.tick(end)
    assert (world.reads.attempts.quarantined, world.fetch("h", N)) == (1, "failed")
    assert world.reads.counters["read_timeouts"] == 1


@pytest.mark.clause("EC-6.3", "EC-7.3")
def test_quarantine_ends_in_retirement_at_its_bound(world: World) -> None:
    attempt = reading(world)
    lose(world, attempt, "timeout")
    end = world.now + world.timing.quarantine_s
    world.reads.tick(math.nextafter(end, 0.0))
    assert (world.reads.attempts.quarantined, world.tier.retired_blocks) == (1, 0)
    world.reads.tick(end)
    assert (world.reads.attempts.quarantined, world.tier.retired_blocks) == (0, 2)
    assert world.tier.free_blocks == 14, "time gives nothing back"
    assert (world.reads.idle, world.reads.counters["retired"]) == (True, 1)
    assert ForgetRead(attempt) not in world.carry_out()
    world.check()


@pytest.mark.clause("EC-6.3")
@pytest.mark.parametrize("how", ["done", "dma_ended"])
def test_a_proof_after_retirement_puts_the_blocks_back(world: World, how: str) -> None:
    attempt = reading(world)
    lose(world, attempt, "timeout")
    world.tick(world.timing.quarantine_s)
    for _ in range(2):
        if how == "done":
            world.reads.read_done(attempt, world.now)
        else:
            world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    assert (world.tier.retired_blocks, world.tier.free_blocks) == (0, 16)
    assert world.reads.counters["reclaimed"] == 1
    assert world.carry_out() == [ForgetRead(attempt)]
    world.check()


def test_what_is_due_next() -> None:
    """One attempt in each waiting state; the earliest of their bounds is named."""
    timing = Timing()
    world = World()
    assert world.reads.next_deadline() is None
    quarantined = reading(world, "q")
    world.reads.read_error(quarantined, world.now)
    world.advance(1.0)
    reading(world, "r")
    world.advance(1.0)
    world.fetch("new", N)
    assert world.reads.next_deadline() == world.now + timing.ack_timeout_s
    world.waiters.leave("request-1", world.now)
    assert world.reads.next_deadline() == START + 1.0 + timing.read_timeout_s
    world.reads.read_done(2, world.now)
    assert world.reads.next_deadline() == START + timing.quarantine_s
    world.reads.attempts.dma_ended(quarantined, "endpoint_closed", world.now)
    world.reads.shutdown(world.now)
    assert world.reads.next_deadline() is None


def test_a_posted_read_counts_for_polling_until_it_ends_or_is_lost(world: World) -> None:
    first, second = reading(world, "a"), reading(world, "b")
    assert world.reads.attempts.active_reads == 2
    world.finish(first)
    assert world.reads.attempts.active_reads == 1
    world.reads.read_error(second, world.now)
    assert world.reads.attempts.active_reads == 0
    world.reads.attempts.dma_ended(second, "completed", world.now)
    assert world.reads.attempts.active_reads == 0
