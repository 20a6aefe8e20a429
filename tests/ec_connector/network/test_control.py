# SPDX-License-Identifier: Apache-2.0
"""The control plane's sockets: binding, losing, and what a peer may send."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import ROOT
from tests.needs import needs, optional

needs("zmq", "msgspec")

import zmq

from ec_connector.network import control
from ec_connector.network.addresses import BindError, PeerAddressError, check_peer
from ec_connector.network.control import Arrived, ControlClient, ControlServer
from ec_connector.network.names import Names
from ec_protocol.p2p import wire
from ec_protocol.tables.timing import Timing
from tests.world.instance import wait_for

FAST = Timing(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.4, heartbeat_ttl_s=0.8)
HERE = "127.0.0.1"


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def client(context) -> Iterator[ControlClient]:
    names = Names()
    made = ControlClient(context, Timing(), names)
    yield made
    made.close_all()
    names.close()


def server(context: Any, host: str = HERE, port: int = 0, timing: Timing | None = None) -> Any:
    return ControlServer(context, host, port, timing or Timing(), anywhere=True)


def receive(plane: ControlServer | ControlClient) -> list[Any]:
    """Wait for at least one message."""
    found: list[Any] = []
    wait_for(lambda: found.extend(plane.receive()) or bool(found), "a message")
    return found


def changes(client: ControlClient) -> list[Any]:
    """Wait for at least one change that is not the passing of time."""
    found: list[Any] = []
    wait_for(lambda: found.extend(client.changes(0.0)) or bool(found), "a change")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------------------- binding
def test_port_0_takes_a_free_one_and_says_which(context):
    first, second = server(context), server(context)
    assert 0 < first.port != second.port > 0


def test_a_port_in_use_names_address_variables_and_fix(context):
    taken = server(context)
    with pytest.raises(BindError) as caught:
        server(context, port=taken.port)
    text = str(caught.value)
    assert f"{HERE}:{taken.port}" in text
    assert "VLLM_EC_SIDE_CHANNEL_HOST" in text
    assert "VLLM_EC_SIDE_CHANNEL_PORT to a port that is free" in text


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("203.0.113.7", 0),
        ("no.such.host.invalid", 0),
        ("bad host", 0),
        (HERE, 70_000),
        (HERE, -1),
    ],
)
def test_what_cannot_be_bound_is_a_typed_error(context, host, port):
    with pytest.raises(BindError, match=host):
        server(context, host, port)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "localhost"])
def test_other_spellings_of_this_host(context, client, host):
    bound = server(context, host)
    client.open((HERE, bound.port), 0.0)
    assert changes(client) == [((HERE, bound.port), True)]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["::1", "::"])
def test_ipv6(context, client, host):
    optional(has_ipv6(), "this host has no IPv6")
    bound = server(context, host)
    peer = ("::1", bound.port)
    client.open(peer, 0.0)
    assert changes(client) == [(peer, True)]
    client.send(peer, b"hello")
    (message,) = receive(bound)
    assert message.frames == [b"", b"hello"]


def test_a_name_of_both_families_is_tried_in_the_other_one_next(context, client, monkeypatch):
    """``localhost`` is ::1 to some and 127.0.0.1 to others; a producer binds one."""
    tried: list[str] = []
    inner = control._Connection

    def record(context, address, *args, **kwargs):
        tried.append(address)
        return inner(context, address, *args, **kwargs)

    monkeypatch.setattr(control, "_Connection", record)
    both = Names(lambda name: ("127.0.0.1", "::1"))
    client = ControlClient(context, Timing(), both)
    named, numeric = ("localhost", free_port()), (HERE, free_port())
    for _ in range(4):
        for peer in (named, numeric):
            client.open(peer, 0.0)
            assert changes(client) == [(peer, False)]
            client.close(peer)
    assert tried[0::2] == ["127.0.0.1", "::1", "127.0.0.1", "::1"]
    assert tried[1::2] == [HERE] * 4
    client.close_all()
    both.close()


# -------------------------------------------------------------------------- addresses
@pytest.mark.parametrize(
    "peer",
    [
        ("", 5601),
        ("a b", 5601),
        ("a/b", 5601),
        ("tcp://host", 5601),
        ("host;other", 5601),
        ("x" * 256, 5601),
        (None, 5601),
        ("host", 0),
        ("host", 65_536),
        ("host", True),
        ("host", "5601"),
    ],
)
def test_an_impossible_address_is_lost_at_once(client, peer):
    with pytest.raises(PeerAddressError, match=r"peer (host|port)"):
        check_peer(peer)
    client.open(peer, 0.0)
    assert client.changes(0.0) == [(peer, False)]
    assert client.peers == []


def test_an_address_that_cannot_be_connected_to_leaves_nothing_open(context):
    """Requests name addresses: thousands of bad ones must not use up descriptors."""

    class Everything:
        """Judges nothing: here ZMQ is to refuse."""

        def meant(self, host, addresses):
            return addresses

    names = Names(lambda name: (name,))
    client = ControlClient(context, Timing(), names, allowed=Everything())

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.disable()  # which would hide what is left open
    try:
        before = descriptors()
        heard = []
        for port in range(1, 201):
            client.open(("%%", port), 0.0)
        wait_for(lambda: heard.extend(client.changes(0.0)) or len(heard) == 200, "the losses")
        assert client.peers == []
        assert {made for _, made in heard} == {False}
        deadline = time.monotonic() + 20
        while descriptors() > before + 20:
            assert time.monotonic() < deadline, f"{descriptors() - before} are left open"
            time.sleep(0.01)
    finally:
        gc.enable()
        names.close()


@pytest.mark.parametrize("host", ["a.example.com", "10.0.0.1", "fe80::1%eth0", "node_7"])
def test_a_possible_address_is_not_refused(host):
    check_peer((host, 5601))


# ------------------------------------------------------------------ questions, answers
def test_a_question_and_its_answer(context, client):
    bound = server(context)
    peer = (HERE, bound.port)
    client.open(peer, 0.0)
    assert client.send(peer, b"question")
    (asked,) = receive(bound)
    assert asked.frames == [b"", b"question"]
    assert bound.send(asked.source, b"answer")
    (answered,) = receive(client)
    assert answered == Arrived(peer, [b"", b"answer"])


def test_nobody_to_send_to_is_seen(context, client):
    assert not server(context).send(b"\x00nobody", b"answer")
    assert not client.send((HERE, 1), b"question")


def test_a_frame_beyond_the_bound_cuts_its_connection_only(context, client):
    bound = server(context)
    peer = (HERE, bound.port)
    client.open(peer, 0.0)
    assert changes(client) == [(peer, True)]
    client.send(peer, b"x" * (4 * wire.MAX_REQUEST_BYTES))
    assert changes(client) == [(peer, False)]
    client.open(peer, 0.0)
    client.send(peer, b"small")
    assert receive(bound)[0].frames == [b"", b"small"]


def test_a_connection_that_speaks_something_else_is_ignored(context, client):
    bound = server(context)
    with socket.create_connection((HERE, bound.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + os.urandom(500))
        client.open((HERE, bound.port), 0.0)
        client.send((HERE, bound.port), b"fine")
        heard: list[Any] = []
        wait_for(
            lambda: heard.extend(m.frames for m in bound.receive()) or [b"", b"fine"] in heard,
            "the message of the one that speaks ZMTP",
        )


# ------------------------------------------------------------------------------ losing
@pytest.mark.clause("EC-9.1")
def test_a_peer_that_accepts_and_says_nothing_is_lost_in_heartbeat_time(client):
    with socket.socket() as silent:
        silent.bind((HERE, 0))
        silent.listen()
        peer = (HERE, silent.getsockname()[1])
        client.open(peer, 100.0)
        assert client.next_deadline() == 104.0
        assert client.changes(103.9) == []
        assert client.changes(104.0) == [(peer, False)]


def test_a_refused_connection_is_lost_at_once(client):
    peer = (HERE, free_port())
    client.open(peer, 0.0)
    assert changes(client) == [(peer, False)]


def test_what_was_meant_for_one_process_never_reaches_the_next(context, client):
    """The same port, a new ROUTER: requests of the old connection are gone."""
    old = server(context)
    peer = (HERE, old.port)
    client.open(peer, 0.0)
    assert changes(client) == [(peer, True)]
    old.close()
    assert changes(client) == [(peer, False)]
    client.send(peer, b"for the old one")
    bound: list[Any] = []

    def rebind() -> bool:
        try:
            bound.append(server(context, port=peer[1]))
        except BindError:
            return False
        return True

    wait_for(rebind, "the port")
    client.open(peer, 0.0)
    client.send(peer, b"for the new one")
    assert [message.frames for message in receive(bound[0])] == [[b"", b"for the new one"]]


_SERVE = """
import sys, time, zmq
from ec_connector.network.control import ControlServer
from ec_protocol.tables.timing import Timing
server = ControlServer(zmq.Context(), "127.0.0.1", 0, Timing())
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.clause("EC-9.1")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_process_is_lost_in_heartbeat_time(context, how):
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    client = ControlClient(context, FAST, Names())
    try:
        assert process.stdout is not None
        peer = (HERE, int(process.stdout.readline()))
        client.open(peer, 0.0)
        assert changes(client) == [(peer, True)]
        process.send_signal(how)
        assert changes(client) == [(peer, False)]
    finally:
        client.close_all()
        process.kill()
        process.communicate()


