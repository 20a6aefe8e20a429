# SPDX-License-Identifier: Apache-2.0
"""The connector of ``docs/build-a-connector.md`` and who means it no good."""

from __future__ import annotations

import contextlib
import socket
from selectors import EVENT_READ, EVENT_WRITE

import pytest

from tests.needs import needs

needs("msgspec")

import msgspec

from ec_protocol.p2p import wire as messages
from ec_verify.kit.examples.connector import Connector, load, save
from tests.ec_protocol.test_build_a_connector import LONGEST_S, here, turn_until
from tests.world.plain import content, item

pytestmark = pytest.mark.timeout(100)


# ---------------------------------------------------------------- who means no good
def ask(port: int, *parts: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S)
    sock.sendall(b"".join(parts))
    return sock


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def closed(serving: Connector, sock: socket.socket) -> bool:
    sock.setblocking(False)
    got = [b"?"]

    def ended() -> bool:
        with contextlib.suppress(BlockingIOError):
            try:
                got.append(sock.recv(1 << 20))
            except ConnectionError:
                got.append(b"")
        return got[-1] == b""

    turn_until(ended, serving)
    sock.close()
    return got == [b"?", b""]


BASE = 1 << 20


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        b"x" * 100,
        msgspec.msgpack.encode((b"AGENT", b"n")),
        msgspec.msgpack.encode((b"", b"n", ((BASE, 64),))),
        msgspec.msgpack.encode((b"producer-of-before:1", b"n", ((BASE, 64),))),
        msgspec.msgpack.encode((b"AGENT", b"n", ((BASE - 1, 64),))),
        msgspec.msgpack.encode((b"AGENT", b"n", ((BASE, 64), (BASE, 1 << 40)))),
        msgspec.msgpack.encode((b"AGENT", b"n", ((BASE, -1),))),
        msgspec.msgpack.encode((b"AGENT", b"n", ((1 << 63, 1),))),
    ],
    ids=repr,
)
def test_a_read_of_what_is_not_ours_gets_nothing(payload: bytes):
    with here("producer", 4) as serving:
        port = int(serving.agent.rpartition(b":")[2])
        length = len(serving.agent)
        mark = b"\xc4\x05AGENT"
        payload = payload.replace(mark, b"\xc4" + bytes([length]) + serving.agent)
        assert closed(serving, ask(port, frame(payload)))


@pytest.mark.parametrize(
    "sent", [b"\0\0\0\0", b"\xff\xff\xff\xff", (messages.MAX_REQUEST_BYTES + 1).to_bytes(4, "big")]
)
def test_a_message_of_no_length_or_too_much_ends_the_connection(sent: bytes):
    with here("producer", 4) as serving:
        assert closed(serving, ask(serving.address[1], sent))


def test_what_is_no_request_is_counted_and_the_next_one_is_answered():
    with here("producer", 4) as serving, here("consumer", 4) as reading:
        announced = save(serving, item(3), content(item(3)))
        sock = ask(serving.address[1], frame(b"\xc1"))
        counters = serving.node.grants.counters
        turn_until(lambda: counters["malformed_frames"] == 1, serving)
        sock.close()
        reading.node.want(item(3), announced, "r", reading.clock())
        want = reading.node.want
        turn_until(
            lambda: want(item(3), announced, "r", reading.clock()) == "ready", reading, serving
        )


def test_what_is_no_answer_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as there, here("consumer", 4) as reading:
        address = {"peer_host": "127.0.0.1", "peer_port": there.getsockname()[1]}
        announced = {item(3).mm_hash: {**address, "size_bytes": item(3).nbytes}}
        reading.node.want(item(3), announced, "r", reading.clock())
        reading.turn(0.01)
        sock, _ = there.accept()
        with sock:
            sock.sendall(frame(b"\xc1"))
            counters = reading.node.reads.counters
            turn_until(lambda: counters["malformed_frames"] == 1, reading)


def test_a_connection_that_another_one_closed_says_nothing_more():
    said: list[str] = []
    with here("consumer", 4) as reading, socket.create_server(("127.0.0.1", 0)) as there:
        wire = reading.dial(there.getsockname())
        (key,) = reading.selector.get_map().values()
        wire.opened = wire.ended = lambda: said.append("something")
        wire.close()
        key.data(EVENT_WRITE)
        key.data(EVENT_READ)
    assert said == []


def test_who_does_not_take_his_answers_is_not_listened_to():
    with here("producer", 4) as serving:
        save(serving, item(3), content(item(3)))
        request = messages.XferReq(
            mm_hash=item(3).mm_hash,
            compatibility_hash=serving.node.grants.compat_hash,
            session_id="s",
            attempt_id=1,
        )
        many = 1000 * frame(messages.encode(request))
        answered = serving.node.grants.counters
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(serving.address)
            sock.setblocking(False)
            rest, before, still = many, 0, 0
            # Nothing is read back, so in the end nothing more is answered.
            while still < 100:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[sock.send(rest) :] or many
                serving.turn(0.0)
                now = answered["duplicate_requests"]
                before, still = now, still + 1 if now == before else 0
            wires = [key.data for key in serving.selector.get_map().values()]
            waiting = [len(one.__self__._out) for one in wires if hasattr(one, "__self__")]
            # One answer, or what is left of it.
            assert waiting in ([1], [2])
        assert answered["duplicate_requests"] > 10


def test_heartbeats_are_those_of_the_timers():
    with socket.create_server(("127.0.0.1", 0)) as there, here("consumer", 4) as reading:
        reading.dial(there.getsockname())
        (key,) = reading.selector.get_map().values()
        timing = reading.node.timing

        def option(number: int) -> int:
            return key.fileobj.getsockopt(socket.IPPROTO_TCP, number)

        assert key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(socket.TCP_KEEPIDLE) == max(1, int(timing.heartbeat_interval_s))
        assert option(socket.TCP_USER_TIMEOUT) == int(1000 * timing.heartbeat_timeout_s)


@pytest.mark.parametrize("host", ["127.0.0.1", "a" * 200, "[::1]"])
def test_a_producer_that_is_not_there_lets_the_request_fall_back(host: str):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with here("consumer", 4) as reading:
        address = {"peer_host": host, "peer_port": port, "size_bytes": item(3).nbytes}
        assert load(reading, item(3), {item(3).mm_hash: address}, "r") is None
        assert reading.node.reads.counters["peers_lost"] == 1
        # The first request is over and forgotten: this one is asked about anew.
        assert load(reading, item(3), {item(3).mm_hash: address}, "r") is None
        assert reading.node.reads.counters["peer_cooling"] == 1
