# SPDX-License-Identifier: Apache-2.0
"""An engine that lends blocks to readers, which are numbers and say what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ec_protocol.loans import Lend, Loan, Loans
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Trace
from ec_protocol.waiters import Address, FetchState, Waiters, Wanted
from tests.recording import beside

BLOCK = 64
START = 1000.0
GOOD: Address = ("good", 5601)
BAD: Address = ("bad", 5601)


class World:
    """An engine's tier, its waiters and its loans; the readers are numbers."""

    def __init__(self, blocks: int = 8, readers: tuple[int, ...] = (1, 2)) -> None:
        self.now = START
        self.timing = Timing()
        self.records: list[Mapping[str, Any]] = []
        write = beside(self.records.append)
        self.tier = EncodingTier(blocks, BLOCK, Trace("e", lambda: self.now, write))
        self.holds = HoldTable(self.tier)
        self.loans = Loans(self.tier, self.timing)
        counters: Counter[str] = Counter()
        self.waiters = Waiters(self.loans, self.holds, self.timing, counters)
        self.ended: list[tuple[str, str]] = []
        self.loans.on_landed, self.loans.on_failed = self._landed, self._failed
        self.loans.working(list(readers))

    def _landed(self, wanted: Wanted, entry: Entry, now: float) -> None:
        self.ended.append((wanted.mm_hash, "landed"))
        self.waiters.landed(wanted, entry, now)

    def _failed(self, wanted: Wanted) -> None:
        self.ended.append((wanted.mm_hash, "failed"))
        self.waiters.failed(wanted)

    def fetch(self, name: str, source: Address = GOOD, waiter: str = "r") -> FetchState:
        return self.waiters.fetch(name, source, BLOCK, None, waiter, self.now)

    def lend(self, name: str = "h", source: Address = GOOD) -> Loan:
        """A fetch for which blocks are lent."""
        assert self.fetch(name, source, f"r-{name}") == "pending"
        *_, last = self.loans.drain()
        assert isinstance(last, Lend)
        assert (last.reader, last.loan.wanted.mm_hash) == (last.loan.reader, name)
        return last.loan

    def says(self, word: str, loan: Loan, reader: int | None = None) -> None:
        self.loans.heard(loan.reader if reader is None else reader, word, loan.loan_id, self.now)

    def bring(self, state: str) -> Loan:
        """A loan that is in a state of the table."""
        loan = self.lend()
        if state in ("lost", "retired"):
            self.says("lost", loan)
        if state == "retired":
            self.now += self.timing.quarantine_s
            self.loans.tick(self.now)
        if state == "returned":
            self.says("failed", loan)
        assert loan.state == state
        return loan

    def picture(self) -> tuple[Any, ...]:
        """Everything that a word might change."""
        entries = [(e.mm_hash, e.state) for e in self.tier.entries()]
        blocks = (self.tier.free_blocks, self.tier.retired_blocks)
        return entries, blocks, len(self.loans), list(self.ended), self.loans.drain()


def died(world: World, loan: Loan) -> Loan | None:
    """The reader of a loan dies and another one works; the loan that follows, if any."""
    number = max(world.loans._working, default=loan.reader) + 1
    world.loans.working([*world.loans._working, number])
    world.loans.exited(loan.reader, world.now)
    commands = world.loans.drain()
    return commands[0].loan if commands and isinstance(commands[0], Lend) else None


def pass_time(world: World, seconds: float) -> None:
    """The engine takes steps all the while."""
    end = world.now + seconds
    while world.now < end:
        world.now = min(end, world.now + world.timing.stall_s / 2)
        world.loans.tick(world.now)
