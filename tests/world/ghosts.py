# SPDX-License-Identifier: Apache-2.0
"""A simulated world for the core: regions with ghost content, network, DMA, clocks.

Ghost content: each block of a region holds ``(mm_hash, index)`` of the bytes in it
(None: garbage). Copies and READs move it block by block, at moments the test
chooses, from whatever the source holds *then*; so a block reused too early shows
up as a wrong picture, exactly as in life.

Everything is driven from outside, nothing happens by itself. One true clock; each
node sees it at its own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ec_protocol
from ec_protocol import Peering, Timing
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import (
    AbandonRead,
    ClosePeer,
    ForgetRead,
    OpenPeer,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.entry import Entry
from ec_protocol.trace import Trace

BLOCK = 16
BASE = 1 << 20

Ghost = tuple[str, int] | None


def blocks_of(entry: Entry) -> list[int]:
    """The entry's blocks in the order of its bytes."""
    return [b for start, count in entry.extents for b in range(start, start + count)]


@dataclass(eq=False)
class Writing:
    """A save under way: the encoder's output goes into the region block by block."""

    copy: Copy
    blocks: list[int]
    done: int = 0


@dataclass(eq=False)
class Dma:
    """A READ under way. Nobody can stop it but itself and its endpoint's teardown."""

    attempt_id: int
    node: Node
    source: Node
    pairs: list[tuple[int, int]]
    notice: bytes
    entry: Entry
    done: int = 0
    closed: bool = False

    @property
    def finished(self) -> bool:
        """Whether all blocks were moved: only then can it be seen complete."""
        return self.done == len(self.pairs)

    @property
    def active(self) -> bool:
        """Whether it may still write its destination."""
        return not self.closed and not self.finished

    def step(self) -> bool:
        """Move one block, as the source is at this moment.

        A process that is gone answers no READ: the transfer then hangs, having
        spoilt the block it was writing (PROTOCOL.md, assumption EC-A.1).

        Returns:
            Whether it moved.
        """
        src, dst = self.pairs[self.done]
        if not self.source.alive:
            self.node.content[dst] = None
            return False
        self.node.content[dst] = self.source.content[src]
        self.done += 1
        return True


class Node:
    """One engine instance: region with ghost content and the core on top."""

    def __init__(
        self,
        name: str,
        num_blocks: int,
        *,
        timing: Timing,
        rate: float = 1.0,
        world_size: int = 1,
        incarnation: int = 1,
        trace: Trace | None = None,
    ) -> None:
        self.name = name
        self.rate = rate
        self.alive = True
        self.timing = timing
        self.content: list[Ghost] = [None] * num_blocks
        made = ec_protocol.Node(
            blocks=num_blocks,
            block_bytes=BLOCK,
            ranks=world_size,
            timing=timing,
            trace=trace,
            peering=Peering(
                vllm_version="sim",
                model="model",
                dtype="bfloat16",
                incarnation=f"{name}-{incarnation}",
                base_addr=BASE,
            ),
        )
        made.offer(f"agent-{name}-{incarnation}".encode())
        assert made.reads is not None
        assert made.grants is not None
        self.core = made
        self.tier, self.holds, self.copies = made.tier, made.holds, made.copies
        assert made.waiters is not None
        self.consumer, self.producer, self.waiters = made.reads, made.grants, made.waiters
        self.incarnation = incarnation
        self.writing: list[Writing] = []
        self.commands: list[object] = []
        self.planned: list[Copy] = []

    def check(self, dmas: list[Dma]) -> None:
        """Every invariant of the node; raises AssertionError naming the broken one."""
        self.tier.check()
        owners: dict[int, Entry] = {}
        for entry in self.tier.entries():
            for index, block in enumerate(blocks_of(entry)):
                owners[block] = entry
                if entry.servable:
                    assert self.content[block] == (entry.mm_hash, index), (
                        f"NoWrongBytes: {entry} block {index} holds {self.content[block]}"
                    )
        retired = {
            b
            for entry in self.tier._retired.values()
            for start, count in entry.extents
            for b in range(start, start + count)
        }
        for dma in dmas:
            if dma.node is self and dma.active:
                for _, block in dma.pairs:
                    owner = owners.get(block)
                    ok = block in retired or (
                        owner is dma.entry and owner.state in ("saving", "quarantined")
                    )
                    assert ok, f"NoReuseUnderDMA: READ {dma.attempt_id} into block of {owner}"
        for writing in self.writing:
            entry = writing.copy.entry
            assert entry.state == "saving", f"NoReuseUnderDMA: save into {entry}"
            assert all(owners.get(b) is entry for b in writing.blocks), (
                f"NoReuseUnderDMA: save into {entry}"
            )
        for copy in self.copies:
            if copy.kind == "load":
                assert copy.entry.state == "pinned", f"PinSafety: load of {copy.entry}"
        grants = sum(1 for e in self.tier.entries() for kind, _ in e.holders if kind == "grant")
        assert grants == self.producer.open_grants, "PinSafety: pins differ from grants"
        self.check_fetches()

    def check_fetches(self) -> None:
        """Each allocated entry has somebody who will end it (Progress)."""
        fetched = {id(f.entry) for f in self.consumer._fetches.values()}
        saved = {id(c.entry) for c in self.copies if c.kind == "save"}
        quarantined = {
            a.entry.entry_id
            for a in self.consumer.attempts._attempts.values()
            if a.state == "quarantined"
        }
        for entry in self.tier.entries():
            if entry.state in ("allocated", "saving"):
                assert id(entry) in fetched | saved, f"Progress: nobody ends {entry}"
            if entry.state == "quarantined":
                assert entry.entry_id in quarantined, f"Progress: nobody ends {entry}"
        reading = sum(a.state == "reading" for a in self.consumer.attempts._attempts.values())
        assert reading == self.consumer.attempts.active_reads


