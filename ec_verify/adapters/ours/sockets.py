# SPDX-License-Identifier: Apache-2.0
"""ZMQ as the control plane sees it, without a network.

``ControlClient`` runs unchanged on these sockets, and so does vLLM's (``vllm_stage``):
which addresses one refuses, which options it sets and when, and when it gives up a
connection that is not made are its own.
What libzmq does by itself is done here on the kit's clock, as far as it matters to who
counts as lost: a handshake succeeds at once unless the peer is silent; and with
heartbeats on, a connection ends ``HEARTBEAT_TIMEOUT`` after the first PING that is not
answered, PINGs leaving every ``HEARTBEAT_IVL``. As in libzmq only options that are set
before ``connect`` have any effect.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

Address = tuple[str, int]
Emit = Callable[..., None]
_EVENT: Final = struct.Struct("=hi")


def lost_at(options: dict[int, int], connected: float, silent: float) -> float:
    """When libzmq ends a connection over which nothing comes any more.

    Args:
        options: As they were when the socket connected: milliseconds by option.
        connected: When the first PING period began, seconds.
        silent: Since when nothing comes, seconds.

    Returns:
        Seconds; infinity without heartbeats.
    """
    interval = options.get(zmq.HEARTBEAT_IVL, 0) / 1000
    if interval <= 0:
        return math.inf
    timeout = options.get(zmq.HEARTBEAT_TIMEOUT, options[zmq.HEARTBEAT_IVL]) / 1000
    pings = math.floor((silent - connected) / interval + 1e-9) + 1
    return connected + pings * interval + timeout


def address_of(endpoint: str) -> Address:
    """The peer that an endpoint of TCP names."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


class SimulatedMonitor:
    """The monitor of one DEALER.

    Args:
        dealer: The DEALER.
        events: The events that are asked for, as a mask.
    """

    def __init__(self, dealer: SimulatedDealer, events: int = zmq.EVENT_ALL) -> None:
        self._dealer = dealer
        self._mask = events

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """The next event; ``zmq.Again`` if there is none."""
        self._dealer.look_at_the_clock()
        while self._dealer.events:
            event = self._dealer.events.popleft()
            if event & self._mask:
                return [_EVENT.pack(event, 0), b""]
        raise zmq.Again

    def close(self, linger: int | None = None) -> None:
        """Nothing to close."""


