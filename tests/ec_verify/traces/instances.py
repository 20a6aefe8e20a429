# SPDX-License-Identifier: Apache-2.0
"""Two instances of several processes each, on one driven clock, that record traces.

An instance is an engine with its offers and loans, a parent, servers one after the other,
and readers. Each process records into a list of its own, as each writes a file of its own.
Nothing moves by itself; the clock goes on a little with every record::

    world = Instances()
    world.producer.save("a")
    loan = world.lend("a")       # the consumer's engine lends
    attempt = world.granted()    # its reader asks, the server grants
    world.post(attempt)
    world.finish(attempt)        # DONE is seen, the notice arrives
    world.hear()                 # the engine hears what its readers say
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ec_protocol.loans import Lend, Loan, Loans
from ec_protocol.offers.engine import Offers
from ec_protocol.offers.server import SharedShelf
from ec_protocol.offers.table import (
    Ledger,
    OfferTable,
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PrepareRead, ReleaseGrant, SendReq
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.p2p.reader import Reader
from ec_protocol.processes import Kind, Processes, TakePlace, Wanted
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Recorder, Trace
from ec_protocol.waiters import Address, Waiters
from ec_verify.traces.load import Run, make_run
from tests.ec_verify.traces.traced import Raw, as_read

BLOCK = 64
COMPAT = "compat"
PRODUCER: Address = ("producer", 5601)
CONSUMER = b"consumer-identity"
START = 1000.0
#: How far the clock goes with every look at it.
LOOK_S = 1e-4


class FreeLocks:
    """Locks that nobody else has; ``taken`` are the other side's."""

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def acquire(self, slot: int) -> bool:
        return slot not in self.taken

    def release(self, slot: int) -> None:
        pass


class Instance:
    """An engine, a parent, servers and readers.

    Attributes:
        servers: What each has, by number; the last one serves.
        readers: Likewise; those that are gone are not there any more.
    """

    def __init__(self, world: Instances, name: str, blocks: int) -> None:
        self.world = world
        self.name = name
        self.starts = 0
        trace = self.trace("engine", 0)
        self.tier = EncodingTier(blocks, BLOCK, trace)
        self.copies = CopyTable(self.tier)
        self.holds = HoldTable(self.tier)
        self.loans = Loans(self.tier, world.timing)
        self.waiters = Waiters(self.loans, self.holds, world.timing, Counter())
        self.loans.on_landed, self.loans.on_failed = self.waiters.landed, self.waiters.failed
        self.locks = FreeLocks()
        slots = slots_for(blocks)
        self._table = memoryview(bytearray(table_bytes(slots)))
        self._ledger = memoryview(bytearray(ledger_bytes(slots)))
        format_table(self._table, slots, b"k" * 16)
        format_ledger(self._ledger, slots)
        self.offers = Offers(
            OfferTable(self._table),
            Ledger(self._ledger),
            self.locks,
            lease_s=world.timing.lease_s,
            max_blocks=blocks,
            recorder=self.tier.recorder,
            clock=world.clock,
        )
        self.tier.gate = self.offers
        wanted: dict[Kind, Wanted] = {"server": Wanted(1, 1), "reader": Wanted(2, 1)}
        self.processes = Processes(wanted, world.timing, Recorder(self.trace("parent", 0)))
        self.servers: dict[int, ProducerGrants] = {}
        self.readers: dict[int, Reader] = {}

    def trace(self, kind: str, number: int) -> Trace:
        node = f"{self.name}.{kind}-{number}" if number else f"{self.name}.{kind}"
        records = self.world.streams.setdefault(node, [])

        def sink(record: Mapping[str, Any]) -> None:
            records.append(as_read(record))
            self.world.all.append(records[-1])

        trace = Trace(node, self.world.clock, sink)
        trace.facts("instance", name=self.name, process=number)
        return trace

    # ------------------------------------------------------------------ the parent
    def look(self) -> None:
        """The parent looks, does what it decides, and what it starts is ready at once."""
        for command in self.processes.tick(self.world.clock()):
            if isinstance(command, TakePlace):
                self.begin(command.process, command.kind)
        self.loans.working(self.processes.numbers("working", "reader"))

    def start(self) -> None:
        """Those work that are wanted, and as many stand by."""
        self.look()
        for number in self.processes.numbers("starting"):
            self.processes.ready(number, self.world.clock())
        self.look()

    def begin(self, number: int, kind: Kind) -> None:
        """A process has been told to take its place."""
        trace, timing = self.trace(kind, number), self.world.timing
        if kind == "reader":
            self.readers[number] = Reader(
                self.tier.num_blocks,
                BLOCK,
                timing=timing,
                compat_hash=COMPAT,
                session=f"{self.name}-{number}",
                trace=trace,
            )
            return
        shelf = SharedShelf(
            OfferTable(self._table.toreadonly()),
            Ledger(self._ledger),
            FreeLocks(),
            num_blocks=self.tier.num_blocks,
            block_size_bytes=BLOCK,
            now=self.world.clock(),
            lease_s=timing.lease_s,
            recorder=Recorder(trace),
        )
        self.servers[number] = ProducerGrants(
            shelf,
            timing=timing,
            compat_hash=COMPAT,
            incarnation=f"{self.name}-{number}",
            base_addr=1 << 32,
            agent_metadata=b"agent-%d" % number,
        )

    def kill(self, number: int, *, known: bool = True) -> None:
        """A process is gone; ``known``: the engine learns of it."""
        self.processes.exited(number, self.world.clock())
        if self.readers.pop(number, None) is not None and known:
            self.loans.exited(number, self.world.clock())
        self.start()

    @property
    def server(self) -> ProducerGrants:
        return self.servers[max(self.servers)]

    # ------------------------------------------------------------------ the engine
    def begin_save(self, name: str, blocks: int = 1) -> Entry:
        copy = self.copies.plan_save(name, blocks * BLOCK)
        assert copy is not None
        self.copies.submit(copy)
        self.catch_up()
        return copy.entry

    def end_save(self, name: str, landed: bool = True) -> None:
        copy = self.copies.save_of(name)
        assert copy is not None
        self.copies.report(copy.copy_id, 0, landed)
        self.catch_up()

    def save(self, name: str, blocks: int = 1) -> Entry:
        entry = self.begin_save(name, blocks)
        self.end_save(name)
        return entry

    def catch_up(self) -> None:
        self.offers.catch_up(self.world.clock())


