# SPDX-License-Identifier: Apache-2.0
"""``Engine``: the protocol state of the process in which the host's scheduler runs.

It keeps the entries and knows what requests wait for. It has no part of the network:
who fetches is a ``Fetcher``, and who grants asks a ``Gate`` nothing. ``Node`` has both in
the same process; a connector with data processes has ``loans.Loans`` for the one and
``offers.engine.Offers`` for the other::

    engine.want(item, announced, request_id, now)   # wait for the encoding?
    engine.promise(item.mm_hash, [item])            # will a load in this step succeed?
    engine.plan(item, request_id)                   # then it is loaded, else saved
    for copy in engine.build_step(now): …           # what the workers copy
    engine.report(copy.copy_id, rank, landed=True)  # what they say
    engine.announce(items, address, now)            # what others may read
    engine.leave(request_id, now)

Threads: none of its own, and no lock; see ``Node``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ec_protocol.announcements import Address, Announcer, PeerRules, read_source
from ec_protocol.errors import ConfigError
from ec_protocol.items import Item
from ec_protocol.names import is_strangers, stranger_name
from ec_protocol.parts import Parts
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import Copy
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.step import Step
from ec_protocol.trace import Trace
from ec_protocol.waiters import Fetcher, Waiters

#: What an instance does: a producer saves and serves, a consumer loads and reads.
Role = Literal["producer", "consumer", "both"]
#: How the encoding of an item is to be had: from the tier; not yet; by encoding it.
Availability = Literal["ready", "pending", "failed"]


class Engine:
    """Entries and requests of one engine instance and data-parallel rank.

    Args:
        blocks: Blocks of the region.
        block_bytes: Bytes of a block.
        role: What the instance does.
        ranks: Ranks that load; rank 0 is the one that saves.
        timing: Timers.
        rules: Whom a request may have us read from; None: anybody who has no key.
        hold_share: Share of the region that holds may keep (EC-3.6).
        trace: Where actions are recorded; None records nothing.
        parts: Classes of what the node is made of; tests put others in.

    Attributes:
        tier: Entries and blocks. ``tier.listener`` is told what becomes of encodings.
        copies: Copies that are planned or in flight.
        holds: Holds on announced and fetched entries.
        waiters: Requests that wait for a fetch; None where nothing is fetched.
        serves: Whether others can read from this instance.
        online: Whether somebody fetches. The shell says so; while it is False nothing is
            begun.
        counters: What the engine's side counts, by name.

    Raises:
        ConfigError: ``role`` is none.
        LocalProtocolError: A size or a name that no node can have.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_bytes: int,
        role: Role = "both",
        ranks: int = 1,
        timing: Timing | None = None,
        rules: PeerRules | None = None,
        hold_share: float = 0.5,
        trace: Trace | None = None,
        parts: Parts | None = None,
    ) -> None:
        if role not in ("producer", "consumer", "both"):
            raise ConfigError(f"role={role!r}: expected producer, consumer or both")
        self.role: Role = role
        self.saves = role != "consumer"
        self.loads = role != "producer"
        self.timing = Timing() if timing is None else timing
        self.online = True
        self.counters: Counter[str] = Counter()
        self._rules = PeerRules() if rules is None else rules
        # By request and encoding: the names under which strangers' words are kept for it.
        self._names: dict[str, dict[str, str]] = {}
        parts = Parts() if parts is None else parts
        self.tier = parts.tier(blocks, block_bytes, trace)
        self.holds = parts.holds(self.tier, hold_share)
        self.copies = parts.copies(self.tier, ranks)
        self._step = Step(self.tier, self.copies, self.counters)
        self._announcer = Announcer(self.copies, self.holds, self.timing, self.counters)
        self.waiters: Waiters | None = None
        self.serves = False
        self._deferrals = Deferrals()

    def fetch_by(self, fetcher: Fetcher, counters: Counter[str]) -> Waiters:
        """Have encodings fetched that others announce.

        Args:
            fetcher: Who fetches.
            counters: Where to count what becomes of it.

        Returns:
            Who is to be told how each fetch ends.
        """
        self.waiters = Waiters(fetcher, self.holds, self.timing, counters)
        # Whatever a request waits for, it has one budget (EC-5.9).
        self._deferrals = self.waiters.deferrals
        return self.waiters

    # ----------------------------------------------------------------- requests
    def want(self, item: Item, announced: object, waiter: str, now: float) -> Availability:
        """How the encoding of an item is to be had; starts a fetch if one is wanted.

        Asked in every step by every request that waits, within ``fetch_budget_s`` of
        its first question (EC-5.9).

        Args:
            item: What the request needs.
            announced: ``ec_transfer_params`` of the request, of any type (EC-11.4).
            waiter: The request's id.
            now: Seconds.

        Returns:
            ``ready``: ``promise`` may have it. ``pending``: wait. ``failed``: only
            encoding the media helps, now and later.
        """
        if not item.named_by_content:
            return "failed"
        waiters = self.waiters
        if waiters is None or not waiters.fetching(item.mm_hash):
            entry = self.tier.get(item.mm_hash)
            if entry is not None:
                return self._from_tier(item, entry, waiter, now)
        if waiters is None:
            return "failed"
        capacity = self.tier.num_blocks * self.tier.block_size_bytes
        source = read_source(announced, item, capacity, self._rules)
        if isinstance(source, str):
            self.counters[f"params_{source}"] += 1
            return "failed"
        if not self.online:
            self.counters["fetches_while_offline"] += 1
            return "failed"
        name = item.mm_hash
        if self._rules.strangers:
            # By its word alone: for those who take its word (EC-15.8).
            name = stranger_name(name, source.host, source.port)
            self._names.setdefault(waiter, {})[item.mm_hash] = name
            entry = None if waiters.fetching(name) else self.tier.get(name)
            if entry is not None:
                return self._from_tier(item, entry, waiter, now)
        return waiters.fetch(name, source.address, item.nbytes, item.shape, waiter, now)

    def _from_tier(self, item: Item, entry: Entry, waiter: str, now: float) -> Availability:
        name = entry.mm_hash
        if self.contradicts(item, name):
            return "failed"
        if entry.servable and self._step.free_for(name):
            return "ready"
        # A save of our own is about to make it servable, or nothing ever will. A rank keeps
        # one thing under a name: what another is promised in this step comes first.
        if not entry.servable and (item.has_media or self.copies.save_of(name) is None):
            return "failed"
        within = self._deferrals.within(waiter, item.mm_hash, now, self.timing.fetch_budget_s)
        return "pending" if within else "failed"

    def contradicts(self, item: Item, name: str = "") -> bool:
        """Whether the tier holds something else under the item's name, or the one given.

        Names may come from clients. Loaded into a request that expects other rows it
        would stop the engine. Under a name that does not follow from the content
        anything may lie (EC-2.8).
        """
        if not item.named_by_content:
            return True
        entry = self.tier.get(name or item.mm_hash)
        return entry is not None and entry.contradicts(item.nbytes, item.shape)

    def _names_for(self, mm_hash: str, waiter: str) -> list[str]:
        """The names under which a request may have an encoding, our own first."""
        strangers = self._names.get(waiter, {}).get(mm_hash)
        return [mm_hash] if strangers is None else [mm_hash, strangers]

    def leave(self, waiter: str, now: float) -> None:
        """The request is over, in whatever way: it waits for nothing any more."""
        self._names.pop(waiter, None)
        self._deferrals.forget(waiter)
        if self.waiters is not None:
            self.waiters.leave(waiter, now)

    # ------------------------------------------------------------------- a step
    def promise(self, mm_hash: str, items: Iterable[Item] = (), waiter: str = "") -> bool:
        """Whether a load of ``mm_hash`` in this step will succeed: a promise (EC-3.2).

        Args:
            mm_hash: The encoding.
            items: What the request that asks means by the name.
            waiter: The request's id: what it has waited for may be there for it alone.
        """
        if not self.loads or is_strangers(mm_hash):
            return False
        wanted = list(items)
        return any(
            not any(self.contradicts(item, name) for item in wanted) and self._step.promise(name)
            for name in self._names_for(mm_hash, waiter)
        )

    def plan(self, item: Item, waiter: str) -> Copy | None:
        """An item is part of the step: it is loaded as promised, or encoded and saved.

        Returns:
            The copy that was planned; None when the step has it already, or it is
            neither loaded nor saved.
        """
        # The promise may have been another request's, which means something else.
        for name in self._names_for(item.mm_hash, waiter):
            if self._step.promised(name) and not self.contradicts(item, name):
                copy = self._step.load(name)
                self._deferrals.served(waiter, item.mm_hash)
                if self.waiters is not None:
                    self.waiters.consumed(waiter, name)
                return copy
        return self._step.save(item, wanted=self.saves)

    def build_step(self, now: float) -> tuple[Copy, ...]:
        """What the workers copy in this step; its promises end (EC-3.4)."""
        planned = self._step.build()
        self.holds.tick(now)
        return planned

    def report(self, copy_id: int, rank: int, landed: bool) -> Copy:
        """A rank will not touch the blocks of a copy any more (EC-4.1).

        Raises:
            LocalProtocolError: See ``CopyTable.report``; nothing was changed.
        """
        copy = self.copies.report(copy_id, rank, landed)
        if copy.kind == "save" and copy.state == "landed":
            self.holds.landed(copy.entry)
        return copy

    # ------------------------------------------------------------- announcements
    def announce(
        self, items: Sequence[Item], address: Address | None, now: float
    ) -> dict[str, dict[str, Any]]:
        """What others are told of a request's encodings, which are held for them.

        Args:
            items: Of the request, in their order.
            address: Where consumers reach this producer; None: they do not.
            now: Seconds.

        Returns:
            By ``mm_hash`` the positions of its items, and metadata and address
            together, or empty metadata (EC-11.1). Nothing of names that were counted.
        """
        return {} if not self.serves else self._announcer.announce(items, address, now)
