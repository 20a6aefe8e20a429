# SPDX-License-Identifier: Apache-2.0
"""Any schedule of an engine, servers that die in the middle of anything, and readers.

The region is a list of blocks, each of which says whose bytes lie there. An engine that
begins to write spoils what was there before, so that whoever still reads it sees it. A
server may die, and the engine act, at every lock that is tried, taken and let go; and the
other way round. Readers copy block by block, need no server for it, and accept what they
have inside their fence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ec_protocol.offers.table import PROBES
from ec_protocol.p2p.wire import XferStatus
from ec_protocol.tier.entry import Entry, Holder
from ec_protocol.tier.extents import Extents
from ec_protocol.tier.holds import HoldTable
from tests.ec_protocol.offers.world import BLOCK, World

#: Fewer than all encodings together take, so that each new one pushes another out.
BLOCKS = 4
SIZES = {"a": 1, "b": 1, "c": 2, "d": 3}
NAMES = st.sampled_from(sorted(SIZES))
PICK = st.integers(0, 99)
#: Which lock operation something happens at, counted from the next one on.
MOMENTS = st.integers(0, 8)
LEASE_S = 30.0


class ServerDied(Exception):
    """The server is gone, in the middle of what it was doing."""


@dataclass
class Reader:
    """One attempt that was granted, and may be long after its server is gone."""

    attempt: int
    name: str
    blocks: list[int]
    fence: float
    copied: list[object] = field(default_factory=list)


def blocks_of(extents: Extents | list[tuple[int, int]]) -> list[int]:
    return [block for start, count in extents for block in range(start, start + count)]


class OffersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(blocks=BLOCKS)
        self.memory: list[object] = [None] * BLOCKS
        self.readers: list[Reader] = []
        HoldTable(self.world.tier, 1.0)  # says in the trace how much may be held
        self.pinned: list[tuple[Entry, Holder]] = []
        self.holds = itertools.count(1)
        self.attempts = 0
        self.forged = 0
        self.alive = True
        self.crowd()

    def crowd(self) -> None:
        """All names have one hash: what goes makes its slot free for whatever comes next."""
        for table in (self.world.offers.table, self.world.shelf._table):
            table.hash_of = lambda name: 7  # type: ignore[method-assign]

    # --------------------------------------------------------------------- the engine
    def begin(self, name: str) -> None:
        world = self.world
        if world.tier.get(name) is None:
            copy = world.copies.plan_save(name, SIZES[name] * BLOCK)
            if copy is not None:
                world.copies.submit(copy)
                for block in blocks_of(copy.entry.extents):
                    self.memory[block] = "being written"
        world.offers.catch_up(world.now)

    def end(self, pick: int, landed: bool) -> None:
        saves = [copy for copy in self.world.copies if copy.kind == "save"]
        if saves:
            copy = saves[pick % len(saves)]
            for number, block in enumerate(blocks_of(copy.entry.extents)):
                self.memory[block] = (copy.entry.mm_hash, number) if landed else "never written"
            self.world.copies.report(copy.copy_id, 0, landed)
        self.world.offers.catch_up(self.world.now)

    def save(self, name: str) -> None:
        self.begin(name)
        self.end(-1, True)

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    ACTIONS = st.one_of(
        st.tuples(st.just("begin"), st.tuples(NAMES)),
        st.tuples(st.just("save"), st.tuples(NAMES)),
        st.tuples(st.just("end"), st.tuples(PICK, st.booleans())),
        st.tuples(st.just("pass_time"), st.tuples(st.sampled_from([1.0, LEASE_S - 5, LEASE_S]))),
    )

    def act(self, action: tuple[str, tuple[object, ...]]) -> None:
        getattr(self, action[0])(*action[1])

    @rule(action=ACTIONS)
    def engine_acts(self, action: tuple[str, tuple[object, ...]]) -> None:
        self.act(action)

    @rule(name=NAMES)
    def engine_saves(self, name: str) -> None:
        self.save(name)

    @rule(pick=PICK)
    def engine_pins(self, pick: int) -> None:
        """A load or a hold begins or ends; it has nothing to do with grants."""
        ready = [e for e in self.world.tier.entries() if e.servable]
        if self.pinned and pick % 2:
            self.world.tier.release_hold(*self.pinned.pop())
        elif ready and not self.pinned:
            self.pinned.append((ready[pick % len(ready)], ("hold", next(self.holds))))
            self.world.tier.hold(*self.pinned[-1])

    @rule(action=ACTIONS, moment=MOMENTS, name=NAMES)
    def engine_acts_and_a_request_comes(
        self, action: tuple[str, tuple[object, ...]], moment: int, name: str
    ) -> None:
        self.world.between_engine = at(moment, lambda: self.ask(name))
        try:
            self.act(action)
        finally:
            self.world.between_engine = lambda _: None

    @rule()
    def engine_steps(self) -> None:
        self.world.offers.catch_up(self.world.now)

    # --------------------------------------------------------------------- the server
    def ask(self, name: str) -> None:
        """A request, and what its reader makes of the answer."""
        if not self.alive:
            return
        self.attempts += 1
        attempt, sent_at = self.attempts, self.world.now
        ack = self.world.ask(name, attempt, b"peer-%d" % (attempt % 3))
        if ack.status == XferStatus.OK:
            assert ack.lease_s == self.world.timing.lease_s
            fence = self.world.timing.fence(sent_at, ack.lease_s)
            self.readers.append(Reader(attempt, name, blocks_of(ack.extents), fence))

    @rule(name=NAMES)
    def request(self, name: str) -> None:
        self.ask(name)

    @rule(name=NAMES, copied=st.integers(0, 2))
    def a_read_begins(self, name: str, copied: int) -> None:
        """An encoding that is there, and a reader that has begun to copy it."""
        self.save(name)
        known = len(self.readers)
        self.ask(name)
        for reader in self.readers[known:]:
            for block in reader.blocks[:copied]:
                reader.copied.append(self.memory[block])

    @rule(name=NAMES, seconds=st.sampled_from([1.0, LEASE_S - 5]))
    def two_reads_begin(self, name: str, seconds: float) -> None:
        """The second one's lease ends later."""
        self.a_read_begins(name, 1)
        self.pass_time(seconds)
        self.ask(name)

    @rule(name=NAMES, other=NAMES, alive=st.booleans())
    def something_else_is_saved_under_a_read(self, name: str, other: str, alive: bool) -> None:
        """With its server, without one, or with the next one."""
        self.a_read_begins(name, 1)
        if not alive:
            self.server_is_killed()
        elif self.alive:
            self.server_is_killed()
            self.server_starts()
            self.ask(other)
        self.save(other)

    @rule(name=NAMES, moment=MOMENTS, action=ACTIONS)
    def request_and_the_engine_acts(
        self, name: str, moment: int, action: tuple[str, tuple[object, ...]]
    ) -> None:
        self.world.between_server = at(moment, lambda: self.act(action))
        try:
            self.ask(name)
        finally:
            self.world.between_server = lambda _: None

    @rule(name=NAMES, moment=MOMENTS, done=st.booleans(), action=st.one_of(st.none(), ACTIONS))
    def server_dies(
        self,
        name: str,
        moment: int,
        done: bool,
        action: tuple[str, tuple[object, ...]] | None,
    ) -> None:
        """At that lock operation of a request or of a notice; the engine acts before it is told."""

        def die() -> None:
            raise ServerDied

        self.world.between_server = at(moment, die)
        try:
            if done and self.readers:
                self.finish(0)
            else:
                self.ask(name)
        except ServerDied:
            self.alive = False
        finally:
            self.world.between_server = lambda _: None
        if not self.alive:
            if action is not None:
                self.act(action)
            self.world.server_locks.die()

    @rule()
    def server_is_killed(self) -> None:
        self.alive = False
        self.world.server_locks.die()

    @precondition(lambda self: not self.alive)
    @rule()
    def server_starts(self) -> None:
        self.world.restart_server()
        self.crowd()
        self.alive = True

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, starts=st.booleans())
    def server_is_taken_over(self, pick: int, starts: bool) -> None:
        """It says that an entry is needed for ever, and is killed; another one may follow."""
        offers = list(self.world.offers._offers.values())
        if offers:
            self.forged += 1
            slot = offers[pick % len(offers)].slot
            self.world.offers.ledger.need(slot, self.world.now + 1e9 + self.forged)
        self.server_is_killed()
        if starts:
            self.server_starts()

    @precondition(lambda self: self.alive)
    @rule()
    def server_turns(self) -> None:
        self.world.server.tick(self.world.now)

    @precondition(lambda self: self.alive and self.attempts)
    @rule(pick=PICK, name=NAMES)
    def stray_notice(self, pick: int, name: str) -> None:
        """Of an attempt that is over, or was never granted."""
        attempt = 1 + pick % self.attempts
        if all(reader.attempt != attempt for reader in self.readers):
            self.world.done(name, attempt)

    # -------------------------------------------------------------------- the readers
    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def copies(self, pick: int) -> None:
        reader = self.readers[pick % len(self.readers)]
        if len(reader.copied) < len(reader.blocks):
            reader.copied.append(self.memory[reader.blocks[len(reader.copied)]])

    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def finishes(self, pick: int) -> None:
        self.finish(pick)

    def finish(self, pick: int) -> None:
        """It accepts or drops what it has, and says that it needs the entry no more."""
        reader = self.readers.pop(pick % len(self.readers))
        for block in reader.blocks[len(reader.copied) :]:
            reader.copied.append(self.memory[block])
        if self.world.now < reader.fence:
            right = [(reader.name, number) for number in range(SIZES[reader.name])]
            assert reader.copied == right, "NoWrongBytes"
        if self.alive:
            self.world.done(reader.name, reader.attempt)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def vanishes(self, pick: int) -> None:
        """It says nothing, ever."""
        self.readers.pop(pick % len(self.readers))

    # ---------------------------------------------------------------------- the checks
    @invariant()
    def who_may_still_accept_is_covered(self) -> None:
        world = self.world
        slots = {offer.slot: offer for offer in world.offers._offers.values()}
        for reader in self.readers:
            if world.now >= reader.fence:
                continue
            covered = [
                slot
                for slot, offer in slots.items()
                if blocks_of(offer.entry.extents) == reader.blocks
                and world.offers.ledger.needed_until(slot) >= reader.fence
            ]
            assert covered, "not in the ledger, or not in the table"
            for number, block in enumerate(reader.blocks):
                assert self.memory[block] == (reader.name, number), "reused under a reader"

    @invariant()
    def what_is_known_of_the_ledger_is_what_it_says(self) -> None:
        """The engine's memory of it, and the server's, whatever came between."""
        world = self.world
        ends = {slot: world.offers.ledger.needed_until(slot) for slot in self.used_slots()}
        world.offers.catch_up(world.now)
        for slot, (end, until) in world.offers._absurd.items():
            assert ends[slot] == end > until, "remembered and not so"
            assert until <= world.now + LEASE_S
        shelf = world.shelf
        for slot in self.used_slots() if self.alive else ():
            own = max(shelf._ends.get(slot, {}).values(), default=0.0)
            found = shelf._inherited.get(slot, 0.0)
            assert ends[slot] >= max(own, found) or ends[slot] <= world.now >= found
            if own > world.now:
                assert ends[slot] == max(own, found), "raised above what cannot be"

    def used_slots(self) -> set[int]:
        """All names have one hash, so these are all that were ever used."""
        table = self.world.offers.table
        return {slot % table.slots for slot in range(7, 7 + PROBES)}

    @invariant()
    def the_tier_is_sound(self) -> None:
        self.world.tier.check()

    @invariant()
    def the_table_says_what_the_engine_thinks(self) -> None:
        world = self.world
        offers = [*world.offers._offers.values(), *world.offers._left]
        assert len({offer.slot for offer in offers}) == len(offers)
        for offer in offers:
            record = world.offers.table.read(offer.slot)
            assert record is not None
            assert (record.state, record.mm_hash) == (offer.state, offer.entry.mm_hash)
            assert record.state != "open" or offer.entry.servable

    def teardown(self) -> None:
        """When all leases are over, everything can be evicted and no slot is left."""
        world = self.world
        if not self.alive:
            self.server_starts()
        for copy in list(world.copies):
            world.copies.report(copy.copy_id, 0, False)
        for entry, holder in self.pinned:
            world.tier.release_hold(entry, holder)
        world.pass_time(LEASE_S)
        world.offers.catch_up(world.now)
        for offer in world.offers._offers.values():
            # What cannot be counts for one lease from when it is first looked at.
            world.offers._needed(offer.slot, world.now)
        world.pass_time(LEASE_S)
        world.offers.catch_up(world.now)
        assert world.server.open_grants == 0
        assert world.shelf.inherited_blocks(world.now) == 0
        taken = [slot for slot in range(world.offers.table.slots) if self.state_of(slot)]
        assert sorted(taken) == sorted(offer.slot for offer in world.offers._offers.values())
        everything = world.tier.alloc("everything", BLOCKS * BLOCK)
        assert everything is not None
        world.tier.cancel(everything)  # what is allocated stands in the table too
        world.offers.catch_up(world.now)
        assert not any(self.state_of(slot) for slot in range(world.offers.table.slots))
        assert (len(world.offers), world.held) == (0, {})
        world.tier.check()

    def state_of(self, slot: int) -> bool:
        return self.world.offers.table.read(slot) is not None


def at(moment: int, what: Callable[[], None]) -> Callable[[str], None]:
    """Does something once, at that lock operation, which it does not interrupt itself."""
    seen = 0

    def operation(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == moment + 1:
            what()

    return operation


TestOffers = OffersMachine.TestCase
TestOffers.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestOffers.pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.clause("EC-14.2"),
    pytest.mark.clause("EC-14.3"),
    pytest.mark.clause("EC-14.6"),
]
