# SPDX-License-Identifier: Apache-2.0
"""What the code does, and what it must never do, for ``test_trace_check`` to replay."""

from __future__ import annotations

from collections.abc import Callable

from ec_protocol.names import stranger_name
from ec_protocol.p2p.wire import XferReq, XferStatus
from ec_protocol.tables.dispatch import GRANT
from ec_protocol.tier.copies import CopyTable
from tests.ec_verify.traces.traced import Recorded
from tests.world.core import BLOCK, COMPAT, PRODUCER, states

Scenario = Callable[[Recorded], None]
#: Conjunct, or the start of it, by which a trace is rejected; None: it is accepted.
CASES: dict[str, tuple[Scenario, str | None]] = {}


def case(conjunct: str | None) -> Callable[[Scenario], Scenario]:
    def note(scenario: Scenario) -> Scenario:
        CASES[scenario.__name__] = (scenario, conjunct)
        return scenario

    return note


# ------------------------------------------------------------- what the code does
@case(None)
def a_fetch(world: Recorded) -> None:
    world.finish(world.fetched())


@case(None)
def what_a_stranger_has_sent_lies_beside_our_own(world: Recorded) -> None:
    """It has a name of its own here, and the encoding's there."""
    world.producer.save("a", BLOCK)
    world.save("a", BLOCK)
    name = stranger_name("a", *PRODUCER[:2])
    assert world.fetch(name, BLOCK) == "pending"
    world.exchange()
    (attempt,) = world.prepared
    assert world.post(attempt)
    world.finish(attempt)
    assert states(world.node) == {"a": "ready", name: "pinned"}


@case(None)
def every_end_of_an_attempt(world: Recorded) -> None:
    world.producer.save("b", BLOCK)
    world.granted("b")
    world.reads.post_failed(max(world.prepared), world.now)
    world.waiters.leave("request-1", world.now)
    world.prepared.clear()
    attempt = world.granted("b")
    world.advance(40.0)
    assert not world.post(attempt)
    world.tick(100.0)
    world.waiters.leave("request-1", world.now)
    attempt = world.reading("b")
    world.reads.read_error(attempt, world.now)
    world.tick(100.0)
    world.reads.attempts.dma_ended(attempt, "aborted", world.now)


@case(None)
def other_bytes_than_the_checksum_says(world: Recorded) -> None:
    """They are dropped, and the encoding is saved here instead."""
    world.reads.read_corrupt(world.fetched(), world.now)
    world.waiters.leave("request-1", world.now)
    world.save("a", BLOCK)


@case("not over before it was posted")
def other_bytes_before_the_read_was_posted(world: Recorded) -> None:
    world.producer.save("a", BLOCK)
    attempt = world.granted("a")
    world.advance(2.0)
    assert world.post(attempt)
    world.reads.read_corrupt(attempt, world.now - 1.0)


@case(None)
def a_restart_of_the_producer(world: Recorded) -> None:
    attempt = world.fetched()
    world.restart_producer()
    world.producer.save("b", BLOCK)
    world.fetch("b", BLOCK, "request-2")
    world.exchange()
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    world.post(max(world.prepared))
    world.finish(max(world.posted))


@case(None)
def a_shutdown_of_the_producer(world: Recorded) -> None:
    attempt = world.fetched()
    world.producer.grants.shutdown(world.now)
    world.finish(attempt)


@case(None)
def copies_of_every_kind(world: Recorded) -> None:
    """Two ranks load; saves and loads land, fail, and are given up before they begin."""
    copies = world.copies = CopyTable(world.tier, world_size=2)
    tier = world.tier
    for name, blocks, landed in (("a", 16, True), ("b", 1, False), ("a", 2, True)):
        save = world.begin_save(name, blocks * BLOCK)
        world.fill(save.entry)
        copies.report(save.copy_id, 0, landed)
    assert tier.reserve("a")
    for outcome in ((True, True), (True, False), None):
        load = copies.plan_load("a")
        if outcome is None:
            copies.skip(load)
            continue
        copies.submit(load)
        for rank in (1, 0):
            copies.report(load.copy_id, rank, outcome[rank])
    tier.end_step()
    copies.skip(copies.plan_save("c", BLOCK))
    tier.cancel(tier.alloc("d", BLOCK))


