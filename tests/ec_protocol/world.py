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
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ec_protocol.p2p import wire
from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.commands import (
    AbandonRead,
    Command,
    ForgetRead,
    PeerKey,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)
from ec_protocol.p2p.fetches import Fetches, FetchState
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Trace

PRODUCER: PeerKey = ("producer", 5601)
CONSUMER = b"consumer-identity"
BLOCK = 64
COMPAT = wire.compatibility_hash("0.32.0", "a-model", "bfloat16", BLOCK)
START = 1000.0

Sink = Callable[[Mapping[str, Any]], None]


def content(mm_hash: str, nbytes: int) -> bytes:
    """The bytes of an encoding: different for every name, at every offset."""
    return hashlib.shake_128(mm_hash.encode()).digest(nbytes)


class Region:
    """A tier, its copies and the bytes of its blocks."""

    def __init__(self, num_blocks: int, trace: Trace | None) -> None:
        self.tier = EncodingTier(num_blocks, BLOCK, trace)
        self.copies = CopyTable(self.tier)
        self.bytes = bytearray(num_blocks * BLOCK)

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
        return found == content(entry.mm_hash, entry.nbytes)

    def save(self, mm_hash: str, nbytes: int) -> Entry:
        """Allocate, write and land an encoding."""
        copy = self.copies.plan_save(mm_hash, nbytes)
        assert copy is not None, f"no room for {mm_hash}"
        self.copies.submit(copy)
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
        super().__init__(num_blocks, trace)
        number = next(self._numbers)
        self.metadata = b"agent-%d" % number
        self.base_addr = number << 32
        self.grants = ProducerGrants(
            self.tier,
            timing=timing,
            compat_hash=COMPAT,
            incarnation=f"incarnation-{number}",
            base_addr=self.base_addr,
            agent_metadata=self.metadata,
        )


def reading_side(
    tier: EncodingTier, holds: HoldTable, timing: Timing, session: str, compat: str = COMPAT
) -> Fetches:
    """Fetches, and the attempts that they are made of."""
    attempts = Attempts(tier, timing=timing, compat_hash=compat, session=session)
    return Fetches(attempts, Acks(attempts), holds)


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
        super().__init__(blocks, self._trace("consumer"))
        self.holds = HoldTable(self.tier)
        self.reads = reading_side(self.tier, self.holds, self.timing, "c1")
        self.producer_blocks = producer_blocks
        self.producer = self._new_producer()
        self.requests: list[bytes] = []
        self.acks: list[bytes] = []
        self.notices: list[tuple[bytes, bytes]] = []
        self.prepared: dict[int, PrepareRead] = {}
        self.posted: dict[int, PrepareRead] = {}
        self.commands: list[Command] = []

    def _trace(self, node: str) -> Trace | None:
        return Trace(node, lambda: self.now, self.sink) if self.sink is not None else None

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
        self.producer.grants.tick(self.now)
        self.reads.tick(self.now)
        self.holds.tick(self.now)
        self.pump()

    # ------------------------------------------------------- the consumer's engine
    def fetch(self, mm_hash: str, nbytes: int, waiter: str = "request-1") -> FetchState:
        """What the engine thread asks once per step."""
        return self.reads.fetch(mm_hash, PRODUCER, nbytes, None, waiter, self.now)

    # --------------------------------------------------------------- the pump
    def pump(self) -> list[Command]:
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
            ack = self.producer.grants.on_request(CONSUMER, request, self.now)
            self.acks.append(wire.encode(ack))

    def deliver_acks(self) -> None:
        """The consumer gets every ack."""
        while self.acks:
            ack = wire.decode_ack([b"", self.acks.pop(0)])
            self.reads.attempts.peers.heard_from(PRODUCER)
            self.reads.on_ack(PRODUCER, ack, self.now)
        self.pump()

    def deliver_notices(self) -> None:
        """Notices reach the agent that they were sent to, if it still lives."""
        while self.notices:
            metadata, notice = self.notices.pop(0)
            if metadata == self.producer.metadata:
                self.producer.grants.on_notice(notice, self.now)

    def exchange(self) -> None:
        """Requests there and acks back, until nothing is left to send."""
        self.pump()
        self.deliver_requests()
        self.deliver_acks()

    # ---------------------------------------------------------- the data plane
    def post(self, attempt_id: int) -> bool:
        """Ask for leave to post a prepared READ, and post it if granted."""
        command = self.prepared.pop(attempt_id)
        leave = self.reads.post_read(attempt_id, self.now)
        if leave:
            self.posted[attempt_id] = command
        self.pump()
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
        self.pump()
        self.deliver_notices()

    def check(self) -> None:
        """Invariants and bytes of both ends."""
        super().check()
        self.producer.check()