class SimulatedDealer:
    """A DEALER: the kit puts frames in and takes them out."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.inbox: deque[list[bytes]] = deque()
        self.events: deque[int] = deque()
        self._network = network
        self._options: dict[int, int] = {}
        self._in_force: dict[int, int] = {}
        self._peer: Address | None = None
        self._connected = 0.0
        self._silent: float | None = None
        self._made = False

    def setsockopt(self, option: int, value: int) -> None:
        """Set an option, for connections that are made later."""
        self._options[option] = value

    def get_monitor_socket(self) -> SimulatedMonitor:
        """What says how the connection is."""
        return SimulatedMonitor(self)

    def disable_monitor(self) -> None:
        """Nothing to stop."""

    def connect(self, endpoint: str) -> None:
        """Begin to connect."""
        self._peer = address_of(endpoint)
        self._in_force = dict(self._options)
        self._network.dealers[self._peer] = self
        self._network.emit("connect", peer=list(self._peer))
        if self._peer not in self._network.silent:
            self.heard()

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        """Hand frames to the kit, which has them wait until the peer can take them."""
        peer = list(self._peer or ())
        self._network.emit("frames", to=peer, frames=[frame.hex() for frame in frames])

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """What has come; ``zmq.Again`` if nothing has."""
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def close(self, linger: int | None = None) -> None:
        """What comes for a closed DEALER is lost."""
        if self._peer is not None and self._network.dealers.get(self._peer) is self:
            del self._network.dealers[self._peer]
            self._network.emit("close", peer=list(self._peer))

    # ------------------------------------------------------------- what the kit does
    def heard(self) -> None:
        """Something comes from the peer, at the least a handshake or a heartbeat."""
        self.look_at_the_clock()
        self._silent = None
        if not self._made:
            self._made = True
            self._connected = self._network.clock()
            self.events.append(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def fell_silent(self) -> None:
        """From now on nothing comes."""
        if self._silent is None:
            self._silent = self._network.clock()

    def lost(self) -> None:
        """The connection is closed at its other end."""
        self.events.append(zmq.EVENT_DISCONNECTED)

    def look_at_the_clock(self) -> None:
        """End the connection if its heartbeats have."""
        if self._made and self._silent is not None:
            end = lost_at(self._in_force, self._connected, self._silent)
            if self._network.clock() >= end - 1e-9:
                self._silent = None
                self.lost()


class SimulatedFrame:
    """A frame that knows where it comes from.

    Args:
        raw: Its bytes.
        address: What the kernel says of its sender.
    """

    def __init__(self, raw: bytes, address: str) -> None:
        self.bytes = raw
        self._address = address

    def get(self, name: str) -> str:
        """A property of the connection that it came over."""
        if name != "Peer-Address":
            raise zmq.ZMQError(zmq.EINVAL)
        return self._address


class SimulatedRouter:
    """A ROUTER: the kit puts requests in and takes answers out.

    What stands before the slash in the identity of a peer is its host's name.
    """

    def __init__(self, emit: Emit) -> None:
        self.inbox: deque[list[bytes]] = deque()
        self._emit = emit

    def setsockopt(self, option: int, value: int) -> None:
        """Nothing to set."""

    def getsockopt(self, option: int) -> bytes:
        """Where it is bound; the kit knows it by the address that is announced."""
        return b"tcp://127.0.0.1:1\0"

    def bind(self, endpoint: str) -> None:
        """Nothing to bind."""

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> list[SimulatedFrame]:
        """What has come; ``zmq.Again`` if nothing has."""
        if not self.inbox:
            raise zmq.Again
        frames = self.inbox.popleft()
        host = frames[0].partition(b"/")[0].decode("ascii", "replace")
        return [SimulatedFrame(frame, host) for frame in frames]

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        """Answer the peer whose identity comes first."""
        identity, *rest = frames
        self._emit("frames", to=identity.hex(), frames=[frame.hex() for frame in rest])

    def close(self, linger: int | None = None) -> None:
        """Nothing to close."""


class SimulatedPublisher:
    """A PUB socket that hands its frames to the kit."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.closed = False

    def setsockopt(self, option: int, value: int) -> None:
        """Nothing to set."""

    def bind(self, endpoint: str) -> None:
        """Nothing to bind."""

    def send_multipart(self, frames: list[bytes], flags: int = 0, copy: bool = True) -> None:
        """Publish."""
        self._emit("event", frames=[frame.hex() for frame in frames])

    def close(self, linger: int | None = None) -> None:
        """Closed."""
        self.closed = True


class SimulatedNetwork:
    """The ZMQ context of one process, and what lies behind it.

    Args:
        emit: Tells the kit.
        clock: The process's clock, seconds.
        silent: Peers from which nothing comes, if other processes see the same.

    Attributes:
        router: The ROUTER, once there is one.
    """

    def __init__(
        self, emit: Emit, clock: Callable[[], float], silent: set[Address] | None = None
    ) -> None:
        self.emit = emit
        self.clock = clock
        self.dealers: dict[Address, SimulatedDealer] = {}
        self.silent = set() if silent is None else silent
        self.router: SimulatedRouter | None = None

    def socket(self, kind: int) -> Any:
        """A socket of one of the kinds that are asked for."""
        if kind == zmq.ROUTER:
            self.router = SimulatedRouter(self.emit)
            return self.router
        if kind == zmq.PUB:
            return SimulatedPublisher(self.emit)
        return SimulatedDealer(self)

    def destroy(self, linger: int | None = None) -> None:
        """What is left open is closed."""
        for dealer in list(self.dealers.values()):
            dealer.close()

    def deliver(self, peer: Address, frames: list[bytes]) -> None:
        """Frames arrive from a peer, if there is a connection to it."""
        dealer = self.dealers.get(peer)
        if dealer is not None:
            self.heard(peer)
            dealer.inbox.append(frames)

    def heard(self, peer: Address) -> None:
        """The peer gives a sign of life."""
        self.silent.discard(peer)
        if (dealer := self.dealers.get(peer)) is not None:
            dealer.heard()

    def lost(self, peer: Address) -> None:
        """The connection to a peer is closed."""
        if (dealer := self.dealers.get(peer)) is not None:
            dealer.lost()

    def falls_silent(self, peer: Address) -> None:
        """Nothing comes from the peer any more; new connections are not made."""
        self.silent.add(peer)
        if (dealer := self.dealers.get(peer)) is not None:
            dealer.fell_silent()
