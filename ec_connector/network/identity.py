# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a connection, as the connection proves it (EC-15.1).

With keys that is the public key with which the peer has authenticated (CURVE, ZeroMQ's
RFC 26): a producer lets those in whose key is in its list. The decision is made here, in
the loop of the process that serves, as answers to libzmq's questions (ZAP, RFC 27).
Without keys it is the address that the packets come from. Then all processes of a host
are one peer, and so are all hosts behind one translated address; whoever has many
addresses is as many peers.

A peer may *say* anything of itself: the identity of its socket, and with any of the
protocol's properties even a ``User-Id``, which only those that authenticated have from us.
"""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Any, Final, Protocol

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from ec_connector.config.keyfiles import KeyList, KeyPair
from ec_connector.config.peers import parse_address
from ec_connector.network.stats import NetworkStats

#: Where libzmq asks; the address is the protocol's.
_ZAP: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
#: With a domain that is enforced nobody gets in unless there is somebody to ask.
_DOMAIN: Final = b"ec"
#: Questions that are answered before others get their turn.
_BURST: Final = 64
#: Bits of an IPv6 address that are not the host's own choice.
_V6_BITS: Final = 64
_KEY_BYTES: Final = 32

_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def by_address(address: str) -> bytes:
    """Who somebody is that has no key: a host, as far as its address tells.

    All addresses of the loopback device are one host, and so are those of an IPv6
    network of 64 bits.
    """
    found = parse_address(address)
    if found is None:
        return address.encode()
    if found.is_loopback:
        return b"loopback"
    if isinstance(found, ipaddress.IPv6Address):
        network = ipaddress.IPv6Network((found, _V6_BITS), strict=False)
        return str(network.network_address).encode()
    return str(found).encode()


class Door(Protocol):
    """Lets peers in, and says who they are. One thread only."""

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""

    def guard(self, context: zmq.Context[Any], socket: zmq.Socket[bytes]) -> None:
        """Whoever connects to this socket is judged from here on; before it is bound."""

    def turn(self) -> None:
        """Answer whoever has knocked."""

    def who(self, frame: zmq.Frame) -> bytes | None:
        """Who has sent a frame; None: nobody who may send any."""

    def close(self) -> None:
        """Nobody is let in any more. May be called twice."""


class OpenDoor:
    """Lets everybody in who can connect; a peer is its address.

    Args:
        stats: Where it counts whose address is not known.
    """

    sockets: Final[list[zmq.Socket[bytes]]] = []

    def __init__(self, stats: NetworkStats) -> None:
        self._stats = stats

    def guard(self, context: zmq.Context[Any], socket: zmq.Socket[bytes]) -> None:
        """Nothing to guard."""

    def turn(self) -> None:
        """Nobody knocks."""

    def who(self, frame: zmq.Frame) -> bytes | None:
        """The kernel's word for where it comes from, and none of the peer's."""
        address = _property(frame, "Peer-Address")
        if address is None:
            self._stats.counts["requests_of_unknown_peers"] += 1
            return None
        return by_address(address)

    def close(self) -> None:
        """Nothing to close."""


def _property(frame: zmq.Frame, name: str) -> str | None:
    """What libzmq knows of the connection; nothing where a peer speaks ZMTP 1 or 2."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return None


class KeyDoor:
    """Lets those in whose key is in a list; a peer is its key.

    Args:
        pair: Our keys.
        listed: Whose keys are let in.
        stats: Where it counts who was refused.
    """

    def __init__(self, pair: KeyPair, listed: KeyList, stats: NetworkStats) -> None:
        self._pair = pair
        self._listed = listed
        self._stats = stats
        self._guarded: zmq.Socket[bytes] | None = None
        self._asked: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return [sock for sock in (self._asked, self._monitor) if sock is not None]

    def guard(self, context: zmq.Context[Any], socket: zmq.Socket[bytes]) -> None:
        """Have libzmq ask us about everybody who shakes hands over this socket."""
        self._asked = context.socket(zmq.REP)
        self._asked.setsockopt(zmq.LINGER, 0)
        self._asked.bind(_ZAP)
        self._guarded = socket
        self._monitor = socket.get_monitor_socket(_FAILED)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode())

    def turn(self) -> None:
        """Answer libzmq's questions, and count whose handshake failed."""
        asked, monitor = self._asked, self._monitor
        if asked is None or monitor is None:
            return
        with contextlib.suppress(zmq.Again):
            for _ in range(_BURST):
                asked.send_multipart(self._answer(asked.recv_multipart(zmq.NOBLOCK)))
        self._count_failed(monitor, _BURST)

    def who(self, frame: zmq.Frame) -> bytes | None:
        """The key that its sender authenticated with, if it is still in the list."""
        key = _property(frame, "User-Id")
        if key is None or not self._listed.knows(key):
            # It was, when the connection was made.
            self._stats.counts["requests_of_removed_keys"] += 1
            return None
        return key.encode()

    def close(self) -> None:
        """Nobody is let in any more. May be called twice."""
        if self._guarded is not None and self._monitor is not None:
            # Where there is no room for more of them, libzmq waits for some, and we for it.
            while self._count_failed(self._monitor, _BURST):
                continue
            self._guarded.disable_monitor()
        if self._asked is not None:
            self._asked.unbind(_ZAP)  # at once, for whoever is to answer next
        for sock in self.sockets:
            sock.close(0)
        self._guarded = self._asked = self._monitor = None

    # --------------------------------------------------------------------- internals
    def _answer(self, asked: list[bytes]) -> list[bytes]:
        """Whether the key that a question is about is in the list; if so it is the user's id."""
        number = asked[1] if len(asked) > 1 else b""
        whole = len(asked) == 7 and asked[0] == _ZAP_VERSION and asked[5] == b"CURVE"
        key = z85.encode(asked[6]) if whole and len(asked[6]) == _KEY_BYTES else b""
        if key and self._listed.knows(key.decode()):
            return [_ZAP_VERSION, number, b"200", b"OK", key, b""]
        return [_ZAP_VERSION, number, b"400", b"this key is not in the list", b"", b""]

    def _count_failed(self, monitor: zmq.Socket[bytes], most: int) -> bool:
        """Count handshakes that failed; whether there were as many as that."""
        with contextlib.suppress(zmq.Again):
            for _ in range(most):
                self._count(parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"])
            return True
        return False

    def _count(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            counter, why = "handshakes_refused", "its key is not in ec_peer_keys"
        else:
            counter, why = "handshakes_failed", "it has no key, or means another server's"
        self._stats.warn(counter, "a peer was not let in", why)


def authenticate(socket: zmq.Socket[bytes], pair: KeyPair, server_key: str) -> None:
    """Shake hands with nobody but the holder of ``server_key``, as the holder of ``pair``.

    Before the socket is connected.
    """
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
