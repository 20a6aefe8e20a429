# SPDX-License-Identifier: Apache-2.0
"""Who is let in, and as whom: with keys, and without."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

import zmq
from zmq.utils import z85

from ec_connector.config.keyfiles import KeyList, KeyPair
from ec_connector.network.addresses import BindError
from ec_connector.network.control import Arrived, ControlClient, ControlServer
from ec_connector.network.identity import KeyDoor, OpenDoor, by_address
from ec_connector.network.names import Names
from ec_connector.network.stats import NetworkStats
from ec_protocol.tables.timing import Timing
from tests.world.instance import wait_for
from tests.world.keys import Fleet, new_pair

HERE = "127.0.0.1"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A producer's socket and consumers of it."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.Context()
        self.names = Names()
        self.clock = Clock()
        self.stats = NetworkStats()
        self.fleet = Fleet(folder)
        self.fleet.member("server")
        self.servers: list[ControlServer] = []
        self.clients: list[ControlClient] = []

    @property
    def server_key(self) -> str:
        return self.fleet.pairs["server"].public

    def client(self, pair: KeyPair | None = None) -> ControlClient:
        made = ControlClient(self.context, Timing(), self.names, pair=pair)
        self.clients.append(made)
        return made

    def keyed_server(self) -> ControlServer:
        listed = KeyList(str(self.fleet.peers), clock=self.clock)
        door = KeyDoor(self.fleet.pairs["server"], listed, self.stats)
        return self.server(door)

    def server(self, door: Any = None, host: str = HERE) -> ControlServer:
        made = ControlServer(self.context, host, 0, Timing(), door=door, anywhere=host != HERE)
        self.servers.append(made)
        return made

    def turn(self, server: ControlServer) -> list[Arrived]:
        return server.receive()

    def heard(self, server: ControlServer, count: int = 1) -> list[Arrived]:
        """Wait for messages."""
        found: list[Arrived] = []
        wait_for(lambda: found.extend(server.receive()) or len(found) >= count, "messages")
        return found

    def decided(self, server: ControlServer, client: ControlClient) -> list[Any]:
        """Wait until a connection is made or refused."""
        found: list[Any] = []

        def looked() -> bool:
            server.receive()
            found.extend(client.changes(0.0))
            return bool(found)

        wait_for(looked, "a connection")
        return found

    def close(self) -> None:
        for one in self.servers:
            one.close()
        for client in self.clients:
            client.close_all()
        self.names.close()
        self.context.destroy(linger=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


# ------------------------------------------------------------------------- with keys
@pytest.mark.clause("EC-15.1")
@pytest.mark.clause("EC-15.2")
def test_who_is_in_the_list_is_let_in_as_its_key(site: Site) -> None:
    server = site.keyed_server()
    site.fleet.member("c")
    pair = site.fleet.pairs["c"]
    site.clock.now += 1.0
    client = site.client(pair)
    peer = (HERE, server.port, site.server_key)
    client.open(peer, 0.0)
    assert client.send(peer, b"hello")
    (arrived,) = site.heard(server)
    assert arrived.frames == [b"", b"hello"]
    assert arrived.who == pair.public.encode()
    assert server.send(arrived.source, b"welcome")
    found: list[Arrived] = []
    wait_for(lambda: found.extend(client.receive()) or bool(found), "an answer")
    assert found[0].source == peer
    assert site.stats.counts == {}


@pytest.mark.clause("EC-15.2")
def test_who_is_not_in_the_list_is_refused_counted_and_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server = site.keyed_server()
    client = site.client(new_pair())
    peer = (HERE, server.port, site.server_key)
    client.open(peer, 0.0)
    client.send(peer, b"hello")
    assert site.decided(server, client)[0] == (peer, False)
    wait_for(
        lambda: site.turn(server) == [] and site.stats.counts.get("handshakes_refused") == 1,
        "the count",
    )
    assert client.refused == 1
    assert "our key is not in its ec_peer_keys" in caplog.text
    assert "its key is not in ec_peer_keys" in caplog.text


@pytest.mark.clause("EC-15.2")
def test_a_peer_without_keys_is_not_heard_by_a_server_that_has_some(site: Site) -> None:
    server = site.keyed_server()
    client = site.client()
    peer = (HERE, server.port)
    client.open(peer, 0.0)
    client.send(peer, b"hello")
    assert site.decided(server, client)[0] == (peer, False)
    wait_for(
        lambda: site.turn(server) == [] and site.stats.counts.get("handshakes_failed", 0) >= 1,
        "the count",
    )


@pytest.mark.clause("EC-15.3")
def test_nobody_but_the_holder_of_the_announced_key_is_talked_to(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Not another server with keys, and none without."""
    site.fleet.member("c")
    keyed, plain = site.keyed_server(), site.server()
    client = site.client(site.fleet.pairs["c"])
    for server, key in ((keyed, new_pair().public), (plain, site.server_key)):
        peer = (HERE, server.port, key)
        client.open(peer, 0.0)
        client.send(peer, b"secret")
        assert site.decided(server, client)[0] == (peer, False)
        client.close(peer)
    assert site.turn(plain) == site.turn(keyed) == []
    assert "it has no key and we do" in caplog.text


