# SPDX-License-Identifier: Apache-2.0
"""The pump between two instances in one process: real regions, real ZMQ, real NIXL."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_connector.network.control import BindError
from ec_connector.network.data import DataPlaneConfigError, DataPlaneError
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferReq, XferStatus
from tests.ec_connector.network.pair import BLOCK, FACTS, Node, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def producer() -> Iterator[Node]:
    with Node("ec_producer") as node:
        yield node


@pytest.fixture
def consumer() -> Iterator[Node]:
    with Node("ec_consumer") as node:
        yield node


@pytest.mark.parametrize("nbytes", [1, BLOCK, 3 * BLOCK + 7, 20 * BLOCK])
def test_bytes_arrive_and_the_grant_is_released(
    producer: Node, consumer: Node, nbytes: int
) -> None:
    data = os.urandom(nbytes)
    producer.save("a", data)
    assert consumer.fetch("a", producer.address, nbytes) == "ready"
    assert consumer.bytes_of("a") == data
    wait_for(lambda: producer.counters().get("completed") == 1, "the completion notice")
    with producer.lock:
        producer.tier.check()
        assert producer.tier.evictable_blocks == producer.tier.blocks_for(nbytes)


def test_source_and_destination_in_several_pieces(producer: Node, consumer: Node) -> None:
    for node in (producer, consumer):
        with node.lock:  # every second one lands first and is evicted first: holes of four blocks
            saves = [node.begin_save(f"f{index}", 4 * BLOCK) for index in range(16)]
            parity = 0 if node is producer else 1
            for save in saves[parity::2] + saves[1 - parity :: 2]:
                node.end_save(save, os.urandom(4 * BLOCK))
    data = os.urandom(7 * BLOCK + 11)
    assert len(producer.save("a", data).extents) == 2
    assert consumer.fetch("a", producer.address, len(data)) == "ready"
    assert consumer.bytes_of("a") == data


def test_many_encodings_and_both_roles_at_once() -> None:
    with Node("ec_both", 128) as left, Node("ec_both", 128) as right:
        rng = random.Random(7)
        sizes = {f"x{i}": rng.randrange(1, 4 * BLOCK) for i in range(12)}
        data = {name: os.urandom(size) for name, size in sizes.items()}
        for index, (name, content) in enumerate(data.items()):
            (left if index % 2 else right).save(name, content)
        pairs = [(right, left) if i % 2 else (left, right) for i in range(12)]
        for (reader, source), name in zip(pairs, data, strict=True):
            reader.ask(name, source.address, sizes[name])
        for (reader, source), name in zip(pairs, data, strict=True):
            assert reader.fetch(name, source.address, sizes[name]) == "ready"
            assert reader.bytes_of(name) == data[name]


@pytest.mark.clause("EC-5.8")
def test_a_save_that_lands_later_costs_latency_only(producer: Node, consumer: Node) -> None:
    data = os.urandom(2 * BLOCK)
    with producer.lock:
        save = producer.begin_save("a", len(data))
    assert consumer.ask("a", producer.address, len(data)) == "pending"
    wait_for(lambda: consumer.counters().get("retries", 0) >= 2, "retries")
    with consumer.lock:
        destination = consumer.tier.get("a")
        assert destination is not None
        extents = destination.extents
    with producer.lock:
        producer.end_save(save, data)
    assert consumer.fetch("a", producer.address, len(data)) == "ready"
    assert consumer.bytes_of("a") == data
    with consumer.lock:
        landed = consumer.tier.get("a")
        assert landed is destination
        assert landed.extents == extents, "the retry kept its blocks"


def test_what_the_producer_does_not_have_falls_back(producer: Node, consumer: Node) -> None:
    assert consumer.fetch("nothing", producer.address, BLOCK) == "failed"
    assert producer.counters()["nack_missing"] == 1
    with consumer.lock:
        assert consumer.tier.free_blocks == consumer.tier.num_blocks


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(producer: Node) -> None:
    producer.save("a", b"x" * BLOCK)
    with Node("ec_consumer", facts=dataclasses.replace(FACTS, model="other")) as other:
        assert other.fetch("a", producer.address, BLOCK) == "failed"
    assert producer.counters()["nack_incompat"] == 1


@pytest.mark.clause("EC-8.3")
def test_an_announcement_of_another_size_is_refused(producer: Node, consumer: Node) -> None:
    producer.save("a", b"x" * BLOCK)
    assert consumer.fetch("a", producer.address, 2 * BLOCK) == "failed"
    assert consumer.counters()["unusable_acks"] == 1
    wait_for(lambda: producer.counters().get("completed") == 1, "the grant's release")


@pytest.mark.clause("EC-9.1")
def test_nobody_at_the_address(consumer: Node) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert consumer.fetch("a", ("127.0.0.1", port), BLOCK) == "failed"
    assert consumer.counters()["peers_lost"] == 1
    assert consumer.fetch("b", ("127.0.0.1", port), BLOCK) == "failed"
    assert consumer.counters()["peer_cooling"] == 1


@pytest.mark.clause("EC-9.2")
def test_producer_restart_on_the_same_port(consumer: Node) -> None:
    first = Node("ec_producer")
    host, port = first.address
    first.save("a", b"1" * BLOCK)
    assert consumer.fetch("a", (host, port), BLOCK) == "ready"
    first.close()
    wait_for(lambda: consumer.counters().get("peers_lost") == 1, "the loss")
    with Node("ec_producer", bind=(host, port)) as second:
        second.save("b", b"2" * BLOCK)
        with consumer.lock:  # as after the cool-down
            assert consumer.node.reads is not None
            consumer.node.reads.attempts.peers.cooldown_s = 0.0
        assert consumer.fetch("b", second.address, BLOCK) == "ready"
        assert consumer.bytes_of("b") == b"2" * BLOCK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_in_use_is_a_typed_error_and_leaves_nothing(producer: Node, host: str) -> None:
    threads = threading.active_count()
    with pytest.raises(BindError, match="VLLM_EC_SIDE_CHANNEL_PORT") as caught:
        Node("ec_producer", bind=(host, producer.address[1]))
    assert str(producer.address[1]) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert threading.active_count() == threads


def test_unknown_backend_is_a_typed_error() -> None:
    with pytest.raises(DataPlaneConfigError, match="NOPE"):
        Node("ec_consumer", extra={"ec_nixl_backends": ["NOPE"]})


# --------------------------------------------------------------------- hostile peers
def ask_raw(dealer: zmq.Socket[bytes], frames: list[bytes]) -> None:
    dealer.send_multipart(frames)


@pytest.mark.clause("EC-8.1")
def test_the_server_survives_whatever_comes_and_goes_on_serving(
    producer: Node, consumer: Node
) -> None:
    producer.save("a", b"a" * BLOCK)
    rng = random.Random(11)
    good = wire.encode(XferReq(mm_hash="a", compatibility_hash="x", session_id="s.1"))
    bad: list[list[bytes]] = [
        [],
        [b""],
        [good],
        [b"x", good],
        [b"", good, b"more"],
        [b"", b""],
        [b"", b"\xc1"],
        [b"", good[:-1]],
        [b"", b"\x81\xa4type\xa3req"],
        [b"", b"\x81\xa4type\xa3ack"],
        [b"", b"\x82\xa4type\xa3req\xa7mm_hash\xa2\xff\xfe"],
        [b"", b"\x91" * 4000],
        [b"", b"\xdd\xff\xff\xff\xff"],
        [b"", os.urandom(1000)],
        [b"", b"z" * (wire.MAX_REQUEST_BYTES + 1)],
    ]
    for _ in range(60):
        broken = bytearray(good)
        broken[rng.randrange(len(broken))] = rng.randrange(256)
        bad.append([b"", bytes(broken)])
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{producer.address[1]}")
        for frames in bad:
            if frames:
                ask_raw(dealer, frames)
        wait_for(
            lambda: producer.counters().get("malformed_frames", 0) >= 10, "the drops to be counted"
        )
        # Far beyond the bound: the connection is cut before the frame is in memory.
        huge = context.socket(zmq.DEALER)
        huge.setsockopt(zmq.LINGER, 0)
        huge.connect(f"tcp://127.0.0.1:{producer.address[1]}")
        ask_raw(huge, [b"", b"z" * (8 << 20)])
        assert consumer.fetch("a", producer.address, BLOCK) == "ready"
        assert producer.p2p.healthy
    finally:
        context.destroy(linger=0)


@pytest.mark.clause("EC-8.1", "EC-8.3")
def test_a_hostile_producer_costs_the_request_its_fetch_only(consumer: Node) -> None:
    """Whatever the answer says: a fall-back, and the consumer goes on."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    answers: list[Any] = [
        lambda req: b"\xc1",
        lambda req: ok(req, agent_metadata=b"garbage"),
        lambda req: ok(req, agent_metadata=b"nixl" + os.urandom(400)),
        lambda req: ok(req, extents=[(0, 1), (0, 1)]),
        lambda req: ok(req, extents=[(1 << 62, 1)]),
        lambda req: ok(req, base_addr=0),
        lambda req: ok(req, nbytes=7),
        lambda req: ok(req, lease_s=0.0),
        lambda req: ok(req, status=77),
        lambda req: ok(req, session_id="someone-else.1"),
    ]

    def ok(req: XferReq, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "mm_hash": req.mm_hash,
            "status": int(XferStatus.OK),
            "session_id": req.session_id,
            "agent_metadata": b"x",
            "attempt_id": req.attempt_id,
            "lease_s": 30.0,
            "incarnation": "evil",
            "base_addr": 1 << 20,
            "block_size": BLOCK,
            "extents": [(0, 1)],
            "nbytes": BLOCK,
        }
        return wire.encode(wire.XferAck(**{**fields, **changes}))

    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if router.poll(20):
                identity, empty, payload = router.recv_multipart()
                req = wire.decode_request([empty, payload])
                answer = answers[int(req.mm_hash[1:])](req)
                router.send_multipart([identity, b"", answer])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for index in range(len(answers)):
            answer = consumer.fetch(f"h{index}", ("127.0.0.1", port), BLOCK, f"r{index}")
            assert answer == "failed", index
            with consumer.lock:
                consumer.tier.check()
        assert consumer.p2p.healthy
        with consumer.lock:
            assert consumer.tier.free_blocks == consumer.tier.num_blocks
    finally:
        stop.set()
        thread.join()
        context.destroy(linger=0)


