# SPDX-License-Identifier: Apache-2.0
"""Our consumer reads from vLLM's own producer: real sockets, NIXL and regions, two processes.

Its answers name neither attempt nor lease, so every safeguard is ours: the attempt is
folded into ``session_id``, and the fence comes from our own clock and ``pin_lease_s``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("nixl")
pytest.importorskip("zmq")

from ec_protocol import wire
from tests.ec_connector.pair import BLOCK, wait_for
from tests.interop.driver import RELEASE, Builtin, Ours, marks

pytestmark = marks

ROWS = 40
NBYTES = ROWS * BLOCK
FAST_HEARTBEAT = {
    "heartbeat_interval_s": 0.1,
    "heartbeat_timeout_s": 0.5,
    "heartbeat_ttl_s": 1.0,
}


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Builtin]]:
    made: list[Builtin] = []
    yield made
    for producer in made:
        producer.close()


@pytest.fixture
def builtin(pool: list[Builtin]) -> Iterator[Builtin]:
    """A producer that lives and steps; a test may kill it, the next one gets another."""
    if not pool or pool[-1].process.poll() is not None:
        pool.append(Builtin("ec_producer"))
    pool[-1].tell("run", on=True)
    yield pool[-1]
    pool[-1].resume()


@pytest.fixture
def ours() -> Iterator[Callable[..., Ours]]:
    made: list[Ours] = []

    def make(**timing: float) -> Ours:
        made.append(Ours("ec_consumer", **timing))
        return made[-1]

    yield make
    for node in made:
        node.close()


def no_grants(builtin: Builtin) -> bool:
    """Whether the producer holds no grant and no pin."""
    answer = builtin.tell("grants")
    return not answer["grants"] and not any(pin > 0 for pin in answer["pins"].values())


def count(node: Ours, counter: str, at_least: int = 1) -> None:
    wait_for(lambda: node.counters().get(counter, 0) >= at_least, counter, 60.0)


@pytest.mark.clause("EC-8.4")
def test_both_have_the_same_compatibility_hash(builtin):
    assert builtin.hello["vllm"] == RELEASE
    ours = wire.compatibility_hash(RELEASE, "interop", "torch.bfloat16", BLOCK)
    assert builtin.hello["compat"] == ours


@pytest.mark.clause("EC-5.5", "EC-8.6")
def test_bytes_arrive_bit_for_bit_and_our_notices_end_its_grants(builtin, ours):
    node = ours()
    for rows in (1, 2, 39):
        name, data, _ = builtin.save(rows)
        assert node.fetch(name, builtin.address, len(data)) == "ready"
        assert node.bytes_of(name) == data
    # Far sooner than its lease of 30 s would end them.
    wait_for(lambda: no_grants(builtin), "the completion notices", 10.0)
    assert node.counters()["reads_done"] == 3
    assert node.whole()


@pytest.mark.clause("EC-11.4")
def test_its_announcement_is_understood(builtin, ours):
    from types import SimpleNamespace

    from ec_connector.items import make_item

    node = ours()
    name, data, params = builtin.save(7)
    scheduler = node.instance.scheduler
    scheduler.items = lambda request: request.items
    request = SimpleNamespace(
        request_id="r", ec_transfer_params=params, items=[make_item(name, 7, BLOCK // 2, 2, end=7)]
    )
    wait_for(lambda: scheduler.ensure_cache_available(request, 0), "admission")
    assert scheduler.has_cache_item(name)
    assert node.bytes_of(name) == data


@pytest.mark.clause("EC-5.6")
def test_each_attempt_has_a_grant_of_its_own_there(builtin, ours):
    """F2. Attempt 1 is given up while its answer is late; its end does not end attempt 2's."""
    node = ours(consumer_ack_timeout_s=0.3)
    name, data, _ = builtin.save(ROWS)
    builtin.tell("run", on=False)
    assert node.fetch(name, builtin.address, NBYTES, "first") == "failed"
    assert node.ask(name, builtin.address, NBYTES, "second") == "pending"
    keys: list[str] = []
    node.plane.before_prepare = lambda: keys.extend(builtin.tell("grants")["grants"])
    builtin.tell("run", on=True)
    wait_for(
        lambda: node.ask(name, builtin.address, NBYTES, "second") == "ready", "the second attempt"
    )
    assert node.bytes_of(name) == data
    assert node.counters()["stale_acks"] == 1
    # Attempt 1's was released by its own notice, which may have come before the look.
    assert len({key.partition(":")[0] for key in keys}) == len(keys) >= 1
    wait_for(lambda: no_grants(builtin), "both grants to end", 10.0)


@pytest.mark.clause("EC-5.1", "EC-5.2")
def test_no_read_is_posted_after_the_fence(builtin, ours):
    """F1. The ack is in time, but by the moment of posting the lease is over."""
    node = ours()
    name, _, _ = builtin.save(ROWS)

    def a_lease_later() -> None:
        node.clock.ahead += 30.0

    node.plane.before_prepare = a_lease_later
    assert node.ask(name, builtin.address, NBYTES) == "pending"
    count(node, "fence_closed")
    assert node.plane.posted == []
    assert node.fetch(name, builtin.address, NBYTES) == "failed"
    wait_for(lambda: no_grants(builtin), "the grant's release", 10.0)
    assert node.whole()


