# SPDX-License-Identifier: Apache-2.0
"""Our consumer reads from vLLM's own producer: real sockets, NIXL and regions, two processes.

Its answers name neither attempt nor lease, so every safeguard is ours: the attempt is
folded into ``session_id``, and the fence comes from our own clock and ``pin_lease_s``.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ec_protocol.items import make_item
from ec_protocol.names import stranger_name
from ec_protocol.p2p import wire
from tests.interop.driver import COMPAT, NBYTES, RELEASE, ROWS, Ours, marks, until
from tests.world.instance import BLOCK

pytestmark = marks

TIMING_LEASE_S = 30.0


def fence_of(node: Ours) -> float:
    """Of the only attempt, whose request leaves at the time that the clock stands at."""
    timing = node.reads.timing
    assert timing.lease_s == TIMING_LEASE_S
    return timing.fence(node.clock(), timing.lease_s)


@pytest.mark.clause("EC-8.4")
def test_both_have_the_same_compatibility_hash_and_lease(their_producer, our_consumer):
    assert their_producer.hello["vllm"] == RELEASE
    assert their_producer.hello["compat"] == COMPAT
    # What we assume of peers that do not say.
    assert our_consumer.reads.timing.lease_s <= their_producer.hello["lease"]


@pytest.mark.clause("EC-5.5", "EC-8.6")
def test_bytes_arrive_bit_for_bit_and_our_notices_end_its_grants(their_producer, our_consumer):
    for rows in (1, 2, 39):
        name, data, _ = their_producer.save(rows)
        assert our_consumer.fetch(name, their_producer.address, len(data)) == "ready"
        assert our_consumer.bytes_of(name) == data
    # Not its lease: its time hardly moves.
    until(their_producer.no_grants, "the completion notices")
    assert our_consumer.counters()["reads_done"] == 3
    our_consumer.whole()


@pytest.mark.clause("EC-11.4")
def test_its_announcement_is_understood(their_producer, our_consumer):
    name, data, params = their_producer.save(7)
    scheduler = our_consumer.scheduler
    request = SimpleNamespace(
        request_id="r", ec_transfer_params=params, items=[make_item(name, 7, BLOCK // 2, 2, end=7)]
    )
    until(lambda: scheduler.ensure_cache_available(request, 0), "admission")
    assert scheduler.has_cache_item(name)
    # It has no keys: its word is for requests that name it (EC-15.8).
    said = params[name]
    kept_as = stranger_name(name, said["peer_host"], said["peer_port"])
    assert our_consumer.bytes_of(kept_as) == data


# -------------------------------------------------------------------- lease and fence
@pytest.mark.clause("EC-5.1", "EC-5.2")
@pytest.mark.parametrize("late", [False, True], ids=["just before", "at"])
def test_no_read_is_posted_without_time_before_the_fence(their_producer, ours, late):
    """F1. The ack is in time; what counts is the moment of posting, to a microsecond."""
    node = ours("ec_consumer", fetch_budget_s=50.0)
    name, data, _ = their_producer.save()
    node.clock.stand_still(at=1000.0)
    last = fence_of(node) - node.reads.timing.min_read_s
    node.plane.before_prepare = lambda: node.clock.stand_still(last if late else last - 1e-6)
    node.ask(name, their_producer.address, NBYTES)
    if late:
        node.count("fence_closed")
        assert node.plane.posted == []
        node.after(TIMING_LEASE_S)
        assert node.fetch(name, their_producer.address, NBYTES) == "failed"
    else:
        assert node.fetch(name, their_producer.address, NBYTES) == "ready"
        assert node.bytes_of(name) == data
        assert node.counters().get("fence_closed", 0) == 0
    until(their_producer.no_grants, "our notice")
    node.whole()


@pytest.mark.clause("EC-5.3", "EC-7.3")
@pytest.mark.parametrize("late", [False, True], ids=["just before", "at"])
def test_a_read_that_ends_at_the_fence_is_dropped(their_producer, ours, late):
    """F3. Its bytes are all there, and are not accepted; another attempt brings them."""
    node = ours("ec_consumer", read_timeout_s=27.5, fetch_budget_s=80.0)
    name, data, _ = their_producer.save()
    node.clock.stand_still(at=1000.0)
    fence = fence_of(node)
    # Late enough for the READ's own timeout not to come before the fence.
    node.plane.before_prepare = lambda: node.clock.stand_still(1009.0)
    node.plane.before_post = lambda: node.clock.stand_still(fence if late else fence - 1e-6)
    node.ask(name, their_producer.address, NBYTES)
    if late:
        node.count("late_reads")
        node.after(1.0)
    assert node.fetch(name, their_producer.address, NBYTES) == "ready"
    assert node.bytes_of(name) == data
    assert node.plane.posted == ([1, 2] if late else [1])
    assert node.counters()["reads_done"] == 1
    assert node.counters().get("late_reads", 0) == late
    node.whole()


@pytest.mark.clause("EC-5.2")
def test_blocks_reused_after_the_lease_are_not_read(builtins, ours):
    """F1 with its lease over and its blocks in use for something else."""
    producer, node = builtins("ec_producer", ROWS + 8), ours("ec_consumer", fetch_budget_s=50.0)
    name, _, _ = producer.save()
    reused: list[bool] = []

    def a_lease_later() -> None:
        producer.tell("advance", seconds=TIMING_LEASE_S)
        until(producer.no_grants, "the end of its lease")
        producer.save()
        reused.append(name not in producer.tell("pins"))
        node.clock.advance(TIMING_LEASE_S)

    node.plane.before_prepare = a_lease_later
    # Asked again it does not have it any more.
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert reused == [True]
    node.whole()
    assert node.plane.posted == []
    assert (node.counters()["fence_closed"], node.counters()["refused"]) == (1, 1)


@pytest.mark.clause("EC-5.6")
def test_the_end_of_one_attempt_does_not_end_anothers_grant(their_producer, our_consumer):
    """F2. Attempt 1 is given up before its answer; its notice comes while grant 2 runs."""
    producer, node = their_producer, our_consumer
    name, data, _ = producer.save()
    producer.hold()
    node.plane.withhold = True
    node.ask(name, producer.address, NBYTES, "first")
    node.after(node.reads.timing.fetch_budget_s)
    assert node.fetch(name, producer.address, NBYTES, "first") == "failed"
    node.whole()
    producer.step_until(lambda: node.plane.withheld, "the answer that nobody waits for")
    (first,) = producer.grants()
    left: list[list[str]] = []

    def only_the_second_is_left() -> None:
        assert len(producer.grants()) == 2
        node.plane.let_go()
        producer.step_until(
            lambda: [node.plane.poll(), first not in producer.grants()][1], "the end of grant 1"
        )
        left.append(producer.grants())

    node.plane.before_prepare = only_the_second_is_left
    assert node.ask(name, producer.address, NBYTES, "second") == "pending"
    producer.step_until(lambda: left, "the notice of attempt 1")
    assert node.fetch(name, producer.address, NBYTES, "second") == "ready"
    assert node.bytes_of(name) == data
    ((second,),) = left
    assert second.partition(":")[0] != first.partition(":")[0]
    producer.step_until(producer.no_grants, "the notice of attempt 2")
    assert node.counters()["stale_acks"] == 1


@pytest.mark.clause("EC-5.11")
def test_a_request_that_leaves_releases_its_grant(their_producer, our_consumer):
    """Aborted while the answer is under way: nothing stays pinned there or held here."""
    producer, node = their_producer, our_consumer
    name, _, _ = producer.save()
    producer.hold()
    assert node.ask(name, producer.address, NBYTES) == "pending"
    node.node.waiters.leave("request", node.clock())
    node.whole()
    producer.step_until(lambda: node.plane.notified, "the answer that nobody waits for")
    producer.step_until(producer.no_grants, "the release of its grant")
    assert node.counters()["stale_acks"] == 1
    assert node.plane.posted == []
    node.whole()


# --------------------------------------------------------------------------- refusals
@pytest.mark.clause("EC-8.5")
def test_an_encoding_that_it_does_not_have_falls_back_at_once(their_producer, our_consumer):
    assert our_consumer.fetch("0" * 64, their_producer.address, NBYTES) == "failed"
    counters = our_consumer.counters()
    assert counters["refused"] == 1
    assert counters.get("retries", 0) == counters.get("ack_timeouts", 0) == 0
    our_consumer.whole()


@pytest.mark.clause("EC-5.8", "EC-8.5")
def test_a_save_that_has_not_landed_is_asked_for_again(their_producer, our_consumer):
    producer, node = their_producer, our_consumer
    name, data, params = producer.save(land=False)
    assert params[name]["peer_port"] == producer.port
    assert node.ask(name, producer.address, NBYTES) == "pending"
    for number in range(1, 4):
        node.count("retries", number)
        node.after(0.25)
    producer.tell("report", saves=[name])
    node.after(0.25)
    assert node.fetch(name, producer.address, NBYTES) == "ready"
    assert node.bytes_of(name) == data
    assert node.counters().get("ack_timeouts", 0) == 0


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(their_producer, our_consumer):
    node = our_consumer
    node.reads.attempts.compat_hash = wire.compatibility_hash(RELEASE, "other", "x", BLOCK)
    name, _, _ = their_producer.save(1)
    assert node.fetch(name, their_producer.address, BLOCK) == "failed"
    assert node.counters()["refused"] == 1
    assert node.counters().get("ack_timeouts", 0) == 0


@pytest.mark.clause("EC-8.2")
def test_a_release_of_version_1_is_asked_again_in_version_1(builtins, our_consumer):
    producer, node = builtins("ec_producer", version=1), our_consumer
    for _ in range(2):
        name, data, _ = producer.save()
        assert node.fetch(name, producer.address, NBYTES) == "ready"
        assert node.bytes_of(name) == data
    # The peer's version is remembered: one refusal, not one per encoding.
    assert node.counters()["retries"] == 1


@pytest.mark.clause("EC-8.2")
def test_a_release_that_speaks_neither_version_is_given_up(builtins, our_consumer):
    producer, node = builtins("ec_producer", version=3), our_consumer
    name, _, _ = producer.save(1)
    assert node.fetch(name, producer.address, BLOCK) == "failed"
    assert (node.counters()["retries"], node.counters()["refused"]) == (1, 1)
    node.whole()


# ------------------------------------------------------------------- loss and restart
@pytest.mark.clause("EC-6.1", "EC-6.2", "EC-14.8")
def test_killed_under_a_read_it_costs_a_fall_back(their_producer, our_consumer):
    producer, node = their_producer, our_consumer
    warm, data, _ = producer.save(1)
    assert node.fetch(warm, producer.address, len(data)) == "ready"
    name, _, _ = producer.save()
    node.plane.before_post = producer.kill
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.tier.quarantined_blocks == ROWS
    node.reader_exits()
    node.whole()
    assert (node.counters()["lost"], node.counters()["exited"]) == (1, 1)


@pytest.mark.clause("EC-6.1", "EC-6.4")
def test_stopped_under_a_read_its_blocks_are_held_until_the_read_is_over(
    their_producer, our_consumer
):
    """F5. The request falls back in time; the late bytes hit blocks that nobody uses."""
    producer, node = their_producer, our_consumer
    warm, data, _ = producer.save(1)
    assert node.fetch(warm, producer.address, len(data)) == "ready"
    name, _, _ = producer.save()
    node.plane.before_post = producer.stop
    assert node.ask(name, producer.address, NBYTES) == "pending"
    until(lambda: node.plane.posted == [1, 2], "the READ")
    node.after(node.reads.timing.read_timeout_s)
    node.count("read_timeouts")
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.tier.quarantined_blocks == ROWS
    producer.resume()
    node.count("quarantine_ended_completed")
    node.whole()
    assert node.counters()["reads_done"] == 1


@pytest.mark.clause("EC-9.1")
def test_stopped_it_is_lost_within_the_heartbeat(their_producer, ours):
    producer = their_producer
    node = ours("ec_consumer", heartbeat_timeout_s=4.0, heartbeat_ttl_s=8.0)
    warm, data, _ = producer.save(1)
    assert node.fetch(warm, producer.address, len(data)) == "ready"
    name, _, _ = producer.save()
    producer.stop()
    # The ack's own timeout is twenty seconds away.
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.counters()["peers_lost"] == 1
    assert node.counters().get("ack_timeouts", 0) == 0
    node.whole()


@pytest.mark.clause("EC-9.3")
def test_another_process_at_its_address_is_read_by_its_own_metadata(
    their_producer, builtins, our_consumer
):
    """F8. Nothing that the dead one granted or described is used for its successor."""
    producer, node = their_producer, our_consumer
    warm, data, _ = producer.save(1)
    assert node.fetch(warm, producer.address, len(data)) == "ready"
    producer.kill()
    node.count("peers_lost")
    second = builtins("ec_producer", port=producer.port)
    name, data, _ = second.save()
    # The address cools down after the loss; whoever asks meanwhile encodes.
    assert node.fetch(name, second.address, NBYTES, "too soon") == "failed"
    node.after(node.reads.timing.heartbeat_timeout_s)
    assert node.fetch(name, second.address, NBYTES, "later") == "ready"
    assert node.bytes_of(name) == data
