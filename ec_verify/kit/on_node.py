# SPDX-License-Identifier: Apache-2.0
"""What every connector that stands on ``Node`` has in common, as an adapter.

Left to the connector's own adapter is what takes the place of its sockets and its data
plane. The operations are those of ``adapter.Adapter``.
"""

from __future__ import annotations

import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from ec_protocol import Item, LocalProtocolError, Node, Peering, Timing, make_item
from ec_protocol.announcements import PeerRules
from ec_protocol.engine import Engine
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PeerKey
from ec_protocol.terms import Terms
from ec_protocol.tier.extents import Extents
from ec_verify.kit.adapter import Adapter, Json, Result, Unsupported

#: Where the region pretends to be: READs name it, nothing dereferences it.
BASE: Final = 1 << 40
#: Terms that a connector on ``Node`` has without doing anything for them.
TERMS: Final = ["encoder_hash", "encoder_required"]

_starts = itertools.count(1)


class Shell(Protocol):
    """The connector around the node, with the kit in place of its wires and its clock.

    Attributes:
        now: Its clock.
    """

    now: float

    def asked(self, peer: bytes, frames: Sequence[bytes], reply: Callable[[bytes], None]) -> None:
        """A request has come; ``reply`` sends the answer."""

    def answered(self, peer: PeerKey, frames: Sequence[bytes]) -> None:
        """An answer has come."""

    def connection(self, peer: PeerKey, up: bool) -> None:
        """The connection to a peer was made, or broke."""

    def read_ended(self, attempt: int, done: bool) -> None:
        """A READ has moved its last byte, or failed."""

    def turn(self) -> None:
        """Let every timer run out that has, and do what the node wants done."""

    def close(self) -> None:
        """The orderly end."""


AnyShell = TypeVar("AnyShell", bound=Shell)


class InMemory(Adapter):
    """One engine instance whose region is plain memory, below an ``Engine``.

    Attributes:
        node: The protocol's state.
        memory: The bytes of its blocks.
        element_size: Bytes of one element of an encoding.
    """

    node: Engine
    memory: bytearray
    element_size: int

    def peek(self, *, now: float, offset: int, size: int) -> Result:
        """See ``Adapter.peek``. No turn of anything: hardware asks nobody."""
        return {"data": self.memory[offset : offset + size].hex()}

    def poke(self, *, now: float, offset: int, data: str) -> Result:
        """See ``Adapter.poke``."""
        raw = bytes.fromhex(data)
        self.memory[offset : offset + len(raw)] = raw
        return {}

    def blocks(self, *, now: float) -> Result:
        """See ``Adapter.blocks``."""
        tier = self.node.tier
        try:
            tier.check()
        except LocalProtocolError as exc:
            return {"broken": str(exc)}
        return {
            "free": tier.free_blocks,
            "retired": tier.retired_blocks,
            "quarantined": tier.quarantined_blocks,
            "total": tier.num_blocks,
        }

    def items(self, request: Result) -> list[Item]:
        """What a request needs."""
        return [
            make_item(
                row["hash"],
                row["shape"][0],
                row["shape"][1],
                self.element_size,
                has_media=row["media"],
            )
            for row in request["items"]
        ]

    def spans(self, extents: Extents, nbytes: int) -> list[list[int]]:
        """``[offset, bytes]`` of an encoding's pieces in the region, in their order."""
        pieces = wire.local_pieces(extents, nbytes, self.node.tier.block_size_bytes)
        return [list(piece) for piece in pieces]


