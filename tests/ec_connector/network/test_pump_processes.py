# SPDX-License-Identifier: Apache-2.0
"""A consumer's pump against a producer in another process, which is stopped and killed.

The producer is stopped just before the READ is posted, so that what happens next does
not depend on who is faster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.network.data import library
from tests.world.instance import BLOCK, NBYTES, Node, Producer
from tests.world.processes import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENT = {"heartbeat_timeout_s": 60.0, "heartbeat_ttl_s": 60.0}
FAST_HEARTBEAT = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 0.5, "heartbeat_ttl_s": 1.0}


class BeforePost:
    """A data plane that calls something before it posts a READ, once it is ``armed``."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._reader: Any = None
        self.armed = False
        self.posted = threading.Event()

    def wrap(self, reader: Any) -> BeforePost:
        self._reader = reader
        return self

    def post(self, attempt_id: int) -> None:
        if not self.armed:
            self._reader.post(attempt_id)
            return
        self.armed = False
        self._call()
        try:
            self._reader.post(attempt_id)
        finally:
            self.posted.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Producer]]:
    made: list[Producer] = []
    yield made
    for producer in made:
        producer.kill()


@pytest.fixture
def producer(pool: list[Producer]) -> Iterator[Producer]:
    """One that lives and runs; a test may kill it, the next one gets another."""
    while pool and pool[-1].process.poll() is not None:
        pool.pop()
    if not pool:
        pool.append(Producer())
    yield pool[-1]
    pool[-1].resume()


@pytest.fixture
def consumers(producer: Producer) -> Iterator[Callable[..., Node]]:
    """Makes a consumer that calls ``before_post`` once; closed before the producer ends."""
    made: list[Node] = []

    def make(before_post: Callable[[], None], **timing: float) -> Node:
        # A connection first, so that the READ does not also wait for one.
        warm, warm_bytes = producer.save(BLOCK)
        plane = BeforePost(before_post)
        node = Node("ec_consumer", 512, extra=timing, wrap_reader=plane.wrap)
        node.posted, node.plane = plane.posted, plane
        made.append(node)
        assert node.fetch(warm, producer.address, BLOCK) == "ready"
        assert node.bytes_of(warm) == warm_bytes
        plane.armed = True
        return node

    yield make
    for node in made:
        node.close()


def count(node: Node, counter: str, at_least: int = 1) -> None:
    until(lambda: node.counters().get(counter, 0) >= at_least, counter, 60.0)


def only_warm_is_left(node: Node) -> bool:
    """Whether every block but the warm entry's is free again."""
    with node.lock:
        node.tier.check()
        return node.tier.free_blocks == node.tier.num_blocks - 1


def test_bytes_of_another_process_arrive_bit_for_bit(producer, consumers):
    node = consumers(lambda: None)
    content = dict(producer.save(NBYTES - cut) for cut in range(3))
    completed = producer.tell("counters").get("completed", 0)
    for mm_hash, data in content.items():
        assert node.fetch(mm_hash, producer.address, len(data)) == "ready"
        assert node.bytes_of(mm_hash) == data
    until(lambda: producer.tell("counters")["completed"] == completed + 3, "the notices")
    assert node.counters()["bytes_read"] == BLOCK + sum(map(len, content.values()))


@pytest.mark.clause("EC-6.1", "EC-6.2")
def test_a_producer_killed_in_mid_read_costs_a_fall_back(producer, consumers):
    node = consumers(producer.stop, **PATIENT)
    name, _ = producer.save()
    assert node.ask(name, producer.address, NBYTES) == "pending"
    assert node.posted.wait(60)
    producer.kill()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    # The endpoint reports the death, is torn down, and the blocks are as good as new.
    count(node, "quarantine_ended_endpoint_closed")
    assert only_warm_is_left(node)
    assert node.p2p.healthy


