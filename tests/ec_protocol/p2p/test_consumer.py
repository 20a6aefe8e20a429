# SPDX-License-Identifier: Apache-2.0
"""The consumer as the engine thread sees it: fetches, waiters, budget."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ec_protocol.p2p import attempts
from ec_protocol.p2p.commands import (
    ClosePeer,
    ForgetRead,
    OpenPeer,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)
from tests.world.core import BLOCK, COMPAT, PRODUCER, START, World

N = 100  # bytes of an encoding: two blocks


def granted(world: World, mm_hash: str = "h", waiter: str = "request-1") -> int:
    """A fetch whose OK ack has been handled: its READ is prepared. The attempt's id."""
    if world.producer.tier.get(mm_hash) is None:
        world.producer.save(mm_hash, N)
    assert world.fetch(mm_hash, N, waiter) == "pending"
    world.exchange()
    return max(world.prepared)


def reading(world: World, mm_hash: str = "h", waiter: str = "request-1") -> int:
    """A fetch whose READ is posted. The attempt's id."""
    attempt = granted(world, mm_hash, waiter)
    assert world.post(attempt)
    return attempt


def state_of(world: World, mm_hash: str = "h") -> str | None:
    entry = world.tier.get(mm_hash)
    return entry.state if entry is not None else None


def around(moment: float) -> list[Any]:
    """Just before, at, and just after; each as a parameter of a test."""
    return [
        pytest.param(math.nextafter(moment, 0.0), id="before"),
        pytest.param(moment, id="at"),
        pytest.param(math.nextafter(moment, math.inf), id="after"),
    ]


def test_helpers_bring_attempts_where_they_say(world: World) -> None:
    granted(world, "a")
    reading(world, "b")
    states = [a.state for a in world.reads.attempts._attempts.values()]
    assert states == ["granted", "reading"]


# ------------------------------------------------------------- the usual course
def test_an_encoding_is_fetched_and_its_grant_released(world: World) -> None:
    attempt = reading(world)
    assert (state_of(world), world.reads.attempts.active_reads) == ("saving", 1)
    assert world.producer.grants.open_grants == 1
    world.finish(attempt)
    assert state_of(world) == "pinned", "held for the request that waits"
    assert (world.reads.attempts.active_reads, world.reads.idle) == (0, True)
    assert world.producer.grants.open_grants == 0
    assert world.reads.counters["reads_done"] == 1
    assert world.reads.counters["bytes_read"] == N
    world.check()
    world.waiters.consumed("request-1", "h")
    assert state_of(world) == "ready"
    world.check()


def test_commands_come_in_the_order_in_which_they_are_to_be_done(world: World) -> None:
    attempt = reading(world)
    world.finish(attempt)
    world.reads.shutdown(world.now)
    world.carry_out()
    kinds = [type(command) for command in world.commands]
    assert kinds == [OpenPeer, SendReq, PrepareRead, ForgetRead, ClosePeer]
    assert world.reads.attempts.drain() == []


def test_what_the_data_plane_is_told(world: World) -> None:
    world.producer.save("earlier", 64)
    attempt = granted(world)
    command = world.prepared[attempt]
    assert command == PrepareRead(
        attempt_id=attempt,
        peer=PRODUCER,
        agent_metadata=world.producer.metadata,
        incarnation=world.producer.grants.incarnation,
        local=((0, N),),
        remote=((world.producer.base_addr + BLOCK, N),),
        device_id=0,
        notice=b"c1.%d:h" % attempt,
    )


@pytest.mark.clause("EC-8.6")
def test_what_the_producer_is_asked(world: World) -> None:
    world.fetch("h", N)
    opened, sent = world.carry_out()
    assert opened == OpenPeer(PRODUCER)
    assert isinstance(sent, SendReq)
    request = sent.req
    assert (request.mm_hash, request.compatibility_hash) == ("h", COMPAT)
    assert (request.session_id, request.attempt_id) == ("c1.1", 1)
    assert (request.connector_version, request.incarnation) == (2, "c1")


def test_a_connection_is_opened_once_and_each_attempt_has_its_session(world: World) -> None:
    for name in ("a", "b", "c"):
        world.fetch(name, N)
    opened, *asked = world.carry_out()
    assert opened == OpenPeer(PRODUCER)
    assert [command.req.session_id for command in asked] == ["c1.1", "c1.2", "c1.3"]


# --------------------------------------------------------------------- waiters
def test_requests_that_want_the_same_encoding_share_one_fetch(world: World) -> None:
    attempt = granted(world, waiter="r1")
    assert world.fetch("h", N, "r2") == "pending"
    assert world.fetch("h", N, "r1") == "pending"
    assert world.carry_out() == []
    world.post(attempt)
    assert world.fetch("h", N, "r3") == "pending"
    world.finish(attempt)
    assert len(world.holds) == 3
    for waiter in ("r1", "r2"):
        world.waiters.consumed(waiter, "h")
        assert state_of(world) == "pinned"
    world.waiters.leave("r3", world.now)
    assert state_of(world) == "ready"
    world.check()


