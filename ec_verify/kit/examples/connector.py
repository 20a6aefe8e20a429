# SPDX-License-Identifier: Apache-2.0
"""A worked example: a whole connector on ``Node``, over plain TCP and nothing else.

``Connector`` is the shell around a node; ``save`` and ``load`` are what an engine and its
workers do. Told piece by piece in ``docs/build-a-connector.md``. ``sockets`` is the TCP
below it, ``connector_adapter`` plays it under the kit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
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
from ec_verify.kit.examples import sockets
from ec_verify.kit.examples.sockets import Wire

#: What asks for a READ: the agent it is meant for, its notice, ``(address, bytes)`` pieces.
_READ: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, list[tuple[int, int]]])
#: Bytes of such a message at most.
_MAX_READ: Final = 4 << 20


class Connector:
    """The shell around one node. One thread makes it, turns it and closes it.

    Args:
        node: The protocol's state, made with ``Peering``.
        region: The memory of its blocks.
        address: Where to listen for requests, as others reach it; port 0 is any.
    """

    def __init__(self, node: Node, region: bytearray, address: PeerKey = ("127.0.0.1", 0)) -> None:
        self.node, self.region, self.host = node, memoryview(region), address[0]
        self.clock = time.monotonic
        self.selector = DefaultSelector()
        self.control: dict[PeerKey, Wire] = {}
        self.reads: dict[int, Wire] = {}
        self.address: PeerKey | None = None
        if node.grants is not None:
            self.base = node.grants.base_addr
            self.address = self.listen(self.serve_control, address[1])
            port = self.listen(self.serve_data, 0)[1]
            # Names this very process: what was granted by the one before finds nobody.
            self.agent = f"{node.grants.incarnation}:{port}".encode()
            node.offer(self.agent)

    def serve_control(self, wire: Wire, peer: bytes) -> None:
        """Somebody has connected to ask."""
        limit = messages.MAX_REQUEST_BYTES
        wire.expect_frames(limit, lambda frame: self.asked(peer, [b"", frame], wire.send_frame))

    def asked(self, peer: bytes, frames: Sequence[bytes], reply: Callable[[bytes], None]) -> None:
        """A request has come."""
        try:
            request = self.node.read_request(frames)
        except RemoteProtocolError:
            self.node.malformed("request")
        else:
            reply(messages.encode(self.node.request(peer, request, self.clock())))

    def serve_data(self, wire: Wire, peer: bytes) -> None:
        """Somebody has connected to READ."""
        wire.expect_frames(_MAX_READ, lambda frame: self.serve_read(wire, frame))

    def serve_read(self, wire: Wire, frame: bytes) -> None:
        """Send the pieces of the region that are asked for, then tell the node."""
        try:
            agent, notice, pieces = _READ.decode(frame)
        except msgspec.MsgspecError:
            return wire.close()
        here = [(address - self.base, size) for address, size in pieces]
        inside = all(0 <= at <= at + size <= len(self.region) for at, size in here)
        if agent != self.agent or not inside:
            return wire.close()
        wire.sent = lambda: self.node.notice(notice, self.clock())
        return wire.send(*(self.region[at : at + size] for at, size in here))

    # -------------------------------------------------------------------- reading
    def do(self, command: Command) -> None:
        """Carry out one command of the node."""
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
                # A READ of nothing, for the sake of its notice.
                wire = self.dial_data(peer, agent)
                wire.send_frame(msgspec.msgpack.encode((agent, notice, ())))
                wire.sent = wire.close
            case AbandonRead(attempt):
                self.abandon(attempt)
            case ForgetRead(attempt):
                if attempt in self.reads:
                    self.reads.pop(attempt).close()

    def open_peer(self, peer: PeerKey) -> None:
        """Connect to a producer."""
        wire = self.control[peer] = self.dial(peer)
        wire.opened = lambda: self.node.heard(peer, self.clock())
        wire.ended = lambda: self.node.lost(peer, self.clock())
        wire.expect_frames(messages.MAX_ACK_BYTES, lambda frame: self.answered(peer, [b"", frame]))

    def answered(self, peer: PeerKey, frames: Sequence[bytes]) -> None:
        """An answer has come."""
        try:
            ack = self.node.read_answer(frames)
        except RemoteProtocolError:
            self.node.malformed("answer")
        else:
            self.node.answer(peer, ack, self.clock())

    def prepare(self, read: PrepareRead) -> None:
        """Connect for a READ, and post it once there is a connection, if it still may be."""
        attempt, node = read.attempt_id, self.node
        wire = self.dial_data(read.peer, read.agent_metadata)

        def opened() -> None:
            if not node.may_post(attempt, self.clock()):
                return wire.close()
            self.reads[attempt] = wire
            wire.ended = lambda: node.read_failed(attempt, self.clock())
            wire.expect((self.region[at : at + size] for at, size in read.local), full)
            what = (read.agent_metadata, read.notice, read.remote)
            return wire.send_frame(msgspec.msgpack.encode(what))

        def full() -> None:
            node.read_done(attempt, self.clock())

        wire.opened = opened
        wire.ended = lambda: node.post_failed(attempt, self.clock())

    def abandon(self, attempt: int) -> None:
        """Close a READ's connection: the proof that it writes nothing any more."""
        self.reads.pop(attempt).close()
        self.node.proven([attempt], self.clock())

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

    def close(self) -> None:
        """The orderly end: what waits fails, every READ gets its proof, grants end."""
        self.node.stop_reading(self.clock())
        self.carry_out()
        sockets.close_all(self.selector)
        self.node.stop_serving(self.clock())

    # -------------------------------------------------------------------- sockets
    def listen(self, serve: Callable[[Wire, bytes], None], port: int) -> PeerKey:
        """Where ``serve`` is reached from now on."""
        return sockets.listen(self.selector, (self.host, port), serve)

    def dial(self, address: PeerKey) -> Wire:
        """A connection, which is being made."""
        timing = self.node.timing
        interval_s, timeout_s = timing.heartbeat_interval_s, timing.heartbeat_timeout_s
        return sockets.dial(self.selector, address[:2], interval_s, timeout_s)

    def dial_data(self, peer: PeerKey, agent: bytes) -> Wire:
        """One to a peer's data plane, at the port with which its agent's name ends."""
        port = agent.rpartition(b":")[2]
        return self.dial((peer[0], int(port) if port.isdigit() and len(port) < 6 else 0))