@case(None)
def holds_that_displace_each_other(world: Recorded) -> None:
    for name in "abc":
        entry = world.save(name, 4 * BLOCK)
        assert world.holds.hold(("announced", name), entry, world.now + 10.0)
    world.tick(10.0)
    assert len(world.holds) == 0


@case(None)
def holds_asked_for_before_the_bytes_land(world: Recorded) -> None:
    """Numbers of holds do not rise: the first one asked for begins last."""
    slow = world.begin_save("slow", BLOCK)
    assert world.holds.hold(("announced", "slow"), slow.entry, world.now + 10.0)
    quick = world.save("quick", BLOCK)
    assert world.holds.hold(("announced", "quick"), quick, world.now + 10.0)
    world.copies.report(slow.copy_id, 0, landed=True)
    world.holds.landed(slow.entry)


@case("a holder of nothing else")
def one_hold_of_two_entries(world: Recorded) -> None:
    for name in "ab":
        world.tier.hold(world.save(name, BLOCK), ("hold", 7))


@case(None)
def answers_of_every_kind(world: Recorded) -> None:
    """Missing, not ready, none at all; a request given up; a peer lost and drained."""
    world.fetch("missing", BLOCK)
    world.exchange()
    world.producer.begin_save("a", BLOCK)
    world.fetch("a", BLOCK)
    world.exchange()
    world.tick(1.0)
    world.waiters.leave("request-1", world.now)
    world.fetch("a", BLOCK)
    world.tick(3.0)
    world.fetch("b", BLOCK, "request-2")
    world.end_peer()
    world.tick(10.0)
    attempt = world.fetched("d")
    world.end_peer()
    world.reads.attempts.dma_ended(attempt, "endpoint_closed", world.now)
    world.tick(40.0)


@case(None)
def rare_ends_of_attempts_and_peers(world: Recorded) -> None:
    """An ack after its fence; given up, or lost, before the READ; a READ too long, or too late."""
    for name in "abcdef":
        world.producer.save(name, BLOCK)
    world.fetch("a", BLOCK)
    world.advance(31.0)
    world.exchange()
    world.waiters.leave("request-1", world.now)
    world.tick(40.0)
    world.granted("b")
    world.waiters.leave("request-1", world.now)
    world.tick(40.0)
    late = world.reading("c")
    world.advance(40.0)
    world.reads.read_done(late, world.now)
    world.waiters.leave("request-1", world.now)
    world.tick(40.0)
    long = world.reading("d")
    world.tick(25.0)
    world.reads.attempts.dma_ended(long, "endpoint_closed", world.now)
    world.tick(40.0)
    world.granted("e")
    world.end_peer()
    world.tick(40.0)
    world.fetch("f", BLOCK)
    world.end_peer()
    world.tick(40.0)
    assert world.fetch("g", BLOCK, "request-2") == "pending"
    world.reads.shutdown(world.now)


def stranger(world: Recorded) -> None:
    """Somebody asks without an attempt id, under the session of the first attempt."""
    request = XferReq("a", COMPAT, f"{world.reads.attempts.session}.1", connector_version=2)
    ack = world.producer.grants.on_request(b"somebody", request, world.now)
    assert ack.status == XferStatus.OK


@case(None)
def a_request_without_attempt_id_that_names_anothers_session(world: Recorded) -> None:
    """The notice that it shares could mean either grant, so both end with their leases."""
    world_granted(world)
    stranger(world)
    grants = world.producer.grants
    grants.on_notice(next(iter(grants._by_key)), world.now)
    assert grants.open_grants == 2
    world.tick(40.0)


