# SPDX-License-Identifier: Apache-2.0
"""Server and reader between two instances: real regions, real ZMQ, real NIXL.

All of it in this thread, which lets one part or the other stand still where it likes.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_connector.clock import boottime
from ec_connector.network.addresses import BindError
from ec_connector.network.data import DataPlaneConfigError, DataPlaneError
from ec_protocol.p2p import wire, words
from ec_protocol.p2p.wire import XferReq, XferStatus
from tests.ec_connector.network.inside import READER, SERVER, Inside
from tests.world.instance import BLOCK, FACTS, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def producer() -> Iterator[Inside]:
    with Inside("ec_producer") as node:
        yield node


@pytest.fixture
def consumer() -> Iterator[Inside]:
    with Inside("ec_consumer") as node:
        yield node


@pytest.mark.parametrize("nbytes", [1, BLOCK, 3 * BLOCK + 7, 20 * BLOCK])
def test_bytes_arrive_and_the_grant_is_released(
    producer: Inside, consumer: Inside, nbytes: int
) -> None:
    data = os.urandom(nbytes)
    producer.save("a", data)
    assert consumer.fetch("a", producer.address, nbytes) == "ready"
    assert consumer.bytes_of("a") == data
    wait_for(lambda: producer.counters().get("completed") == 1, "the completion notice")
    producer.tier.check()
    assert producer.tier.evictable_blocks == producer.tier.blocks_for(nbytes)


def test_source_and_destination_in_several_pieces(producer: Inside, consumer: Inside) -> None:
    for node in (producer, consumer):
        # Every second one lands first and is evicted first: holes of four blocks.
        saves = [node.begin_save(f"f{index}", 4 * BLOCK) for index in range(16)]
        parity = 0 if node is producer else 1
        for save in saves[parity::2] + saves[1 - parity :: 2]:
            node.end_save(save, os.urandom(4 * BLOCK))
    data = os.urandom(7 * BLOCK + 11)
    assert len(producer.save("a", data).extents) == 2
    assert consumer.fetch("a", producer.address, len(data)) == "ready"
    assert consumer.bytes_of("a") == data


def test_many_encodings_and_both_roles_at_once() -> None:
    with Inside("ec_both", 128) as left, Inside("ec_both", 128) as right:
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
def test_a_save_that_lands_later_costs_latency_only(producer: Inside, consumer: Inside) -> None:
    data = os.urandom(2 * BLOCK)
    save = producer.begin_save("a", len(data))
    assert consumer.ask("a", producer.address, len(data)) == "pending"
    wait_for(lambda: consumer.counters().get("retries", 0) >= 2, "retries")
    destination = consumer.tier.get("a")
    assert destination is not None
    extents = destination.extents
    producer.end_save(save, data)
    assert consumer.fetch("a", producer.address, len(data)) == "ready"
    assert consumer.bytes_of("a") == data
    landed = consumer.tier.get("a")
    assert landed is destination
    assert landed.extents == extents, "the retry kept its blocks"


def test_what_the_producer_does_not_have_falls_back(producer: Inside, consumer: Inside) -> None:
    assert consumer.fetch("nothing", producer.address, BLOCK) == "failed"
    assert producer.counters()["nack_missing"] == 1
    assert consumer.tier.free_blocks == consumer.tier.num_blocks


@pytest.mark.clause("EC-8.4")
def test_another_model_is_refused(producer: Inside) -> None:
    producer.save("a", b"x" * BLOCK)
    with Inside("ec_consumer", facts=dataclasses.replace(FACTS, model="other")) as other:
        assert other.fetch("a", producer.address, BLOCK) == "failed"
    assert producer.counters()["nack_incompat"] == 1


@pytest.mark.clause("EC-8.3")
def test_an_announcement_of_another_size_is_refused(producer: Inside, consumer: Inside) -> None:
    producer.save("a", b"x" * BLOCK)
    assert consumer.fetch("a", producer.address, 2 * BLOCK) == "failed"
    assert consumer.counters()["unusable_acks"] == 1
    wait_for(lambda: producer.counters().get("completed") == 1, "the grant's release")


@pytest.mark.clause("EC-9.1")
def test_nobody_at_the_address(consumer: Inside) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert consumer.fetch("a", ("127.0.0.1", port), BLOCK) == "failed"
    assert consumer.counters()["peers_lost"] == 1
    assert consumer.fetch("b", ("127.0.0.1", port), BLOCK) == "failed"
    assert consumer.link.loans.counters["left_alone_unreachable"] == 1  # type: ignore[union-attr]


@pytest.mark.clause("EC-9.2")
def test_producer_restart_on_the_same_port(consumer: Inside) -> None:
    first = Inside("ec_producer")
    host, port = first.address
    first.save("a", b"1" * BLOCK)
    assert consumer.fetch("a", (host, port), BLOCK) == "ready"
    assert consumer.reader is not None  # as after the cool-down
    consumer.reader.reader.fetches.attempts.peers.rests._most_s = 0.0
    first.close()
    wait_for(lambda: consumer.counters().get("peers_lost") == 1, "the loss")
    with Inside("ec_producer", bind=(host, port)) as second:
        second.save("b", b"2" * BLOCK)
        assert consumer.fetch("b", second.address, BLOCK) == "ready"
        assert consumer.bytes_of("b") == b"2" * BLOCK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_port_in_use_is_a_typed_error(producer: Inside, host: str) -> None:
    with pytest.raises(BindError, match="VLLM_EC_SIDE_CHANNEL_PORT") as caught:
        Inside("ec_producer", bind=(host, producer.address[1]))
    assert str(producer.address[1]) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_unknown_backend_is_a_typed_error() -> None:
    with pytest.raises(DataPlaneConfigError, match="NOPE"):
        Inside("ec_consumer", extra={"ec_nixl_backends": ["NOPE"]})


# --------------------------------------------------------------------- hostile peers
def ask_raw(dealer: zmq.Socket[bytes], frames: list[bytes]) -> None:
    dealer.send_multipart(frames)


@pytest.mark.clause("EC-8.1")
def test_the_server_survives_whatever_comes_and_goes_on_serving(
    producer: Inside, consumer: Inside
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
    finally:
        context.destroy(linger=0)


@pytest.mark.clause("EC-8.1", "EC-8.3")
def test_a_hostile_producer_costs_the_request_its_fetch_only(consumer: Inside) -> None:
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
            consumer.tier.check()
        assert consumer.tier.free_blocks == consumer.tier.num_blocks
    finally:
        stop.set()
        thread.join()
        context.destroy(linger=0)


# ---------------------------------------------------- a data plane that refuses or breaks
class Refusing:
    """A data plane one of whose methods raises."""

    def __init__(self, reader: Any, method: str, error: Exception) -> None:
        self._reader = reader
        self._method = method
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name == self._method else getattr(self._reader, name)

    def _refuse(self, *args: Any, **kw: Any) -> Any:
        raise self._error


def refusing(method: str, error: Exception | None = None) -> Inside:
    error = error or DataPlaneError("refused")
    return Inside("ec_consumer", wrap_reader=lambda reader: Refusing(reader, method, error))


def test_a_read_that_cannot_be_prepared_falls_back(producer: Inside) -> None:
    producer.save("a", b"a" * BLOCK)
    with refusing("prepare") as node:
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        assert node.counters()["post_failed"] == 1
        assert node.tier.free_blocks == node.tier.num_blocks
        wait_for(lambda: producer.counters()["completed"] == 1, "the grant's release")


@pytest.mark.clause("EC-6.1", "EC-6.2", "EC-14.9")
def test_a_read_that_cannot_be_posted_is_quarantined_until_its_reader_is_gone(
    producer: Inside,
) -> None:
    producer.save("a", b"a" * BLOCK)
    with refusing("post") as node:
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        assert node.tier.quarantined_blocks == 1
        heard: list[Any] = []
        wait_for(lambda: heard.extend(node.parent.hear()) or bool(heard), "a word to the parent")
        assert heard == [words.Drain("a READ is lost")]
        node.link.reader_leaves(READER)
        assert node.fetch("b", producer.address, BLOCK, "another") == "failed"
        assert node.counters()["no_reader"] == 1
        node.reader_exits()
        node.tier.check()
        assert node.tier.free_blocks == node.tier.num_blocks


@pytest.mark.parametrize("method", ["poll", "prepare"])
def test_a_reader_that_breaks_costs_its_fetches_only(producer: Inside, method: str) -> None:
    """Its process ends by such an error; the engine goes by its exit."""
    producer.save("a", b"a" * BLOCK)
    with refusing(method, RuntimeError("broken")) as node:
        node.ask("a", producer.address, BLOCK)

        def broken() -> bool:
            try:
                node.turn()
            except RuntimeError:
                return True
            return False

        with node.standing_still():
            wait_for(broken, "the failure")
        node.reader_exits()
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        node.tier.check()
        assert node.tier.free_blocks == node.tier.num_blocks


# -------------------------------------------------------------------------- who stands still
def test_the_orderly_end_in_the_middle_of_a_fetch(producer: Inside) -> None:
    producer.begin_save("a", BLOCK)
    node = Inside("ec_consumer")
    assert node.ask("a", producer.address, BLOCK) == "pending"
    node.wait_count("retries")
    node.close()
    node.tier.check()
    assert node.tier.free_blocks == node.tier.num_blocks


@pytest.mark.clause("EC-14.4")
def test_a_fetch_runs_to_its_end_while_both_engines_stand_still(
    producer: Inside, consumer: Inside
) -> None:
    data = os.urandom(2 * BLOCK)
    producer.save("a", data)
    assert consumer.ask("a", producer.address, len(data)) == "pending"
    assert producer.server is not None
    reader = consumer.reader
    assert reader is not None
    with producer.standing_still(), consumer.standing_still():

        def read() -> bool:
            assert producer.server is not None
            producer.server.turn()
            reader.turn()
            return reader.reader.counters["reads_done"] == 1

        wait_for(read, "the READ")
        assert consumer.tier.get("a").state == "saving"  # type: ignore[union-attr]
    assert consumer.fetch("a", producer.address, len(data)) == "ready"
    assert consumer.bytes_of("a") == data


@pytest.mark.clause("EC-14.2", "EC-14.6")
def test_what_a_server_has_granted_is_kept_after_it_and_the_next_one_serves(
    consumer: Inside,
) -> None:
    later = [0.0]
    with Inside("ec_producer", clock=lambda: boottime() + later[0]) as producer:
        kept_and_served(producer, consumer, later)


def kept_and_served(producer: Inside, consumer: Inside, later: list[float]) -> None:
    data = os.urandom(BLOCK)
    entry = producer.save("a", data)
    server = producer.server
    assert server is not None
    assert server._serving is not None
    ask = XferReq("a", server._serving.grants.compat_hash, "s.1", 2, 1, "c")
    ack = server._serving.grants.on_request(b"peer", ask, producer.clock())
    assert ack.status == XferStatus.OK
    producer.link.exited(SERVER, producer.clock())
    server._serving._server.close()  # as it goes with a process that is killed
    assert not producer.tier.gate.may_evict(entry)
    producer.start_server(3)
    assert producer.server is not None
    assert producer.server._serving is not None
    assert producer.server._serving.grants.incarnation != server._serving.grants.incarnation
    assert consumer.fetch("a", producer.address, BLOCK) == "ready"
    assert consumer.bytes_of("a") == data
    producer.turn_engine()
    assert not producer.tier.gate.may_evict(entry), "the first grant's lease has not ended"
    later[0] += producer.node.timing.lease_s
    producer.turn_engine()
    assert producer.tier.gate.may_evict(entry)


class Late(Refusing):
    """A data plane whose READs take their time: their ends are reported when told."""

    def __init__(self, reader: Any, clock: list[float]) -> None:
        super().__init__(reader, "", Exception())
        self._clock = clock

    def poll(self) -> Any:
        events = self._reader.poll()
        if events:
            self._clock[0] += 30.0  # the lease ends while the library looks
        return events


@pytest.mark.clause("EC-5.3")
def test_the_end_of_a_read_is_timed_after_it_was_seen(producer: Inside) -> None:
    later = [0.0]
    data = os.urandom(BLOCK)
    producer.save("a", data)
    node = Inside(
        "ec_consumer",
        wrap_reader=lambda reader: Late(reader, later),
        clock=lambda: boottime() + later[0],
    )
    with node:
        assert node.fetch("a", producer.address, BLOCK) == "failed"
        assert node.counters()["late_reads"] == 1
