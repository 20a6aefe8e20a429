# SPDX-License-Identifier: Apache-2.0
"""The control plane: a producer's ROUTER and a consumer's DEALERs, over ZMQ.

Nothing here blocks. A data process owns every object and polls ``sockets``; payloads are
decoded by ``ec_protocol.p2p.wire``, so that what a peer sends meets one decoder only.

Each connection of a consumer is made once and never made again by itself: after a
loss a fresh socket is opened, so that a request queued for one process can not be
delivered to the next one at the same address (EC-9.1).
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from ec_connector.network.names import Addresses, Names, is_address
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
#: Host names of which is remembered which address could not be reached.
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
    """A producer's ROUTER. One thread only.

    Args:
        context: The process's ZMQ context.
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
    if host == "*" or is_address(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host  # perhaps an interface; if not, bind says what is wrong
    addresses = [str(item[4][0]) for item in found]
    return next((address for address in addresses if ":" not in address), addresses[0])


class _Connection:
    """One DEALER with its monitor.

    Attributes:
        address: Which of the peer's addresses it is for.
        give_up_at: When it counts as lost if it is not made by then; None once it is.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        port: int,
        timing: Timing,
        *,
        give_up_at: float,
    ) -> None:
        self.address = address
        self.give_up_at: float | None = give_up_at
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.monitor: zmq.Socket[bytes] | None = None
        try:
            _heartbeats(self.socket, timing)
            self.socket.setsockopt(zmq.IPV6, int(":" in address))
            self.socket.setsockopt(zmq.RCVHWM, _ACK_HIGH_WATER)
            self.socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_ACK_BYTES + _FRAME_SLACK)
            self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
            self.monitor = self.socket.get_monitor_socket()
            self.socket.connect(_endpoint(address, port))
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


@dataclass(slots=True)
class _Waiting:
    """A peer whose name is being looked up, and what is to be sent to it."""

    give_up_at: float
    payloads: list[bytes]


class ControlClient:
    """A consumer's connections, one per producer. One thread only.

    Args:
        context: The process's ZMQ context.
        timing: Heartbeats; also the time a connection may take to be made.
        names: Looks host names up.
    """

    def __init__(self, context: zmq.Context[Any], timing: Timing, names: Names) -> None:
        self._context = context
        self._timing = timing
        self._names = names
        self._connections: dict[PeerKey, _Connection] = {}
        self._waiting: dict[PeerKey, _Waiting] = {}
        self._unreachable: deque[PeerKey] = deque()
        # Of a name with several addresses: the one that could not be reached.
        self._avoid: dict[str, str] = {}

    @property
    def sockets(self) -> list[Any]:
        """What to poll for input."""
        own = [self._names.fd] if self._waiting else []
        return own + [sock for item in self._connections.values() for sock in item.sockets]

    @property
    def peers(self) -> list[PeerKey]:
        """Peers with a connection, made or being made."""
        return [*self._connections, *self._waiting]

    def open(self, peer: PeerKey, now: float) -> None:
        """Connect with a fresh socket. An address that cannot be one counts as lost."""
        self.close(peer)
        try:
            check_peer(peer)
        except PeerAddressError as exc:
            self._cannot(peer, exc)
            return
        give_up_at = now + self._timing.heartbeat_timeout_s
        addresses = self._names.get(peer[0], now)
        if addresses is None:
            self._waiting[peer] = _Waiting(give_up_at, [])
        else:
            self._connect(peer, addresses, give_up_at)

    def _connect(self, peer: PeerKey, addresses: Addresses, give_up_at: float) -> None:
        host, port = peer
        avoid = self._avoid.get(host)
        address = next((a for a in addresses if a != avoid), avoid if addresses else None)
        if address is None:
            self._cannot(peer, "the name has no address")
            return
        try:
            self._connections[peer] = _Connection(
                self._context, address, port, self._timing, give_up_at=give_up_at
            )
        except zmq.ZMQError as exc:
            self._cannot(peer, exc)

    def _cannot(self, peer: PeerKey, why: object) -> None:
        logger.warning("cannot connect to %s:%s: %s", *peer, why)
        self._unreachable.append(peer)

    def _look_up(self, now: float) -> None:
        """Connect to those whose name is known by now."""
        if not self._waiting:
            return
        names = set(self._names.news(now))
        for peer, waiting in list(self._waiting.items()):
            addresses = self._names.get(peer[0], now) if peer[0] in names else None
            if addresses is not None:
                del self._waiting[peer]
                self._connect(peer, addresses, waiting.give_up_at)
                for payload in waiting.payloads:
                    self.send(peer, payload)
            elif now >= waiting.give_up_at:
                del self._waiting[peer]
                self._cannot(peer, "its name is not known in time")

    def send(self, peer: PeerKey, payload: bytes) -> bool:
        """Send a request.

        Returns:
            False when there is no connection or it is full; the request is dropped
            and its attempt times out.
        """
        waiting = self._waiting.get(peer)
        if waiting is not None:
            if len(waiting.payloads) < _HIGH_WATER:
                waiting.payloads.append(payload)
                return True
            return False
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
        self._look_up(now)
        while self._unreachable:
            result.append((self._unreachable.popleft(), False))
        for peer, connection in list(self._connections.items()):
            for event in connection.events():
                if event in _HEARD:
                    connection.give_up_at = None
                    result.append((peer, True))
                elif event in _LOST:
                    result.append((peer, False))
                    self._try_another(peer[0], connection)
                    break
            else:
                if connection.give_up_at is not None and now >= connection.give_up_at:
                    result.append((peer, False))
                    self._try_another(peer[0], connection)
        return result

    def _try_another(self, host: str, connection: _Connection) -> None:
        """After a connection that was never made: let a *name* mean its other address.

        ``localhost`` is both ::1 and 127.0.0.1 on most hosts, and producers bind one.
        """
        if connection.give_up_at is None or is_address(host):
            return
        while host not in self._avoid and len(self._avoid) >= _MAX_NAMES:
            del self._avoid[next(iter(self._avoid))]
        if self._avoid.get(host) == connection.address:
            del self._avoid[host]
        else:
            self._avoid[host] = connection.address

    def next_deadline(self) -> float | None:
        """When a connection that is being made counts as lost."""
        making = [c.give_up_at for c in self._connections.values() if c.give_up_at is not None]
        making += [waiting.give_up_at for waiting in self._waiting.values()]
        return min(making, default=None)

    def close(self, peer: PeerKey) -> None:
        """Drop the connection to a peer, if there is one."""
        self._waiting.pop(peer, None)
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.close()

    def close_all(self) -> None:
        """Drop every connection. May be called twice."""
        for peer in self.peers:
            self.close(peer)