# ---------------------------------------------------------------- the pump's own end
class Broken:
    """A data plane that fails where it must not."""

    def __init__(self, reader: Any, method: str) -> None:
        self._reader = reader
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise RuntimeError(f"{name} is broken")
        return getattr(self._reader, name)


@pytest.mark.parametrize("method", ["poll", "prepare", "abandon"])
def test_a_pump_that_fails_fails_closed_and_says_so(producer: Node, method: str) -> None:
    producer.save("a", b"a" * BLOCK)
    failures: list[BaseException] = []
    with Node(
        "ec_consumer",
        wrap_reader=lambda reader: Broken(reader, method),
        on_failure=failures.append,
    ) as node:
        node.ask("a", producer.address, BLOCK)
        if method == "abandon":
            wait_for(lambda: node.counters().get("reads_done", 0) == 1, "the READ")
            return
        wait_for(lambda: bool(failures), "the failure")
        assert "is broken" in str(failures[0])
        assert not node.p2p.healthy
        assert node.p2p.address is None
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        with node.lock:
            node.tier.check()
            states = {entry.state for entry in node.tier.entries()}
        assert states <= {"quarantined"}, "nothing waits; what was posted is not reused"


class Refusing(Broken):
    """A data plane that refuses in the ways that it may."""

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._refuse
        return getattr(self._reader, name)

    def _refuse(self, *args: Any, **kw: Any) -> Any:
        raise DataPlaneError("refused")


