# SPDX-License-Identifier: Apache-2.0
"""What an engine says to its data processes, and hears of them; see ``engine``.

``Link`` knows channels and no processes: who starts them, and learns of their exit, is
``engine.DataProcesses``. Engine thread only, and nothing here waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from ec_connector.events.log import EventLog
from ec_protocol.engine import Engine
from ec_protocol.loans import EndReader, Lend, Loans
from ec_protocol.offers.engine import Offers
from ec_protocol.offers.table import Ledger, OfferTable, SlotLocks
from ec_protocol.p2p import words
from ec_protocol.tables.timing import Timing

logger = logging.getLogger(__name__)

#: How often it is looked whether the server keeps more than it may.
_WATCH_S: Final = 1.0
#: Events in one message: it must fit, also if all names are as long as they may be.
_EVENTS: Final = 24


class End(Protocol):
    """This end of a channel; ``channel.Channel`` is one."""

    open: bool

    def say(self, message: Any) -> bool:
        """Say something; False when it was not said."""

    def hear(self) -> list[Any]:
        """What has come."""


class Link:
    """The engine's side of offers, loans and events.

    Args:
        engine: The protocol's state.
        timing: Timers.
        fetches: Whether anything is fetched.

    Attributes:
        loans: What readers have been lent; None where nothing is fetched.
        offers: What the server may grant; None where nothing is served.
        events: What waits to be published; None publishes none.
    """

    def __init__(self, engine: Engine, timing: Timing, *, fetches: bool) -> None:
        self.engine = engine
        self.timing = timing
        self.loans: Loans | None = None
        self.offers: Offers | None = None
        self.events: EventLog | None = None
        self._readers: dict[int, End] = {}
        self._leaving: set[int] = set()
        self._to_end: list[tuple[int, str]] = []
        self._server: tuple[int, End] | None = None
        self._served = False
        self._refused = 0
        self._watch_at = 0.0
        if fetches:
            self.loans = Loans(engine.tier, timing)
            waiters = engine.fetch_by(self.loans, self.loans.counters)
            self.loans.on_landed, self.loans.on_failed = waiters.landed, waiters.failed

    def offer_in(
        self,
        table: OfferTable,
        ledger: Ledger,
        locks: SlotLocks,
        grant_quota: float,
        clock: Callable[[], float],
    ) -> None:
        """Offer what is saved and fetched, in this table."""
        self.offers = Offers(
            table,
            ledger,
            locks,
            lease_s=self.timing.lease_s,
            max_blocks=int(self.engine.tier.num_blocks * grant_quota),
            recorder=self.engine.tier.recorder,
            clock=clock,
        )
        self.engine.tier.gate = self.offers
        self.engine.serves = True

    def publish(self, queue: int) -> None:
        """Have what becomes of encodings published; so many events may wait."""
        self.events = EventLog(queue)
        self.engine.tier.listener = self.events.add

    # -------------------------------------------------------------------- who there is
    def server_works(self, process: int, channel: End) -> None:
        """A server has taken its place; the first one, or another's."""
        if self._served and self.events is not None:
            # Subscribers forget what they knew when another process speaks (EC-13.3).
            for entry in self.engine.tier.entries():
                if entry.servable:
                    self.events.add("stored", entry)
        self._served = True
        self._server = (process, channel)

    def reader_works(self, process: int, channel: End) -> None:
        """A reader has taken its place."""
        self._readers[process] = channel
        self._choose()

    def reader_leaves(self, process: int) -> None:
        """A reader gets no new work; nothing if it is gone by now."""
        if process in self._readers:
            self._leaving.add(process)
            self._choose()

    def reader_killed(self, process: int, now: float, *, excused: bool = False) -> None:
        """A reader was killed, and is to exit; nothing if it is gone by now."""
        if process in self._readers and self.loans is not None:
            self.loans.killed(process, now, excused=excused)

    def exited(self, process: int, now: float) -> None:
        """The kernel says so: it moves no byte any more (EC-14.8)."""
        if self._server is not None and self._server[0] == process:
            self._server = None
        channel = self._readers.pop(process, None)
        self._leaving.discard(process)
        if channel is not None and self.loans is not None:
            # What it said before it went; too late it would do no harm either.
            self._hear(process, channel, now)
            self._choose()
            self.loans.exited(process, now)

    def _choose(self) -> None:
        if self.loans is not None:
            self.loans.working([n for n in self._readers if n not in self._leaving])

    # ------------------------------------------------------------------------ each turn
    def hear(self, process: int, now: float) -> None:
        """A reader may have said something."""
        channel = self._readers.get(process)
        if channel is not None:
            self._hear(process, channel, now)
            if not channel.open:
                self.reader_leaves(process)  # its exit follows

    def turn(self, now: float) -> None:
        """Say what there is to say, and let the table say what has become of entries."""
        # A hold that is over must not be in the way of what the next hook wants room for.
        self.engine.holds.tick(now)
        if self.loans is not None:
            self.loans.tick(now)
            self._lend(self.loans, now)
            for note in self.loans.circuits.take_notes():
                logger.warning("%s", note)
        if self.offers is not None:
            self.offers.catch_up(now)
        if self.events is not None and self.events.pending:
            self.say_events()

    def to_end(self, now: float) -> list[tuple[int, str]]:
        """Take those that are to be killed, and why.

        A reader that says nothing of what it was lent (EC-14.13), and a server that keeps
        more than it may and is not ours any more (EC-14.5).
        """
        found, self._to_end = self._to_end, []
        offers, server = self.offers, self._server
        if offers is None or server is None or now < self._watch_at:
            return found
        refused = offers.counters["slots_granted"]
        if refused != self._refused:
            self._refused, self._watch_at = refused, now + _WATCH_S
            if offers.overdrawn(now):
                found.append((server[0], f"server {server[0]} keeps too much"))
        return found

    def say_events(self) -> None:
        """Hand on what waits to be published, as much as is taken."""
        events = self.events
        while self._server is not None and events is not None and events.pending:
            taken, missing = events.take(_EVENTS)
            if not self._server[1].say(words.Events(taken, missing)):
                events.put_back(taken, missing)
                return

    def _hear(self, process: int, channel: End, now: float) -> None:
        for message in channel.hear():
            for word, loan in message.words if self.loans is not None else ():
                self.loans.heard(process, word, loan, now)  # type: ignore[union-attr]

    def _lend(self, loans: Loans, now: float) -> None:
        while commands := loans.drain():
            for what in commands:
                if isinstance(what, EndReader):
                    text = f"reader {what.reader} says nothing of what it was lent"
                    self._to_end.append((what.reader, text))
                    continue
                channel = self._readers.get(what.reader)
                if not isinstance(what, Lend):
                    # Unsaid it costs a READ that nobody needs.
                    if channel is not None:
                        channel.say(words.TakeBack(what.loan_id))
                    continue
                wanted = what.loan.wanted
                host, port, *key = wanted.source
                said = channel is not None and channel.say(
                    words.Lend(
                        what.loan.loan_id,
                        wanted.mm_hash,
                        host,
                        port,
                        wanted.nbytes,
                        list(what.loan.entry.extents),
                        wanted.deadline,
                        *key,
                    )
                )
                if not said:
                    loans.unsaid(what.loan.loan_id, now)
