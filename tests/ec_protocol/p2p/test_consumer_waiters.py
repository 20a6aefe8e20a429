# SPDX-License-Identifier: Apache-2.0
"""What a waiting request is told, how long that stays true, and what is counted of it."""

from __future__ import annotations

import pytest

from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p.commands import SendReq
from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, granted, never_ready, reading, state_of
from tests.world.core import BLOCK, PRODUCER, START, World, node


# -------------------------------------------------------- an answer stays what it is
def no_room(world: World) -> None:
    """Nothing can be evicted while ``late`` asks; then everything can."""
    busy = world.save("busy", 15 * BLOCK)
    world.tier.pin(busy, ("load", 1))
    assert world.fetch("h", N, "late") == "failed"
    world.tier.unpin(busy, ("load", 1))


def two_sizes(world: World) -> None:
    """Another request expects another size; then that one is gone."""
    assert world.fetch("h", N + 1, "first") == "pending"
    assert world.fetch("h", N, "late") == "failed"
    world.waiters.leave("first", world.now)


def no_budget_in_the_fetch(world: World) -> None:
    """It joins a fetch of somebody else, whose budget ends before its own."""
    never_ready(world)
    world.advance(10.0)
    assert world.fetch("h", N, "late") == "pending"
    world.now = START + world.timing.fetch_budget_s
    assert world.fetch("h", N, "late") == "failed"
    world.tick()
    assert not world.waiters.fetching("h")


def no_budget_of_its_own(world: World) -> None:
    """It joins a fetch of somebody else with little left of its own budget."""
    never_ready(world)
    world.fetch("h", N, "late")
    world.waiters.leave("request-1", world.now)
    world.waiters.leave("late", world.now)
    world.waiters.within_budget("late", "h", world.now)
    world.advance(world.timing.fetch_budget_s - 1.0)
    assert world.fetch("h", N, "other") == "pending"
    assert world.fetch("h", N, "late") == "pending"
    world.advance(1.0)
    assert world.fetch("h", N, "late") == "failed"
    assert world.reads.counters["budget_spent"] == 1
    world.waiters.leave("other", world.now)
    world.waiters.consumed("late", "h")


@pytest.mark.clause("EC-5.9")
@pytest.mark.parametrize(
    ("falls_back", "fallbacks"),
    [(no_room, 1), (two_sizes, 1), (no_budget_in_the_fetch, 2), (no_budget_of_its_own, 1)],
)
def test_who_fell_back_is_not_deferred_again(world: World, falls_back, fallbacks) -> None:
    """Its encoder may be running already: whatever has changed, the answer is the same."""
    falls_back(world)
    world.carry_out()
    assert world.fetch("h", N, "late") == "failed"
    assert world.carry_out() == []
    assert world.fetch("h", N, "next") == "pending", "there is nothing in the way any more"
    assert world.fetch("h", N, "late") == "failed"
    assert world.reads.counters["fallbacks"] == fallbacks
    world.waiters.leave("late", world.now)
    assert world.fetch("h", N, "late") == "pending", "a new request of that name"
    world.check()


@pytest.mark.clause("EC-5.9")
def test_who_comes_when_the_budget_is_spent_is_told_so_once_and_for_all(world: World) -> None:
    """It waited for something else all the time; no fetch is made for it."""
    world.waiters.within_budget("late", "h", world.now)
    world.advance(world.timing.fetch_budget_s)
    for _ in range(3):
        assert world.fetch("h", N, "late") == "failed"
    assert world.reads.counters == {"budget_spent": 1, "fallbacks": 1}
    assert world.carry_out() == []


@pytest.mark.clause("EC-5.9")
def test_who_comes_when_a_fetch_has_no_budget_left_does_not_wait_for_the_next(world: World) -> None:
    """It has not joined the fetch, whose READ is lost a moment later."""
    attempt = reading(world)
    world.now = START + world.timing.fetch_budget_s
    assert world.fetch("h", N, "late") == "failed"
    world.reads.read_error(attempt, world.now)
    assert world.fetch("h", N, "late") == "failed"
    assert world.fetch("h", N, "next") == "pending"
    assert world.reads.counters["fallbacks"] == 2, "who waited and who came late"


@pytest.mark.clause("EC-5.9")
def test_who_gave_up_is_not_served_by_the_fetch_that_goes_on(world: World) -> None:
    """Its own budget is spent, the other one's is not: no hold is taken for it."""
    world.waiters.within_budget("late", "h", world.now)
    world.advance(world.timing.fetch_budget_s - 1.0)
    attempt = reading(world, waiter="other")
    assert world.fetch("h", N, "late") == "pending"
    world.advance(1.0)
    assert world.fetch("h", N, "late") == "failed"
    world.finish(attempt)
    assert [key[2] for key in world.holds._holds] == ["other"]
    assert world.reads.counters["fallbacks"] == 1


