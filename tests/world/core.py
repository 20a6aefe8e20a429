# SPDX-License-Identifier: Apache-2.0
"""Two linked ends: a consumer and a producer with their regions, and a driven clock.

Everything between them is a list that a test may read, reorder, lose from or add
to: ``requests`` and ``acks`` hold encoded frames, ``notices`` completion notices,
``prepared`` and ``posted`` the READs of the data plane. Nothing moves by itself::

    world = World()
    world.producer.save("picture", 1000)
    world.fetch("picture", 1000)
    world.exchange()             # request, grant, ack, PrepareRead
    (attempt,) = world.prepared
    world.post(attempt)          # True: the fence is open
    world.finish(attempt)        # the bytes move, DONE is seen, the notice arrives
    world.check()                # invariants of both tiers, and every byte

Both regions have real bytes, so a wrong picture is seen as one (NoWrongBytes).

``Pair`` is the same through the front door: two nodes without regions, linked by nothing
but what they return.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ec_protocol import Item, Node, Peering, Timing, make_item
from ec_protocol.announcements import PeerRules
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import (
    AbandonRead,
    Command,
    ForgetRead,
    OpenPeer,
    PeerKey,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.entry import Entry
from ec_protocol.trace import Trace
from ec_protocol.waiters import FetchState

PRODUCER: PeerKey = ("producer", 5601)
CONSUMER = b"consumer-identity"
AGENT = b"agent"
ROWS, WIDTH, ELEMENT = 2, 32, 2
BLOCK = WIDTH * ELEMENT
MODEL = {"vllm_version": "0.32.0", "model": "a-model", "dtype": "torch.bfloat16"}
COMPAT = wire.compatibility_hash(*MODEL.values(), BLOCK)
START = 1000.0
#: Peers whose word counts for everybody, as if they had authenticated.
BELIEVED = PeerRules(shared=True)

Sink = Callable[[Mapping[str, Any]], None]


def item(name: str = "a", rows: int = ROWS, **more: Any) -> Item:
    """An item of a request, a block a row."""
    return make_item(name, rows, WIDTH, ELEMENT, **more)


def states(node: Node) -> dict[str, str]:
    """What the tier holds, and in which state."""
    return {entry.mm_hash: entry.state for entry in node.tier.entries()}


def node(
    role: Any = "both",
    blocks: int = 8,
    *,
    peers: bool = True,
    incarnation: str | None = None,
    base_addr: int = 4096,
    agent: bytes = AGENT,
    rules: PeerRules = BELIEVED,
    **more: Any,
) -> Node:
    """A node that may serve at once, with or without the peer-to-peer half.

    What its peers say is believed, as if they had authenticated; with other ``rules`` not.
    """
    name = f"{role}1" if incarnation is None else incarnation
    peering = Peering(**MODEL, incarnation=name, base_addr=base_addr)
    made = Node(
        blocks=blocks,
        block_bytes=BLOCK,
        role=role,
        peering=peering if peers else None,
        rules=rules,
        **more,
    )
    if made.grants is not None:
        made.offer(agent)
    return made


def save(n: Node, *items: Item, now: float = START, landed: bool = True) -> None:
    """Plan saves of items, hand them over in a step, and report them."""
    for wanted in items:
        assert n.plan(wanted, "saver") is not None
    for copy in n.build_step(now):
        n.report(copy.copy_id, 0, landed)


def content(mm_hash: str, nbytes: int) -> bytes:
    """The bytes of an encoding: different for every name, at every offset."""
    return hashlib.shake_128(mm_hash.encode()).digest(nbytes)


class Region:
    """A node and the bytes of its blocks."""

    def __init__(self, made: Node) -> None:
        self.node = made
        self.tier, self.copies, self.holds = made.tier, made.copies, made.holds
        self.bytes = bytearray(made.tier.num_blocks * BLOCK)

    def fill(self, entry: Entry) -> None:
        """Put the named encoding into the entry's blocks, as a finished save would."""
        data = memoryview(content(entry.mm_hash, entry.nbytes))
        for offset, size in wire.local_pieces(entry.extents, entry.nbytes, BLOCK):
            self.bytes[offset : offset + size] = data[:size]
            data = data[size:]

    def holds_encoding(self, entry: Entry) -> bool:
        """Whether the entry's blocks hold the encoding that its name promises."""
        pieces = wire.local_pieces(entry.extents, entry.nbytes, BLOCK)
        found = b"".join(bytes(self.bytes[o : o + n]) for o, n in pieces)
        return found == content(entry.encoding, entry.nbytes)

    def begin_save(self, mm_hash: str, nbytes: int) -> Copy:
        """Allocate an encoding and hand its save to a worker, which takes its time."""
        copy = self.copies.plan_save(mm_hash, nbytes)
        assert copy is not None, f"no room for {mm_hash}"
        self.copies.submit(copy)
        return copy

    def save(self, mm_hash: str, nbytes: int) -> Entry:
        """Allocate, write and land an encoding."""
        copy = self.begin_save(mm_hash, nbytes)
        self.fill(copy.entry)
        self.copies.report(copy.copy_id, 0, landed=True)
        return copy.entry

    def check(self) -> None:
        """The tier's invariants, and every servable byte (NoWrongBytes)."""
        self.tier.check()
        for entry in self.tier.entries():
            if entry.servable:
                assert self.holds_encoding(entry), f"NoWrongBytes: {entry!r}"


