# SPDX-License-Identifier: Apache-2.0
"""The adapter of ``connector``: the kit in place of its sockets and its clock."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.msgpack import decode

from ec_protocol import Node
from ec_protocol.p2p.commands import PeerKey, PrepareRead
from ec_verify.kit.adapter import Result
from ec_verify.kit.examples.connector import Connector
from ec_verify.kit.examples.sockets import Wire, nothing
from ec_verify.kit.on_node import OnNode


class KitWire(Wire):
    """A connection at whose other end is the kit."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self.say, self.closed = say, nothing
        self.opened = self.sent = self.full = self.ended = nothing

    def send_frame(self, frame: bytes) -> None:
        self.say(frame)

    def close(self) -> None:
        self.closed()


class UnderKit(Connector):
    """The connector; the kit moves the bytes of its READs and says how they end."""

    def __init__(self, node: Node, memory: bytearray, emit: Callable[..., None]) -> None:
        self.emit, self.now, self.prepare_s, self.made = emit, 0.0, 0.0, list[KitWire]()
        super().__init__(node, memory)
        self.clock = lambda: self.now

    def turn(self, longest_s: float = 0.0) -> None:
        self.node.tick(self.now)
        self.carry_out()
        while self.made:
            self.made.pop(0).opened()
            self.carry_out()

    def listen(self, serve: Callable[..., None], port: int) -> PeerKey:
        return self.host, port

    def dial(self, address: PeerKey) -> KitWire:
        self.emit("connect", peer=address)
        wire = KitWire(lambda frame: self.emit("frames", to=address, frames=["", frame.hex()]))
        wire.closed = lambda: self.emit("close", peer=address)
        self.made.append(wire)
        return wire

    def dial_data(self, peer: PeerKey, agent: bytes) -> KitWire:
        self.made.append(KitWire(lambda frame: self.emit("notify", **asked_for(frame))))
        return self.made[-1]

    def prepare(self, read: PrepareRead) -> None:
        self.now += self.prepare_s
        super().prepare(read)
        wire = self.made[-1]
        wire.say = lambda frame: self.post(read, wire, asked_for(frame))

    def post(self, read: PrepareRead, wire: KitWire, asked: Result) -> None:
        where = {"device": read.device_id, "local": read.local, "remote": read.remote}
        self.emit("read", read=read.attempt_id, **asked, **where)
        wire.closed = lambda: self.emit("release", read=read.attempt_id)

    def abandon(self, attempt: int) -> None:
        self.emit("abandon", read=attempt)  # and the kit says when it is over

    def read_ended(self, attempt: int, done: bool) -> None:
        if wire := self.reads.get(attempt):
            (wire.full if done else wire.ended)()

    def connection(self, peer: PeerKey, up: bool) -> None:
        if wire := self.control.get(peer):
            (wire.opened if up else wire.ended)()


def asked_for(frame: bytes) -> Result:
    agent, notice, _ = decode(frame)
    return {"agent": agent.hex(), "notice": notice.hex()}


class ConnectorAdapter(OnNode[UnderKit]):
    """One instance of the connector."""

    def make_shell(self) -> UnderKit:
        return UnderKit(self.node, self.memory, self.emit)

    def prepare_takes(self, *, now: float, seconds: float) -> Result:
        self.at(now).prepare_s = seconds
        return {}