@pytest.mark.clause("EC-5.9")
def test_a_request_that_got_its_encoding_has_a_new_budget_for_the_next_time(world: World) -> None:
    """It is preempted, the encoding is evicted, and it comes back a minute later."""
    world.finish(reading(world))
    world.waiters.consumed("request-1", "h")
    world.advance(60.0)
    (entry,) = world.tier.entries()
    everything = world.tier.alloc("all", world.tier.num_blocks * BLOCK)
    assert everything is not None
    world.tier.cancel(everything)
    assert state_of(world) is None
    assert entry.state == "freed"
    assert world.fetch("h", N) == "pending"
    assert world.reads.counters["budget_spent"] == 0


@pytest.mark.clause("EC-9.5")
def test_of_who_has_got_all_it_waited_for_nothing_is_kept(world: World) -> None:
    """Nor of one that never waited, and is told as it was in the tier."""
    for name in ("a", "b"):
        world.finish(reading(world, name))
    world.waiters.consumed("nobody", "a")
    world.waiters.consumed("request-1", "never asked for")
    world.waiters.consumed("request-1", "a")
    assert len(world.waiters.deferrals) == 1, "it waits for b since then"
    world.waiters.consumed("request-1", "b")
    assert (len(world.waiters.deferrals), len(world.holds)) == (0, 0)


# ------------------------------------------------------------------------- leaving
@pytest.mark.clause("EC-3.5")
def test_who_leaves_takes_its_own_holds_along_and_nobody_elses(world: World) -> None:
    attempts = [reading(world, "a", "r1"), reading(world, "b", "r2")]
    assert world.fetch("a", N, "r2") == "pending"
    for attempt in attempts:
        world.finish(attempt)
    assert world.holds.hold(("announced", "a"), world.tier.get("a"), world.now + 1.0)
    world.waiters.leave("r1", world.now)
    assert sorted(world.holds._holds) == [
        ("announced", "a"),
        ("fetched", "a", "r2"),
        ("fetched", "b", "r2"),
    ]
    world.waiters.leave("r2", world.now)
    assert list(world.holds._holds) == [("announced", "a")]


def test_who_leaves_does_not_end_the_fetches_of_others(world: World) -> None:
    for name, waiter in (("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r3")):
        world.fetch(name, N, waiter)
    world.waiters.leave("r1", world.now)
    assert [name for name in "abcd" if world.waiters.fetching(name)] == ["b", "d"]
    world.check()


# ----------------------------------------------------------------- the next attempt
@pytest.mark.clause("EC-5.8", "EC-7.3")
@pytest.mark.parametrize("late_by", [0.0, 0.001])
def test_the_last_attempt_that_fits_into_the_budget_is_made(late_by: float) -> None:
    """An ack timeout before the deadline, to the moment; later than that it is not."""
    timing = Timing(retry_interval_s=0.25)
    world = World(timing=timing)
    never_ready(world)
    last = START + timing.fetch_budget_s - timing.ack_timeout_s
    world.now = last - 1.0
    world.tick()
    world.deliver_requests()
    world.now = last - timing.retry_interval_s + late_by
    world.deliver_acks()
    assert world.waiters.fetching("h") == (late_by == 0.0)
    world.tick(timing.retry_interval_s)
    sent = [c for c in world.commands if isinstance(c, SendReq)]
    assert len(sent) == (3 if late_by == 0.0 else 2)
    world.check()


@pytest.mark.clause("EC-5.8")
def test_a_fetch_that_nobody_waits_for_is_not_tried_again(world: World) -> None:
    """Its waiter's budget is over, which ends it at once; the refusal comes too late."""
    world.waiters.within_budget("request-1", "h", world.now)
    world.producer.tier.alloc("h", N)
    world.advance(world.timing.fetch_budget_s - 1.0)
    assert world.fetch("h", N) == "pending"
    world.carry_out()
    world.advance(1.0)
    assert world.fetch("h", N) == "failed"
    assert (world.reads.idle, world.tier.free_blocks) == (True, 16)
    world.exchange()
    assert (world.reads.idle, world.tier.free_blocks) == (True, 16)
    assert world.reads.next_deadline() is not None, "the connection may be closed later"
    world.tick(world.timing.retry_max_interval_s)
    assert world.requests == []
    world.check()


@pytest.mark.clause("EC-5.9")
def test_blocks_that_nobody_waits_for_any_more_are_given_back(world: World) -> None:
    """The last waiter gave up between two attempts: its budget was another one's rest."""
    world.waiters.within_budget("request-1", "h", world.now)
    world.advance(world.timing.fetch_budget_s - 1.0)
    never_ready(world)
    assert world.reads.idle is False, "it is between two attempts"
    due = world.reads.next_deadline()
    assert due is not None
    world.advance(1.0)
    assert world.fetch("h", N) == "failed"
    assert due <= world.now
    assert (world.reads.idle, world.tier.free_blocks) == (True, 16)
    world.tick()
    assert (world.requests, world.reads.idle, world.tier.free_blocks) == ([], True, 16)
    world.check()