@case(None)
def an_attempt_whose_session_somebody_took_before_it(world: Recorded) -> None:
    """It gets a grant of its own, and no share of the other one."""
    world.producer.save("a", BLOCK)
    assert world.fetch("a", BLOCK) == "pending"
    stranger(world)
    world.exchange()
    grants = world.producer.grants
    assert [g.attempt_id for g in grants._grants.values()] == [None, 1]
    grants.on_notice(next(iter(grants._by_key)), world.now)
    assert grants.open_grants == 2
    world.tick(40.0)


# ----------------------------------------------------- what it must never do: faults
@case("in_lease: now <= fence (FencedAccept")
def a_read_accepted_after_its_fence(world: Recorded) -> None:
    """F3."""
    attempt = world.fetched()
    world.advance(40.0)
    world.reads.attempts._attempts[attempt].fence += 100.0
    world.finish(attempt)


@case("fence = sending time + lease - margin")
def a_fence_counted_from_the_ack(world: Recorded) -> None:
    """F1: the time for which the ack waited is lost from the count."""
    timing = world.timing
    world.producer.save("a", BLOCK)
    world.fetch("a", BLOCK)
    world.advance(1.0)
    object.__setattr__(timing, "lease_margin_s", timing.lease_margin_s - 1.0)
    world.exchange()


@case("fence_open: now + min_read_s <= fence")
def a_read_posted_too_late(world: Recorded) -> None:
    """F1."""
    attempt = world_granted(world)
    world.advance(40.0)
    world.reads.attempts._fence_open = lambda attempt, now: True  # type: ignore[method-assign]
    world.post(attempt)


def world_granted(world: Recorded) -> int:
    world.producer.save("a", BLOCK)
    return world.granted("a")


@case("the attempt posted its READ, or gave the grant back")
def a_notice_of_another_attempt(world: Recorded) -> None:
    """F2: the completion of attempt 1 releases the grant of attempt 2."""
    world_granted(world)
    grants = world.producer.grants
    (grant,) = grants._grants.values()
    grants._end(grant, "complete", GRANT.mask("names_this_attempt"), world.now)
    grants._record(grant, "Complete", world.now)


@case("no other grant can be meant (AttemptIdentity, EC-5.5)")
def a_late_notice_ends_the_grant_that_shared_it(world: Recorded) -> None:
    """Of two grants with one notice the first has expired; the notice is forgotten to be shared."""
    world_granted(world)
    grants = world.producer.grants
    (ours,) = grants._grants.values()
    world.advance(20.0)
    stranger(world)
    world.advance(ours.expires_at - world.now + 1.0)
    grants.tick(world.now)
    (theirs,) = grants._grants.values()
    grants._ambiguous.clear()
    grants.on_notice(theirs.key, world.now)


@case("no other grant can be meant (AttemptIdentity, EC-5.5)")
def a_late_notice_of_an_old_peer_ends_its_next_grant(world: Recorded) -> None:
    """An old peer's attempts share a notice; that a lease of one ran out is forgotten."""
    world.producer.save("a", BLOCK)
    stranger(world)
    grants = world.producer.grants
    world.advance(40.0)
    grants.tick(world.now)
    stranger(world)
    (again,) = grants._grants.values()
    grants._ambiguous.clear()
    grants.on_notice(again.key, world.now)


@case("blocks that nobody owns")
def blocks_that_are_given_twice(world: Recorded) -> None:
    entry = world.save("a", BLOCK)
    world.tier._space.free(entry.extents)
    world.tier.alloc("b", BLOCK)


@case("blocks that nobody owns")
def blocks_of_a_quarantine_that_are_reused(world: Recorded) -> None:
    """F5."""
    attempt = world.fetched(blocks=16)
    world.reads.read_error(attempt, world.now)
    (entry,) = world.tier._quarantined.values()
    world.tier._space.free(entry.extents)
    world.tier.alloc("b", BLOCK)


@case("tier retired")
def retired_blocks_that_are_not_counted(world: Recorded) -> None:
    attempt = world.fetched()
    world.reads.read_error(attempt, world.now)
    world.tier.retired_blocks = -1
    world.tick(100.0)


