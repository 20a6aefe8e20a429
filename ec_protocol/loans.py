# SPDX-License-Identifier: Apache-2.0
"""The engine's side of fetching: blocks are lent to readers, which are other processes.

A fetch lends the blocks of its entry to one reader, which does everything else and says
how it ended: *landed*, *failed*, or *lost*, when a READ may still be under way. A lost
one's blocks are quarantined until the reader says *proven*, or the kernel says that the
reader is gone, which proves it for all that was lent to it (EC-14.8). A word acts on the
loan that it names and on nothing else, so one that comes late does no harm (EC-14.7).

Producers that end readers get company no more: ``circuits`` knows who is suspect. One
reader is kept for suspects, one of them at a time; fetches whose reader died under them
wait for their turn there, a little while.

Engine thread only. What is to be said to the readers is in ``commands``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from zlib import crc32

from ec_protocol.announcements import Address
from ec_protocol.circuits import Blame, Circuits, Standing
from ec_protocol.tables.dispatch import LOAN, Dispatcher
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Writer
from ec_protocol.waiters import Wanted

#: Loans that may be open at once; beyond it requests encode locally.
MAX_LOANS: Final = 1024
#: So often a fetch whose reader died is lent to another one.
MAX_RELENT: Final = 2

#: What a reader may say of a loan, and the event that it is. That it has exited is the
#: kernel's to say. ``unreachable``: it failed, and nobody answers at that address.
_WORDS: Final = {
    "landed": "landed",
    "failed": "failed",
    "unreachable": "failed",
    "lost": "lost",
    "proven": "proven",
}


@dataclass(slots=True, eq=False)
class Loan:
    """The blocks of one entry, lent to one reader.

    Attributes:
        loan_id: Unique in the process for ever.
        entry: Whose blocks they are.
        reader: The reader process's number.
        wanted: What is fetched.
        alone: Its producer was suspect: nobody else's fetch shares its reader.
        relent: How many loans for the same fetch ended with their reader.
        lost_at: When its READ was lost, seconds; when it was made, before.
        due: When its reader should have said how it ended, or have exited, at the latest.
        state: State of the loan lifecycle.
    """

    lifecycle: ClassVar[Dispatcher] = LOAN

    loan_id: int
    entry: Entry
    reader: int
    wanted: Wanted
    alone: bool
    relent: int
    lost_at: float
    due: float
    state: str = LOAN.initial

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"loan:{self.loan_id}"

    def variables(self) -> dict[str, Any]:
        """The loan's spec variables, for traces."""
        return {
            "state": self.state,
            "entry": self.entry.entry_id,
            "reader": self.reader,
            "lost_at": self.lost_at,
        }


@dataclass(frozen=True, slots=True)
class Lend:
    """Tell the reader to fetch into the loan's blocks until ``wanted.deadline``."""

    reader: int
    loan: Loan


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Tell the reader that nobody waits for the loan's encoding any more."""

    reader: int
    loan_id: int


@dataclass(frozen=True, slots=True)
class EndReader:
    """Have the reader killed: it says nothing of a loan (EC-14.13)."""

    reader: int


Command = Lend | TakeBack | EndReader


@dataclass(slots=True, eq=False)
class _Turn:
    """A fetch whose reader died, and that waits to be lent again; until when."""

    wanted: Wanted
    relent: int
    until: float