class Instances:
    """A producer and a consumer, each an instance of several processes."""

    def __init__(self, blocks: int = 16) -> None:
        self.now = START
        self.timing = Timing()
        self.streams: dict[str, list[Raw]] = {}
        self.all: list[Raw] = []
        self.together = False
        self.prepared: dict[int, tuple[int, PrepareRead]] = {}
        self.posted: dict[int, tuple[int, PrepareRead]] = {}
        self.loans: dict[int, Loan] = {}
        self.producer = Instance(self, "p", blocks)
        self.consumer = Instance(self, "c", blocks)
        self.producer.start()
        self.consumer.start()

    def clock(self) -> float:
        self.now += LOOK_S
        return self.now

    def run(self, name: str = "instances", only: tuple[str, ...] = ()) -> Run:
        """What was recorded, as a run with a file for each process, or for those named."""
        files = {node: records for node, records in self.streams.items() if records}
        if self.together:
            files = {"all": self.all}
        return make_run(name, [(n, r) for n, r in files.items() if not only or n in only])

    def in_one_file(self) -> None:
        """All that was recorded, in the order in which it happened."""
        self.together = True

    def find(self, node: str, action: str) -> Raw:
        """The first record of an action."""
        return next(r for r in self.streams[node] if r["action"] == action)

    # ---------------------------------------------------------- engine and readers
    def lend(self, name: str, blocks: int = 1, waiter: str = "r") -> Loan:
        """The consumer's engine lends; its reader takes the loan up."""
        consumer = self.consumer
        state = consumer.waiters.fetch(name, PRODUCER, blocks * BLOCK, None, waiter, self.clock())
        assert state == "pending"
        return self.tell()

    def tell(self) -> Loan:
        """What the engine says reaches the readers; the last loan."""
        loan: Loan | None = None
        for command in self.consumer.loans.drain():
            reader = self.consumer.readers[command.reader]
            if isinstance(command, Lend):
                loan, wanted = command.loan, command.loan.wanted
                self.loans[loan.loan_id] = loan
                where = (wanted.nbytes, loan.entry.extents, wanted.deadline, self.clock())
                reader.lend(loan.loan_id, wanted.mm_hash, wanted.source, *where)
            else:
                reader.take_back(command.loan_id, self.clock())
        self.network()
        return self.loans[max(self.loans)] if loan is None else loan

    def hear(self) -> None:
        """The engine hears what the readers have said, and catches up."""
        for number, reader in list(self.consumer.readers.items()):
            for word, loan in reader.words():
                self.consumer.loans.heard(number, word, loan, self.clock())
        self.consumer.catch_up()

    # ------------------------------------------------------ readers and the server
    def network(self, answered: bool = True) -> None:
        """What readers want done is done; requests are answered."""
        for number, reader in list(self.consumer.readers.items()):
            while commands := reader.commands():
                for command in commands:
                    if isinstance(command, SendReq) and answered:
                        request = wire.decode_request([b"", wire.encode(command.req)])
                        ack = self.producer.server.on_request(CONSUMER, request, self.clock())
                        back = wire.decode_ack([b"", wire.encode(ack)])
                        reader.fetches.attempts.peers.heard_from(PRODUCER)
                        reader.fetches.on_ack(PRODUCER, back, self.clock())
                    elif isinstance(command, PrepareRead):
                        self.prepared[len(self.prepared) + len(self.posted)] = (number, command)
                    elif isinstance(command, ReleaseGrant):
                        self.notify(command.notice)

    def notify(self, notice: bytes) -> None:
        """A completion notice reaches whoever serves."""
        self.producer.server.on_notice(notice, self.clock())

    def post(self) -> int:
        """The last READ that was prepared is posted; names it."""
        key = max(self.prepared)
        number, command = self.prepared.pop(key)
        fetches = self.consumer.readers[number].fetches
        if fetches.post_read(command.attempt_id, self.clock()):
            self.posted[key] = (number, command)
        self.network()
        return key

    def reading(self, name: str, blocks: int = 1, waiter: str = "r") -> tuple[Loan, int]:
        """A fetch up to the posted READ."""
        if self.producer.tier.get(name) is None:
            self.producer.save(name, blocks)
        loan = self.lend(name, blocks, waiter)
        return loan, self.post()

    def finish(self, key: int, notice: bool = True) -> None:
        """DONE is seen, and the notice arrives."""
        number, command = self.posted.pop(key)
        self.consumer.readers[number].fetches.read_done(command.attempt_id, self.clock())
        self.network()
        if notice:
            self.notify(command.notice)

    def lose(self, key: int) -> None:
        """The READ breaks; it may be under way."""
        number, command = self.posted[key]
        self.consumer.readers[number].fetches.read_error(command.attempt_id, self.clock())
        self.network()

    def prove(self, key: int) -> None:
        """It is over after all."""
        number, command = self.posted.pop(key)
        attempts = self.consumer.readers[number].fetches.attempts
        attempts.dma_ended(command.attempt_id, "completed", self.clock())

    def fetch(self, name: str, blocks: int = 1, waiter: str = "r") -> Loan:
        """A fetch from beginning to end."""
        loan, key = self.reading(name, blocks, waiter)
        self.finish(key)
        self.hear()
        return loan

    def tick(self, seconds: float) -> None:
        """Time passes, and all look at the clock; nobody stands still."""
        self.now += seconds
        for instance in (self.producer, self.consumer):
            for number in instance.servers:
                if number in instance.processes.numbers("working", "server"):
                    instance.servers[number].tick(self.clock())
            for number in self.living(instance):
                instance.processes.beat(number, self.now)
            for reader in instance.readers.values():
                reader.fetches.tick(self.clock())
            instance.loans.tick(self.clock())
            instance.holds.tick(self.clock())
            instance.catch_up()
        self.network()

    def living(self, instance: Instance) -> list[int]:
        states = ("starting", "spare", "working", "draining", "killed")
        return [number for state in states for number in instance.processes.numbers(state)]
