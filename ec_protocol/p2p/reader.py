# SPDX-License-Identifier: Apache-2.0
"""``Reader``: the protocol state of a reader process.

It is lent blocks and fetches into them: it asks, waits for the fence, READs, tries again
within the budget, and says how each loan ended. The engine has no part in any of that::

    reader.lend(Loan…, now)                      # from the engine
    reader.fetches.on_ack(peer, ack, now); …     # from the network, see ``Fetches``
    for command in reader.commands(): …          # to the network
    for word, loan in reader.words(): …          # to the engine

One thread, no lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from ec_protocol.announcements import Address
from ec_protocol.p2p.acks import Acks
from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.blocks import LentBlocks
from ec_protocol.p2p.commands import Command
from ec_protocol.p2p.fetches import Fetches
from ec_protocol.tables.timing import Timing
from ec_protocol.terms import Terms
from ec_protocol.tier.extents import Extents
from ec_protocol.trace import Recorder, Trace
from ec_protocol.waiters import Wanted


class Reader:
    """Everything that one reader has been lent.

    Args:
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.
        timing: Timers.
        compat_hash: See ``wire.compatibility_hash``.
        session: This process's own; another one after every start. No colon.
        trace: Where actions are recorded; None records nothing.
        terms: What is said and demanded beyond ``compat_hash``; None: nothing.

    Attributes:
        fetches: Moves the attempts; fed by whoever does the I/O.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size_bytes: int,
        *,
        timing: Timing,
        compat_hash: str,
        session: str,
        trace: Trace | None = None,
        terms: Terms | None = None,
    ) -> None:
        self._blocks = LentBlocks(num_blocks, block_size_bytes, Recorder(trace))
        attempts = Attempts(
            self._blocks,
            timing=timing,
            compat_hash=compat_hash,
            session=session,
            terms=terms or Terms(),
        )
        self.fetches = Fetches(attempts, Acks(attempts))
        self.counters = self.fetches.counters
        self._wanted: dict[int, Wanted] = {}

    def lend(
        self,
        loan: int,
        mm_hash: str,
        source: Address,
        nbytes: int,
        extents: Sequence[tuple[int, int]],
        deadline: float,
        now: float,
    ) -> None:
        """The engine lends blocks for a fetch.

        Args:
            loan: Its number.
            mm_hash: The encoding.
            source: Its producer.
            nbytes: Its length.
            extents: Where to, in blocks.
            deadline: No attempt begins that cannot be answered by then, seconds.
            now: Seconds.
        """
        where: Extents = tuple((start, count) for start, count in extents)
        wanted = Wanted(mm_hash, source, nbytes, None, deadline, {"engine"})
        self._wanted[loan] = wanted
        self._blocks.lend(loan, where)
        if self._blocks.get(mm_hash) is not None or not self.fetches.begin(wanted, now):
            self._blocks.words.append(("failed", loan))

    def take_back(self, loan: int, now: float) -> None:
        """Nobody waits any more. A READ that is posted goes on, and may land."""
        wanted = self._wanted.get(loan)
        if wanted is not None:
            wanted.waiters.clear()
            self.fetches.unwanted(wanted, now)

    def words(self) -> list[tuple[str, int]]:
        """Take what the engine is to be told, in order."""
        words, self._blocks.words = self._blocks.words, []
        return [(self._said(word, loan), loan) for word, loan in words]

    def _said(self, word: str, loan: int) -> str:
        """The word, and with a failure whether nobody answers there by now (EC-9.4)."""
        wanted = self._wanted.pop(loan, None)
        peers = self.fetches.attempts.peers
        lost = wanted is not None and peers.was_lost(wanted.source)
        return "unreachable" if word == "failed" and lost else word

    def commands(self) -> list[Command]:
        """Take what is to be done on the network, in order."""
        return self.fetches.attempts.drain()

    @property
    def lost(self) -> int:
        """Loans whose READ may be under way for ever: the reader is to be replaced."""
        return len(self._blocks.lost)

    @property
    def reading(self) -> bool:
        """Whether a READ may be under way: the data plane needs progress."""
        return self.fetches.attempts.active_reads > 0 or bool(self._blocks.lost)
