# SPDX-License-Identifier: Apache-2.0
"""The consumer and the answers it gets: each status, each kind of ack it must not obey."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import ReleaseGrant, SendReq
from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, around, state_of
from tests.world.core import PRODUCER, START, World

#: From then on an ack is worth nothing: fence less min_read_s.
CLOSED = START + 30.0 - 0.5 - 0.25


@pytest.fixture
def world() -> World:
    """One request has asked for ``h``; the request is on its way as attempt 1."""
    world = World()
    world.producer.save("h", N)
    world.fetch("h", N)
    world.carry_out()
    return world


def answer(world: World, **changes: Any) -> XferAck:
    """The ack that the producer gives to the request under way, changed."""
    world.deliver_requests()
    ack = wire.decode_ack([b"", world.acks.pop()])
    return msgspec.structs.replace(ack, **changes)


def receive(world: World, ack: XferAck, peer: tuple[str, int] = PRODUCER) -> list[Any]:
    world.reads.on_ack(peer, ack, world.now)
    return world.carry_out()


def nack(status: int, **changes: Any) -> XferAck:
    fields = {"mm_hash": "h", "status": int(status), "session_id": "c1.1", "attempt_id": 1}
    return XferAck(**{**fields, **changes})  # type: ignore[arg-type]


# ------------------------------------------------------------------- each status
@pytest.mark.clause("EC-8.5", "EC-5.9")
@pytest.mark.parametrize("status", [1, 2, 4, 6, 7, 255])
def test_a_refusal_falls_back_at_once(world: World, status: int) -> None:
    """Also one that we do not know."""
    assert receive(world, nack(status)) == []
    assert world.fetch("h", N) == "failed"
    assert (world.tier.free_blocks, world.reads.idle) == (16, True)
    assert world.reads.counters["refused"] == 1
    world.check()


@pytest.mark.clause("EC-5.8", "EC-8.5")
def test_not_ready_is_asked_again_with_the_same_blocks(world: World) -> None:
    entry = world.tier.get("h")
    extents = entry.extents
    request = b""
    for attempt in range(1, 6):
        nacked = nack(XferStatus.NACK_NOT_READY, session_id=f"c1.{attempt}", attempt_id=attempt)
        assert receive(world, nacked) == []
        assert (state_of(world), entry.extents) == ("allocated", extents)
        assert world.fetch("h", N) == "pending"
        due = world.now + world.timing.retry_pause(attempt - 1, f"c1.{attempt}")
        assert world.reads.next_deadline() == pytest.approx(due)
        due = world.reads.next_deadline()
        assert due is not None
        world.now = math.nextafter(due, 0.0)
        world.reads.tick(world.now)
        assert world.carry_out() == [], "not before the interval"
        world.now = due
        world.reads.tick(world.now)
        (sent,) = world.carry_out()
        assert isinstance(sent, SendReq)
        assert sent.req.session_id == f"c1.{attempt + 1}"
        assert world.tier.get("h") is entry
        request = wire.encode(sent.req)
    assert world.tier.evictions == 0
    world.requests = [request]
    world.exchange()
    assert world.post(6)
    world.finish(6)
    assert (state_of(world), entry.extents) == ("pinned", extents)
    world.check()


@pytest.mark.clause("EC-5.8")
def test_a_retry_evicts_nothing_in_a_full_tier() -> None:
    """The blocks are kept, not given back and won again from ready entries."""
    world = World(blocks=4)
    world.save("old", 2 * 64)
    world.producer.tier.alloc("h", N)
    world.fetch("h", N)
    for _ in range(20):
        world.exchange()
        world.tick(world.timing.retry_max_interval_s * 1.25)
    assert world.reads.counters["retries"] >= 20
    assert (state_of(world, "old"), world.tier.evictions) == ("ready", 0)
    world.check()


# --------------------------------------------------------------- version fallback
def after_interval(world: World) -> list[Any]:
    """What is done once the least time between two attempts has passed."""
    world.now += world.timing.retry_interval_s
    world.reads.tick(world.now)
    return world.carry_out()


@pytest.mark.clause("EC-8.2")
def test_nack_version_falls_back_once(world: World) -> None:
    receive(world, nack(XferStatus.NACK_VERSION))
    (sent,) = after_interval(world)
    assert isinstance(sent, SendReq)
    assert (sent.req.connector_version, sent.req.session_id) == (1, "c1.2")
    receive(world, nack(XferStatus.NACK_VERSION, session_id="c1.2", attempt_id=2))
    assert world.fetch("h", N) == "failed"
    assert world.reads.idle
    world.check()


@pytest.mark.clause("EC-8.2")
def test_the_version_that_worked_is_remembered_for_the_peer(world: World) -> None:
    receive(world, nack(XferStatus.NACK_VERSION))
    world.fetch("other", N)
    (sent,) = world.carry_out()
    assert isinstance(sent, SendReq)
    assert sent.req.connector_version == 1


@pytest.mark.clause("EC-8.2")
def test_attempts_already_under_way_fall_back_each_for_itself(world: World) -> None:
    """Two requests with version 2 were out when the first NACK_VERSION came."""
    world.fetch("other", N)
    world.carry_out()
    receive(world, nack(XferStatus.NACK_VERSION))
    second = nack(XferStatus.NACK_VERSION, mm_hash="other", session_id="c1.2", attempt_id=2)
    receive(world, second)
    commands = after_interval(world)
    assert [c.req.connector_version for c in commands if isinstance(c, SendReq)] == [1, 1]


# ------------------------------------------------------------------- unusable OKs
@pytest.mark.clause("EC-8.3", "EC-9.3")
@pytest.mark.parametrize(
    "changes",
    [
        {"nbytes": N + 1},
        {"nbytes": N - 1},
        {"block_size": 128},
        {"extents": [(0, 1)]},
        {"extents": [(0, 1), (0, 1)]},
        {"extents": [(0, 3)]},
        {"extents": []},
        {"base_addr": 0},
        {"base_addr": (1 << 63) - 1},
        {"agent_metadata": b""},
    ],
)
def test_an_ok_that_contradicts_the_request_is_refused(
    world: World, changes: dict[str, Any]
) -> None:
    ack = answer(world, **changes)
    commands = receive(world, ack)
    released = [type(c) for c in commands]
    assert released == ([ReleaseGrant] if ack.agent_metadata else [])
    assert world.fetch("h", N) == "failed"
    assert world.reads.counters["unusable_acks"] == 1
    assert (world.prepared, world.tier.free_blocks) == ({}, 16)
    world.deliver_notices()
    assert world.producer.grants.open_grants == (0 if ack.agent_metadata else 1)
    world.check()


# --------------------------------------------------------------- the fence at ack
@pytest.mark.clause("EC-5.1", "EC-5.2")
@pytest.mark.parametrize("now", around(CLOSED))
def test_the_fence_is_checked_when_the_ack_is_handled(world: World, now: float) -> None:
    """Counted from sending: the ack itself was made just now, with its full lease."""
    usable = now < CLOSED
    world.timing = world.reads.timing = Timing(fetch_budget_s=100.0)
    world.now = now
    ack = answer(world)
    assert ack.lease_s == 30.0
    commands = receive(world, ack)
    assert bool(world.prepared) == usable
    assert [type(c) for c in commands if isinstance(c, ReleaseGrant)] == (
        [] if usable else [ReleaseGrant]
    )
    assert world.reads.counters["fence_closed"] == (0 if usable else 1)


@pytest.mark.clause("EC-5.1")
@pytest.mark.parametrize(("lease", "usable"), [(0.76, True), (0.75, False), (0.0, False)])
def test_the_lease_of_the_ack_counts(world: World, lease: float, usable: bool) -> None:
    receive(world, answer(world, lease_s=lease))
    assert bool(world.prepared) == usable


@pytest.mark.clause("EC-5.1")
def test_without_a_lease_in_the_ack_our_own_is_assumed(world: World) -> None:
    receive(world, answer(world, lease_s=None))
    (attempt,) = world.reads.attempts._attempts.values()
    assert attempt.fence == START + 30.0 - 0.5


def test_a_grant_that_came_too_late_is_asked_for_again(world: World) -> None:
    receive(world, answer(world, lease_s=0.5))
    assert world.fetch("h", N) == "pending"
    world.deliver_notices()
    assert world.producer.grants.open_grants == 0
    world.tick(world.timing.retry_interval_s)
    world.exchange()
    assert list(world.prepared) == [2]


def test_attempts_keep_their_distance_whatever_ended_the_last(world: World) -> None:
    """A producer that grants leases of no length must not make us spin."""
    for attempt in range(1, 5):
        receive(world, answer(world, lease_s=0.0))
        world.reads.tick(world.now)
        assert world.carry_out() == []
        pause = world.timing.retry_pause(attempt - 1, f"c1.{attempt}")
        assert world.reads.next_deadline() == pytest.approx(world.now + pause)
        world.tick(pause)
        assert world.reads.counters["fence_closed"] == attempt


@pytest.mark.clause("EC-5.8")
def test_a_pause_never_costs_the_last_attempt_that_the_budget_allows(world: World) -> None:
    """However long it would wait, it asks once more while one attempt still fits."""
    timing = world.timing
    last = world.now + timing.fetch_budget_s - timing.ack_timeout_s
    attempts = 1
    receive(world, nack(XferStatus.NACK_NOT_READY))
    while (due := world.reads.next_deadline()) is not None and world.waiters.fetching("h"):
        world.now = due
        world.reads.tick(world.now)
        sent = [c for c in world.carry_out() if isinstance(c, SendReq)]
        if not sent:
            break
        attempts += 1
        at = world.now
        session = f"c1.{attempts}"
        receive(world, nack(XferStatus.NACK_NOT_READY, session_id=session, attempt_id=attempts))
    assert last - timing.retry_interval_s < at <= last
    # Without back-off it would have been a thousand.
    assert timing.fetch_budget_s / (timing.retry_max_interval_s * 1.25) < attempts < 120
    assert world.fetch("h", N) == "failed"
    world.check()


def test_after_a_long_attempt_the_next_one_need_not_wait(world: World) -> None:
    """The interval is counted between the attempts, not from the end of the first."""
    receive(world, answer(world))
    world.now += 1.0
    (attempt,) = world.reads.attempts._attempts.values()
    attempt.fence = world.now
    assert not world.post(1)
    assert world.reads.next_deadline() == world.now


# ------------------------------------------------- acks that must not be obeyed
@pytest.mark.clause("EC-5.6")
@pytest.mark.parametrize(
    "session",
    ["", "c1", "c1.", ".1", "c2.1", "c1.1.1", "c1.-1", "c1.+1", "c1. 1", "c1.1x", "c1.١", "c11"],
)
def test_an_ack_for_somebody_else_is_dropped(world: World, session: str) -> None:
    assert receive(world, answer(world, session_id=session)) == []
    assert world.reads.counters["foreign_acks"] == 1
    assert world.fetch("h", N) == "pending"


@pytest.mark.clause("EC-5.6")
@pytest.mark.parametrize("number", ["2", "0", "9" * 19, "9" * 20, "9" * 200])
def test_an_ack_for_an_attempt_that_is_not_is_stale(world: World, number: str) -> None:
    commands = receive(world, nack(XferStatus.NACK_MISSING, session_id=f"c1.{number}"))
    assert commands == []
    assert world.reads.counters["stale_acks"] == 1
    assert world.fetch("h", N) == "pending"


@pytest.mark.clause("EC-5.6", "EC-5.11")
def test_a_stale_ok_releases_its_grant(world: World) -> None:
    """The attempt timed out; its grant would pin the producer for a lease."""
    ack = answer(world)
    world.tick(world.timing.ack_timeout_s)
    assert world.reads.counters["ack_timeouts"] == 1
    assert receive(world, ack) == [ReleaseGrant(PRODUCER, world.producer.metadata, b"c1.1:h")]
    assert world.reads.counters["stale_acks"] == 1
    world.deliver_notices()
    assert world.producer.grants.open_grants == 0
    assert world.prepared == {}
    world.check()


@pytest.mark.clause("EC-5.6")
@pytest.mark.parametrize("changes", [{"agent_metadata": b""}, {"status": 1}])
def test_a_stale_ack_without_a_grant_is_only_counted(world: World, changes: dict[str, Any]) -> None:
    """An OK that does not say whose grant it is, and a refusal that says too much."""
    ack = answer(world, **changes)
    world.tick(world.timing.ack_timeout_s)
    assert receive(world, ack) == []
    assert world.reads.counters["stale_acks"] == 1


@pytest.mark.clause("EC-5.11")
def test_a_refusal_has_no_grant_to_release(world: World) -> None:
    """Whatever else it carries."""
    assert receive(world, answer(world, status=1)) == []
    assert world.fetch("h", N) == "failed"


@pytest.mark.clause("EC-5.6")
@pytest.mark.parametrize("posted", [False, True])
def test_the_same_ack_again_does_nothing(world: World, posted: bool) -> None:
    ack = answer(world)
    receive(world, ack)
    if posted:
        assert world.post(1)
    for status in (XferStatus.OK, XferStatus.NACK_MISSING, XferStatus.NACK_NOT_READY):
        assert receive(world, msgspec.structs.replace(ack, status=int(status))) == []
    assert world.reads.counters["duplicate_acks"] == 3
    assert state_of(world) == ("saving" if posted else "allocated")


@pytest.mark.clause("EC-5.6")
@pytest.mark.parametrize(
    ("changes", "peer"),
    [
        ({"mm_hash": "other"}, PRODUCER),
        ({"attempt_id": 2}, PRODUCER),
        ({"attempt_id": 0}, PRODUCER),
        ({"session_id": "c1.01"}, PRODUCER),
        ({}, ("elsewhere", 1)),
    ],
)
def test_an_ack_that_contradicts_itself_is_dropped(
    world: World, changes: dict[str, Any], peer: tuple[str, int]
) -> None:
    assert receive(world, answer(world, **changes), peer) == []
    assert world.reads.counters["mismatched_acks"] == 1
    assert (world.prepared, state_of(world)) == ({}, "allocated")


def test_an_ack_without_an_attempt_id_is_named_by_its_session(world: World) -> None:
    """As old producers answer."""
    receive(world, answer(world, attempt_id=None))
    assert list(world.prepared) == [1]


# -------------------------------------------------------------------- ack timeout
@pytest.mark.clause("EC-5.9", "EC-7.3")
def test_the_ack_timeout_runs_out_at_its_bound(world: World) -> None:
    end = START + world.timing.ack_timeout_s
    assert world.reads.next_deadline() == end
    world.reads.tick(math.nextafter(end, 0.0))
    assert world.fetch("h", N) == "pending"
    world.reads.tick(end)
    assert world.fetch("h", N) == "failed"
    assert (world.tier.free_blocks, world.reads.counters["ack_timeouts"]) == (16, 1)
    world.check()


def test_the_ack_timeout_is_over_once_the_ack_came(world: World) -> None:
    receive(world, answer(world))
    world.reads.tick(START + world.timing.ack_timeout_s)
    assert world.fetch("h", N) == "pending"
    assert world.post(1)


def test_a_lost_ack_costs_the_ack_timeout_only(world: World) -> None:
    world.deliver_requests()
    world.acks.clear()
    world.tick(world.timing.ack_timeout_s)
    assert world.fetch("h", N) == "failed"
    world.tick(world.timing.lease_s)
    assert world.producer.grants.open_grants == 0
    world.check()