class Loans:
    """Every loan of one engine; a ``waiters.Fetcher``.

    Args:
        tier: The region's tier.
        timing: Timers; see ``Loan.due`` and ``tick``.

    Attributes:
        counters: What became of loans and words, by name.
        circuits: What is known of producers.
        on_landed: Called when a fetch has ended with its encoding.
        on_failed: Called when one has ended without.
    """

    def __init__(self, tier: EncodingTier, timing: Timing) -> None:
        self.tier = tier
        self.timing = timing
        self.counters: Counter[str] = Counter()
        self.on_landed: Callable[[Wanted, Entry, float], None] = lambda _w, _e, _n: None
        self.on_failed: Callable[[Wanted], None] = lambda _w: None
        self._commands: list[Command] = []
        self._loans: dict[int, Loan] = {}
        self._by_hash: dict[str, Loan] = {}  # those that are lent
        self.circuits = Circuits(timing, self.counters)
        self._working: list[int] = []
        self._kept: int | None = None  # the reader that is kept for suspects
        # Readers that have not exited yet: those that were killed, and those of which is
        # known whose doing their end is.
        self._killed: set[int] = set()
        self._ending: dict[int, set[Address]] = {}
        self._turns: list[_Turn] = []
        self._ticked_at = 0.0
        self._ids = itertools.count(1)
        tier.recorder.facts("loans", quarantine_s=timing.quarantine_s)

    def __len__(self) -> int:
        """Loans that are open: lent, lost or retired."""
        return len(self._loans)

    def drain(self) -> list[Command]:
        """Take what is to be said to the readers and of them, in order."""
        commands, self._commands = self._commands, []
        return commands

    # ---------------------------------------------------------------- waiters.Fetcher
    def begin(self, wanted: Wanted, now: float) -> bool:
        """Lend an entry's blocks for it; False after counting why not."""
        if self.tier.get(wanted.mm_hash) is not None:
            return False
        reader = self._reader_for(wanted.source, now)
        return reader is not None and self._lend(wanted, reader, 0, now)

    def unwanted(self, wanted: Wanted, now: float) -> None:
        """Nobody waits: the reader need not go on."""
        loan = self._by_hash.get(wanted.mm_hash)
        if loan is not None:
            self._commands.append(TakeBack(loan.reader, loan.loan_id))

    # --------------------------------------------------------------------- the readers
    def working(self, readers: list[int]) -> None:
        """Which readers may be lent to, the oldest first.

        One whose READ is lost gets no new work, whoever still counts it (EC-14.9).
        """
        self._working = [n for n in readers if n not in self._ending and n not in self._killed]

    def heard(self, reader: int, word: str, loan_id: int, now: float) -> None:
        """Action ``Landed``, ``Failed``, ``Lost`` or ``Proven``: a reader says so.

        What names no open loan of this reader, or says what cannot follow, is counted
        and changes nothing (EC-14.7).
        """
        loan, event = self._loans.get(loan_id), _WORDS.get(word, "")
        known = loan is not None and loan.reader == reader and event
        if loan is None or not known or not LOAN.allows(loan.state, event):
            self.counters["stray_words"] += 1
            return
        if word == "unreachable":
            self.counters["unreachable"] += 1
            self.circuits.unreachable(loan.wanted.source, now - loan.lost_at, now)
        elif word == "lost":
            self._ends(reader, {loan.wanted.source}, "read_lost", now)
        self._move(loan, event, event.capitalize(), now)

    def unsaid(self, loan_id: int, now: float) -> None:
        """The reader could not even be told: nothing is under way."""
        loan = self._loans.get(loan_id)
        if loan is not None and loan.state == "lent":
            self.counters["readers_busy"] += 1
            self._move(loan, "failed", "Failed", now)

    def killed(self, reader: int, now: float, *, excused: bool = False) -> None:
        """The reader was killed: it is lent nothing, and is to exit within ``stall_s``.

        Args:
            reader: Its number.
            now: Seconds.
            excused: That it is gone is no producer's doing.
        """
        self._killed.add(reader)
        if excused:
            self._ending.setdefault(reader, set())
        self._working = [number for number in self._working if number != reader]
        for loan in self._loans.values():
            if loan.reader == reader:
                loan.due = min(loan.due, now + self.timing.stall_s)

    def _ends(self, reader: int, sources: set[Address], what: Blame, now: float) -> None:
        """A reader gets no new work, whoever still counts it, and ends for these producers.

        One end is one blame, however many READs it takes along.
        """
        known = self._ending.setdefault(reader, set())
        self._working = [number for number in self._working if number != reader]
        if sources - known:
            self.circuits.blame(sources - known, what, now)
            known |= sources

    def exited(self, reader: int, now: float) -> None:
        """Action ``Exited``: the kernel says that the reader is gone (EC-14.8)."""
        self._killed.discard(reader)
        self._working = [number for number in self._working if number != reader]
        mine = [loan for loan in self._loans.values() if loan.reader == reader]
        sources = {loan.wanted.source for loan in mine if loan.state == "lent"}
        # If a READ of it was lost that is why it ended, and nobody else's doing.
        if reader not in self._ending and sources:
            self.circuits.blame(sources, "reader_ended", now)
        self._ending.pop(reader, None)
        for loan in mine:
            self._move(loan, "exited", "Exited", now)

    # ------------------------------------------------------------------------- time
    def tick(self, now: float) -> None:
        """Action ``Overdue``: its reader neither says anything nor exits (EC-14.13).

        Action ``RetireLoan``: no proof came within ``quarantine_s`` (EC-14.9). Fetches
        whose turn it is are lent again.
        """
        # What was said while no step was taken may not have been heard yet (EC-14.11).
        looked, self._ticked_at = now - self._ticked_at <= self.timing.stall_s, now
        late = [x for x in self._by_hash.values() if now >= x.due] if looked else []
        for reader in {loan.reader for loan in late}:
            mine = [loan for loan in late if loan.reader == reader]
            if reader not in self._killed:
                self.killed(reader, now)
                self._commands.append(EndReader(reader))
            if reader not in self._ending:
                self._ends(reader, {loan.wanted.source for loan in mine}, "overdue", now)
            for loan in mine:
                self._move(loan, "overdue", "Overdue", now)
        for loan in list(self._loans.values()):
            if loan.state == "lost" and now >= loan.lost_at + self.timing.quarantine_s:
                self._move(loan, "retire", "RetireLoan", now)
        self._take_turns(now)
        self.circuits.forget(now)

    def _take_turns(self, now: float) -> None:
        turns, self._turns = self._turns, []
        for turn in turns:
            if not turn.wanted.waiters or now >= turn.until:
                self.on_failed(turn.wanted)
            elif not self._again(turn, now):
                self._turns.append(turn)

    def _again(self, turn: _Turn, now: float) -> bool:
        """Whether a fetch was lent again, or is over; else its turn has not come."""
        entry, source = self.tier.get(turn.wanted.mm_hash), turn.wanted.source
        if entry is not None:
            # It was encoded here meanwhile, or is being encoded.
            if entry.servable:
                self.on_landed(turn.wanted, entry, now)
            else:
                self.on_failed(turn.wanted)
            return True
        standing = self.circuits.standing(source, now)
        if standing != "resting" and self._able(source, standing) is None:
            return False
        reader = self._reader_for(source, now)
        if reader is not None and self._lend(turn.wanted, reader, turn.relent, now):
            self.counters["relent"] += 1
        else:
            self.on_failed(turn.wanted)
        return True

    # --------------------------------------------------------------------- internals
    def _lend(self, wanted: Wanted, reader: int, relent: int, now: float) -> bool:
        """Action ``Lend``; False after counting why not."""
        if len(self._loans) >= MAX_LOANS:
            self.counters["too_many_loans"] += 1
            return False
        entry = self.tier.alloc(wanted.mm_hash, wanted.nbytes, wanted.shape)
        if entry is None:
            self.counters["no_room"] += 1
            return False
        alone = self.circuits.standing(wanted.source, now) == "suspect"
        if alone:
            self._kept = reader
        due = wanted.deadline + self.timing.read_timeout_s + self.timing.stall_s
        loan = Loan(next(self._ids), entry, reader, wanted, alone, relent, now, due)
        self._loans[loan.loan_id] = self._by_hash[wanted.mm_hash] = loan
        self.tier.begin_write(entry, ("loan", loan.loan_id))
        self.tier.recorder.touch(loan)
        self.tier.recorder.action("Lend", loan=loan.loan_id, mm_hash=wanted.mm_hash, now=now)
        self._commands.append(Lend(reader, loan))
        return True

    def _reader_for(self, source: Address, now: float) -> int | None:
        """Who fetches from a producer; None after counting why nobody does."""
        standing = self.circuits.standing(source, now)
        if standing == "resting":
            self.counters[self.circuits.why(source, now)] += 1
            return None
        reader = self._able(source, standing)
        if reader is None:
            waits = standing == "suspect" and self._working
            self.counters["suspect_waits" if waits else "no_reader"] += 1
        return reader

    def _able(self, source: Address, standing: Standing) -> int | None:
        """Who can fetch from it now: a suspect has the kept reader, or the only one, to itself."""
        kept = self._keep()
        if standing == "suspect":
            reader = next(iter(self._working), None) if kept is None else kept
            others = (x for x in self._by_hash.values() if x.wanted.source != source)
            return None if any(loan.reader == reader for loan in others) else reader
        shared = [number for number in self._working if number != kept]
        # Not by ``hash``: that of a text is another one in each process.
        at = crc32("{}:{}".format(*source).encode())
        return shared[at % len(shared)] if shared else None

    def _keep(self) -> int | None:
        """The reader for suspects: the same while it works, else the youngest of several."""
        working, kept = self._working, self._kept
        if kept in working and len(working) == 1:
            stays = any(x.alone and x.reader == kept for x in self._by_hash.values())
        else:
            stays = kept in working
        if not stays:
            self._kept = working[-1] if len(working) > 1 else None
        return self._kept

    def _move(self, loan: Loan, event: str, action: str, now: float) -> None:
        tier, entry = self.tier, loan.entry
        writer: Writer = ("loan", loan.loan_id)
        was_lent = loan.state == "lent"
        effect = tier.recorder.move(loan, event).effect
        if effect == "accept":
            tier.write_landed(entry, writer)
        elif effect == "take_back":
            tier.write_ended(entry, writer)
            tier.drop_allocated(entry)
        elif effect == "quarantine":
            tier.write_lost(entry, writer)
            loan.lost_at = now
        elif effect == "free":
            tier.dma_ended(entry)
        elif effect == "retire":
            tier.retire(entry)
        self.counters[action.lower()] += 1
        tier.recorder.touch(loan)
        tier.recorder.action(action, loan=loan.loan_id, mm_hash=entry.mm_hash, now=now)
        if effect == "reclaim":
            tier.reclaim(entry.entry_id)
        if loan.state == "returned":
            del self._loans[loan.loan_id]
        if was_lent:
            del self._by_hash[entry.mm_hash]
            self._ended(loan, effect, event, now)

    def _ended(self, loan: Loan, effect: str, event: str, now: float) -> None:
        """A loan is not lent any more: what becomes of its fetch."""
        wanted = loan.wanted
        if effect == "accept":
            if loan.alone:
                self.circuits.landed(wanted.source)
            self.on_landed(wanted, loan.entry, now)
            return
        again = event == "exited" and loan.relent < MAX_RELENT
        if again and wanted.waiters and now + self.timing.ack_timeout_s < wanted.deadline:
            until = min(now + self.timing.stall_s, wanted.deadline - self.timing.ack_timeout_s)
            turn = _Turn(wanted, loan.relent + 1, until)
            if not self._again(turn, now):
                self._turns.append(turn)
        else:
            self.on_failed(wanted)
