# SPDX-License-Identifier: Apache-2.0
"""Saves and loads: one device copy each, with a report per participating rank.

A save is written by one rank; a load is copied by every rank of the instance.
The scheduler plans copies while it builds a step, submits them with the step's
metadata, and learns from the ranks' reports, possibly steps later, how they
ended. The entry is released only when the *last* participating rank has
reported: until then some rank may still be touching the blocks.

Engine thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tables.dispatch import COPY, Dispatcher
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Writer

CopyKind = Literal["save", "load"]

_LAST_RANK: Final = COPY.mask("last_rank")
_ALL_LANDED: Final = COPY.mask("all_landed")


@dataclass(slots=True, eq=False)
class Copy:
    """One save or load; only ``CopyTable`` changes it.

    Attributes:
        copy_id: Unique in the table for ever, so a late report names one copy only.
        kind: ``save`` or ``load``.
        entry: The entry copied from or into.
        state: State of the copy lifecycle.
        waiting: Ranks that have not reported.
        all_landed: Whether every rank so far copied.
    """

    lifecycle: ClassVar[Dispatcher] = COPY

    copy_id: int
    kind: CopyKind
    entry: Entry
    waiting: set[int]
    state: str = COPY.initial
    all_landed: bool = True

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"copy:{self.copy_id}"

    def variables(self) -> dict[str, Any]:
        """The copy's spec variables, for traces."""
        return {
            "kind": self.kind,
            "entry": self.entry.entry_id,
            "state": self.state,
            "waiting": sorted(self.waiting),
            "all_landed": self.all_landed,
        }


class CopyTable:
    """Every copy that is planned or in flight.

    Args:
        tier: The tier whose entries are copied.
        world_size: Ranks that load; rank 0 is the one that saves.
    """

    def __init__(self, tier: EncodingTier, world_size: int = 1) -> None:
        if world_size < 1:
            raise LocalProtocolError(f"world_size={world_size}: at least one rank is needed")
        self.tier = tier
        self.world_size = world_size
        self.landed = {"save": 0, "load": 0}
        self.skipped = {"save": 0, "load": 0}
        self._copies: dict[int, Copy] = {}
        self._saving: dict[str, Copy] = {}
        self._ids = itertools.count(1)
        tier.recorder.facts("copies", ranks=world_size)

    def __len__(self) -> int:
        return len(self._copies)

    def __iter__(self) -> Iterator[Copy]:
        return iter(self._copies.values())

    def get(self, copy_id: int) -> Copy | None:
        """The copy with that id while it is planned or in flight."""
        return self._copies.get(copy_id)

    def save_of(self, mm_hash: str) -> Copy | None:
        """The save of ``mm_hash`` that is planned or in flight, if any."""
        return self._saving.get(mm_hash)

    def plan_save(
        self, mm_hash: str, nbytes: int, shape: tuple[int, ...] | None = None
    ) -> Copy | None:
        """Action ``PlanSave``, with ``Alloc``: the step's encoder output gets blocks.

        Returns:
            The planned save, or None when the encoding has a live entry already
            or the region has no room; the encoding is then simply not saved.
        """
        if self.tier.get(mm_hash) is not None:
            return None
        entry = self.tier.alloc(mm_hash, nbytes, shape)
        if entry is None:
            return None
        copy = Copy(next(self._ids), "save", entry, {0})
        self._copies[copy.copy_id] = copy
        self._saving[mm_hash] = copy
        self._record(copy, "PlanSave")
        return copy

    def plan_load(self, mm_hash: str) -> Copy:
        """Action ``PlanLoad``: pin the encoding for a load by every rank.

        Raises:
            LocalProtocolError: The encoding is not servable. The caller reserved
                it earlier in the step, so this cannot happen to a caller that
                keeps the order (PromiseKept, EC-3.3).
        """
        entry = self.tier.get(mm_hash)
        if entry is None or not entry.servable:
            raise LocalProtocolError(
                f"PlanLoad: {mm_hash!r} is not servable; reserve it first in the same step",
                clause="EC-3.3",
            )
        copy = Copy(next(self._ids), "load", entry, set(range(self.world_size)))
        self.tier.pin(entry, ("load", copy.copy_id))
        self._copies[copy.copy_id] = copy
        self._record(copy, "PlanLoad")
        return copy

    def submit(self, copy: Copy) -> None:
        """Action ``SubmitSave`` or ``SubmitLoad``: the step's metadata names the copy."""
        self.tier.recorder.move(copy, "submit")
        if copy.kind == "save":
            self.tier.begin_write(copy.entry, ("save", copy.copy_id))
            self._record(copy, "SubmitSave")
        else:
            self._record(copy, "SubmitLoad")

    def skip(self, copy: Copy) -> None:
        """Action ``SaveSkipped`` or ``LoadSkipped`` of a copy that no worker knows."""
        self.tier.recorder.move(copy, "skip")
        self._finish(copy, landed=False)

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        """One rank says how its copy ended: it will not touch the blocks any more.

        Actions ``RankReport``, then with the last rank ``SaveLanded``,
        ``SaveSkipped``, ``LoadLanded`` or ``LoadSkipped``.

        Returns:
            The copy; its state tells whether it is over.

        Raises:
            LocalProtocolError: No such copy is in flight, or the rank does not
                take part or has reported before. Nothing is changed.
        """
        copy = self._copies.get(copy_id)
        if copy is None:
            raise LocalProtocolError(f"report of copy {copy_id}: no such copy", clause="EC-4.4")
        if rank not in copy.waiting:
            raise LocalProtocolError(
                f"report of {copy.kind} {copy_id} by rank {rank}: it does not take part or has "
                f"reported before; waiting for ranks {sorted(copy.waiting)}",
                clause="EC-4.4",
            )
        all_landed = copy.all_landed and landed
        last = len(copy.waiting) == 1
        self.tier.recorder.move(
            copy, "report", (_LAST_RANK if last else 0) | (_ALL_LANDED if all_landed else 0)
        )
        copy.waiting.discard(rank)
        copy.all_landed = all_landed
        if last:
            self._finish(copy, landed=all_landed)
        else:
            self._record(copy, "RankReport")
        return copy

    def _finish(self, copy: Copy, *, landed: bool) -> None:
        tier, entry = self.tier, copy.entry
        del self._copies[copy.copy_id]
        if copy.kind == "load":
            tier.unpin(entry, ("load", copy.copy_id))
        else:
            del self._saving[entry.mm_hash]
            writer: Writer = ("save", copy.copy_id)
            if landed:
                tier.write_landed(entry, writer)
            else:
                if entry.writer == writer:
                    tier.write_ended(entry, writer)
                tier.drop_allocated(entry)
        counts = self.landed if landed else self.skipped
        counts[copy.kind] += 1
        self._record(copy, f"{copy.kind.capitalize()}{'Landed' if landed else 'Skipped'}")

    def _record(self, copy: Copy, action: str) -> None:
        self.tier.recorder.action(action, copy, mm_hash=copy.entry.mm_hash, copy=copy.copy_id)