@pytest.mark.parametrize("at", ["requested", "granted"])
def test_when_the_last_waiter_leaves_the_attempt_is_aborted(world: World, at: str) -> None:
    world.producer.save("h", N)
    world.fetch("h", N, "r1")
    world.fetch("h", N, "r2")
    if at == "granted":
        world.exchange()
    world.waiters.leave("r1", world.now)
    assert world.waiters.fetching("h")
    world.waiters.leave("r2", world.now)
    assert (world.waiters.fetching("h"), state_of(world), world.reads.idle) == (False, None, True)
    assert world.tier.free_blocks == 16
    for attempt in list(world.prepared):
        assert not world.post(attempt)
    # Its grant does not pin the producer for a whole lease (EC-5.11, EC-5.6).
    world.exchange()
    world.deliver_notices()
    assert world.producer.grants.open_grants == 0
    world.check()


@pytest.mark.clause("EC-6.1")
def test_a_posted_read_goes_on_when_nobody_waits_and_may_be_joined(world: World) -> None:
    attempt = reading(world)
    world.waiters.leave("request-1", world.now)
    assert (world.waiters.fetching("h"), state_of(world)) == (True, "saving")
    assert world.fetch("h", N, "r2") == "pending"
    world.finish(attempt)
    assert state_of(world) == "pinned"
    world.check()


def test_a_posted_read_that_nobody_waits_for_still_fills_the_tier(world: World) -> None:
    attempt = reading(world)
    world.waiters.leave("request-1", world.now)
    world.finish(attempt)
    assert (state_of(world), len(world.holds), world.reads.idle) == ("ready", 0, True)
    world.check()


def test_between_two_attempts_the_last_waiter_takes_the_fetch_along(world: World) -> None:
    world.producer.tier.alloc("h", N)
    world.fetch("h", N)
    world.exchange()
    assert world.reads.counters["retries"] == 1
    world.waiters.leave("request-1", world.now)
    assert (world.reads.idle, world.tier.free_blocks) == (True, 16)
    world.check()


def test_leaving_without_waiting_is_nothing(world: World) -> None:
    world.waiters.leave("nobody", world.now)
    assert world.carry_out() == []


@pytest.mark.clause("EC-3.5", "EC-7.3")
def test_a_fetched_encoding_is_held_for_a_bounded_time(world: World) -> None:
    world.finish(reading(world))
    end = world.now + world.timing.fetched_hold_s
    world.holds.tick(math.nextafter(end, 0.0))
    assert state_of(world) == "pinned"
    world.holds.tick(end)
    assert state_of(world) == "ready"


# ------------------------------------------------------------- falling back
@pytest.mark.clause("EC-5.9")
def test_a_failure_stays_one_until_the_request_leaves(world: World) -> None:
    world.fetch("h", N)
    world.exchange()
    assert world.reads.counters["refused"] == 1
    world.producer.save("h", N)
    assert world.fetch("h", N) == "failed"
    assert world.fetch("h", N) == "failed"
    assert world.carry_out() == []
    world.waiters.leave("request-1", world.now)
    assert world.fetch("h", N) == "pending"


def test_a_failure_is_the_waiters_own(world: World) -> None:
    world.fetch("h", N, "r1")
    world.exchange()
    assert world.fetch("h", N, "r1") == "failed"
    world.producer.save("h", N)
    assert world.fetch("h", N, "r2") == "pending"
    assert world.fetch("h", N, "r1") == "failed"
    assert world.fetch("other", N, "r1") == "pending"


@pytest.mark.clause("EC-9.5")
def test_failures_are_forgotten_with_the_request(world: World) -> None:
    for i in range(50):
        world.fetch("h", N, f"r{i}")
        world.exchange()
        assert world.fetch("h", N, f"r{i}") == "failed"
        world.waiters.leave(f"r{i}", world.now)
    assert world.waiters._failed == {}


def test_without_room_the_request_falls_back_and_nothing_is_evicted() -> None:
    world = World(blocks=4)
    world.save("old", 2 * BLOCK)
    world.tier.pin(world.save("busy", BLOCK), ("load", 1))
    assert world.fetch("h", 4 * BLOCK) == "failed"
    assert state_of(world, "old") == "ready"
    assert world.reads.counters["no_room"] == 1
    assert world.carry_out() == []


def test_what_the_tier_is_working_on_is_not_fetched(world: World) -> None:
    world.tier.alloc("h", N)
    assert world.fetch("h", N) == "failed"
    assert world.carry_out() == []


def test_too_many_attempts_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 2)
    assert [world.fetch(name, N, name) for name in "abc"] == ["pending", "pending", "failed"]
    assert world.reads.counters["too_many_attempts"] == 1
    world.exchange()
    assert world.fetch("d", N, "d") == "pending"


# ---------------------------------------------------------------------- budget
def never_ready(world: World) -> None:
    """The producer has the encoding allocated and its save never lands."""
    world.producer.tier.alloc("h", N)
    world.fetch("h", N)
    world.exchange()


