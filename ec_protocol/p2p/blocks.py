# SPDX-License-Identifier: Apache-2.0
"""Where READs write to: blocks of entries, of a tier here or lent by one elsewhere.

Attempts do not care whose the blocks are. In the process that keeps the entries they are
a tier's (``EncodingTier`` is ``Blocks``); in a reader they are lent by the engine, which
is told how each loan ended (``LentBlocks``, EC-14.7).
"""

from __future__ import annotations

from typing import Any, Protocol

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tier.entry import Entry, Writer
from ec_protocol.tier.extents import Extents
from ec_protocol.trace import Recorder


class Blocks(Protocol):
    """What fetches and attempts need of the blocks; see ``EncodingTier`` for each."""

    @property
    def block_size_bytes(self) -> int:
        """Bytes of a block."""

    @property
    def recorder(self) -> Recorder:
        """Moves entries and attempts."""

    def get(self, mm_hash: str) -> Entry | None:
        """The live entry of that name."""

    def alloc(self, mm_hash: str, nbytes: int, shape: tuple[int, ...] | None) -> Entry | None:
        """Blocks for an encoding, or None."""

    def cancel(self, entry: Entry) -> None:
        """Give up an encoding that nobody is writing."""

    def drop_allocated(self, entry: Entry) -> None:
        """The same as a part of another action."""

    def begin_write(self, entry: Entry, writer: Writer) -> None:
        """``writer`` is about to be handed the blocks."""

    def write_landed(self, entry: Entry, writer: Writer) -> None:
        """The bytes are the named encoding."""

    def write_ended(self, entry: Entry, writer: Writer) -> None:
        """The writer is provably gone, its bytes do not count."""

    def write_lost(self, entry: Entry, writer: Writer) -> None:
        """Nobody can tell whether the writer has finished."""

    def dma_ended(self, entry: Entry) -> None:
        """It provably has after all."""

    def retire(self, entry: Entry) -> None:
        """No proof came."""

    def reclaim(self, entry_id: int) -> int:
        """It came after that."""


class LentBlocks:
    """The blocks that an engine has lent to this process, one entry per loan.

    The entries move along the same table as the engine's, of whose life they are the part
    between ``allocated`` and the word that ends the loan. An entry's id is its loan's.

    Args:
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.
        recorder: Moves the entries.

    Attributes:
        words: What the engine is to be told, in order: a word and a loan.
        lost: Loans whose READ may be under way for ever.
    """

    def __init__(self, num_blocks: int, block_size_bytes: int, recorder: Recorder) -> None:
        self.num_blocks = num_blocks
        self.block_size_bytes = block_size_bytes
        self.recorder = recorder
        self.words: list[tuple[str, int]] = []
        self.lost: dict[int, Entry] = {}
        self._live: dict[str, Entry] = {}
        self._next: tuple[int, Extents] | None = None
        recorder.facts("lent", total=num_blocks, block_size=block_size_bytes)

    def lend(self, loan: int, extents: Extents) -> None:
        """The next ``alloc`` is for this loan."""
        self._next = (loan, extents)

    # ------------------------------------------------------------------------ Blocks
    def get(self, mm_hash: str) -> Entry | None:
        """The entry of that name which is being fetched."""
        return self._live.get(mm_hash)

    def alloc(self, mm_hash: str, nbytes: int, shape: tuple[int, ...] | None) -> Entry | None:
        """Action ``Alloc``: the entry of the loan that was announced by ``lend``."""
        if self._next is None or mm_hash in self._live:
            raise LocalProtocolError(f"Alloc: no loan for {mm_hash!r}", clause="EC-14.7")
        (loan, extents), self._next = self._next, None
        count = sum(blocks for _, blocks in extents)
        entry = Entry(loan, mm_hash, extents, count, nbytes, shape)
        self._live[mm_hash] = entry
        self.recorder.touch(entry, self)
        self.recorder.action("Alloc", mm_hash=mm_hash, blocks=count)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Action ``Cancel``."""
        self.drop_allocated(entry)
        self.recorder.action("Cancel", mm_hash=entry.mm_hash)

    def drop_allocated(self, entry: Entry) -> None:
        """Event ``cancel``: the loan has *failed*."""
        self.recorder.move(entry, "cancel")
        self._end(entry, "failed")

    def begin_write(self, entry: Entry, writer: Writer) -> None:
        """Event ``begin_write``."""
        self.recorder.move(entry, "begin_write")
        entry.writer = writer
        self.recorder.touch(entry, self)

    def write_landed(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_landed``: the loan has *landed*."""
        self.recorder.move(entry, "write_landed")
        entry.writer = None
        self._end(entry, "landed")

    def write_ended(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_ended``: another attempt may follow."""
        self.recorder.move(entry, "write_ended")
        entry.writer = None
        self.recorder.touch(entry, self)

    def write_lost(self, entry: Entry, writer: Writer) -> None:
        """Event ``write_lost``: the loan is *lost*."""
        self.recorder.move(entry, "write_lost")
        self.lost[entry.entry_id] = entry
        self._end(entry, "lost")

    def dma_ended(self, entry: Entry) -> None:
        """Event ``dma_ended``: the loan is *proven*."""
        self.recorder.move(entry, "dma_ended")
        entry.writer = None
        self._prove(entry)
        self.recorder.touch(entry, self)

    def retire(self, entry: Entry) -> None:
        """Event ``retire``: the engine counts the time by itself."""
        self.recorder.move(entry, "retire")
        self.recorder.touch(entry, self)

    def reclaim(self, entry_id: int) -> int:
        """Action ``Reclaim``: a proof came after that; the loan is *proven*."""
        entry = self.lost.get(entry_id)
        if entry is None:
            raise LocalProtocolError(f"Reclaim: loan {entry_id} is not lost", clause="EC-14.7")
        self._prove(entry)
        self.recorder.touch(self)
        self.recorder.action("Reclaim", entry=entry_id, blocks=entry.num_blocks)
        return entry.num_blocks

    # --------------------------------------------------------------------- internals
    def _end(self, entry: Entry, word: str) -> None:
        del self._live[entry.mm_hash]
        self.words.append((word, entry.entry_id))
        self.recorder.touch(entry, self)

    def _prove(self, entry: Entry) -> None:
        del self.lost[entry.entry_id]
        self.words.append(("proven", entry.entry_id))

    @property
    def label(self) -> str:
        """Its name in traces."""
        return "tier"

    def variables(self) -> dict[str, Any]:
        """Block counts as a tier has them: what is not lent counts as free."""
        lent = sum(e.num_blocks for e in (*self._live.values(), *self.lost.values()))
        retired = sum(e.num_blocks for e in self.lost.values() if e.state == "freed")
        return {"free": self.num_blocks - lent, "retired": retired, "total": self.num_blocks}
