# SPDX-License-Identifier: Apache-2.0
"""The adapter of the connector beside it: the kit takes the place of its sockets.

Operations are described in ``ec_verify.kit.adapter``. Run the kit against it::

    ec-protocol conformance run --adapter node
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ec_protocol import Item, LocalProtocolError, Node, Peering, Timing, make_item
from ec_protocol.p2p import wire as messages
from ec_protocol.p2p.commands import PeerKey, PrepareRead
from ec_verify.kit.examples.connector import Connector, Wire

#: Where the region pretends to be: READs name it, nothing dereferences it.
BASE = 1 << 40
_starts = itertools.count(1)


class KitWire(Wire):
    """A connection at whose other end is the kit."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self.opened = self.sent = self.ended = self.closed = lambda: None
        self.say = say

    def send_frame(self, frame: bytes) -> None:
        self.say(frame)

    def expect(self, parts: Iterable[memoryview], full: Callable[[], None]) -> None:
        self.full = full

    def close(self) -> None:
        self.closed()


class UnderKit(Connector):
    """The connector but for its sockets and its clock; the kit moves the bytes of READs."""

    def __init__(self, node: Node, region: bytearray, emit: Callable[..., None]) -> None:
        self.now, self.prepare_s, self.emit = 0.0, 0.0, emit
        self.made: list[KitWire] = []
        super().__init__(node, region)
        self.clock = lambda: self.now

    def listen(self, serve: Callable[[Wire, bytes], None]) -> PeerKey:
        return self.host, 0

    def dial(self, address: PeerKey) -> Wire:
        peer = list(address)

        def say(frame: bytes) -> None:
            self.emit("frames", to=peer, frames=["", frame.hex()])

        self.emit("connect", peer=peer)
        self.made.append(KitWire(say))
        self.made[-1].closed = lambda: self.emit("close", peer=peer)
        return self.made[-1]

    def prepare(self, read: PrepareRead) -> None:
        self.now += self.prepare_s
        super().prepare(read)
        wire, attempt = self.made[-1], read.attempt_id

        def post(frame: bytes) -> None:
            agent, notice, remote = msgspec.msgpack.decode(frame)
            what = {"read": attempt, "agent": agent.hex(), "notice": notice.hex()}
            self.emit("read", **what, device=read.device_id, local=read.local, remote=remote)
            wire.closed = lambda: self.emit("release", read=attempt)

        wire.say = post

    def dial_data(self, peer: PeerKey, agent: bytes) -> Wire:
        def notify(frame: bytes) -> None:
            agent, notice, _ = msgspec.msgpack.decode(frame)
            self.emit("notify", agent=agent.hex(), notice=notice.hex())

        self.made.append(KitWire(notify))
        return self.made[-1]

    def abandon(self, attempt: int) -> None:
        self.emit("abandon", read=attempt)  # the kit says when it is over

    def turn(self, longest_s: float = 0.0) -> None:
        self.node.tick(self.now)
        self.carry_out()
        while self.made:
            self.made.pop(0).opened()
            self.carry_out()