class Producer(Region):
    """One incarnation of the producer process."""

    _numbers = itertools.count(1)

    def __init__(self, num_blocks: int, timing: Timing, trace: Trace | None) -> None:
        number = next(self._numbers)
        self.metadata = b"agent-%d" % number
        self.base_addr = number << 32
        made = node(
            "producer",
            num_blocks,
            incarnation=f"incarnation-{number}",
            base_addr=self.base_addr,
            agent=self.metadata,
            timing=timing,
            trace=trace,
        )
        super().__init__(made)
        assert made.grants is not None
        self.grants = made.grants


class World(Region):
    """The consumer's region, everything in flight, and the current producer."""

    def __init__(
        self,
        *,
        blocks: int = 16,
        producer_blocks: int = 16,
        timing: Timing | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.now = START
        self.timing = timing or Timing()
        self.sink = sink
        trace = self._trace("consumer")
        super().__init__(
            node("consumer", blocks, incarnation="c1", timing=self.timing, trace=trace)
        )
        assert self.node.reads is not None
        assert self.node.waiters is not None
        self.reads, self.waiters = self.node.reads, self.node.waiters
        self.producer_blocks = producer_blocks
        self.producer = self._new_producer()
        self.requests: list[bytes] = []
        self.acks: list[bytes] = []
        self.notices: list[tuple[bytes, bytes]] = []
        self.prepared: dict[int, PrepareRead] = {}
        self.posted: dict[int, PrepareRead] = {}
        self.commands: list[Command] = []

    def _trace(self, name: str) -> Trace | None:
        return Trace(name, lambda: self.now, self.sink) if self.sink is not None else None

    def _new_producer(self) -> Producer:
        return Producer(self.producer_blocks, self.timing, self._trace("producer"))

    def restart_producer(self) -> None:
        """SIGKILL and a new process at the same address: memory and grants are gone."""
        self.producer = self._new_producer()

    # ------------------------------------------------------------------ time
    def advance(self, seconds: float) -> None:
        """Let time pass without anybody looking at the clock."""
        self.now += seconds

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, then let both ends and the holds look at the clock."""
        self.now += seconds
        self.producer.node.tick(self.now)
        self.node.tick(self.now)
        self.carry_out()

    # ------------------------------------------------------- the consumer's engine
    def fetch(self, mm_hash: str, nbytes: int, waiter: str = "request-1") -> FetchState:
        """What the engine thread asks once per step."""
        return self.waiters.fetch(mm_hash, PRODUCER, nbytes, None, waiter, self.now)

    # ------------------------------------------------------------- the network
    def carry_out(self) -> list[Command]:
        """Carry out what the consumer wants done; returns it, in order."""
        commands = self.reads.attempts.drain()
        self.commands += commands
        for command in commands:
            match command:
                case SendReq():
                    self.requests.append(wire.encode(command.req))
                case PrepareRead():
                    self.prepared[command.attempt_id] = command
                case ReleaseGrant():
                    self.notices.append((command.agent_metadata, command.notice))
                case ForgetRead():
                    self.posted.pop(command.attempt_id, None)
                case AbandonRead():
                    assert command.attempt_id in self.posted
        return commands

    def deliver_requests(self) -> None:
        """The producer gets every request and answers each."""
        while self.requests:
            request = wire.decode_request([b"", self.requests.pop(0)])
            ack = self.producer.node.request(CONSUMER, request, self.now)
            self.acks.append(wire.encode(ack))

    def deliver_acks(self) -> None:
        """The consumer gets every ack."""
        while self.acks:
            ack = wire.decode_ack([b"", self.acks.pop(0)])
            self.node.answer(PRODUCER, ack, self.now)
        self.carry_out()

    def deliver_notices(self) -> None:
        """Notices reach the agent that they were sent to, if it still lives."""
        while self.notices:
            metadata, notice = self.notices.pop(0)
            if metadata == self.producer.metadata:
                self.producer.grants.on_notice(notice, self.now)

    def exchange(self) -> None:
        """Requests there and acks back, until nothing is left to send."""
        self.carry_out()
        self.deliver_requests()
        self.deliver_acks()

    # ---------------------------------------------------------- the data plane
    def post(self, attempt_id: int) -> bool:
        """Ask for leave to post a prepared READ, and post it if granted."""
        command = self.prepared.pop(attempt_id)
        leave = self.reads.post_read(attempt_id, self.now)
        if leave:
            self.posted[attempt_id] = command
        self.carry_out()
        return leave

    def move_bytes(self, attempt_id: int) -> None:
        """The DMA of a posted READ happens now, whatever became of either end."""
        command = self.posted[attempt_id]
        source = self.producer
        alive = command.agent_metadata == source.metadata
        for (offset, size), (address, size_there) in zip(
            command.local, command.remote, strict=True
        ):
            assert size == size_there
            start = address - source.base_addr
            data = bytes(source.bytes[start : start + size]) if alive else b"\xee" * size
            assert len(data) == size, "READ outside the producer's region"
            self.bytes[offset : offset + size] = data

    def finish(self, attempt_id: int) -> None:
        """The READ ends: its bytes move, DONE is seen, its notice arrives."""
        command = self.posted[attempt_id]
        self.move_bytes(attempt_id)
        del self.posted[attempt_id]
        self.notices.append((command.agent_metadata, command.notice))
        self.reads.read_done(attempt_id, self.now)
        self.carry_out()
        self.deliver_notices()

    def check(self) -> None:
        """Invariants and bytes of both ends."""
        super().check()
        self.producer.check()


class Pair:
    """A producer that has announced, a consumer, and the wire between them."""

    def __init__(self, *names: str) -> None:
        self.now = START
        self.producer, self.consumer = node("producer"), node("consumer")
        items = [item(name) for name in names or ("a",)]
        save(self.producer, *items)
        self.announced = self.producer.announce(items, PRODUCER, self.now)

    def want(self, name: str = "a", waiter: str = "r", **kw: Any) -> str:
        return self.consumer.want(item(name, **kw), self.announced, waiter, self.now)

    def ask(self) -> wire.XferAck:
        """The consumer's commands so far are to connect and to ask; the answer."""
        open_, send = self.consumer.commands()
        assert isinstance(open_, OpenPeer)
        assert isinstance(send, SendReq)
        assert open_.peer == send.peer == PRODUCER
        frames = [b"", wire.encode(send.req)]
        return self.producer.request(b"c", self.producer.read_request(frames), self.now)

    def deliver(self, ack: wire.XferAck) -> int | None:
        frames = [b"", wire.encode(ack)]
        return self.consumer.answer(PRODUCER, self.consumer.read_answer(frames), self.now)

    def prepared(self) -> PrepareRead:
        self.want()
        self.deliver(self.ask())
        (command,) = self.consumer.commands()
        assert isinstance(command, PrepareRead)
        return command

    def posted(self) -> PrepareRead:
        command = self.prepared()
        assert self.consumer.may_post(command.attempt_id, self.now)
        return command