@pytest.mark.clause("EC-5.2")
def test_blocks_reused_after_the_lease_are_not_read():
    """F1 with its real lease run out and its blocks in use for something else."""
    builtin = Builtin("ec_producer", ROWS + 8, lease=0.5)
    node = Ours("ec_consumer", pin_lease_s=2.0, consumer_ack_timeout_s=0.2, read_timeout_s=1.0)
    try:
        name, _, _ = builtin.save(ROWS)
        reused: list[bool] = []

        def reuse() -> None:
            wait_for(lambda: no_grants(builtin), "the end of its lease", 20.0)
            builtin.save(ROWS)
            reused.append(name not in builtin.tell("grants")["pins"])
            node.clock.ahead += 2.0

        node.plane.before_prepare = reuse
        assert node.fetch(name, builtin.address, NBYTES) == "failed"
        assert reused == [True]
        assert node.plane.posted == []
        assert node.whole()
    finally:
        node.close()
        builtin.close()


@pytest.mark.clause("EC-5.3")
def test_a_read_that_ends_after_the_fence_is_dropped(builtin, ours):
    """F3. Its bytes are all there, and are not accepted; another attempt brings them."""
    node = ours(read_timeout_s=27.5, fetch_budget_s=80.0)
    name, data, _ = builtin.save(ROWS)

    def wait(seconds: float) -> None:
        node.clock.ahead += seconds

    node.plane.before_prepare = lambda: wait(9.0)
    node.plane.before_post = lambda: wait(20.6)
    assert node.fetch(name, builtin.address, NBYTES) == "ready"
    assert node.bytes_of(name) == data
    assert node.plane.posted == [1, 2]
    assert (node.counters()["late_reads"], node.counters()["reads_done"]) == (1, 1)
    assert node.whole()


@pytest.mark.clause("EC-8.5")
def test_an_encoding_that_it_does_not_have_falls_back_at_once(builtin, ours):
    node = ours()
    assert node.fetch("0" * 64, builtin.address, NBYTES) == "failed"
    counters = node.counters()
    assert counters["refused"] == 1
    assert counters.get("ack_timeouts", 0) == 0
    assert node.whole()


@pytest.mark.clause("EC-5.8", "EC-8.5")
def test_a_save_that_has_not_landed_is_asked_for_again(builtin, ours):
    node = ours()
    name, data, params = builtin.save(ROWS, land=False)
    assert params[name]["peer_port"] == builtin.port
    assert node.ask(name, builtin.address, NBYTES) == "pending"
    count(node, "retries", 3)
    builtin.tell("land", name=name)
    assert node.fetch(name, builtin.address, NBYTES) == "ready"
    assert node.bytes_of(name) == data
    assert node.counters().get("ack_timeouts", 0) == 0


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(builtin, ours):
    node = ours()
    assert node.p2p.consumer is not None
    node.p2p.consumer.compat_hash = wire.compatibility_hash(RELEASE, "other", "x", BLOCK)
    name, _, _ = builtin.save(1)
    assert node.fetch(name, builtin.address, BLOCK) == "failed"
    assert node.counters()["refused"] == 1
    assert node.counters().get("ack_timeouts", 0) == 0


@pytest.mark.clause("EC-8.2")
def test_a_release_of_version_1_is_asked_again_in_version_1():
    builtin = Builtin("ec_producer", version=1)
    node = Ours("ec_consumer")
    try:
        for _ in range(2):
            name, data, _ = builtin.save(ROWS)
            assert node.fetch(name, builtin.address, NBYTES) == "ready"
            assert node.bytes_of(name) == data
        # The peer's version is remembered: one refusal, not one per encoding.
        assert node.counters()["retries"] == 1
    finally:
        node.close()
        builtin.close()


@pytest.mark.clause("EC-6.1", "EC-6.2")
def test_killed_under_a_read_it_costs_a_fall_back(builtin, ours):
    node = ours(heartbeat_timeout_s=60.0, heartbeat_ttl_s=60.0)
    warm, data, _ = builtin.save(1)
    assert node.fetch(warm, builtin.address, len(data)) == "ready"
    name, _, _ = builtin.save(ROWS)
    node.plane.before_post = builtin.kill
    assert node.fetch(name, builtin.address, NBYTES) == "failed"
    count(node, "quarantine_ended_endpoint_closed")
    wait_for(node.whole, "every block back")


@pytest.mark.clause("EC-9.1")
def test_stopped_it_is_lost_within_the_heartbeat(builtin, ours):
    node = ours(**FAST_HEARTBEAT, consumer_ack_timeout_s=5.0)
    warm, data, _ = builtin.save(1)
    assert node.fetch(warm, builtin.address, len(data)) == "ready"
    name, _, _ = builtin.save(ROWS)
    builtin.stop()
    started = node.clock()
    assert node.fetch(name, builtin.address, NBYTES) == "failed"
    assert node.clock() - started < 5.0
    assert node.counters()["peers_lost"] == 1
    assert node.whole()


@pytest.mark.clause("EC-9.3")
def test_another_process_at_its_address_is_read_by_its_own_metadata(builtin, ours):
    """F8. Nothing that the dead one granted or described is used for its successor."""
    node = ours(**FAST_HEARTBEAT)
    warm, data, _ = builtin.save(1)
    assert node.fetch(warm, builtin.address, len(data)) == "ready"
    builtin.kill()
    count(node, "peers_lost")
    second = Builtin("ec_producer", port=builtin.port)
    try:
        name, data, _ = second.save(ROWS)
        asked = iter(range(100_000))
        wait_for(
            # The address cools down after the loss; every waiter is told so once.
            lambda: node.ask(name, second.address, NBYTES, f"w{next(asked)}") == "ready",
            "the second process's bytes",
            60.0,
        )
        assert node.bytes_of(name) == data
    finally:
        second.close()