class NodeAdapter:
    """One engine instance: one method per operation."""

    def __init__(self) -> None:
        self.out: list[dict[str, Any]] = []
        self.lost: set[str] = set()

    def emit(self, kind: str, **fields: Any) -> None:
        self.out.append({"kind": kind, **fields})

    def drain(self) -> list[dict[str, Any]]:
        out, self.out = self.out, []
        return out

    def start(self, now: float, settings: dict[str, Any]) -> dict[str, Any]:
        if settings["events"]:
            raise NotImplementedError("events")
        quotas, size = settings["quotas"], settings["block_size_bytes"]
        peering = Peering(
            **settings["compat"],
            incarnation=f"node{os.getpid():x}x{next(_starts):x}",
            base_addr=BASE,
            peer_quota=quotas.get("peer", 0.5),
            grant_quota=quotas.get("grants", 0.9),
        )
        node = self.node = Node(
            blocks=settings["blocks"],
            block_bytes=size,
            role=settings["role"],
            ranks=settings["ranks"],
            timing=Timing(**settings["timers"]),
            hold_share=quotas.get("holds", 0.5),
            peering=peering if settings["p2p"] else None,
        )
        self.shell = UnderKit(node, bytearray(settings["blocks"] * size), self.emit)
        self.shell.now, self.settings = now, settings
        agent = b"" if node.grants is None else node.grants.agent_metadata
        return {"base_addr": BASE, "agent": agent.hex()}

    def at(self, now: float) -> UnderKit:
        self.shell.now = now
        return self.shell

    def tick(self, now: float) -> None:
        self.at(now).turn()

    def stop(self, now: float) -> None:
        self.at(now).close()

    def peek(self, now: float, offset: int, size: int) -> dict[str, Any]:
        return {"data": self.shell.region[offset : offset + size].hex()}

    def poke(self, now: float, offset: int, data: str) -> None:
        self.shell.region[offset : offset + len(data) // 2] = bytes.fromhex(data)

    def items(self, request: dict[str, Any]) -> list[Item]:
        width = self.settings["element_size"]
        return [
            make_item(row["hash"], *row["shape"], width, has_media=row["media"])
            for row in request["items"]
        ]

    def available(self, now: float, request: dict[str, Any]) -> dict[str, Any]:
        self.tick(now)
        ready = True
        for item in self.items(request) if self.node.loads else ():
            state = self.node.want(item, request["params"], request["id"], now)
            if state == "failed" and not item.has_media:
                self.lost.add(request["id"])
            ready = ready and state != "pending"
        self.shell.turn()
        return {"ready": ready and request["id"] not in self.lost}

    def has(self, now: float, request: dict[str, Any], item: int) -> dict[str, Any]:
        self.tick(now)
        items = self.items(request)
        name = items[item].mm_hash
        return {"has": self.node.promise(name, [one for one in items if one.mm_hash == name])}

    def alloc(self, now: float, request: dict[str, Any], item: int) -> None:
        self.tick(now)
        self.node.plan(self.items(request)[item], request["id"])

    def build(self, now: float) -> dict[str, Any]:
        self.tick(now)
        copies = []
        for copy in self.node.build_step(now):
            row = {"copy": copy.copy_id, "kind": copy.kind, "hash": copy.entry.mm_hash}
            copies.append({**row, "spans": self.shell.spans(copy), "ranks": sorted(copy.waiting)})
        self.shell.turn()
        return {"copies": copies}

    def report(self, now: float, copy: int, rank: int, landed: bool) -> dict[str, Any]:
        self.tick(now)
        try:
            self.node.report(copy, rank, landed)
        except LocalProtocolError:
            return {"accepted": False}
        self.shell.turn()
        return {"accepted": True}

    def finish(self, now: float, request: dict[str, Any], aborted: bool) -> dict[str, Any]:
        self.tick(now)
        self.lost.discard(request["id"])
        self.node.leave(request["id"], now)
        address = tuple(self.settings["peer"])
        announced = self.node.announce(self.items(request), address, now)
        self.shell.turn()
        return {"params": announced or None}

    def failed(self, now: float) -> dict[str, Any]:
        lost, self.lost = self.lost, set()
        return {"requests": sorted(lost)}

    def pending(self, now: float) -> dict[str, Any]:
        return {"pending": len(self.node.copies) > 0}

    def blocks(self, now: float) -> dict[str, Any]:
        tier = self.node.tier
        tier.check()
        free, total = tier.free_blocks, tier.num_blocks
        out = {"retired": tier.retired_blocks, "quarantined": tier.quarantined_blocks}
        return {"free": free, "total": total, **out}

    def request(self, now: float, identity: str, frames: list[str]) -> None:
        def reply(frame: bytes) -> None:
            self.emit("frames", to=identity, frames=["", frame.hex()])

        self.at(now).asked(bytes.fromhex(identity), [bytes.fromhex(f) for f in frames], reply)
        self.shell.turn()

    def answer(self, now: float, peer: list[Any], frames: list[str]) -> None:
        key = (peer[0], peer[1])
        if key in self.at(now).control:
            self.shell.answered(key, [bytes.fromhex(f) for f in frames])
        self.shell.turn()

    def peer(self, now: float, peer: list[Any], up: bool) -> None:
        if wire := self.at(now).control.get((peer[0], peer[1])):
            (wire.opened if up else wire.ended)()
        self.shell.turn()

    def notice(self, now: float, notice: str) -> None:
        self.at(now)
        self.node.notice(bytes.fromhex(notice), now)
        self.shell.turn()

    def data(self, now: float, read: int, event: str) -> None:
        wire = self.at(now).reads.get(read)
        if event in ("aborted", "endpoint_closed"):
            self.node.proven([read], now)
        elif wire is not None:
            (wire.full if event == "done" else wire.ended)()
        self.shell.turn()

    def prepare_takes(self, now: float, seconds: float) -> None:
        self.at(now).prepare_s = seconds

    def compat_hash(self, now: float, facts: dict[str, Any]) -> dict[str, Any]:
        return {"hash": messages.compatibility_hash(**facts)}
