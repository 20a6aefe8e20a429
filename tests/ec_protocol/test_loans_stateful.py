# SPDX-License-Identifier: Apache-2.0
"""Any schedule of an engine and readers that hang, lie still, die, and are replaced.

The region is a list of blocks, each of which says whose bytes lie there. A READ that a
reader has posted writes to the blocks of its loan whenever it likes, the right bytes or
others, until it has ended or its reader's process has; nothing that the engine is told or
does stops it. Words arrive late, twice, in another order or never, also after their
reader's end, of which the engine learns some time afterwards.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ec_protocol.loans import EndReader, Lend, Loans
from ec_protocol.processes import (
    KillProcess,
    Processes,
    ReportStuck,
    StartProcess,
    TakePlace,
    Wanted,
)
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Recorder
from ec_protocol.waiters import Address, Waiters
from tests.ec_protocol.played_readers import Read, Reader, blocks_of
from tests.recording import played

BLOCK = 64
#: Fewer than all encodings together take, so that each new one pushes another out.
BLOCKS = 4
SIZES = {"a": 1, "b": 1, "c": 2, "d": 3}
NAMES = st.sampled_from(sorted(SIZES))
WAITERS = st.sampled_from(["r1", "r2", "r3"])
SOURCES = st.sampled_from([(f"host-{number}", 1) for number in range(6)])
PICK = st.integers(0, 99)
TIMING = Timing(quarantine_s=30.0)


def right(name: str) -> list[object]:
    return [(name, number) for number in range(SIZES[name])]


class LoansMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.memory: list[object] = [None] * BLOCKS
        self.tier = EncodingTier(BLOCKS, BLOCK, played("engine", lambda: self.now))
        self.copies = CopyTable(self.tier)
        self.holds = HoldTable(self.tier)
        self.loans = Loans(self.tier, TIMING)
        self.waiters = Waiters(self.loans, self.holds, TIMING, Counter())
        self.loans.on_landed, self.loans.on_failed = self.waiters.landed, self.waiters.failed
        parent = Recorder(played("parent", lambda: self.now))
        self.processes = Processes({"reader": Wanted(3, 1)}, TIMING, parent)
        self.readers: dict[int, Reader] = {}
        self.words: list[tuple[int, str, int]] = []
        self.ids: set[int] = set()
        self.parent_looks()
        for number in self.readers:
            self.processes.ready(number, self.now)
        self.parent_looks()

    # --------------------------------------------------------------------- the engine
    @rule(name=NAMES, source=SOURCES, waiter=WAITERS)
    def wants(self, name: str, source: Address, waiter: str, unsaid: bool = False) -> None:
        if self.tier.get(name) is None or self.waiters.fetching(name):
            self.waiters.fetch(name, source, SIZES[name] * BLOCK, None, waiter, self.now)
        self.tells(unsaid)

    @rule(waiter=WAITERS)
    def leaves(self, waiter: str) -> None:
        self.waiters.leave(waiter, self.now)
        self.tells()

    @rule(waiter=WAITERS, name=NAMES)
    def loads(self, waiter: str, name: str) -> None:
        self.waiters.consumed(waiter, name)

    @rule(name=NAMES)
    def saves(self, name: str) -> None:
        """Something else is encoded here, and may push out what may go."""
        if self.tier.get(name) is None:
            copy = self.copies.plan_save(name, SIZES[name] * BLOCK)
            if copy is not None:
                self.copies.submit(copy)
                for block, byte in zip(blocks_of(copy.entry), right(name), strict=True):
                    self.memory[block] = byte
                self.copies.report(copy.copy_id, 0, landed=True)

    def tells(self, unsaid: bool = False) -> None:
        """The readers are told, unless one is gone or too busy to hear."""
        for command in self.loans.drain():
            if isinstance(command, EndReader):
                self.processes.condemn(command.reader, "replaced")
                continue
            reader = self.readers.get(command.reader)
            said = reader is not None and reader.alive and not unsaid
            if isinstance(command, Lend):
                assert command.loan.loan_id not in self.ids, "a number is used once"
                self.ids.add(command.loan.loan_id)
                source = command.loan.wanted.source
                assert self.loans.circuits.standing(source, self.now) != "resting"
                if not said:
                    self.loans.unsaid(command.loan.loan_id, self.now)
                    continue
            if said and reader is not None:
                reader.inbox.append(command)

    @rule(name=NAMES, source=SOURCES, waiter=WAITERS)
    def wants_what_cannot_be_said(self, name: str, source: Address, waiter: str) -> None:
        self.wants(name, source, waiter, unsaid=True)

    @precondition(lambda self: self.words)
    @rule(pick=PICK, how=st.sampled_from(["hear", "hear", "hear", "twice", "lose"]))
    def hears(self, pick: int, how: str) -> None:
        """A word arrives, of whichever reader and in whichever order."""
        word = self.words[pick % len(self.words)]
        if how != "twice" or len(self.words) > 8:
            self.words.remove(word)
        if how != "lose":
            self.loans.heard(*word, self.now)
        self.tells()

    @precondition(lambda self: len(self.loans))
    @rule(pick=PICK, word=st.sampled_from(["landed", "failed", "lost", "proven", "exited"]))
    def hears_what_nobody_may_say(self, pick: int, word: str) -> None:
        """Of a loan that was made to somebody else; or what only we may say."""
        loan = list(self.loans._loans.values())[pick % len(self.loans)]
        self.loans.heard(loan.reader + 1 + pick % 2, word, loan.loan_id, self.now)
        self.loans.heard(loan.reader, "take_back" if pick % 2 else "exited", loan.loan_id, self.now)

    @precondition(lambda self: self.unknown_exits())
    @rule(pick=PICK)
    def learns_of_an_exit(self, pick: int) -> None:
        exits = self.unknown_exits()
        reader = exits[pick % len(exits)]
        del self.readers[reader.number]
        self.processes.exited(reader.number, self.now)
        self.loans.exited(reader.number, self.now)
        self.parent_looks()

    def unknown_exits(self) -> list[Reader]:
        return [reader for reader in self.readers.values() if not reader.alive]

    @rule(seconds=st.sampled_from([0.5, 5.0, 35.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.loans.tick(self.now)
        self.loans.tick(self.now)  # nobody is late at the first look after a pause
        self.holds.tick(self.now)
        for number, reader in self.readers.items():
            if reader.alive and not reader.stands_still:
                self.processes.beat(number, self.now)
        self.parent_looks()

    # --------------------------------------------------------------------- the parent
    def parent_looks(self) -> None:
        for command in self.processes.tick(self.now):
            if isinstance(command, StartProcess):
                self.readers[command.process] = Reader(command.process)
            elif isinstance(command, KillProcess):
                self.killed(command.process)
            else:
                assert isinstance(command, TakePlace | ReportStuck)
        self.loans.working(self.processes.numbers("working"))
        self.tells()

    def killed(self, number: int) -> None:
        """A signal was sent. It may take a while, or for ever."""
        self.loans.killed(number, self.now)

    @rule(pick=PICK)
    def stands_still(self, pick: int) -> None:
        """In a call that the kernel cannot end: its READs may write for ever."""
        reader = self.pick(pick, "number")
        if reader is not None:
            reader.stands_still = True

    @rule()
    def gets_ready(self) -> None:
        for number in self.processes.numbers("starting"):
            if self.readers[number].alive:
                self.processes.ready(number, self.now)
        self.parent_looks()

    # --------------------------------------------------------------------- the readers
    def pick(self, pick: int, having: str) -> Reader | None:
        able = [r for r in self.readers.values() if r.alive and getattr(r, having)]
        return able[pick % len(able)] if able else None

    def says(self, reader: Reader, word: str, loan_id: int) -> None:
        self.words.append((reader.number, word, loan_id))

    @rule(pick=PICK)
    def takes(self, pick: int) -> None:
        reader = self.pick(pick, "inbox")
        if reader is not None:
            self.take(reader)

    def take(self, reader: Reader) -> None:
        command = reader.inbox.pop(0)
        if isinstance(command, Lend):
            reader.work[command.loan.loan_id] = command.loan
        elif command.loan_id in reader.work and not self.reading(reader, command.loan_id):
            del reader.work[command.loan_id]
            self.says(reader, "failed", command.loan_id)

    @rule(name=NAMES, source=SOURCES, waiter=WAITERS, stage=st.integers(0, 5), other=NAMES)
    def fetch_until(self, name: str, source: Address, waiter: str, stage: int, other: str) -> None:
        """A fetch up to a point, and something else is saved.

        Stages: 0 told, 1 posted, 2 lost, 3 lost and its reader died, 4 landed, 5 failed.
        The word is heard, and may be heard again.
        """
        self.wants(name, source, waiter)
        loan = self.loans._by_hash.get(name)
        reader = self.readers.get(loan.reader) if loan is not None else None
        if loan is None or reader is None or not reader.alive:
            return
        while reader.inbox:
            self.take(reader)
        if loan.loan_id not in reader.work or stage == 0:
            return
        read = self.reading(reader, loan.loan_id)
        if read is None:
            read = Read(loan, blocks_of(loan.entry))
            reader.reads.append(read)
        if stage in (2, 3):
            self.lose(reader, loan.loan_id)
        elif stage >= 4:
            self.end(reader, read, landed=stage == 4)
        if stage >= 2:
            self.loans.heard(*self.words[-1], self.now)
        if stage == 3:
            reader.alive = False
            reader.reads.clear()
        self.saves(other)

    @rule(names=st.permutations("abcd"), sources=st.permutations(range(6)), early=st.booleans())
    def a_suspect_meets_others(self, names: list[str], sources: list[int], early: bool) -> None:
        """Who is blamed is fetched from again while other readers come and go."""
        (bad, good), (one, two, three, _) = [(f"host-{n}", 1) for n in sources[:2]], names
        if early:
            self.wants(two, good, "r2")
        self.fetch_until(one, bad, "r1", 3, three)
        self.leaves("r1")
        self.everybody_is_replaced()
        self.wants(one, bad, "r1")
        loan = self.loans._by_hash.get(one)
        for reader in self.readers.values():
            if loan is not None and reader.number != loan.reader and reader.alive:
                reader.alive = False
                reader.reads.clear()
                break
        self.wants(three, good, "r3")
        self.everybody_is_replaced()
        self.wants(two, good, "r2")

    def everybody_is_replaced(self) -> None:
        """Who died is known to be gone, and the next one works."""
        while self.unknown_exits():
            self.learns_of_an_exit(0)
        self.gets_ready()

    def reading(self, reader: Reader, loan_id: int) -> Read | None:
        return next((read for read in reader.reads if read.loan.loan_id == loan_id), None)

    @rule(pick=PICK, how=st.sampled_from(["post", "lands", "fails", "again", "loses"]))
    def works(self, pick: int, how: str) -> None:
        reader = self.pick(pick, "work")
        if reader is None:
            return
        loan_id, loan = list(reader.work.items())[pick % len(reader.work)]
        read = self.reading(reader, loan_id)
        if read is None:
            if how == "fails":
                del reader.work[loan_id]
                self.says(reader, "unreachable" if pick % 2 else "failed", loan_id)
            else:
                reader.reads.append(Read(loan, blocks_of(loan.entry)))
        elif how == "loses":
            self.lose(reader, loan_id)
        elif how == "again":
            reader.reads.remove(read)
        else:
            self.end(reader, read, landed=how == "lands")

    def end(self, reader: Reader, read: Read, landed: bool) -> None:
        """Its READ is over, and with it the loan."""
        reader.reads.remove(read)
        del reader.work[read.loan.loan_id]
        if landed:
            name = read.loan.wanted.mm_hash
            for block, byte in zip(read.blocks, right(name), strict=True):
                self.memory[block] = byte
        self.says(reader, "landed" if landed else "failed", read.loan.loan_id)

    def lose(self, reader: Reader, loan_id: int) -> None:
        """It tells the engine and, in its next turn, its parent."""
        del reader.work[loan_id]
        reader.lost.append(loan_id)
        reader.drains = True
        self.says(reader, "lost", loan_id)

    @precondition(lambda self: any(reader.drains for reader in self.readers.values()))
    @rule()
    def parent_hears(self) -> None:
        for reader in self.readers.values():
            if reader.drains and reader.number in self.processes.numbers("working"):
                self.processes.drain(reader.number, self.now)
        self.parent_looks()

    @rule(pick=PICK)
    def proves(self, pick: int) -> None:
        """A READ that was lost ends after all."""
        reader = self.pick(pick, "lost")
        if reader is not None:
            loan_id = reader.lost.pop(pick % len(reader.lost))
            read = self.reading(reader, loan_id)
            assert read is not None
            reader.reads.remove(read)
            self.says(reader, "proven", loan_id)

    @rule(pick=PICK, byte=st.sampled_from(["right", "junk"]))
    def writes(self, pick: int, byte: str) -> None:
        reader = self.pick(pick, "reads")
        if reader is not None:
            read = reader.reads[pick % len(reader.reads)]
            number = pick % len(read.blocks)
            name = read.loan.wanted.mm_hash
            self.memory[read.blocks[number]] = (name, number) if byte == "right" else "junk"

    @rule(pick=PICK)
    def dies(self, pick: int) -> None:
        """Killed, or by itself at any moment: its READs end with it. Who is told is later."""
        reader = self.pick(pick, "number")
        if reader is not None:
            reader.alive = False
            reader.reads.clear()

    # ---------------------------------------------------------------------- the checks
    @invariant()
    def no_wrong_bytes(self) -> None:
        self.tier.check()
        for entry in self.tier.entries():
            if entry.servable:
                found = [self.memory[block] for block in blocks_of(entry)]
                assert found == right(entry.mm_hash), "NoWrongBytes"

    @invariant()
    def no_reuse_under_dma(self) -> None:
        """Who may still write owns what it writes to, and nothing that is served."""
        owners = {b: e for e in self.tier.entries() for b in blocks_of(e)}
        retired = {b for e in self.tier._retired.values() for b in blocks_of(e)}
        for reader in self.readers.values():
            for read in reader.reads:
                for block in read.blocks:
                    owner = owners.get(block)
                    mine = owner is read.loan.entry and owner.state in ("saving", "quarantined")
                    assert mine or block in retired, "NoReuseUnderDMA"

    @invariant()
    def who_waits_has_a_loan(self) -> None:
        lent = [loan for loan in self.loans._loans.values() if loan.state == "lent"]
        names = [loan.wanted.mm_hash for loan in lent]
        names += [turn.wanted.mm_hash for turn in self.loans._turns]
        assert sorted(names) == sorted(self.waiters._wanted)
        assert all(self.now < turn.until for turn in self.loans._turns)
        assert self.loans._by_hash == {loan.wanted.mm_hash: loan for loan in lent}

    @invariant()
    def who_has_lost_a_read_gets_no_new_work(self) -> None:
        lost = {loan.reader for loan in self.loans._loans.values() if loan.state != "lent"}
        killed = set(self.processes.numbers("killed"))
        assert not (lost | killed) & set(self.loans._working)

    @invariant()
    def nobody_waits_for_who_does_not_exit(self) -> None:
        for loan in self.loans._by_hash.values():
            assert self.now < loan.due, "overdue, and still waited for"
            assert loan.reader not in self.processes.stuck

    @invariant()
    def a_suspect_has_its_reader_to_itself(self) -> None:
        lent = list(self.loans._by_hash.values())
        for loan in lent:
            others = [x for x in lent if x.reader == loan.reader]
            assert not loan.alone or len({x.wanted.source for x in others}) == 1

    def teardown(self) -> None:
        """When every reader is gone, everything has come back and nobody waits."""
        for _ in range(20):
            for reader in self.readers.values():
                reader.alive = False
                reader.reads.clear()
            while self.unknown_exits():
                self.learns_of_an_exit(0)
            self.time_passes(60.0)
        self.processes.stop()
        self.parent_looks()
        for reader in self.readers.values():
            reader.alive = False
        while self.unknown_exits():
            self.learns_of_an_exit(0)
        self.loans.working([])
        assert (len(self.loans), self.loans._by_hash, len(self.waiters)) == (0, {}, 0)
        assert len(self.processes) == 0
        for word in self.words:
            before = self.loans.counters["stray_words"]
            self.loans.heard(*word, self.now)
            assert self.loans.counters["stray_words"] == before + 1, "a late word is stray"
        for waiter in ("r1", "r2", "r3"):
            self.waiters.leave(waiter, self.now)
        self.tier.check()
        ready = sum(e.num_blocks for e in self.tier.entries() if e.state == "ready")
        assert (self.tier.free_blocks + ready, self.tier.retired_blocks) == (BLOCKS, 0)


TestLoans = LoansMachine.TestCase
TestLoans.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLoans.pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.clause("EC-14.7"),
    pytest.mark.clause("EC-14.8"),
    pytest.mark.clause("EC-14.9"),
]
