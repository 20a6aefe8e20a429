# SPDX-License-Identifier: Apache-2.0
"""Findings of the conformance kit about vLLM 0.32's connector, on the real thing.

The kit drives its classes with simulated sockets and NIXL. Here the same schedules run in
real processes, with real sockets, NIXL and shared memory and with its own timers, so that
no finding rests on the kit alone; only its clock moves on where a lease is to run out. A
test that fails means that the installed release behaves otherwise: then
``docs/conformance`` has to say so.
"""

from __future__ import annotations

import time

import msgspec
import pytest
import zmq

from tests.interop.driver import ROWS, Asked, Builtin, Dealer, fresh, marks, until
from tests.world.instance import BLOCK

pytestmark = marks

#: Beyond the heartbeat's interval of 2 s and timeout of 4 s, twice over.
MISSED_S = 12.0


@pytest.fixture
def pair(builtins) -> tuple[Builtin, Builtin]:
    """A producer whose region has room for one encoding, and a consumer that stands still."""
    producer, consumer = builtins("ec_producer", ROWS + 8), builtins("ec_consumer", 4 * ROWS)
    consumer.hold()
    return producer, consumer


@pytest.fixture
def both(builtins) -> Builtin:
    """One that saves and loads, with a region of eight blocks."""
    made = builtins("ec_both", 8)
    made.hold()
    return made


def test_no_fence_a_read_after_the_lease_brings_another_picture(pair):
    """``no-fence``, F1: the consumer's step outlasts the lease while the ack waits."""
    producer, consumer = pair
    name, right, params = producer.save()
    asked = Asked(consumer, name, params)
    asked.sent()
    until(producer.grants, "the grant")
    # A lease goes by, for both of them.
    for process in pair:
        process.tell("advance", seconds=producer.hello["lease"])
    until(producer.no_grants, "the end of the lease")
    other, wrong, _ = producer.save()
    assert set(producer.tell("pins")) == {other}
    consumer.go_on()
    held = asked.admitted()["bytes"]
    assert held != right, "the installed release has a fence: update the findings"
    assert held == wrong


def test_peer_loss_drops_the_handles_with_the_session(pair):
    """``lost-session``, F4: the producer shuts down under a READ; its blocks stay lost."""
    producer, consumer = pair
    name, _, params = producer.save()
    asked = Asked(consumer, name, params)
    asked.sent()
    until(lambda: consumer.tell("connections") == [(True, False)], "the ack")
    producer.tell("hang_up")
    until(lambda: consumer.tell("connections") == [(True, True)], "the end of the connection")
    # From here on no READ gets anywhere.
    producer.stop()
    before = consumer.tell("account")
    assert (before["posted"], before["sessions"]) == (0, 1)
    # It takes the ack, posts the READ, and sees that the connection has ended.
    consumer.tell("step")
    after = consumer.tell("account")
    assert (after["posted"], after["sessions"]) == (1, 0)
    assert after["not_ready"] == [name], "the installed release keeps them: update the findings"
    # No session knows of the READ any more, so nothing ever settles it: neither its end, nor
    # the end of its timeout and of the quarantine.
    producer.resume()
    for _ in range(3):
        consumer.tell("advance", seconds=100.0)
        consumer.tell("step")
    later = consumer.tell("account")
    assert later["not_ready"] == [name]
    assert later["free"] == after["free"] == before["free"]
    assert asked.state["admitted"], "it encodes, after a minute"


def test_heartbeats_are_set_too_late_to_be_sent(pair):
    """``no-heartbeat``: a producer that stands still is not missed."""
    producer, consumer = pair
    consumer.go_on()
    name, _, params = producer.save()
    Asked(consumer, name, params).admitted()
    producer.stop()
    # Waits for something, so that it looks after its connections.
    name = fresh()
    told = {"peer_host": "127.0.0.1", "peer_port": producer.port, "size_bytes": ROWS * BLOCK}
    asked = Asked(consumer, name, {name: {**told, "shape": [ROWS, BLOCK // 2]}})
    until(lambda: asked.state["in_flight"], "a request that nobody answers")
    since = time.monotonic()
    until(lambda: time.monotonic() > since + MISSED_S, "heartbeats")
    assert asked.state["in_flight"], "it is missed now: update the findings"
    assert consumer.tell("account")["sessions"] == 1


def test_a_promise_is_broken_by_an_allocation_of_the_same_step(both):
    """``broken-promise``, F6: neither loaded nor encoded, and its blocks stay held."""
    (name, _, _), other = both.save(2), fresh()
    both.save(2)
    answer = both.tell("schedule", items={name: 2, other: 5})
    assert answer["promised"] == [name]
    assert answer["loads"] == {}, "the installed release keeps promises: update the findings"
    assert answer["saves"] == [other, name]
    # The engine encodes what was not promised; a hundred steps later:
    both.tell("report", saves=[other])
    for _ in range(100):
        both.tell("schedule", items={})
    after = both.tell("account")
    assert (after["not_ready"], after["free"]) == ([name], 1)


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
    assert after["free"] < before["free"]


@pytest.mark.parametrize(
    ("indices", "error"),
    [([0], "block count mismatch"), ([0] * (ROWS - 1) + [99_999], "NIXL_ERR_INVALID_PARAM")],
    ids=["too few", "out of range"],
)
def test_an_ack_with_wrong_blocks_ends_the_engine(builtins, dealers, indices, error):
    """``bad-ack-raises``, F9: the exception leaves the scheduler's own hook."""
    producer, consumer = builtins("ec_producer"), builtins("ec_consumer")
    dealer: Dealer = dealers(producer.address)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as liar:
        liar.linger = 0
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        name, _, params = producer.save()
        params[name]["peer_port"] = port
        Asked(consumer, name, params)
        assert liar.poll(120_000)
        identity, empty, request = liar.recv_multipart()
        # The real producer's answer, with other blocks in it.
        dealer.socket.send_multipart([b"", request])
        assert dealer.socket.poll(120_000)
        ack = msgspec.msgpack.decode(dealer.socket.recv_multipart()[1])
        ack["src_block_indices"] = indices
        liar.send_multipart([identity, empty, msgspec.msgpack.encode(ack)])
        assert consumer.died()
    assert error in consumer.errors()


@pytest.mark.parametrize("params", ["text", ["a list"]], ids=["text", "list"])
def test_parameters_that_are_no_object_end_the_engine(builtins, params):
    """``params-type-raises``: reachable with ``vllm_xargs`` of a chat request."""
    consumer = builtins("ec_consumer", 8)
    Asked(consumer, fresh(), params)
    assert consumer.died()
    assert "has no attribute 'get'" in consumer.errors()


def test_a_block_is_as_large_as_both_think(their_producer):
    """The sizes that the tests above take for granted."""
    name, data, params = their_producer.save(1)
    assert params[name]["size_bytes"] == len(data) == BLOCK