def test_a_read_that_cannot_be_prepared_falls_back(producer: Node) -> None:
    producer.save("a", b"a" * BLOCK)
    with Node("ec_consumer", wrap_reader=lambda reader: Refusing(reader, "prepare")) as node:
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        assert node.counters()["post_failed"] == 1
        with node.lock:
            assert node.tier.free_blocks == node.tier.num_blocks
        wait_for(lambda: producer.counters().get("completed") == 1, "the grant's release")


@pytest.mark.clause("EC-6.1", "EC-6.2")
def test_a_read_that_cannot_be_posted_is_quarantined_until_its_endpoint_is_gone(
    producer: Node,
) -> None:
    producer.save("a", b"a" * BLOCK)
    with Node("ec_consumer", wrap_reader=lambda reader: Refusing(reader, "post")) as node:
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        assert node.counters()["quarantined"] == 1
        assert node.p2p.healthy


def test_stop_in_the_middle_of_a_fetch(producer: Node) -> None:
    with producer.lock:
        producer.begin_save("a", BLOCK)
    node = Node("ec_consumer")
    assert node.ask("a", producer.address, BLOCK) == "pending"
    wait_for(lambda: node.counters().get("retries", 0) >= 1, "an answer")
    node.close()
    with node.lock:
        node.tier.check()
        assert node.tier.free_blocks == node.tier.num_blocks
    node.close()  # twice is once


def test_answers_come_while_the_engine_thread_holds_the_interpreter(
    producer: Node, consumer: Node
) -> None:
    """Both engines are this thread, which computes in pure Python and never waits."""
    data = os.urandom(2 * BLOCK)
    producer.save("a", data)
    consumer.ask("a", producer.address, len(data))
    deadline = time.monotonic() + 20.0
    while not consumer.counters().get("reads_done"):
        assert time.monotonic() < deadline, "the pumps got no turn"
        for _ in range(100):
            sum(range(2_000))
    assert consumer.bytes_of("a") == data


def test_memory_outlives_a_pump_that_does_not_end_in_time() -> None:
    """Whoever closes the region must not pull it from under a transfer."""
    go_on = threading.Event()

    class Slow:
        def __init__(self, reader: Any) -> None:
            self._reader = reader

        def close(self) -> list[int]:
            go_on.wait(60)
            return self._reader.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

    node = Node("ec_consumer", wrap_reader=Slow)
    pump = node.p2p.pump
    memory = weakref.ref(pump._memory)
    assert not pump.stop(0.05)
    node.region.close(unlink=True)
    assert memory() is not None
    assert memory().nbytes == 64 * BLOCK, "still mapped"
    go_on.set()
    assert pump.stop(60)
    assert pump._memory is None
    node.instance.shutdown()
