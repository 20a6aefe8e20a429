# SPDX-License-Identifier: Apache-2.0
"""A reader against a producer in another process, whose server is stopped and killed.

The producer is stopped just before the READ is posted, so that what happens next does
not depend on who is faster.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from tests.ec_connector.network.data_driver import until
from tests.ec_connector.network.inside import Inside
from tests.world.instance import BLOCK, NBYTES, Producer, wait_for
from tests.world.processes import stop

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PATIENT = {"heartbeat_timeout_s": 60.0, "heartbeat_ttl_s": 60.0}
FAST_HEARTBEAT = {
    "heartbeat_interval_s": 0.1,
    "heartbeat_timeout_s": 0.5,
    "heartbeat_ttl_s": 1.0,
}


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


class Serving(Producer):
    """A producer, and the process that serves for it."""

    @property
    def server(self) -> int:
        found: list[int] = []

        def there() -> bool:
            pids = self.tell("pids")
            found[:] = [pid for who, pid in pids.items() if who.startswith("server")]
            return bool(found)

        until(there, "a server")
        return found[0]

    def server_stops(self) -> None:
        self.stopped = self.server
        stop(self.stopped)

    def server_resumes(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.stopped, signal.SIGCONT)

    def server_dies(self) -> None:
        """It is gone; nothing else moves meanwhile."""
        server = self.server
        os.kill(server, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{server}"), "its end")


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Serving]]:
    made: list[Serving] = []
    yield made
    for producer in made:
        producer.kill()


@pytest.fixture
def producer(pool: list[Serving]) -> Iterator[Serving]:
    """One that lives and runs; its server may be stopped or killed."""
    if not pool:
        # Nobody but a test is to end a server that stands still.
        pool.append(Serving(data_start_s=120.0, data_stall_s=55.0))
    producer = pool[-1]
    producer.stopped = 0
    yield producer
    if producer.stopped:
        producer.server_resumes()


@pytest.fixture
def consumers(producer: Producer) -> Iterator[Callable[..., Inside]]:
    """Makes a consumer that calls ``before_post`` once; closed before the producer ends."""
    made: list[Inside] = []

    def make(before_post: Callable[[], None], **timing: float) -> Inside:
        # A connection first, so that the READ does not also wait for one.
        warm, warm_bytes = producer.save(BLOCK)
        plane = BeforePost(before_post)
        node = Inside("ec_consumer", 512, extra=timing, wrap_reader=plane.wrap)
        node.posted, node.plane = plane.posted, plane
        made.append(node)
        # A server that stood still in the test before may just be replaced.
        tries = itertools.count()

        def arrived() -> bool:
            return node.fetch(warm, producer.address, BLOCK, f"warm{next(tries)}") == "ready"

        wait_for(arrived, "a connection")
        assert node.bytes_of(warm) == warm_bytes
        node.lost_before = node.counters()["peers_lost"]
        plane.armed = True
        return node

    yield make
    for node in made:
        node.close()


def count(node: Inside, counter: str, at_least: int = 1) -> None:
    node.wait_count(counter, at_least)


def completions(producer: Serving) -> int:
    """Grants that peers have given back; what is not counted yet is not there."""
    return int(producer.tell("counters").get("completed", 0))


def only_warm_is_left(node: Inside) -> bool:
    """Whether every block but the warm entry's is free again."""
    node.tier.check()
    return node.tier.free_blocks == node.tier.num_blocks - 1


def test_bytes_of_another_process_arrive_bit_for_bit(producer, consumers):
    node = consumers(lambda: None)
    content = dict(producer.save(NBYTES - cut) for cut in range(3))
    completed = completions(producer)
    for mm_hash, data in content.items():
        assert node.fetch(mm_hash, producer.address, len(data)) == "ready"
        assert node.bytes_of(mm_hash) == data
    wait_for(lambda: completions(producer) >= completed + 3, "the notices")
    assert node.counters()["bytes_read"] == BLOCK + sum(map(len, content.values()))


@pytest.mark.clause("EC-6.1", "EC-6.2", "EC-14.8", "EC-14.9")
@pytest.mark.parametrize("when", ["in mid-READ", "before the post"])
def test_a_server_that_is_killed_costs_a_fall_back(producer, consumers, when):
    node = consumers(
        producer.server_stops if when == "in mid-READ" else producer.server_dies, **PATIENT
    )
    name, _ = producer.save()
    assert node.ask(name, producer.address, NBYTES) == "pending"
    wait_for(node.posted.is_set, "the READ")
    if when == "in mid-READ":
        os.kill(producer.stopped, signal.SIGKILL)
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.tier.quarantined_blocks == 101
    heard = []
    wait_for(lambda: heard.extend(node.parent.hear()) or heard, "the word to its parent")
    # The error proves nothing; the end of the process that reads does.
    node.reader_exits()
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-6.4", "EC-6.5", "EC-9.1")
def test_a_server_that_wakes_up_completes_the_quarantined_read(producer, consumers):
    node = consumers(producer.server_stops, **FAST_HEARTBEAT)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.counters()["peers_lost"] == node.lost_before + 1
    assert node.tier.quarantined_blocks == 101
    producer.server_resumes()
    count(node, "proven")
    assert node.tier.get(name) is None, "nobody waits for it any more"
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-6.3", "EC-14.9")
def test_without_a_proof_the_blocks_are_retired_and_a_late_one_brings_them_back(
    producer, consumers
):
    timing = {"read_timeout_s": 1.0, "data_drain_s": 0.5, "data_stall_s": 0.5}
    node = consumers(producer.server_stops, **FAST_HEARTBEAT, **timing, quarantine_s=1.0)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    count(node, "retireloan")
    assert node.tier.retired_blocks == 101
    node.tier.check()
    producer.server_resumes()
    wait_for(lambda: node.tier.retired_blocks == 0, "the proof")
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-5.9")
def test_a_read_that_takes_too_long_falls_back(producer, consumers):
    node = consumers(producer.server_stops, **PATIENT, read_timeout_s=0.5)
    name, _ = producer.save()
    assert node.fetch(name, producer.address, NBYTES) == "failed"
    assert node.counters()["read_timeouts"] == 1
    producer.server_resumes()
    count(node, "proven")
    assert only_warm_is_left(node)


@pytest.mark.clause("EC-9.2", "EC-9.3")
def test_the_next_process_at_the_address_is_another_producer(producer, consumers):
    node = consumers(lambda: None, **FAST_HEARTBEAT)
    before, data = producer.save()
    producer.server_dies()
    count(node, "peers_lost", node.lost_before + 1)
    after, more = producer.save()
    for name, content in ((before, data), (after, more)):

        def arrived(name: str = name) -> bool:
            # Every attempt is a new request; the address cools down after the loss.
            return node.ask(name, producer.address, NBYTES, os.urandom(4).hex()) == "ready"

        wait_for(arrived, "the second server's bytes", 60.0)
        assert node.bytes_of(name) == content