@pytest.mark.clause("EC-15.3")
@pytest.mark.parametrize("ours", [True, False])
def test_with_keys_on_one_side_only_nothing_is_sent(site: Site, ours: bool) -> None:
    """Refused before a connection is made: whoever listens there hears no name."""
    listener = socket.create_server((HERE, 0))
    listener.settimeout(0.0)
    client = site.client(new_pair() if ours else None)
    port = listener.getsockname()[1]
    peer: Any = (HERE, port) if ours else (HERE, port, new_pair().public)
    client.open(peer, 0.0)
    assert not client.send(peer, b"x")
    assert client.changes(0.0) == [(peer, False)]
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


@pytest.mark.clause("EC-15.2")
def test_a_key_that_is_removed_is_not_heard_over_its_standing_connection(site: Site) -> None:
    server = site.keyed_server()
    site.fleet.member("c")
    site.clock.now += 1.0
    client = site.client(site.fleet.pairs["c"])
    peer = (HERE, server.port, site.server_key)
    client.open(peer, 0.0)
    client.send(peer, b"one")
    assert [a.frames[1] for a in site.heard(server)] == [b"one"]
    site.fleet.remove("c")
    site.clock.now += 1.0
    client.send(peer, b"two")
    wait_for(
        lambda: site.turn(server) == [] and site.stats.counts.get("requests_of_removed_keys") == 1,
        "the count",
    )
    # And it does not come back.
    client.open(peer, 0.0)
    assert site.decided(server, client)[0] == (peer, False)
    site.fleet.admit("c")
    site.clock.now += 1.0
    client.open(peer, 0.0)
    client.send(peer, b"three")
    assert [a.frames[1] for a in site.heard(server)] == [b"three"]


@pytest.mark.clause("EC-15.2")
def test_nobody_is_let_in_once_nobody_is_there_to_ask(site: Site) -> None:
    """libzmq lets everybody in whom nobody judges, unless it is told not to."""
    site.context.setsockopt(zmq.HANDSHAKE_IVL, 500)  # which is when the refused one hears of it
    server = site.keyed_server()
    asked, _ = server._door.sockets
    asked.unbind("inproc://zeromq.zap.01")  # at once; merely closed, it is asked for a while
    asked.close(0)
    server._door._asked = None
    stranger = site.client(new_pair())
    peer = (HERE, server.port, site.server_key)
    stranger.open(peer, 0.0)
    stranger.send(peer, b"hello")
    assert site.decided(server, stranger)[0] == (peer, False)
    assert site.turn(server) == []


@pytest.mark.parametrize(
    "asked",
    [
        [],
        [b"1.0"],
        [b"1.0", b"1", b"ec", b"", b"", b"NULL"],
        [b"1.0", b"1", b"ec", b"", b"", b"PLAIN", b"user", b"password"],
        [b"2.0", b"1", b"ec", b"", b"", b"CURVE", b"k" * 32],
        [b"1.0", b"1", b"ec", b"", b"", b"CURVE", b"k" * 31],
        [b"1.0", b"1", b"ec", b"", b"", b"CURVE", b""],
        [b"1.0", b"1", b"ec", b"", b"", b"CURVE"],
        [b"2.0", b"1", b"ec", b"", b"", b"CURVE", b"listed"],
        [b"1.0", b"1", b"ec", b"", b"", b"NULL", b"listed"],
        [b"1.0", b"1", b"ec", b"", b"", b"CURVE", b"listed", b""],
    ],
)
@pytest.mark.clause("EC-15.2")
def test_a_question_that_is_none_of_ours_is_answered_with_no(
    site: Site, asked: list[bytes]
) -> None:
    listed = KeyList(str(site.fleet.peers))
    key = z85.decode(site.server_key)
    door = KeyDoor(site.fleet.pairs["server"], listed, site.stats)
    assert door._answer([b"1.0", b"1", b"ec", b"", b"", b"CURVE", key])[2] == b"200"
    answer = door._answer([key if part == b"listed" else part for part in asked])
    assert answer[2] == b"400"
    assert answer[4] == b""