@pytest.mark.clause("EC-5.9")
def test_one_who_gives_up_leaves_the_fetch_to_the_others(world: World) -> None:
    world.producer.save("h", N)
    world.waiters.within_budget("r1", "h", world.now)
    world.advance(world.timing.fetch_budget_s - 1.0)
    assert [world.fetch("h", N, waiter) for waiter in ("r1", "r2")] == ["pending"] * 2
    world.advance(1.0)
    assert world.fetch("h", N, "r1") == "failed"
    assert (world.fetch("h", N, "r2"), world.reads.idle) == ("pending", False)
    world.exchange()
    assert max(world.prepared) == 1
    world.check()


@pytest.mark.clause("EC-5.9")
def test_all_who_wait_for_an_encoding_fall_back_together(world: World) -> None:
    for waiter in ("r1", "r2", "r3"):
        assert world.fetch("h", N, waiter) == "pending"
    world.exchange()
    assert [world.fetch("h", N, waiter) for waiter in ("r1", "r2", "r3")] == ["failed"] * 3
    assert world.reads.counters["fallbacks"] == 3
    assert world.carry_out() == []


# ------------------------------------------------------------------------ the reader
def test_an_attempt_under_way_is_not_made_twice(world: World) -> None:
    """However often the reader looks at the clock, and whatever state the attempt is in."""
    world.producer.save("h", N)
    world.fetch("h", N)
    world.carry_out()
    world.tick(1.0)
    world.deliver_requests()
    world.deliver_acks()
    world.tick(1.0)
    assert world.post(1)
    world.tick(1.0)
    world.finish(1)
    world.tick(1.0)
    assert [c.req.session_id for c in world.commands if isinstance(c, SendReq)] == ["c1.1"]
    assert world.reads.counters["reads_done"] == 1


def test_the_clock_does_nothing_to_a_grant_that_the_reader_has_not_posted_yet() -> None:
    """It asks for leave sooner or later, and learns then that the fence has closed."""
    world = World(timing=Timing(fetch_budget_s=1000.0))
    attempt = granted(world)
    assert world.reads.next_deadline() is None
    for _ in range(10):
        world.tick(world.timing.quarantine_s)
    assert (state_of(world), world.reads.attempts.quarantined) == ("allocated", 0)
    assert not world.post(attempt)
    assert world.fetch("h", N) == "pending"
    world.check()


def test_a_request_without_an_answer_has_no_grant_to_release(world: World) -> None:
    world.fetch("h", N)
    world.carry_out()
    world.waiters.leave("request-1", world.now)
    assert world.carry_out() == []


def test_the_reader_is_told_when_there_is_something_to_do(world: World) -> None:
    assert world.reads.attempts.has_commands is False
    world.fetch("h", N)
    assert world.reads.attempts.has_commands is True
    world.carry_out()
    assert world.reads.attempts.has_commands is False


@pytest.mark.parametrize("session", ["", "a:b", "x" * 65])
def test_a_session_that_could_not_be_told_apart_is_refused(session: str) -> None:
    with pytest.raises(LocalProtocolError, match="1 to 64 characters, no colon"):
        node("consumer", incarnation=session)


def test_a_session_may_be_as_long_as_the_wire_allows(world: World) -> None:
    session = "x" * 64
    other = node("consumer", incarnation=session)
    assert other.waiters.fetch("h", PRODUCER, N, None, "r", world.now) == "pending"
    assert other.reads.attempts.drain()[1].req.session_id == f"{session}.1"


# ------------------------------------------------------------------ what is counted
def test_what_is_counted_of_a_day(world: World) -> None:
    """Operators see these numbers: each thing that happens once is counted once."""
    world.finish(granted_and_posted := reading(world, "good", "r-good"))
    assert granted_and_posted == 1
    world.reads.read_error(reading(world, "broken", "r-broken"), world.now)
    world.reads.post_failed(granted(world, "unprepared", "r-unprepared"), world.now)
    world.fetch("missing", N, "r-missing")
    world.exchange()
    world.fetch("later", N, "r-later")
    world.producer.tier.alloc("later", N)
    world.exchange()
    world.fetch("silent", N, "r-silent")
    world.carry_out()
    world.requests.clear()
    world.reads.peer_lost(PRODUCER, world.now)
    world.tick(world.timing.retry_interval_s)  # "later" meets an address that cools
    world.fetch("cooling", N, "r-cooling")
    assert world.reads.counters == {
        "fetches": 6,
        "reads_done": 1,
        "bytes_read": N,
        "read_errors": 1,
        "quarantined": 1,
        "post_failed": 1,
        "refused": 1,
        "retries": 1,
        "peers_lost": 1,
        "peer_cooling": 2,
        "fallbacks": 6,
    }
    assert world.reads.attempts.active_reads == 0
    world.check()
