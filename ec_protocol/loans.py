# SPDX-License-Identifier: Apache-2.0
"""The engine's side of fetching: blocks are lent to readers, which are other processes.

A fetch lends the blocks of its entry to one reader, which does everything else and says
how it ended: *landed*, *failed*, or *lost*, when a READ may still be under way. A lost
one's blocks are quarantined until the reader says *proven*, or the kernel says that the
reader is gone, which proves it for all that was lent to it (EC-14.8). A word acts on the
loan that it names and on nothing else, so one that comes late does no harm (EC-14.7).

Who has done harm gets company no more. A producer whose READ was lost, or that was being
read from when its reader died, is *suspect*: its fetches go to the last reader, one
suspect at a time, so that the next death shows whose doing it was. Who does harm again
and again is left alone for a while, longer each time.

Engine thread only. What is to be said to the readers is in ``commands``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args
from zlib import crc32

from ec_protocol.announcements import Address
from ec_protocol.tables.dispatch import LOAN, Dispatcher
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Writer
from ec_protocol.waiters import Wanted

#: Loans that may be open at once; beyond it requests encode locally.
MAX_LOANS: Final = 1024
#: Producers of which is remembered that they have done harm.
MAX_SUSPECTS: Final = 1024
#: So often a fetch whose reader died is lent to another one.
MAX_RELENT: Final = 2
#: Harm after which a producer is left alone, and for how long the first time.
_HARMS: Final = 3
_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 600.0

#: What a reader may say of a loan. That it has exited is the kernel's to say.
Word = Literal["landed", "failed", "lost", "proven"]
_WORDS: Final = frozenset(get_args(Word))


@dataclass(slots=True, eq=False)
class Loan:
    """The blocks of one entry, lent to one reader.

    Attributes:
        loan_id: Unique in the process for ever.
        entry: Whose blocks they are.
        reader: The reader process's number.
        wanted: What is fetched.
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


@dataclass(slots=True)
class _Suspect:
    """A producer that has done harm, and for how long it is left alone."""

    harms: int = 0
    pause_s: float = _FIRST_PAUSE_S
    not_before: float = 0.0


