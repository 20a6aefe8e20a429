# SPDX-License-Identifier: Apache-2.0
"""The connector of ``docs/build-a-connector.md``: in two processes, and under the kit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("msgspec")


from ec_verify.kit.examples.connector import Connector, load, save
from tests.world.plain import Producer, connector, content, item

pytestmark = pytest.mark.timeout(100)

#: Nothing here takes long; what does is a failure.
LONGEST_S = 30.0
#: More than all socket buffers between two processes can hold.
LARGE = 32 << 10


def descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return {name for name in found if not name.endswith(".ndjson")}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() - before == set()
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a child was not waited for"


@contextlib.contextmanager
def producer(*rows: int, port: int = 0) -> Iterator[Producer]:
    made = Producer(*rows, port=port)
    try:
        yield made
    finally:
        made.close(LONGEST_S)


@contextlib.contextmanager
def here(role: Any, blocks: int, **kw: Any) -> Iterator[Connector]:
    made = connector(role, blocks, **kw)
    try:
        yield made
    finally:
        made.close()


def turn_until(done: Callable[[], bool], *connectors: Connector) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not done():
        assert time.monotonic() < deadline, "waited too long"
        for one in connectors:
            one.turn(0.01)


def all_free(consumer: Connector) -> bool:
    """Nothing is under way, and every block is an encoding's or free."""
    tier = consumer.node.tier
    tier.check()
    return not (consumer.reads or tier.quarantined_blocks or tier.retired_blocks)


def begun(consumer: Connector, request: str, announced: object, rows: int) -> None:
    """The READ for a request has written its first bytes and is not over."""

    def writing() -> bool:
        state = consumer.node.want(item(rows), announced, request, consumer.clock())
        assert state == "pending"
        return any(consumer.region[:16])

    turn_until(writing, consumer)
    assert consumer.reads


# ------------------------------------------------------------------ two processes
def test_encodings_move_between_two_processes_bit_for_bit():
    rows = (1, 3, 4, 5, 64, 1000)
    with producer(*rows) as p, here("consumer", 400) as consumer:
        for n in rows:
            assert load(consumer, item(n), p.announced, f"r{n}") == content(item(n))
        assert p.open_grants() == 0
        # What is here is not asked for again by those who take the same peer's word.
        assert load(consumer, item(64), p.announced, "again") == content(item(64))
        assert load(consumer, item(64), None, "stranger") is None
        assert consumer.node.reads.counters["reads_done"] == len(rows)
        assert all_free(consumer)


def test_the_producer_is_killed_in_the_middle_of_a_transfer():
    with here("consumer", 8 << 10) as consumer:
        first = Producer(LARGE)
        port = first.announced[item(LARGE).mm_hash]["peer_port"]
        begun(consumer, "r", first.announced, LARGE)
        first.kill()
        first.close()
        # The request falls back, long before a timer would let it.
        began = time.monotonic()
        assert load(consumer, item(LARGE), first.announced, "r") is None
        turn_until(lambda: all_free(consumer), consumer)
        assert time.monotonic() - began < consumer.node.timing.read_timeout_s
        assert consumer.node.tier.free_blocks == 8 << 10
        assert consumer.node.reads.counters["quarantine_ended_endpoint_closed"] == 1
        assert consumer.node.reads.idle
        # Another process at the same address, once that is tried again.
        with producer(2, 7, LARGE, port=port) as second:
            requests = iter(range(1000))
            got: list[bytes] = []

            def fetched() -> bool:
                encoding = load(consumer, item(7), second.announced, f"s{next(requests)}")
                got.extend([encoding] if encoding else [])
                return bool(got)

            turn_until(fetched, consumer)
            assert got == [content(item(7))]
            assert load(consumer, item(LARGE), second.announced, "t") == content(item(LARGE))
            assert second.open_grants() == 0


def test_a_consumer_that_is_gone_costs_the_producer_nothing():
    with producer(LARGE, 3) as p:
        with here("consumer", 8 << 10) as consumer:
            begun(consumer, "r", p.announced, LARGE)
        with here("consumer", 8) as other:
            assert load(other, item(3), p.announced, "r") == content(item(3))


# ------------------------------------------------------------- what a shell must do
@pytest.fixture
def both() -> Iterator[tuple[Connector, Connector, dict[str, Any]]]:
    with here("producer", 8 << 10) as serving, here("consumer", 8 << 10) as reading:
        yield serving, reading, save(serving, item(LARGE), content(item(LARGE)))


def shift(one: Connector, seconds: float) -> None:
    """Its clock goes on, as if the process had stood still."""
    before = one.clock
    one.clock = lambda: before() + seconds


