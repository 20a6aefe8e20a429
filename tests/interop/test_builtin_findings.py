# SPDX-License-Identifier: Apache-2.0
"""Findings of the conformance kit about vLLM 0.32's connector, on the real thing.

The kit drives its classes with a driven clock and simulated sockets and NIXL. Here the
same schedules run in real processes, with real sockets, NIXL and shared memory, and with
its own timers, so that no finding rests on the kit alone. A test that fails means that
the installed release behaves otherwise: then ``docs/conformance`` has to say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("nixl")
pytest.importorskip("zmq")

import msgspec
import zmq

from tests.ec_connector.pair import BLOCK, wait_for
from tests.interop.driver import Builtin, fresh, marks

pytestmark = marks

ROWS = 40
LEASE_S = 30.0


@pytest.fixture
def pair() -> Iterator[tuple[Builtin, Builtin]]:
    """A producer whose region has room for one encoding, and a consumer; its own timers."""
    with contextlib.ExitStack() as stack:
        producer = Builtin("ec_producer", ROWS + 8)
        stack.callback(producer.close)
        consumer = Builtin("ec_consumer", 4 * ROWS)
        stack.callback(consumer.close)
        yield producer, consumer


@pytest.fixture(scope="module")
def both() -> Iterator[Builtin]:
    """One that saves and loads, with a region of eight blocks."""
    made = Builtin("ec_both", 8)
    made.tell("run", on=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def source() -> Iterator[Builtin]:
    """A producer that outlives its readers, with room beside what they leave pinned."""
    made = Builtin("ec_producer", 4 * ROWS)
    yield made
    made.close()


def ask(consumer: Builtin, name: str, params: Any) -> str:
    request = fresh()
    consumer.tell("ask", name=name, rows=ROWS, request=request, params=params)
    return request


def grants(producer: Builtin) -> list[str]:
    return producer.tell("grants")["grants"]


def test_no_fence_a_read_after_the_lease_brings_another_picture(pair):
    """``no-fence``, F1: the consumer's step outlasts the lease while the ack waits."""
    producer, consumer = pair
    name, right, params = producer.save(ROWS)
    producer.tell("run", on=False)
    request = ask(consumer, name, params)
    wait_for(lambda: consumer.tell("state", name=name, request=request)["in_flight"], "the request")
    consumer.tell("run", on=False)
    producer.tell("run", on=True)
    wait_for(lambda: grants(producer), "the grant")
    wait_for(lambda: not grants(producer), "the end of its lease", LEASE_S + 10)
    other, wrong, _ = producer.save(ROWS)
    assert set(producer.tell("grants")["pins"]) == {other}
    consumer.tell("run", on=True)
    wait_for(
        lambda: consumer.tell("state", name=name, request=request)["admitted"],
        "the consumer to take the READ's bytes",
        60.0,
    )
    held = bytes.fromhex(consumer.tell("state", name=name, request=request)["bytes"])
    assert held != right, "the installed release has a fence: update the findings"
    assert held == wrong


def test_peer_loss_drops_the_handles_with_the_session(pair):
    """``lost-session``, F4: the producer shuts down under a READ; its blocks stay lost."""
    producer, consumer = pair
    name, _, params = producer.save(ROWS)
    producer.tell("run", on=False)
    request = ask(consumer, name, params)
    wait_for(lambda: consumer.tell("state", name=name, request=request)["in_flight"], "the request")
    consumer.tell("run", on=False)
    producer.tell("run", on=True)
    wait_for(lambda: grants(producer), "the grant")
    producer.tell("hang_up")
    # One step takes the ack, posts the READ, and sees that the connection is gone.
    consumer.tell("run", on=True)
    wait_for(lambda: consumer.tell("account")["sessions"] == 0, "the loss of the peer", 60.0)
    account = consumer.tell("account")
    assert account["not_ready"] == [name], "the installed release keeps them: update the findings"
    # No session knows of the READ any more, so nothing can ever settle it.
    assert account["quarantined"] == 0


def test_heartbeats_are_set_too_late_to_be_sent(pair):
    """``no-heartbeat``: a producer that stands still is not missed."""
    producer, consumer = pair
    name, _, params = producer.save(ROWS)
    request = ask(consumer, name, params)
    wait_for(lambda: consumer.tell("state", name=name, request=request)["admitted"], "the READ")
    producer.stop()
    # Interval 2 s, timeout 4 s: three times as long.
    deadline = consumer.tell("account")["at"] + 18.0
    wait_for(lambda: consumer.tell("account")["at"] > deadline, "18 s", 60.0)
    assert consumer.tell("account")["sessions"] == 1, "it is missed now: update the findings"


def test_a_promise_is_broken_by_an_allocation_of_the_same_step(both):
    """``broken-promise``, F6: neither loaded nor encoded, and its blocks stay held."""
    name, _, _ = both.save(4)
    answer = both.tell("schedule", items={name: 4, fresh(): 6})
    assert answer["promised"] == [name]
    assert answer["loads"] == [], "the installed release keeps promises: update the findings"


def test_a_save_that_never_runs_holds_its_blocks(both):
    """``save-never-ran``, F7."""
    before = both.tell("account")
    name = fresh()
    assert both.tell("schedule", items={name: 1})["saves"] == [name]
    # The encoder does not run, so no worker reports; a hundred steps later:
    for _ in range(100):
        both.tell("schedule", items={})
    after = both.tell("account")
    assert name in after["not_ready"]
    assert after["free"] <= before["free"]


@pytest.mark.parametrize(
    ("indices", "error"),
    [([0], "block count mismatch"), ([0] * (ROWS - 1) + [99_999], "NIXL_ERR_INVALID_PARAM")],
)
def test_an_ack_with_wrong_blocks_ends_the_engine(source, indices, error):
    """``bad-ack-raises``, F9: the exception leaves the scheduler's own hook."""
    consumer = Builtin("ec_consumer", 4 * ROWS)
    context = zmq.Context()
    liar = context.socket(zmq.ROUTER)
    liar.linger = 0
    port = liar.bind_to_random_port("tcp://127.0.0.1")
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(f"tcp://127.0.0.1:{source.port}")
    try:
        name, _, params = source.save(ROWS)
        params[name]["peer_port"] = port
        ask(consumer, name, params)
        assert liar.poll(120_000)
        identity, empty, request = liar.recv_multipart()
        # The real producer's answer, with other blocks in it.
        dealer.send_multipart([b"", request])
        assert dealer.poll(120_000)
        ack = msgspec.msgpack.decode(dealer.recv_multipart()[1])
        ack["src_block_indices"] = indices
        liar.send_multipart([identity, empty, msgspec.msgpack.encode(ack)])
        assert consumer.process.wait(120) != 0
        assert error in consumer.errors()
    finally:
        liar.close()
        dealer.close()
        context.term()
        consumer.close()


@pytest.mark.parametrize("params", ["text", ["a list"]])
def test_parameters_that_are_no_object_end_the_engine(params):
    """``params-type-raises``: reachable with ``vllm_xargs`` of a chat request."""
    consumer = Builtin("ec_consumer", 8)
    try:
        ask(consumer, fresh(), params)
        assert consumer.process.wait(120) != 0
        assert "has no attribute 'get'" in consumer.errors()
    finally:
        consumer.close()


def test_a_block_is_as_large_as_both_think(source):
    """The sizes that the tests above take for granted."""
    name, data, params = source.save(1)
    assert params[name]["size_bytes"] == len(data) == BLOCK
