# SPDX-License-Identifier: Apache-2.0
"""A worked example: a whole connector on ``Node``, over plain TCP and nothing else.

``Wire`` is a socket that never waits, ``Connector`` is the shell around a node, and
``save`` and ``load`` are what an engine and its workers do. Told piece by piece in
``docs/build-a-connector.md``; ``node.py`` beside this plays it under the kit.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Final

import msgspec

from ec_protocol import Copy, Item, Node, RemoteProtocolError
from ec_protocol.p2p import wire as messages
from ec_protocol.p2p.commands import (
    AbandonRead,
    ClosePeer,
    Command,
    ForgetRead,
    OpenPeer,
    PeerKey,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)


#: What asks for a READ: the agent it is meant for, its notice, ``(address, bytes)`` pieces.
_READ: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, list[tuple[int, int]]])
#: Bytes of a frame that asks for one: as many pieces as blocks of an encoding, and more.
_MAX_READ: Final = 4 << 20


def _nothing() -> None:
    """Nobody wants to know."""


# --8<-- wire
class Wire:
    """One TCP connection that never waits.

    Attributes:
        opened: Called once there is a connection.
        sent: Called when nothing is left to be sent.
        ended: Called when the connection broke, but not after ``close``.
    """

    def __init__(self, selector: DefaultSelector, sock: socket.socket, served: bool = False):
        sock.setblocking(False)
        self.opened: Callable[[], None] = _nothing
        self.sent: Callable[[], None] = _nothing
        self.ended: Callable[[], None] = _nothing
        self._full: Callable[[], None] = _nothing
        self._selector, self._sock, self._served = selector, sock, served
        self._connected = False
        self._out: deque[memoryview] = deque()
        self._into: deque[memoryview] = deque()
        selector.register(sock, EVENT_READ | EVENT_WRITE, self._ready)

    def send(self, *parts: bytes | memoryview) -> None:
        if self._sock.fileno() < 0:
            return
        self._out.extend(memoryview(part) for part in parts if len(part))
        # Who does not take his answers is not listened to.
        reading = 0 if self._served else EVENT_READ
        self._selector.modify(self._sock, EVENT_WRITE | reading, self._ready)

    def expect(self, parts: Iterable[memoryview], full: Callable[[], None]) -> None:
        """What comes goes into ``parts``; ``full`` is called after the last byte."""
        self._into, self._full = deque(parts), full

    def send_frame(self, frame: bytes) -> None:
        self.send(len(frame).to_bytes(4, "big"), frame)

    def expect_frames(self, limit: int, handle: Callable[[bytes], None]) -> None:
        size = bytearray(4)

        def sized() -> None:
            length = int.from_bytes(size, "big")
            if not 0 < length <= limit:
                raise ConnectionError(f"a frame of {length} bytes")
            frame = bytearray(length)
            self.expect([memoryview(frame)], lambda: came(bytes(frame)))

        def came(frame: bytes) -> None:
            self.expect_frames(limit, handle)
            handle(frame)

        self.expect([memoryview(size)], sized)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._selector.unregister(self._sock)
            self._sock.close()

    def _ready(self, events: int) -> None:
        try:
            if events & EVENT_WRITE:
                self._write()
            else:
                self._read()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            self.ended()

    def _write(self) -> None:
        if not self._connected:
            self._sock.getpeername()  # raises if there is no connection
            self._connected = True
            self.opened()
        elif self._out:
            rest = self._out.popleft()
            rest = rest[self._sock.send(rest) :]
            if rest:
                self._out.appendleft(rest)
        if not self._out and self._sock.fileno() >= 0:
            self._selector.modify(self._sock, EVENT_READ, self._ready)
            self.sent()

    def _read(self) -> None:
        count = self._sock.recv_into(self._into[0]) if self._into else 0
        if not count:
            raise ConnectionError("it ended, or said what nobody asked for")
        rest = self._into.popleft()[count:]
        if rest:
            self._into.appendleft(rest)
        if not self._into:
            self._full()


# --8<-- wire


# --8<-- connector
class Connector:
    """The shell around one node. One thread makes it, turns it and closes it.

    Args:
        node: The protocol's state, made with ``Peering``.
        region: The memory of its blocks.
        host: Address of this host, as others reach it.
    """

    def __init__(self, node: Node, region: bytearray | memoryview, host: str = "127.0.0.1"):
        self.node, self.region, self.host = node, memoryview(region), host
        self.clock = time.monotonic
        self.selector = DefaultSelector()
        self.control: dict[PeerKey, Wire] = {}
        self.reads: dict[int, Wire] = {}
        self.address: PeerKey | None = None
        if node.grants is not None:
            self.base = node.grants.base_addr
            self.address = self.listen(self.serve_control)
            port = self.listen(self.serve_data)[1]
            # Names this process too: a READ that is meant for the one before finds nothing.
            self.agent = f"{node.grants.incarnation}:{port}".encode()
            node.offer(self.agent)

    # ------------------------------------------------------------------- one turn
    def turn(self, longest_s: float = 1.0) -> None:
        """Wait until something is to be done, for ``longest_s`` at most, and do it."""
        self.carry_out()
        due = self.node.next_deadline()
        wait = longest_s if due is None else min(longest_s, max(0.0, due - self.clock()))
        for key, events in self.selector.select(wait):
            key.data(events)
        self.node.tick(self.clock())
        self.carry_out()

    def carry_out(self) -> None:
        """Do what the node wants done, and what it wants done because of that."""
        while commands := self.node.commands():
            for command in commands:
                self.do(command)

    def do(self, command: Command) -> None:
        match command:
            case OpenPeer(peer):
                self.open_peer(peer)
            case ClosePeer(peer):
                self.control.pop(peer).close()
            case SendReq(peer, request):
                self.control[peer].send_frame(messages.encode(request))
            case PrepareRead():
                self.prepare(command)
            case ReleaseGrant(peer, agent, notice):
                self.release(peer, agent, notice)
            case AbandonRead(attempt):
                self.abandon(attempt)
            case ForgetRead(attempt):
                if wire := self.reads.pop(attempt, None):
                    wire.close()

    # --------------------------------------------------------------- who serves
    def serve_control(self, wire: Wire, peer: bytes) -> None:
        wire.expect_frames(
            messages.MAX_REQUEST_BYTES,
            lambda frame: self.asked(peer, [b"", frame], wire.send_frame),
        )

    def asked(
        self, peer: bytes, frames: Sequence[bytes], reply: Callable[[bytes], None]
    ) -> None:
        try:
            request = self.node.read_request(frames)
        except RemoteProtocolError:
            self.node.malformed("request")
        else:
            reply(messages.encode(self.node.request(peer, request, self.clock())))

    def serve_data(self, wire: Wire, peer: bytes) -> None:
        wire.expect_frames(_MAX_READ, lambda frame: self.read_from_us(wire, frame))

    def read_from_us(self, wire: Wire, frame: bytes) -> None:
        try:
            agent, notice, pieces = _READ.decode(frame)
        except msgspec.MsgspecError:
            agent, notice, pieces = b"", b"", []
        here = [(address - self.base, size) for address, size in pieces]
        inside = all(0 <= at <= at + size <= len(self.region) for at, size in here)
        if agent != self.agent or not inside:
            wire.close()
            return
        # When the last byte has left, nobody needs the blocks for this READ any more.
        wire.sent = lambda: self.node.notice(notice, self.clock())
        wire.send(*(self.region[at : at + size] for at, size in here))

    # --------------------------------------------------------------- who reads
    def open_peer(self, peer: PeerKey) -> None:
        wire = self.control[peer] = self.dial(peer)
        wire.opened = lambda: self.node.heard(peer, self.clock())
        wire.ended = lambda: self.node.lost(peer, self.clock())
        wire.expect_frames(
            messages.MAX_ACK_BYTES, lambda frame: self.answered(peer, [b"", frame])
        )

    def answered(self, peer: PeerKey, frames: Sequence[bytes]) -> None:
        try:
            ack = self.node.read_answer(frames)
        except RemoteProtocolError:
            self.node.malformed("answer")
        else:
            self.node.answer(peer, ack, self.clock())

    def prepare(self, read: PrepareRead) -> None:
        """Connect for a READ; it is posted when there is a connection, if it still may be."""
        attempt, local = read.attempt_id, read.local
        wire = self.dial_data(read.peer, read.agent_metadata)

        def opened() -> None:
            if not self.node.may_post(attempt, self.clock()):
                wire.close()
                return
            self.reads[attempt] = wire
            wire.expect((self.region[at : at + size] for at, size in local), full)
            wire.send_frame(msgspec.msgpack.encode((read.agent_metadata, read.notice, read.remote)))
            wire.ended = lambda: self.node.read_failed(attempt, self.clock())

        def full() -> None:
            self.node.read_done(attempt, self.clock())

        wire.opened = opened
        wire.ended = lambda: self.node.post_failed(attempt, self.clock())

    def abandon(self, attempt: int) -> None:
        """Close a READ's connection: the proof that it writes nothing any more."""
        self.reads.pop(attempt).close()
        self.node.proven([attempt], self.clock())

    def release(self, peer: PeerKey, agent: bytes, notice: bytes) -> None:
        """A READ of nothing: only its notice counts."""
        wire = self.dial_data(peer, agent)
        wire.send_frame(msgspec.msgpack.encode((agent, notice, ())))
        wire.sent = wire.close

    # ------------------------------------------------------------------- sockets
    def listen(self, serve: Callable[[Wire, bytes], None]) -> PeerKey:
        listener = socket.create_server((self.host, 0))
        listener.setblocking(False)

        def accept(_: int) -> None:
            with contextlib.suppress(OSError):  # who knocked is gone already
                sock, address = listener.accept()
                serve(Wire(self.selector, sock, served=True), repr(address).encode())

        self.selector.register(listener, EVENT_READ, accept)
        return self.host, listener.getsockname()[1]

    def dial(self, address: PeerKey) -> Wire:
        """A connection that is being made; if it cannot be, ``ended`` is called."""
        sock = socket.socket()
        timing = self.node.timing
        # Heartbeats are TCP's own: a host that is unplugged is missed in time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (
            (socket.TCP_KEEPIDLE, timing.heartbeat_interval_s),
            (socket.TCP_KEEPINTVL, timing.heartbeat_interval_s),
            (socket.TCP_USER_TIMEOUT, timing.heartbeat_timeout_s * 1000),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, max(1, int(seconds)))
        wire = Wire(self.selector, sock)
        with contextlib.suppress(OSError, OverflowError, ValueError):
            sock.connect(address)
        return wire

    def dial_data(self, peer: PeerKey, agent: bytes) -> Wire:
        """The same to a peer's data plane, at the port with which its agent's name ends."""
        port = agent.rpartition(b":")[2]
        return self.dial((peer[0], int(port) if port.isdigit() and len(port) < 6 else 0))

    def spans(self, copy: Copy) -> messages.Pieces:
        """The pieces of the region that a copy is about, in the order of its bytes."""
        entry, block_size = copy.entry, self.node.tier.block_size_bytes
        return messages.local_pieces(entry.extents, entry.nbytes, block_size)

    def close(self) -> None:
        """The orderly end: what waits fails, every READ gets its proof, grants end."""
        self.node.stop_reading(self.clock())
        self.carry_out()
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self.selector.close()
        self.node.stop_serving(self.clock())


# --8<-- connector


# --8<-- engine
def save(connector: Connector, item: Item, encoding: bytes) -> dict[str, Any]:
    """A step that has encoded ``item``: keep it, and say what others are to be told."""
    node, rest = connector.node, memoryview(encoding)
    node.plan(item, item.mm_hash)
    for copy in node.build_step(connector.clock()):
        for at, size in connector.spans(copy):
            connector.region[at : at + size], rest = rest[:size], rest[size:]
        node.report(copy.copy_id, 0, landed=True)
    return node.announce([item], connector.address, connector.clock())


def load(connector: Connector, item: Item, announced: object, request: str) -> bytes | None:
    """The encoding of ``item`` for a request; None: encode the media yourself."""
    node, encoding = connector.node, None
    while (state := node.want(item, announced, request, connector.clock())) == "pending":
        connector.turn(0.05)
    if state == "ready" and node.promise(item.mm_hash, [item]):
        node.plan(item, request)
        for copy in node.build_step(connector.clock()):
            encoding = b"".join(connector.region[at : at + n] for at, n in connector.spans(copy))
            node.report(copy.copy_id, 0, landed=True)
    node.leave(request, connector.clock())
    return encoding


# --8<-- engine