def test_a_read_is_posted_only_if_it_still_may_be_when_there_is_a_connection(both):
    serving, reading, announced = both
    node = reading.node
    node.want(item(LARGE), announced, "r", reading.clock())
    prepared: list[Any] = []
    dial = reading.dial_data
    reading.dial_data = lambda *to: prepared.append(dial(*to)) or prepared[-1]
    turn_until(lambda: bool(prepared), reading, serving)
    # There is no connection yet, and by then nothing of the lease is left.
    shift(reading, node.timing.lease_s)
    turn_until(lambda: node.reads.counters["fence_closed"] == 1, reading, serving)
    assert not any(reading.region)
    turn_until(lambda: serving.node.grants.open_grants == 0, reading, serving)
    # What brought the notice is closed, and so is by now what nobody asked over.
    turn_until(lambda: len(reading.selector.get_map()) == 0, reading, serving)


def test_nothing_is_served_before_the_last_byte(both):
    serving, reading, announced = both
    turned = 0

    def ready() -> bool:
        nonlocal turned
        turned += 1
        state = reading.node.want(item(LARGE), announced, "r", reading.clock())
        if state == "ready":
            return True
        assert not reading.node.promise(item(LARGE).mm_hash, waiter="r")
        return False

    turn_until(ready, reading, serving)
    assert turned > 10
    assert reading.node.promise(item(LARGE).mm_hash, waiter="r")
    assert load(reading, item(LARGE), announced, "r") == content(item(LARGE))


def test_a_read_that_stands_still_gives_its_blocks_back(both):
    serving, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    turn_until(lambda: any(reading.region[:16]), reading, serving)
    shift(reading, reading.node.timing.read_timeout_s)
    assert load(reading, item(LARGE), announced, "r") is None
    assert all_free(reading)
    assert reading.node.tier.free_blocks == 8 << 10
    assert reading.node.reads.counters["read_timeouts"] == 1
    # The proof is true: nothing is left through which the producer could write.
    assert len(reading.selector.get_map()) == 1


def test_a_grant_stands_until_the_last_byte_has_left(both):
    serving, reading, announced = both
    grants, region = serving.node.grants, serving.region
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    turn_until(lambda: any(reading.region[:16]), reading, serving)
    # The reader takes nothing: what the sockets hold is all that can leave.
    for _ in range(100):
        serving.turn(0.0)
    assert grants.open_grants == 1
    turn_until(lambda: grants.open_grants == 0, reading, serving)
    # Whatever is still on its way is not in the region any more.
    region[:] = bytes(len(region))
    assert load(reading, item(LARGE), announced, "r") == content(item(LARGE))


def test_a_turn_ends_when_the_next_timer_runs_out(both):
    _, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    reading.turn(0.0)
    shift(reading, reading.node.timing.ack_timeout_s - 0.05)
    began = time.monotonic()
    while reading.node.want(item(LARGE), announced, "r", reading.clock()) == "pending":
        reading.turn(LONGEST_S)
    assert time.monotonic() - began < LONGEST_S / 2


def test_a_data_plane_that_is_not_there_lets_the_request_fall_back(both):
    serving, reading, announced = both
    serving.node.offer(b"nonsense")
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    counters = reading.node.reads.counters
    turn_until(lambda: counters["post_failed"] == 1, reading, serving)
    assert load(reading, item(LARGE), announced, "r") is None


def test_a_connection_that_is_made_is_told_before_anybody_answers(both):
    _, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    peers = reading.node.reads.attempts.peers
    turn_until(lambda: [peer.state for peer in peers.usable()] == ["live"], reading)


def test_a_peer_that_nobody_asks_any_more_is_disconnected(both):
    serving, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    turn_until(lambda: reading.node.reads.idle, reading, serving)
    assert len(reading.selector.get_map()) == 1
    shift(reading, 100 * reading.node.timing.heartbeat_ttl_s)
    turn_until(lambda: len(reading.selector.get_map()) == 0, reading)
    # Two who listen are left.
    turn_until(lambda: len(serving.selector.get_map()) == 2, serving)


def test_the_orderly_end_ends_every_grant(both):
    serving, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    turn_until(lambda: serving.node.grants.open_grants == 1, reading, serving)
    serving.close()
    assert serving.node.grants.open_grants == 0


def test_the_orderly_end_proves_every_read(both):
    serving, reading, announced = both
    reading.node.want(item(LARGE), announced, "r", reading.clock())
    turn_until(lambda: any(reading.region[:16]), reading, serving)
    reading.close()
    assert all_free(reading)
    assert reading.node.tier.free_blocks == 8 << 10