def _close_with_nobody_counted(folder: Path) -> None:
    site = Site(folder)
    site.context.setsockopt(zmq.RCVHWM, 1)
    server = site.keyed_server()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    for _ in range(2000):
        with suppress(ConnectionError), socket.create_connection((HERE, server.port)) as raw:
            raw.settimeout(0.5)
            raw.sendall(greeting)
            try:
                while raw.recv(64):
                    continue
            except TimeoutError:
                break  # there is no room to tell of this one
    server.close()


def test_a_door_closes_although_nobody_has_counted_who_knocked(tmp_path: Path) -> None:
    """libzmq waits for room to tell us of one more, and with it whoever tells it to stop."""
    closing = get_context("spawn").Process(target=_close_with_nobody_counted, args=(tmp_path,))
    closing.start()
    closing.join(20.0)
    closing.kill()
    closing.join()
    assert closing.exitcode == 0


# ---------------------------------------------------------------------- without keys
@pytest.mark.clause("EC-15.5")
def test_what_is_bound_is_judged_where_it_is_bound(site: Site) -> None:
    """A name that was judged before may mean something else by now."""
    with pytest.raises(BindError, match=r"0\.0\.0\.0 is no loopback address"):
        ControlServer(site.context, "0.0.0.0", 0, Timing())


@pytest.mark.clause("EC-15.1")
@pytest.mark.parametrize(
    ("address", "who"),
    [
        ("10.0.0.5", b"10.0.0.5"),
        ("::ffff:10.0.0.5", b"10.0.0.5"),
        ("127.0.0.1", b"loopback"),
        ("127.8.8.8", b"loopback"),
        ("::1", b"loopback"),
        ("::ffff:127.0.0.9", b"loopback"),
        ("2001:db8:1:2::5", b"2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::9", b"2001:db8:1:2::"),
        ("2001:db8:1:3::5", b"2001:db8:1:3::"),
        ("fe80::1%eth0", b"fe80::"),
        ("a name", b"a name"),
    ],
)
def test_who_an_address_is(address: str, who: bytes) -> None:
    assert by_address(address) == who


def _say(raw: socket.socket, properties: dict[bytes, bytes]) -> None:
    """Shake hands as ZMTP 3.0 does without security, and send a message of two frames."""
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    raw.recv(64, socket.MSG_WAITALL)
    words = b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in properties.items()
    )
    ready = b"\x05READY" + words
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
    raw.sendall(b"\x01\x00\x00\x05hello")


@pytest.mark.clause("EC-15.1")
@pytest.mark.parametrize("name", [b"User-Id", b"Peer-Address", b"Identity", b"Routing-Id"])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.7"])
def test_what_a_peer_says_of_itself_is_not_who_it_is(site: Site, name: bytes, source: str) -> None:
    server = site.server()
    said = {b"Socket-Type": b"DEALER", b"Identity": b"someone", name: b"203.0.113.9"}
    with socket.create_connection((HERE, server.port), source_address=(source, 0)) as raw:
        _say(raw, said)
        (arrived,) = site.heard(server)
    assert arrived.frames == [b"", b"hello"]
    assert arrived.who == b"loopback"


@pytest.mark.clause("EC-15.1")
def test_who_comes_from_nowhere_that_is_known_is_nobody(site: Site) -> None:
    """All of them together would be one peer, or each as many as it likes."""
    assert OpenDoor(site.stats).who(zmq.Frame(b"of no connection")) is None
    assert site.stats.counts == {"requests_of_unknown_peers": 1}


@pytest.mark.clause("EC-15.1")
def test_many_sockets_of_one_host_are_one_peer(site: Site) -> None:
    server = site.server()
    clients = [site.client() for _ in range(4)]
    for client in clients:
        client.open((HERE, server.port), 0.0)
        client.send((HERE, server.port), b"x")
    arrived = site.heard(server, len(clients))
    assert len({a.source for a in arrived}) == len(clients)
    assert {a.who for a in arrived} == {b"loopback"}


def test_a_door_is_closed_twice_and_its_place_is_free_again(site: Site) -> None:
    doors: list[Callable[[], ControlServer]] = [site.keyed_server] * 3
    for make in doors:
        server = make()
        server.close()
        server.close()
