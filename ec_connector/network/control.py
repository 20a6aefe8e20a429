# SPDX-License-Identifier: Apache-2.0
"""The control plane: a producer's ROUTER and a consumer's DEALERs, over ZMQ.

Nothing here blocks. The pump owns every object and polls ``sockets``; payloads are
decoded by ``ec_protocol.p2p.wire``, so that what a peer sends meets one decoder only.

Each connection of a consumer is made once and never made again by itself: after a
loss a fresh socket is opened, so that a request queued for one process can not be
delivered to the next one at the same address (EC-9.1).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from ec_protocol.announcements import HOST
from ec_protocol.errors import ConfigError, ECError
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.tables.timing import Timing

logger = logging.getLogger(__name__)

#: Messages that may wait in either direction of a connection.
_HIGH_WATER: Final = 1024
#: The same for answers, which old producers make very large.
_ACK_HIGH_WATER: Final = 64
#: Host names of which is remembered that they want IPv6.
_MAX_NAMES: Final = 256
#: What is read from one socket before the others get their turn.
_BURST: Final = 64
#: What ZMQ may add to a payload.
_FRAME_SLACK: Final = 1024

_HEARD: Final = {zmq.EVENT_HANDSHAKE_SUCCEEDED}
_LOST: Final = {
    zmq.EVENT_DISCONNECTED,
    zmq.EVENT_CLOSED,
    zmq.EVENT_CONNECT_RETRIED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
}


class ControlPlaneError(ECError):
    """The control plane cannot do what it was asked."""


class BindError(ControlPlaneError, ConfigError):
    """The control socket cannot be bound; the message names address and fix."""


class PeerAddressError(ControlPlaneError, ConfigError):
    """A peer address that cannot be connected to."""


class Arrived(NamedTuple):
    """One message: who sent it (peer or identity) and the frames after the identity."""

    source: Any
    frames: list[bytes]


def _endpoint(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def check_peer(peer: PeerKey) -> None:
    """Refuse an address that cannot be one.

    Raises:
        PeerAddressError: Names the part that is wrong.
    """
    host, port = peer
    if not isinstance(host, str) or not HOST.fullmatch(host) or "[" in host or "]" in host:
        raise PeerAddressError(f"peer host {host!r:.80}: expected a host name or an IP address")
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise PeerAddressError(f"peer port {port!r}: expected 1 to 65535")


def _heartbeats(sock: zmq.Socket[bytes], timing: Timing) -> None:
    sock.setsockopt(zmq.HEARTBEAT_IVL, int(timing.heartbeat_interval_s * 1000))
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(timing.heartbeat_timeout_s * 1000))
    sock.setsockopt(zmq.HEARTBEAT_TTL, int(timing.heartbeat_ttl_s * 1000))
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.SNDHWM, _HIGH_WATER)
    sock.setsockopt(zmq.RCVHWM, _HIGH_WATER)


def _receive(sock: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    for _ in range(_BURST):
        try:
            yield sock.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


class ControlServer:
    """A producer's ROUTER. Pump thread only.

    Args:
        context: The pump's ZMQ context.
        host: Interface name, host name or address to bind; also what is announced.
        port: Port; 0 takes a free one.
        timing: Heartbeats.

    Raises:
        BindError: In use, not ours to bind, or no such host.
    """

    def __init__(self, context: zmq.Context[Any], host: str, port: int, timing: Timing) -> None:
        self.host = host
        if not 0 <= port <= 65535:
            # ZMQ would bind it modulo 65536.
            raise BindError(
                f"control socket on {host}:{port}: expected a port from 0 to 65535; set "
                "VLLM_EC_SIDE_CHANNEL_PORT"
            )
        address = _bindable(host)
        self._socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        _heartbeats(self._socket, timing)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A larger frame ends its connection before it is in memory.
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_REQUEST_BYTES + _FRAME_SLACK)
        self._socket.setsockopt(zmq.IPV6, int(":" in address))
        try:
            self._socket.bind(_endpoint(address, port))
        except (zmq.ZMQError, OSError) as exc:
            self._socket.close()
            raise BindError(
                f"control socket on {host}:{port}: {exc}. Set VLLM_EC_SIDE_CHANNEL_HOST to an "
                "address of this host and VLLM_EC_SIDE_CHANNEL_PORT to a port that is free"
            ) from exc
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.port = int(bytes(bound).rstrip(b"\0").rsplit(b":", 1)[1])

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return [self._socket]

    def receive(self) -> list[Arrived]:
        """What has come, at most one burst."""
        return [
            Arrived(frames[0], frames[1:]) for frames in _receive(self._socket) if len(frames) > 0
        ]

    def send(self, identity: bytes, payload: bytes) -> bool:
        """Answer a peer.

        Returns:
            False when the peer is gone or does not read; the answer is dropped.
        """
        try:
            self._socket.send_multipart([identity, b"", payload], zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            logger.info("answer dropped: %s", exc)
            return False
        return True

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._socket.close()


def _bindable(host: str) -> str:
    """ZMQ binds addresses and interface names only: look a host name up first."""
    if host == "*" or _is_address(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host  # perhaps an interface; if not, bind says what is wrong
    addresses = [str(item[4][0]) for item in found]
    return next((address for address in addresses if ":" not in address), addresses[0])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Connection:
    """One DEALER with its monitor."""

    def __init__(
        self,
        context: zmq.Context[Any],
        peer: PeerKey,
        timing: Timing,
        *,
        give_up_at: float,
        ipv6: bool,
    ) -> None:
        self.ipv6 = ipv6
        self.give_up_at: float | None = give_up_at
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] | None = None
        try:
            _heartbeats(self.socket, timing)
            self.socket.setsockopt(zmq.IPV6, int(ipv6))
            self.socket.setsockopt(zmq.RCVHWM, _ACK_HIGH_WATER)
            self.socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_ACK_BYTES + _FRAME_SLACK)
            self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
            self.monitor = self.socket.get_monitor_socket()
            self.socket.connect(_endpoint(*peer))
        except zmq.ZMQError:
            # Addresses come from requests: nothing of a bad one may stay open.
            self.close()
            raise

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self.socket] if self.monitor is None else [self.socket, self.monitor]

    def events(self) -> Iterator[int]:
        for frames in _receive(self.monitor) if self.monitor is not None else ():
            yield int(parse_monitor_message(frames)["event"])

    def close(self) -> None:
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
        self.socket.close(0)


class ControlClient:
    """A consumer's connections, one per producer. Pump thread only.

    Args:
        context: The pump's ZMQ context.
        timing: Heartbeats; also the time a connection may take to be made.
    """

    def __init__(self, context: zmq.Context[Any], timing: Timing) -> None:
        self._context = context
        self._timing = timing
        self._connections: dict[PeerKey, _Connection] = {}
        self._unreachable: deque[PeerKey] = deque()
        self._ipv6_names: dict[str, bool] = {}

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return [sock for item in self._connections.values() for sock in item.sockets]

    @property
    def peers(self) -> list[PeerKey]:
        """Peers with a connection, made or being made."""
        return list(self._connections)

    def open(self, peer: PeerKey, now: float) -> None:
        """Connect with a fresh socket. An address that cannot be one counts as lost."""
        self.close(peer)
        try:
            check_peer(peer)
            self._connections[peer] = _Connection(
                self._context,
                peer,
                self._timing,
                give_up_at=now + self._timing.heartbeat_timeout_s,
                ipv6=":" in peer[0] or self._ipv6_names.get(peer[0], False),
            )
        except (zmq.ZMQError, PeerAddressError) as exc:
            logger.warning("cannot connect to %s:%s: %s", *peer, exc)
            self._unreachable.append(peer)

    def send(self, peer: PeerKey, payload: bytes) -> bool:
        """Send a request.

        Returns:
            False when there is no connection or it is full; the request is dropped
            and its attempt times out.
        """
        connection = self._connections.get(peer)
        if connection is None:
            return False
        try:
            connection.socket.send_multipart([b"", payload], zmq.NOBLOCK)
        except zmq.ZMQError as exc:
            logger.info("request to %s:%s dropped: %s", *peer, exc)
            return False
        return True

    def receive(self) -> list[Arrived]:
        """What has come from any peer, at most one burst each."""
        return [
            Arrived(peer, frames)
            for peer, connection in list(self._connections.items())
            for frames in _receive(connection.socket)
        ]

    def changes(self, now: float) -> list[tuple[PeerKey, bool]]:
        """Connections made (True) and lost (False) since the last call, in order."""
        result: list[tuple[PeerKey, bool]] = []
        while self._unreachable:
            result.append((self._unreachable.popleft(), False))
        for peer, connection in list(self._connections.items()):
            for event in connection.events():
                if event in _HEARD:
                    connection.give_up_at = None
                    result.append((peer, True))
                elif event in _LOST:
                    result.append((peer, False))
                    self._try_other_family(peer[0], connection)
                    break
            else:
                if connection.give_up_at is not None and now >= connection.give_up_at:
                    result.append((peer, False))
                    self._try_other_family(peer[0], connection)
        return result

    def _try_other_family(self, host: str, connection: _Connection) -> None:
        """After a connection that was never made: let a *name* mean the other family.

        ZMQ takes one address of a name and no second one. ``localhost`` is both ::1 and
        127.0.0.1 on most hosts, and producers bind one of them.
        """
        if connection.give_up_at is None or _is_address(host):
            return
        while len(self._ipv6_names) >= _MAX_NAMES:
            del self._ipv6_names[next(iter(self._ipv6_names))]
        self._ipv6_names[host] = not connection.ipv6

    def next_deadline(self) -> float | None:
        """When a connection that is being made counts as lost."""
        return min(
            (c.give_up_at for c in self._connections.values() if c.give_up_at is not None),
            default=None,
        )

    def close(self, peer: PeerKey) -> None:
        """Drop the connection to a peer, if there is one."""
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.close()

    def close_all(self) -> None:
        """Drop every connection. May be called twice."""
        for peer in self.peers:
            self.close(peer)