class OnNode(InMemory, Generic[AnyShell]):
    """One engine instance whose protocol state is a ``Node``.

    Attributes:
        shell: What is around the node; None before ``start``.
    """

    node: Node

    def __init__(self) -> None:
        super().__init__()
        self.shell: AnyShell | None = None
        self._settings: Mapping[str, Json] = {}
        # Requests that the engine is to fail and has not been told of.
        self._lost: set[str] = set()

    @abstractmethod
    def make_shell(self) -> AnyShell:
        """The connector around ``node`` and ``memory``."""

    def at(self, now: float) -> AnyShell:
        """The shell, whose clock says ``now``."""
        if self.shell is None:
            raise Unsupported("anything before start")
        self.shell.now = now
        return self.shell

    # ----------------------------------------------------------------- life cycle
    def start(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.start``."""
        if settings["events"]:
            raise Unsupported("events")
        blocks, block_bytes = settings["blocks"], settings["block_size_bytes"]
        quotas = settings["quotas"]
        peering = Peering(
            **settings["compat"],
            # Like a real process: another one at every start.
            incarnation=f"node{os.getpid():x}x{next(_starts):x}",
            base_addr=BASE,
            peer_quota=quotas.get("peer", 0.5),
            grant_quota=quotas.get("grants", 0.9),
            terms=Terms(**settings["terms"]),
        )
        self._settings = settings
        self.element_size = settings["element_size"]
        self.memory = bytearray(blocks * block_bytes)
        self.node = Node(
            blocks=blocks,
            block_bytes=block_bytes,
            role=settings["role"],
            ranks=settings["ranks"],
            timing=Timing(**settings["timers"]),
            hold_share=quotas.get("holds", 0.5),
            peering=peering if settings["p2p"] else None,
            rules=PeerRules(shared=settings["authenticated"]),
        )
        self.shell = self.make_shell()
        self.at(now).turn()
        agent = b"" if self.node.grants is None else self.node.grants.agent_metadata
        return {"base_addr": BASE, "agent": agent.hex(), "terms": TERMS}

    def tick(self, *, now: float) -> Result:
        """See ``Adapter.tick``."""
        self.at(now).turn()
        return {}

    def stop(self, *, now: float) -> Result:
        """See ``Adapter.stop``."""
        self.at(now).close()
        return {}

    # --------------------------------------------------------------------- engine
    def available(self, *, now: float, request: Result) -> Result:
        """See ``Adapter.available``."""
        self.tick(now=now)
        states = set()
        for item in self.items(request):
            state = self.node.want(item, request["params"], request["id"], now)
            lost = state == "failed" and not item.has_media
            states.add("lost" if lost else state)
        if "lost" in states:
            self._lost.add(request["id"])
        self.tick(now=now)
        return {"ready": not states & {"pending", "lost"}}

    def has(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.has``."""
        self.tick(now=now)
        items = self.items(request)
        name = items[item].mm_hash
        same = [one for one in items if one.mm_hash == name]
        return {"has": self.node.promise(name, same, request["id"])}

    def alloc(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.alloc``."""
        self.tick(now=now)
        self.node.plan(self.items(request)[item], request["id"])
        return {}

    def build(self, *, now: float) -> Result:
        """See ``Adapter.build``."""
        self.tick(now=now)
        copies = [
            {
                "copy": copy.copy_id,
                "kind": copy.kind,
                "hash": copy.entry.encoding,
                "spans": self.spans(copy.entry.extents, copy.entry.nbytes),
                "ranks": sorted(copy.waiting),
            }
            for copy in self.node.build_step(now)
        ]
        self.tick(now=now)
        return {"copies": copies}

    def report(self, *, now: float, copy: Json, rank: int, landed: bool) -> Result:
        """See ``Adapter.report``."""
        self.tick(now=now)
        try:
            self.node.report(copy, rank, landed)
        except LocalProtocolError:
            return {"accepted": False}
        self.tick(now=now)
        return {"accepted": True}

    def finish(self, *, now: float, request: Result, aborted: bool) -> Result:
        """See ``Adapter.finish``."""
        self.tick(now=now)
        self._lost.discard(request["id"])
        host, port = self._settings["peer"]
        self.node.leave(request["id"], now)
        announced = self.node.announce(self.items(request), (host, port), now)
        self.tick(now=now)
        return {"params": announced or None}

    def failed(self, *, now: float) -> Result:
        """See ``Adapter.failed``."""
        lost, self._lost = self._lost, set()
        return {"requests": sorted(lost)}

    def pending(self, *, now: float) -> Result:
        """See ``Adapter.pending``."""
        return {"pending": len(self.node.copies) > 0}

    # -------------------------------------------------------------------- network
    def request(self, *, now: float, identity: str, frames: list[str]) -> Result:
        """See ``Adapter.request``."""

        def reply(frame: bytes) -> None:
            self.emit("frames", to=identity, frames=["", frame.hex()])

        # Who it is, is not what its socket calls itself (EC-15.1).
        host = bytes.fromhex(identity).partition(b"/")[0]
        self.at(now).asked(host, [bytes.fromhex(f) for f in frames], reply)
        return self.tick(now=now)

    def answer(self, *, now: float, peer: list[Json], frames: list[str]) -> Result:
        """See ``Adapter.answer``."""
        self.at(now).answered((peer[0], peer[1]), [bytes.fromhex(f) for f in frames])
        return self.tick(now=now)

    def peer(self, *, now: float, peer: list[Json], up: bool) -> Result:
        """See ``Adapter.peer``."""
        self.at(now).connection((peer[0], peer[1]), up)
        return self.tick(now=now)

    def data(self, *, now: float, read: Json, event: str) -> Result:
        """See ``Adapter.data``."""
        if event in ("done", "error"):
            self.at(now).read_ended(read, event == "done")
        else:
            # Aborted, or its endpoint closed: either way nothing is written any more.
            self.node.proven([read], now)
        return self.tick(now=now)

    def notice(self, *, now: float, notice: str) -> Result:
        """See ``Adapter.notice``."""
        self.node.notice(bytes.fromhex(notice), now)
        return self.tick(now=now)

    def compat_hash(self, *, now: float, facts: Mapping[str, Json]) -> Result:
        """See ``Adapter.compat_hash``."""
        return {"hash": wire.compatibility_hash(**facts)}