@case("quarantine_s since the READ was lost")
def a_quarantine_that_ends_too_early(world: Recorded) -> None:
    attempt = world.fetched()
    world.reads.read_error(attempt, world.now)
    world.advance(5.0)
    attempts = world.reads.attempts
    attempts._retire(attempts._attempts[attempt], world.now)


@case("peer 1 attempts")
def a_session_dropped_with_its_reads(world: Recorded) -> None:
    """F4."""
    world.fetched()
    world.reads.attempts.peers.current(("producer", 5601)).attempts.clear()  # type: ignore[union-attr]
    world.end_peer()


@case("promised in this step (PromiseKept")
def a_load_that_was_not_promised(world: Recorded) -> None:
    """F6."""
    world.save("a", BLOCK)
    world.copies.plan_load("a")


@case("the table has this edge")
def an_eviction_of_a_held_entry(world: Recorded) -> None:
    entry = world.save("a", 16 * BLOCK)
    world.tier.reserve("a")
    trace, world.tier.recorder.trace = world.tier.recorder.trace, None
    world.tier.end_step()
    world.tier.recorder.trace = trace
    world.tier.alloc("b", BLOCK)
    assert entry.state == "freed"


@case("the entry can be served (ServeReadyOnly")
def a_grant_of_an_entry_that_is_being_saved(world: Recorded) -> None:
    world.fetch("a", BLOCK)
    copy = world.producer.begin_save("a", BLOCK)
    trace, world.producer.tier.recorder.trace = world.producer.tier.recorder.trace, None
    world.producer.copies.report(copy.copy_id, 0, landed=True)
    world.producer.tier.recorder.trace = trace
    world.exchange()


@case("granted before it is acknowledged")
def an_ack_without_a_grant(world: Recorded) -> None:
    world_granted(world)
    world.records[:] = [r for r in world.records if r["action"] != "Grant"]
    for number, record in enumerate(r for r in world.records if r["node"] == "producer"):
        record["seq"] = number


@case("the grant is of the process and the blocks that the ack names")
def an_ack_that_names_other_blocks(world: Recorded) -> None:
    """F8."""
    world_granted(world)
    for record in world.records:
        if record["action"] == "AckOk":
            record["vars"]["read:1"]["source"] = [[5, 1]]


@case("NoWrongBytesInv")
def a_source_reused_under_a_read_that_is_accepted(world: Recorded) -> None:
    """Only both traces together show it: the producer's clock runs away (EC-A.2)."""
    attempt = world.fetched(blocks=16)
    producer = world.producer
    producer.tier.recorder.trace.clock = lambda: world.now + 1000.0  # type: ignore[union-attr]
    producer.grants.tick(world.now + 1000.0)
    producer.tier.alloc("b", 16 * BLOCK)
    world.finish(attempt)


@case("SharesInv")
def more_granted_than_the_share(world: Recorded) -> None:
    """F11."""
    grants = world.producer.grants
    grants.quota_blocks = grants.grant_quota_blocks = 100
    for name in "abc":
        world.fetched(name, 5)


@case("SharesInv")
def what_is_larger_than_the_share_granted_twice(world: Recorded) -> None:
    """F11: its readers could take turns."""
    grants = world.producer.grants
    grants._all_may_pin = lambda entry, now: True  # type: ignore[method-assign]
    world.producer.save("a", 16 * BLOCK)
    for number in (1, 2):
        req = XferReq("a", COMPAT, f"s{number}.1", attempt_id=1)
        assert grants.on_request(b"peer-%d" % number, req, world.now).status == XferStatus.OK


@case("the attempt's outcome is applied at once")
def a_failed_attempt_whose_requests_go_on_waiting(world: Recorded) -> None:
    world_granted(world)
    world.reads._settle = lambda fetch, ended, now: None  # type: ignore[method-assign]
    world.waiters.leave("request-1", world.now)
    world.save("z", BLOCK)