def save(connector: Connector, item: Item, encoding: bytes) -> dict[str, Any]:
    """A step that has encoded ``item``: keep it, and say what others are to be told."""
    node, rest = connector.node, encoding
    node.plan(item, item.mm_hash)
    for copy in node.build_step(connector.clock()):
        for at, size in pieces(node, copy):
            connector.region[at : at + size], rest = rest[:size], rest[size:]
        node.report(copy.copy_id, 0, landed=True)
    return node.announce([item], connector.address, connector.clock())


def load(connector: Connector, item: Item, announced: object, request: str) -> bytes | None:
    """The encoding of ``item`` for a request; None: encode the media yourself."""
    node, encoding = connector.node, None
    while (state := node.want(item, announced, request, connector.clock())) == "pending":
        connector.turn(0.05)
    if state == "ready" and node.promise(item.mm_hash, [item], request):
        node.plan(item, request)
        for copy in node.build_step(connector.clock()):
            encoding = b"".join(connector.region[at : at + n] for at, n in pieces(node, copy))
            node.report(copy.copy_id, 0, landed=True)
    node.leave(request, connector.clock())
    return encoding


def pieces(node: Node, copy: Copy) -> messages.Pieces:
    """``(offset, bytes)`` in the region, in the order of the encoding's bytes."""
    entry = copy.entry
    return messages.local_pieces(entry.extents, entry.nbytes, node.tier.block_size_bytes)