class Loans:
    """Every loan of one engine; a ``waiters.Fetcher``.

    Args:
        tier: The region's tier.
        timing: Timers; see ``Loan.due`` and ``tick``.

    Attributes:
        counters: What became of loans and words, by name.
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
        self._working: list[int] = []
        self._killed: set[int] = set()  # and not exited yet
        self._ticked_at = 0.0
        self._suspects: dict[Address, _Suspect] = {}
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
        return self._lend(wanted, 0, now)

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
        lost = {loan.reader for loan in self._loans.values() if loan.state != "lent"}
        self._working = [n for n in readers if n not in lost and n not in self._killed]

    def heard(self, reader: int, word: str, loan_id: int, now: float) -> None:
        """Action ``Landed``, ``Failed``, ``Lost`` or ``Proven``: a reader says so.

        What names no open loan of this reader, or says what cannot follow, is counted
        and changes nothing (EC-14.7).
        """
        loan = self._loans.get(loan_id)
        known = loan is not None and loan.reader == reader and word in _WORDS
        if loan is None or not known or not LOAN.allows(loan.state, word):
            self.counters["stray_words"] += 1
        else:
            self._move(loan, word, word.capitalize(), now)

    def unsaid(self, loan_id: int, now: float) -> None:
        """The reader could not even be told: nothing is under way."""
        loan = self._loans.get(loan_id)
        if loan is not None and loan.state == "lent":
            self.counters["readers_busy"] += 1
            self._move(loan, "failed", "Failed", now)

    def killed(self, reader: int, now: float) -> None:
        """The reader was killed: it is lent nothing, and is to exit within ``stall_s``."""
        self._killed.add(reader)
        self._working = [number for number in self._working if number != reader]
        for loan in self._loans.values():
            if loan.reader == reader:
                loan.due = min(loan.due, now + self.timing.stall_s)

    def exited(self, reader: int, now: float) -> None:
        """Action ``Exited``: the kernel says that the reader is gone (EC-14.8).

        Whose doing it was: of all that it was reading from, unless it had lost a READ, for
        which it was to be killed. Then others were in bad company, and that is all.
        """
        self._killed.discard(reader)
        self._working = [number for number in self._working if number != reader]
        mine = [loan for loan in self._loans.values() if loan.reader == reader]
        if all(loan.state == "lent" for loan in mine):
            for source in {loan.wanted.source for loan in mine}:
                self._harm(source, now)
        for loan in mine:
            self._move(loan, "exited", "Exited", now)

    # ------------------------------------------------------------------------- time
    def tick(self, now: float) -> None:
        """Action ``Overdue``: its reader neither says anything nor exits (EC-14.13).

        Action ``RetireLoan``: no proof came within ``quarantine_s`` (EC-14.9).
        """
        # What was said while no step was taken may not have been heard yet (EC-14.11).
        looked, self._ticked_at = now - self._ticked_at <= self.timing.stall_s, now
        for loan in list(self._loans.values()):
            if loan.state == "lent" and now >= loan.due and looked:
                if loan.reader not in self._killed:
                    self.killed(loan.reader, now)
                    self._commands.append(EndReader(loan.reader))
                self._move(loan, "overdue", "Overdue", now)
            if loan.state == "lost" and now >= loan.lost_at + self.timing.quarantine_s:
                self._move(loan, "retire", "RetireLoan", now)

    # --------------------------------------------------------------------- internals
    def _lend(self, wanted: Wanted, relent: int, now: float) -> bool:
        """Action ``Lend``."""
        if len(self._loans) >= MAX_LOANS:
            self.counters["too_many_loans"] += 1
            return False
        reader = self._reader_for(wanted.source, now)
        if reader is None:
            return False
        entry = self.tier.alloc(wanted.mm_hash, wanted.nbytes, wanted.shape)
        if entry is None:
            self.counters["no_room"] += 1
            return False
        due = wanted.deadline + self.timing.read_timeout_s + self.timing.stall_s
        loan = Loan(next(self._ids), entry, reader, wanted, relent, now, due)
        self._loans[loan.loan_id] = self._by_hash[wanted.mm_hash] = loan
        self.tier.begin_write(entry, ("loan", loan.loan_id))
        self.tier.recorder.touch(loan)
        self.tier.recorder.action("Lend", loan=loan.loan_id, mm_hash=wanted.mm_hash, now=now)
        self._commands.append(Lend(reader, loan))
        return True

    def _reader_for(self, source: Address, now: float) -> int | None:
        """Who fetches from a producer; None after counting why nobody does."""
        working = self._working
        if not working:
            self.counters["no_reader"] += 1
            return None
        suspect = self._suspects.get(source)
        if suspect is None:
            clean = working[:-1] or working
            # Not by ``hash``: that of a text is another one in each process.
            return clean[crc32("{}:{}".format(*source).encode()) % len(clean)]
        if now < suspect.not_before:
            self.counters["left_alone"] += 1
            return None
        last = working[-1]
        for loan in self._by_hash.values():
            if loan.reader == last and loan.wanted.source != source:
                self.counters["suspect_waits"] += 1
                return None
        return last

    def _harm(self, source: Address, now: float) -> None:
        """A READ from this producer was lost, or its reader died."""
        self.counters["harms"] += 1
        suspect = self._suspects.pop(source, None) or _Suspect()
        while len(self._suspects) >= MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        self._suspects[source] = suspect
        suspect.harms += 1
        if suspect.harms >= _HARMS:
            suspect.not_before = now + suspect.pause_s
            suspect.pause_s = min(2 * suspect.pause_s, _LONGEST_PAUSE_S)

    def _has_lost_before(self, loan: Loan) -> bool:
        """Whether its reader had lost a READ of the same producer: one end, one harm."""
        return any(
            other is not loan
            and other.state != "lent"
            and (other.reader, other.wanted.source) == (loan.reader, loan.wanted.source)
            for other in self._loans.values()
        )

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
            # It has shown that it does no harm, alone on its reader if it was suspect.
            self._suspects.pop(wanted.source, None)
            self.on_landed(wanted, loan.entry, now)
            return
        if effect == "quarantine":
            self._working = [number for number in self._working if number != loan.reader]
            if not self._has_lost_before(loan):
                self._harm(wanted.source, now)
        again = event == "exited" and loan.relent < MAX_RELENT
        worth = bool(wanted.waiters) and now + self.timing.ack_timeout_s < wanted.deadline
        if again and worth and self._lend(wanted, loan.relent + 1, now):
            self.counters["relent"] += 1
        else:
            self.on_failed(wanted)