def test_closing_forgets(context, client):
    bound = server(context)
    peer = (HERE, bound.port)
    client.open(peer, 0.0)
    assert len(client.sockets) == 2
    client.close(peer)
    client.close(peer)
    assert client.sockets == client.peers == client.changes(1e9) == []
    assert client.next_deadline() is None


# ------------------------------------------------------------------------------- bounds
def test_every_socket_is_bounded_and_lingers_for_nobody(context, client):
    """What a peer sends, and what it does not read, must not pile up."""
    bound = server(context)
    client.open((HERE, bound.port), 0.0)
    (router,) = bound.sockets
    dealer = client._connections[HERE, bound.port].socket
    for sock in (router, dealer):
        assert sock.getsockopt(zmq.LINGER) == 0
        assert sock.getsockopt(zmq.SNDHWM) == control._HIGH_WATER
        assert sock.getsockopt(zmq.HEARTBEAT_IVL) == 2000
        assert sock.getsockopt(zmq.HEARTBEAT_TIMEOUT) == 4000
        assert sock.getsockopt(zmq.HEARTBEAT_TTL) == 8000
    assert router.getsockopt(zmq.RCVHWM) == control._HIGH_WATER
    assert dealer.getsockopt(zmq.RCVHWM) == control._ACK_HIGH_WATER
    assert router.getsockopt(zmq.MAXMSGSIZE) == wire.MAX_REQUEST_BYTES + control._FRAME_SLACK
    assert dealer.getsockopt(zmq.MAXMSGSIZE) == wire.MAX_ACK_BYTES + control._FRAME_SLACK
    assert dealer.getsockopt(zmq.RECONNECT_IVL) == -1


def test_addresses_that_are_avoided_are_bounded(client, monkeypatch):
    monkeypatch.setattr(control, "_MAX_NAMES", 3)

    class Never:
        give_up_at = 1.0
        address = HERE

    for number in range(10):
        client._try_another(f"host{number}", Never())
    assert list(client._avoid) == ["host7", "host8", "host9"]
    client._try_another("host9", Never())
    assert list(client._avoid) == ["host7", "host8"]