def test_a_producer_killed_before_the_post_costs_a_fall_back(producer, consumers):
    node = consumers(producer.kill, **PATIENT)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    count(node, "quarantine_ended_endpoint_closed")
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-6.4", "EC-6.5", "EC-9.1")
def test_a_producer_that_wakes_up_completes_its_quarantined_read(producer, consumers):
    node = consumers(producer.stop, **FAST_HEARTBEAT)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.counters()["peers_lost"] == 1
    with node.lock:
        assert node.tier.quarantined_blocks == 101
    producer.resume()
    count(node, "quarantine_ended_completed")
    with node.lock:
        assert node.tier.get(name) is None, "nobody waits for it any more"
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-6.2")
def test_a_producer_that_never_wakes_up_is_cut_off_before_the_blocks_are_retired(
    producer, consumers
):
    node = consumers(producer.stop, **FAST_HEARTBEAT, read_timeout_s=2.0, quarantine_s=4.0)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    count(node, "quarantine_ended_endpoint_closed")
    assert node.counters().get("retired", 0) == 0
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-6.3")
def test_without_a_proof_the_blocks_are_retired_and_a_late_one_brings_them_back(
    producer, consumers, monkeypatch
):
    monkeypatch.setattr(library, "TEARDOWN_PROVES", frozenset())
    node = consumers(producer.stop, **FAST_HEARTBEAT, read_timeout_s=1.0, quarantine_s=1.0)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    count(node, "retired")
    with node.lock:
        assert node.tier.retired_blocks == 101
        node.tier.check()
    producer.resume()
    count(node, "reclaimed")
    with node.lock:
        assert node.tier.retired_blocks == 0
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-5.9")
def test_a_read_that_takes_too_long_falls_back(producer, consumers):
    node = consumers(producer.stop, **PATIENT, read_timeout_s=0.5)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.counters()["read_timeouts"] == 1
    producer.resume()
    count(node, "quarantine_ended_completed")
    # The endpoint was given up; the next READ goes through a fresh one.
    other, data = producer.save()
    assert node.fetch(other, producer.address, NBYTES, "other") == "ready"
    assert node.bytes_of(other) == data


@pytest.mark.clause("EC-9.2", "EC-9.3")
def test_the_next_process_at_the_address_is_another_producer(producer, consumers):
    node = consumers(lambda: None, **FAST_HEARTBEAT)
    port = producer.address[1]
    producer.kill()
    count(node, "peers_lost")
    second = Producer(port)
    try:
        name, data = second.save()

        def arrived() -> bool:
            # Every attempt is a new request; the address cools down after the loss.
            return node.ask(name, second.address, NBYTES, os.urandom(4).hex()) == "ready"

        until(arrived, "the second producer's bytes", 60.0)
        assert node.bytes_of(name) == data
    finally:
        second.kill()


@pytest.mark.clause("EC-6.1", "EC-6.4", "EC-9.2", "EC-9.3")
def test_stopped_and_killed_in_mid_read_and_started_again(producer, consumers):
    """Everything at once; ``tests/traces/chaos-kill-restart`` is a record of it."""
    node = consumers(producer.stop, **FAST_HEARTBEAT)
    plane = node.plane
    content = dict(producer.save(NBYTES - cut) for cut in range(4))
    asleep, killed, *others = content

    # Stopped under a READ: lost with its peer, proven over when the process goes on.
    assert node.fetch(asleep, producer.address, NBYTES, "r1") == "failed"
    producer.resume()
    count(node, "quarantine_ended_completed")

    def arrived(mm_hash: str, source: Producer, data: bytes) -> None:
        # Every attempt is a new request; the address cools down after a loss.
        def ready() -> bool:
            return node.ask(mm_hash, source.address, len(data), os.urandom(4).hex()) == "ready"

        until(ready, "the bytes", 60.0)
        assert node.bytes_of(mm_hash) == data

    for mm_hash in others:
        arrived(mm_hash, producer, content[mm_hash])

    # Killed under a READ, and another process at its address.
    plane.armed = True
    plane.posted.clear()
    assert node.ask(killed, producer.address, NBYTES - 1, "r2") == "pending"
    assert plane.posted.wait(60)
    producer.kill()
    assert node.fetch(killed, producer.address, NBYTES - 1, "r2") == "failed"
    count(node, "quarantine_ended_endpoint_closed")
    second = Producer(producer.address[1])
    try:
        for _ in range(2):
            mm_hash, data = second.save()
            arrived(mm_hash, second, data)
    finally:
        second.kill()