@pytest.mark.clause("EC-5.9")
def test_no_request_waits_beyond_its_budget(world: World) -> None:
    never_ready(world)
    deadline = START + world.timing.fetch_budget_s
    while world.waiters.fetching("h"):
        due = world.reads.next_deadline()
        assert due is not None
        assert due <= deadline
        world.now = max(due, world.now)
        world.tick()
        world.exchange()
    assert world.now <= deadline
    assert world.fetch("h", N) == "failed"
    assert (world.tier.free_blocks, world.reads.counters["fallbacks"]) == (16, 1)
    world.check()


@pytest.mark.clause("EC-5.9", "EC-7.3")
def test_at_its_deadline_a_waiter_fails_whatever_the_attempt_does(world: World) -> None:
    attempt = reading(world)
    deadline = START + world.timing.fetch_budget_s
    world.now = math.nextafter(deadline, 0.0)
    assert world.fetch("h", N) == "pending"
    world.now = deadline
    assert world.fetch("h", N) == "failed"
    assert world.fetch("h", N, "r2") == "failed", "the fetch has no budget for anybody"
    world.finish(attempt)
    assert (state_of(world), len(world.holds)) == ("ready", 0)
    world.check()


@pytest.mark.clause("EC-5.9")
def test_the_budget_is_the_requests_even_if_its_encoding_is_evicted_again_and_again(
    world: World,
) -> None:
    """Fetched, evicted before the request was scheduled, fetched again, …"""
    deadline = START + world.timing.fetch_budget_s
    while world.fetch("h", N) == "pending":
        assert world.now < deadline
        if world.producer.tier.get("h") is None:
            world.producer.save("h", N)
        world.exchange()
        attempt = max(world.prepared)
        assert world.post(attempt)
        world.finish(attempt)
        world.holds.release(("fetched", "h", "request-1"))
        for number in range(9):  # nine entries of two blocks fill the tier
            entry = world.tier.alloc(f"other-{world.now}-{number}", N)
            assert entry is not None or number == 8
            if entry is not None:
                world.tier.begin_write(entry, ("save", number))
                world.tier.write_landed(entry, ("save", number))
        world.now += 6.0
    assert world.reads.counters["budget_spent"] == 1
    assert world.reads.counters["reads_done"] > 3
    world.waiters.leave("request-1", world.now)
    assert not world.waiters.deferrals


@pytest.mark.clause("EC-5.9")
def test_a_reader_that_slept_through_the_deadline_asks_no_more(world: World) -> None:
    """The engine need not ask again for the blocks to come back."""
    never_ready(world)
    world.tick(world.timing.fetch_budget_s)
    assert not world.waiters.fetching("h")
    assert (world.requests, world.tier.free_blocks) == ([], 16)
    assert world.fetch("h", N) == "failed"
    world.check()


def test_an_attempt_that_does_not_fit_into_the_budget_is_not_made(world: World) -> None:
    """Less than an ack timeout is left: fall back now and not later."""
    never_ready(world)
    last = START + world.timing.fetch_budget_s - world.timing.ack_timeout_s
    world.now = last - world.timing.retry_interval_s - 0.001
    world.tick()
    world.deliver_requests()
    world.now = last
    world.deliver_acks()
    assert not world.waiters.fetching("h")
    assert world.fetch("h", N) == "failed"
    world.check()


# --------------------------------------------------- what the data plane says too late
@pytest.mark.parametrize("call", ["post_read", "post_failed", "read_done", "read_error"])
def test_the_data_plane_may_speak_of_attempts_that_are_over(world: World, call: str) -> None:
    """Their outcome crossed with an abort or a shutdown: nothing happens."""
    attempt = granted(world)
    world.waiters.leave("request-1", world.now)
    for attempt_id in (attempt, 99, 0, -1):
        answer = getattr(world.reads, call)(attempt_id, world.now)
        assert not answer
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    released = [c for c in world.carry_out() if not isinstance(c, ReleaseGrant)]
    assert released == []
    world.check()


def test_a_posted_read_is_neither_unprepared_nor_proven_over(world: World) -> None:
    """What was said before it was posted, or of another READ, changes nothing."""
    attempt = reading(world)
    world.reads.post_failed(attempt, world.now)
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    seen = (state_of(world), world.reads.attempts.active_reads, world.carry_out())
    assert seen == ("saving", 1, [])
    world.finish(attempt)
    assert state_of(world) == "pinned"
    world.check()


def test_one_name_with_two_sizes_is_fetched_for_the_first_only(world: World) -> None:
    attempt = reading(world)
    assert world.fetch("h", N + 1, "r2") == "failed"
    assert world.reads.counters["contradicting_sizes"] == 1
    world.finish(attempt)
    assert state_of(world) == "pinned"


def test_leaving_is_no_fallback(world: World) -> None:
    granted(world)
    world.waiters.leave("request-1", world.now)
    assert world.reads.counters["fallbacks"] == 0
    assert state_of(world) is None