@dataclass
class World:
    """Nodes, the messages between them, and the READs under way.

    ``old_producers`` makes producers see requests as an old peer's, and answer
    likewise: no attempt ids, leases or incarnations on the wire.
    """

    nodes: dict[str, Node]
    old_producers: bool = False
    time: float = 100.0
    wires: list[tuple[str, str, bytes]] = field(default_factory=list)
    notices: list[tuple[str, int, bytes]] = field(default_factory=list)
    dmas: list[Dma] = field(default_factory=list)
    prepared: dict[tuple[str, int], PrepareRead] = field(default_factory=dict)

    def now(self, node: Node) -> float:
        return self.time * node.rate

    def producer_of(self, port: int) -> str:
        return f"P{port}"

    def run_command(self, node: Node) -> None:
        """The network of ``node`` carries out its oldest command."""
        node.commands += node.consumer.attempts.drain()
        if not node.commands:
            return
        command = node.commands.pop(0)
        if isinstance(command, SendReq):
            payload = wire.encode(command.req)
            self.wires.append((node.name, self.producer_of(command.peer[1]), payload))
        elif isinstance(command, PrepareRead):
            self.post(node, command)
        elif isinstance(command, ReleaseGrant):
            target = self.producer_of(command.peer[1])
            number = int(command.agent_metadata.decode().rsplit("-", 1)[1])
            self.notices.append((target, number, command.notice))
        else:
            # The simulated network needs no connections, and a DMA keeps itself.
            assert isinstance(command, OpenPeer | ClosePeer | AbandonRead | ForgetRead)

    def post(self, node: Node, command: PrepareRead) -> None:
        if not node.consumer.post_read(command.attempt_id, self.now(node)):
            return
        assert sum(n for _, n in command.local) == sum(n for _, n in command.remote)
        entry = node.consumer.attempts._attempts[command.attempt_id].entry
        pairs = []
        for (offset, size), (addr, size2) in zip(command.local, command.remote, strict=True):
            assert size == size2
            for i in range(-(-size // BLOCK)):
                pairs.append(((addr - BASE) // BLOCK + i, offset // BLOCK + i))
        source = self.nodes[self.producer_of(command.peer[1])]
        if command.agent_metadata != source.producer.agent_metadata:
            # Addressed to an incarnation that is gone: the data plane refuses it later.
            source = Node("ghost", len(source.content), timing=node.timing)
            source.alive = False
        self.dmas.append(Dma(command.attempt_id, node, source, pairs, command.notice, entry))

    def deliver(self, index: int, *, keep: bool = False) -> None:
        """Deliver one message; ``keep`` leaves a copy in the network (a duplicate)."""
        source, target, payload = self.wires[index] if keep else self.wires.pop(index)
        node = self.nodes.get(target)
        if node is None or not node.alive:
            return
        if target.startswith("P"):
            req = wire.decode_request([b"", payload])
            if self.old_producers:
                req = wire.XferReq(
                    mm_hash=req.mm_hash,
                    compatibility_hash=req.compatibility_hash,
                    session_id=req.session_id,
                    connector_version=req.connector_version,
                )
            ack = node.producer.on_request(source.encode(), req, self.now(node))
            self.wires.append((target, source, wire.encode(ack)))
        else:
            ack = wire.decode_ack([b"", payload])
            node.consumer.on_ack(("sim", int(source[1:])), ack, self.now(node))

    def deliver_notice(self, index: int, *, keep: bool = False) -> None:
        target, incarnation, notice = self.notices[index] if keep else self.notices.pop(index)
        node = self.nodes[target]
        if node.alive and node.incarnation == incarnation:
            node.producer.on_notice(notice, self.now(node))

    def see_done(self, dma: Dma) -> None:
        """A reader polls a READ and finds it complete; its notice goes out."""
        assert dma.finished
        self.dmas.remove(dma)
        if not dma.closed:
            name = dma.source.name
            if name in self.nodes:
                self.notices.append((name, dma.source.incarnation, dma.notice))
        dma.node.consumer.read_done(dma.attempt_id, self.now(dma.node))

    def close_endpoint(self, dma: Dma) -> None:
        """Tear down the endpoint of an abandoned READ: it can write nothing more."""
        dma.closed = True
        self.dmas.remove(dma)
        dma.node.consumer.attempts.dma_ended(dma.attempt_id, "endpoint_closed", self.now(dma.node))

    def tick(self, node: Node) -> None:
        node.core.tick(self.now(node))

    def check(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                node.check(self.dmas)
