# SPDX-License-Identifier: Apache-2.0
"""The engine lends blocks to readers, and takes them back when it is proven that it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ec_protocol import circuits
from ec_protocol import loans as module
from ec_protocol.loans import EndReader, Lend, Loan, Loans, TakeBack
from ec_protocol.tables.dispatch import LOAN
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


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------- the table's edges
def test_what_has_landed_is_ready_and_held_for_who_waits(world: World) -> None:
    loan = world.bring("lent")
    assert loan.entry.state == "saving"
    world.says("landed", loan)
    assert (loan.state, loan.entry.state, world.ended) == ("returned", "pinned", [("h", "landed")])
    assert (len(world.loans), len(world.holds)) == (0, 1)
    assert not world.waiters.fetching("h")
    world.tier.check()


def test_what_has_landed_for_nobody_is_ready_all_the_same(world: World) -> None:
    loan = world.bring("lent")
    world.waiters.leave("r-h", world.now)
    world.says("landed", loan)
    assert (loan.entry.state, len(world.holds)) == ("ready", 0)


def test_what_has_failed_is_free_at_once(world: World) -> None:
    loan = world.bring("lent")
    world.says("failed", loan)
    assert (loan.state, loan.entry.state, world.ended) == ("returned", "freed", [("h", "failed")])
    assert (world.tier.free_blocks, len(world.loans)) == (8, 0)
    assert world.fetch("h", GOOD, "r-h") == "failed", "it is told so from now on"


@pytest.mark.clause("EC-14.9")
def test_what_is_lost_waits_for_a_proof_and_its_request_does_not(world: World) -> None:
    loan = world.bring("lost")
    assert (loan.entry.state, world.ended) == ("quarantined", [("h", "failed")])
    assert (world.tier.free_blocks, len(world.loans)) == (7, 1)


@pytest.mark.clause("EC-14.8")
@pytest.mark.parametrize("proof", ["proven", "exited"])
@pytest.mark.parametrize("state", ["lost", "retired"])
def test_a_proof_brings_the_blocks_back(world: World, state: str, proof: str) -> None:
    loan = world.bring(state)
    assert world.tier.free_blocks == 7
    assert world.tier.retired_blocks == (1 if state == "retired" else 0)
    if proof == "exited":
        world.loans.exited(loan.reader, world.now)
    else:
        world.says("proven", loan)
    assert (loan.state, world.tier.free_blocks, world.tier.retired_blocks) == ("returned", 8, 0)
    assert (len(world.loans), world.ended) == (0, [("h", "failed")]), "told once"
    world.tier.check()


@pytest.mark.clause("EC-14.8")
def test_the_exit_of_a_reader_brings_all_back_that_was_lent_to_it(world: World) -> None:
    world.loans.working([1])
    landed, lost, lent = (world.lend(name) for name in "abc")
    world.says("landed", landed)
    world.says("lost", lost)
    world.loans.exited(1, world.now)
    assert (lost.state, lent.state) == ("returned", "returned")
    assert (world.tier.free_blocks, len(world.loans)) == (7, 0)
    pass_time(world, world.timing.stall_s)
    assert world.ended == [("a", "landed"), ("b", "failed"), ("c", "failed")]
    world.tier.check()


@pytest.mark.clause("EC-14.8")
def test_the_exit_of_another_reader_proves_nothing(world: World) -> None:
    loan = world.bring("lost")
    world.loans.exited(3 - loan.reader, world.now)
    assert (loan.state, world.tier.free_blocks) == ("lost", 7)


@pytest.mark.clause("EC-14.9")
def test_without_a_proof_blocks_are_retired_and_not_a_moment_before(world: World) -> None:
    loan = world.bring("lost")
    world.loans.tick(START + world.timing.quarantine_s - 0.001)
    assert loan.state == "lost"
    deadline = START + world.timing.quarantine_s
    world.loans.tick(deadline)
    assert (loan.state, world.tier.retired_blocks, len(world.loans)) == ("retired", 1, 1)
    world.loans.tick(deadline + 1000)
    assert world.tier.retired_blocks == 1
    assert world.loans.counters["retireloan"] == 1
    world.tier.check()


# ------------------------------------------------------------- a reader that does not end
def pass_time(world: World, seconds: float) -> None:
    """The engine takes steps all the while."""
    end = world.now + seconds
    while world.now < end:
        world.now = min(end, world.now + world.timing.stall_s / 2)
        world.loans.tick(world.now)


@pytest.mark.clause("EC-14.13")
def test_who_waits_for_a_reader_that_was_killed_and_does_not_exit_waits_no_more(
    world: World,
) -> None:
    loan = world.lend()
    world.loans.killed(loan.reader, world.now)
    pass_time(world, world.timing.stall_s - 0.001)
    assert (loan.state, world.ended) == ("lent", []), "it may still exit"
    pass_time(world, 0.001)
    assert (loan.state, loan.entry.state) == ("lost", "quarantined")
    assert world.ended == [("h", "failed")]
    assert world.loans.counters["overdue"] == 1
    assert world.loans.drain() == [], "it was killed already"
    # Its name is free, its blocks are not.
    assert (world.tier.get("h"), world.tier.free_blocks) == (None, 7)
    pass_time(world, world.timing.quarantine_s)
    assert (loan.state, world.tier.retired_blocks) == ("retired", 1)
    pass_time(world, 10 * world.timing.quarantine_s)
    assert world.tier.free_blocks == 7, "time proves nothing"
    world.loans.exited(loan.reader, world.now)
    assert (loan.state, world.tier.free_blocks, world.tier.retired_blocks) == ("returned", 8, 0)
    world.tier.check()


@pytest.mark.clause("EC-14.13")
def test_a_reader_that_was_killed_is_lent_nothing_whoever_still_counts_it(world: World) -> None:
    reader = world.lend("a").reader
    world.loans.killed(reader, world.now)
    world.loans.working([1, 2])
    assert {world.lend(name, (name, 1)).reader for name in "bcd"} == {3 - reader}
    world.loans.exited(reader, world.now)
    world.loans.working([1, 2])
    assert len({world.lend(n, (f"host-{n}", 1)).reader for n in "efgh"}) >= 1


@pytest.mark.clause("EC-14.13")
def test_a_reader_that_says_nothing_of_a_loan_is_ended(world: World) -> None:
    """It gives its signs of life, and has forgotten what it was lent."""
    loan, timing = world.lend(), world.timing
    pass_time(world, timing.fetch_budget_s + timing.read_timeout_s + timing.stall_s - 0.001)
    assert loan.state == "lent"
    pass_time(world, 0.001)
    assert loan.state == "lost"
    assert world.loans.drain() == [EndReader(loan.reader)]
    pass_time(world, 1.0)
    assert world.loans.drain() == [], "once"
    assert world.lend("b", ("b", 1)).reader == 3 - loan.reader


@pytest.mark.clause("EC-14.11")
@pytest.mark.clause("EC-14.13")
def test_nobody_is_late_while_no_step_is_taken(world: World) -> None:
    """What was said meanwhile is heard in the step after it."""
    loan = world.lend()
    world.loans.tick(world.now)
    world.loans.killed(loan.reader, world.now)
    world.now += 1000.0
    world.loans.tick(world.now)
    assert loan.state == "lent"
    world.loans.tick(world.now)
    assert loan.state == "lost"


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("word", ["landed", "failed", "lost"])
def test_a_word_about_what_is_overdue_comes_too_late(world: World, word: str) -> None:
    """It may say so and go on: its exit is the proof."""
    loan = world.lend()
    world.loans.killed(loan.reader, world.now)
    pass_time(world, world.timing.stall_s)
    before = world.picture()
    world.says(word, loan)
    assert (world.picture(), world.loans.counters["stray_words"]) == (before, 1)


# ------------------------------------------------------------------------ stray words
WORDS = {
    "landed": "landed",
    "failed": "failed",
    "unreachable": "failed",
    "lost": "lost",
    "proven": "proven",
}
STATES = ("lent", "lost", "retired", "returned")


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("word", [*WORDS, "exited", "retire", "", "Landed", "explode"])
@pytest.mark.parametrize("state", STATES)
def test_a_word_that_cannot_follow_changes_nothing(state: str, word: str) -> None:
    """Nor one that is not a reader's to say: its exit is told by the kernel, time by us."""
    world = World()
    loan = world.bring(state)
    before = world.picture()
    world.says(word, loan)
    follows = word in WORDS and LOAN.allows(state, WORDS[word])
    assert (world.picture() == before) != follows
    assert world.loans.counters["stray_words"] == (0 if follows else 1)
    world.tier.check()


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("state", STATES)
def test_a_word_of_another_reader_changes_nothing(state: str, word: str) -> None:
    world = World()
    loan = world.bring(state)
    before = world.picture()
    world.says(word, loan, reader=3 - loan.reader)
    assert (world.picture(), world.loans.counters["stray_words"]) == (before, 1)


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("number", [0, -1, 2, 10**12])
def test_a_word_about_a_loan_that_never_was_changes_nothing(word: str, number: int) -> None:
    world = World()
    loan = world.bring("lent")
    before = world.picture()
    world.loans.heard(loan.reader, word, number, world.now)
    assert (world.picture(), world.loans.counters["stray_words"]) == (before, 1)


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("word", WORDS)
def test_a_late_word_of_a_dead_reader_does_nothing_to_the_next_loan(word: str) -> None:
    """The same name, the same blocks, but another number."""
    world = World(blocks=1, readers=(1,))
    old = world.lend()
    world.loans.working([1, 2])
    world.loans.exited(1, world.now)
    (lend,) = world.loans.drain()
    assert isinstance(lend, Lend)
    new = lend.loan
    assert (new.reader, new.entry.mm_hash, new.entry.extents) == (2, "h", old.entry.extents)
    assert new.loan_id != old.loan_id
    world.says(word, old)
    assert (new.state, new.entry.state, world.ended) == ("lent", "saving", [])
    world.says("landed", new)
    assert world.ended == [("h", "landed")]


# --------------------------------------------------------------------------- relending
def died(world: World, loan: Loan) -> Loan | None:
    """The reader of a loan dies and another one works; the loan that follows, if any."""
    number = max(world.loans._working, default=loan.reader) + 1
    world.loans.working([*world.loans._working, number])
    world.loans.exited(loan.reader, world.now)
    commands = world.loans.drain()
    return commands[0].loan if commands and isinstance(commands[0], Lend) else None


def test_a_fetch_whose_reader_died_is_lent_to_another_and_the_request_waits_on(
    world: World,
) -> None:
    loan = world.lend()
    again = died(world, loan)
    assert again is not None
    assert (again.reader != loan.reader, again.wanted is loan.wanted) == (True, True)
    assert (world.ended, world.fetch("h", GOOD, "r-h")) == ([], "pending")
    assert world.loans.counters["relent"] == 1


def test_a_fetch_is_relent_no_more_than_so_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuits, "HARMS", 100)
    loan: Loan | None = world.lend()
    lent = 0
    while loan is not None:
        lent += 1
        loan = died(world, loan)
    assert (lent, world.ended) == (1 + module.MAX_RELENT, [("h", "failed")])
    assert world.tier.free_blocks == 8


def test_a_fetch_that_nobody_waits_for_is_not_relent(world: World) -> None:
    loan = world.lend()
    world.waiters.leave("r-h", world.now)
    assert died(world, loan) is None
    assert (world.ended, len(world.loans)) == ([("h", "failed")], 0)


@pytest.mark.parametrize("left", [0.0, 0.001])
def test_a_fetch_without_time_for_an_answer_is_not_relent(world: World, left: float) -> None:
    loan = world.lend()
    world.now = loan.wanted.deadline - world.timing.ack_timeout_s - left
    assert (died(world, loan) is not None) == (left > 0)


@pytest.mark.parametrize("comes", [True, False])
def test_without_another_reader_it_waits_a_little(world: World, comes: bool) -> None:
    """A spare takes its place in a moment."""
    world.loans.working([1])
    loan = world.lend()
    world.loans.exited(1, world.now)
    assert (world.ended, loan.entry.state) == ([], "freed")
    pass_time(world, world.timing.stall_s - 0.001)
    assert (world.ended, world.loans.drain()) == ([], [])
    if comes:
        world.loans.working([2, 3])
    pass_time(world, 0.0005)
    world.loans.tick(world.now)
    lent = [one for one in world.loans.drain() if isinstance(one, Lend)]
    assert len(lent) == comes
    pass_time(world, 0.001)
    assert world.ended == ([] if comes else [("h", "failed")])
    assert world.fetch("h", GOOD, "r-h") == ("pending" if comes else "failed")


def test_who_waits_for_a_turn_and_leaves_ends_it(world: World) -> None:
    world.loans.working([1])
    world.lend()
    world.loans.exited(1, world.now)
    world.waiters.leave("r-h", world.now)
    world.loans.working([2, 3])
    world.loans.tick(world.now)
    assert (world.loans.drain(), world.ended, len(world.waiters)) == ([], [("h", "failed")], 0)


def test_a_turn_takes_no_longer_than_the_budget(world: World) -> None:
    world.loans.working([1])
    loan = world.lend()
    last = loan.wanted.deadline - world.timing.ack_timeout_s
    world.now = last - 0.5
    world.loans.exited(1, world.now)
    world.loans.tick(last - 0.001)
    assert world.ended == []
    world.loans.tick(last)
    assert world.ended == [("h", "failed")]


def test_a_lost_read_is_not_tried_again(world: World) -> None:
    """The request has fallen back; at the exit of the reader nothing follows."""
    loan = world.bring("lost")
    assert died(world, loan) is None
    assert world.ended == [("h", "failed")]


# ---------------------------------------------------------------------- who may be lent to
def test_nothing_is_lent_when_nobody_works(world: World) -> None:
    world.loans.working([])
    assert world.fetch("h") == "failed"
    assert (world.loans.counters["no_reader"], world.tier.free_blocks) == (1, 8)
    assert world.loans.drain() == []


def test_nothing_is_lent_when_there_is_no_room() -> None:
    world = World(blocks=1)
    world.lend("a")
    assert world.fetch("b") == "failed"
    assert world.loans.counters["no_room"] == 1


def test_nothing_is_lent_for_what_is_there_already(world: World) -> None:
    entry = world.tier.alloc("h", BLOCK)
    assert entry is not None
    wanted = Wanted("h", GOOD, BLOCK, None, world.now + 9, {"r"})
    assert not world.loans.begin(wanted, world.now)
    assert world.loans.drain() == []


@pytest.mark.clause("EC-14.4")
def test_loans_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOANS", 3)
    world = World()
    for name in "abc":
        world.lend(name)
    assert world.fetch("d") == "failed"
    assert (world.loans.counters["too_many_loans"], len(world.loans)) == (1, 3)


@pytest.mark.clause("EC-14.4")
def test_lost_and_retired_loans_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOANS", 1)
    world = World()
    loan = world.bring("retired")
    assert world.fetch("d", BAD) == "failed"
    assert world.loans.counters["too_many_loans"] == 1
    world.says("proven", loan)
    assert world.fetch("e", BAD) == "pending"


@pytest.mark.clause("EC-14.9")
def test_a_reader_with_a_lost_read_gets_no_new_work_whoever_still_counts_it(
    world: World,
) -> None:
    loan = world.bring("lost")
    other = 3 - loan.reader
    clean: Address = ("clean", 1)
    for name, source in (("b", clean), ("a", GOOD)):
        assert world.lend(name, source).reader == other
        world.says("landed", world.loans._by_hash[name])
    world.loans.working([1, 2])
    for name, source in (("c", GOOD), ("d", clean)):
        assert world.lend(name, source).reader == other
        world.says("failed", world.loans._by_hash[name])
    world.loans.working([loan.reader])
    assert world.fetch("g") == "failed"
    assert world.loans.counters["no_reader"] == 1


def test_a_reader_that_exited_gets_no_new_work(world: World) -> None:
    world.loans.exited(1, world.now)
    assert {world.lend(name).reader for name in "abcd"} == {2}


def test_producers_are_spread_over_all_readers_but_the_last() -> None:
    world = World(blocks=64, readers=(1, 2, 3, 4))
    readers = {world.lend(f"h{n}", (f"host-{n}", 1)).reader for n in range(60)}
    assert readers == {1, 2, 3}
    same = {world.lend(f"s{n}").reader for n in range(4)}
    assert len(same) == 1, "one producer has one reader"


# ---------------------------------------------------------------------------- commands
def test_a_reader_is_told_in_order_and_once(world: World) -> None:
    world.fetch("a")
    world.fetch("b")
    world.waiters.leave("r", world.now)
    told = world.loans.drain()
    assert [type(one) for one in told] == [Lend, Lend, TakeBack, TakeBack]
    a, b = told[0], told[1]
    assert isinstance(a, Lend)
    assert isinstance(b, Lend)
    back = [TakeBack(one.reader, one.loan.loan_id) for one in (a, b)]
    assert told[2:] == back
    assert world.loans.drain() == []


def test_the_reader_is_told_when_the_last_one_leaves(world: World) -> None:
    world.fetch("h", waiter="one")
    world.fetch("h", waiter="two")
    world.loans.drain()
    world.waiters.leave("one", world.now)
    assert world.loans.drain() == []
    world.waiters.leave("two", world.now)
    assert [type(one) for one in world.loans.drain()] == [TakeBack]


def test_nobody_is_told_of_a_loan_that_is_not_lent_any_more(world: World) -> None:
    loan = world.bring("lost")
    world.loans.unwanted(loan.wanted, world.now)
    assert world.loans.drain() == []


def test_what_a_reader_could_not_be_told_has_failed(world: World) -> None:
    loan = world.lend()
    world.loans.unsaid(loan.loan_id, world.now)
    assert (loan.state, loan.entry.state, world.ended) == ("returned", "freed", [("h", "failed")])
    assert world.loans.counters["readers_busy"] == 1
    world.loans.unsaid(loan.loan_id, world.now)
    assert world.loans.counters["readers_busy"] == 1


@pytest.mark.parametrize("state", ["lost", "retired"])
def test_what_is_lost_was_told(world: World, state: str) -> None:
    """So "unsaid" cannot be about it, and proves nothing."""
    loan = world.bring(state)
    world.loans.unsaid(loan.loan_id, world.now)
    assert (loan.state, world.loans.counters["readers_busy"]) == (state, 0)


# ---------------------------------------------------------------------------- suspects
def harm(world: World, source: Address, name: str) -> None:
    """A READ from a producer is lost; its reader is replaced by the next one."""
    loan = world.lend(name, source)
    world.says("lost", loan)
    replace(world, loan.reader)


def replace(world: World, reader: int) -> None:
    """It exits, and the next one works."""
    working = [number for number in world.loans._working if number != reader]
    number = max([reader, *working]) + 1
    world.loans.exited(reader, world.now)
    world.loans.working([*working, number])


def standing(world: World, source: Address) -> str:
    return world.loans.circuits.standing(source, world.now)


@pytest.mark.clause("EC-14.14")
def test_whose_read_was_lost_is_suspect_and_has_a_reader_to_itself(world: World) -> None:
    harm(world, BAD, "a")
    clean = world.lend("b", GOOD)
    suspect = world.lend("c", BAD)
    assert (suspect.alone, clean.alone) == (True, False)
    for number in range(4):
        assert world.lend(f"n{number}", (f"host-{number}", 1)).reader != suspect.reader
    more = world.lend("d", BAD)
    assert more.reader == suspect.reader, "its own fetches may be several"


@pytest.mark.clause("EC-14.14")
def test_who_was_being_read_from_when_a_reader_died_is_suspect_too(world: World) -> None:
    loan = world.lend("a", BAD)
    assert loan.reader == 1
    world.lend("b", GOOD)
    world.loans.working([1, 2, 3])
    world.loans.exited(1, world.now)
    assert (standing(world, BAD), standing(world, GOOD)) == ("suspect", "suspect")
    assert world.loans.counters["blamed_reader_ended"] == 2
    (again,) = world.loans.drain()
    assert isinstance(again, Lend)
    assert (again.loan.alone, world.ended) == (True, []), "the other one waits for its turn"


@pytest.mark.clause("EC-14.14")
def test_those_whose_reader_died_are_fetched_from_one_after_the_other(world: World) -> None:
    sources = [(f"host-{number}", 1) for number in range(4)]
    for number, source in enumerate(sources):
        world.lend(f"h{number}", source)
    world.loans.working([1, 2, 3])
    world.loans.exited(1, world.now)
    order = []
    for _ in sources:
        (again,) = world.loans.drain()
        assert isinstance(again, Lend)
        order.append(again.loan.wanted.source)
        world.says("landed", again.loan)
        assert standing(world, order[-1]) == "trusted"
        world.loans.tick(world.now)
    assert sorted(order) == sources
    assert [what for _, what in world.ended] == ["landed"] * 4


@pytest.mark.clause("EC-14.14")
def test_who_had_ended_before_its_reader_died_is_not(world: World) -> None:
    world.says("landed", world.lend("a", BAD))
    world.says("failed", world.lend("b", BAD))
    world.loans.exited(1, world.now)
    assert len(world.loans.circuits) == 0


def test_a_death_is_one_harm_however_many_fetches_it_ends(world: World) -> None:
    for name in "abcd":
        assert world.lend(name, BAD).reader == 1
    world.loans.exited(1, world.now)
    assert world.loans.counters["blamed_reader_ended"] == 1


@pytest.mark.clause("EC-14.14")
@pytest.mark.parametrize("proven", [True, False])
def test_a_lost_read_is_its_own_producers_doing(world: World, proven: bool) -> None:
    """Its reader is replaced for it, also if it ends after all; what others had is lent again."""
    loan = world.lend("a", BAD)
    other = world.lend("b", GOOD)
    assert other.reader == loan.reader
    world.says("lost", loan)
    if proven:
        world.says("proven", loan)
        world.loans.working([1, 2])
        assert loan.reader not in world.loans._working, "whoever still counts it"
    world.loans.working([2, 3])
    world.loans.killed(loan.reader, world.now)
    world.loans.exited(loan.reader, world.now)
    assert (standing(world, BAD), standing(world, GOOD)) == ("suspect", "trusted")
    assert world.loans.counters["blamed_read_lost"] == 1
    (again,) = world.loans.drain()
    assert isinstance(again, Lend)
    assert (again.loan.wanted, again.loan.alone) == (other.wanted, False)


@pytest.mark.clause("EC-14.14")
def test_many_reads_that_are_lost_with_one_reader_are_one_harm(world: World) -> None:
    for loan in [world.lend(name, BAD) for name in "abcde"]:
        world.says("lost", loan)
    assert world.loans.counters["blamed_read_lost"] == 1
    world.says("lost", world.lend("f", BAD))
    assert world.loans.counters["blamed_read_lost"] == 2, "with the next reader, another"


@pytest.mark.clause("EC-14.14")
def test_nobody_is_blamed_for_a_reader_that_went_with_its_parent(world: World) -> None:
    loan = world.lend("a", BAD)
    world.loans.working([2, 3])
    world.loans.killed(loan.reader, world.now, excused=True)
    world.loans.exited(loan.reader, world.now)
    assert len(world.loans.circuits) == 0


@pytest.mark.clause("EC-14.14")
def test_who_is_being_read_from_by_a_stuck_reader_is_suspect(world: World) -> None:
    loan = world.lend("a", BAD)
    world.loans.killed(loan.reader, world.now)
    pass_time(world, world.timing.stall_s)
    assert (standing(world, BAD), world.loans.counters["blamed_overdue"]) == ("suspect", 1)
    world.loans.exited(loan.reader, world.now)
    assert world.loans.counters["blamed_reader_ended"] == 0, "once is enough"


@pytest.mark.clause("EC-14.14")
def test_suspects_wait_for_each_other(world: World) -> None:
    """Two at once on one reader: its death would not show whose doing it was."""
    harm(world, BAD, "a")
    harm(world, GOOD, "b")
    first = world.lend("c", BAD)
    assert world.fetch("d", GOOD) == "failed"
    assert world.loans.counters["suspect_waits"] == 1
    more = world.lend("e", BAD)
    world.says("failed", first)
    assert world.fetch("f", GOOD, "f") == "failed", "one of them is still there"
    world.says("failed", more)
    assert world.lend("g", GOOD).reader == first.reader


@pytest.mark.clause("EC-14.14")
def test_a_suspect_waits_for_what_the_kept_reader_has(world: World) -> None:
    """It was lent when that reader was the only one."""
    harm(world, BAD, "a")
    world.loans.working([7])
    clean = world.lend("b", GOOD)
    assert world.fetch("c", BAD) == "failed"
    world.loans.working([7, 8])
    assert world.lend("d", BAD).reader == 8
    world.loans.working([8])
    assert world.fetch("e", GOOD, "e") == "failed", "a suspect has it to itself"
    world.says("landed", clean)


@pytest.mark.clause("EC-14.14")
def test_a_suspect_may_have_the_only_reader_to_itself(world: World) -> None:
    harm(world, BAD, "a")
    world.loans.working([7])
    suspect = world.lend("b", BAD)
    assert (suspect.reader, suspect.alone) == (7, True)
    assert world.fetch("c", GOOD, "c") == "failed"
    world.loans.working([7, 8])
    assert world.lend("d", GOOD).reader == 8, "that one is kept from here on"
    assert world.lend("e", BAD).reader == 7


@pytest.mark.clause("EC-14.14")
def test_the_kept_reader_stays_the_same_while_others_come_and_go(world: World) -> None:
    harm(world, BAD, "a")
    loan = world.lend("b", BAD)
    for number in range(10, 14):
        world.loans.working([loan.reader, number])
        assert world.lend(f"x{number}", BAD).reader == loan.reader
        assert world.lend(f"y{number}", GOOD).reader == number
        world.says("failed", world.loans._by_hash[f"y{number}"])


@pytest.mark.clause("EC-14.14")
def test_what_landed_in_company_or_failed_alone_forgives_nothing(world: World) -> None:
    before = world.lend("b", BAD)
    harm(world, BAD, "a")
    world.says("landed", before)
    world.says("failed", world.lend("c", BAD))
    assert standing(world, BAD) == "suspect"
    world.says("landed", world.lend("d", BAD))
    assert standing(world, BAD) == "trusted"


@pytest.mark.clause("EC-14.14")
def test_a_fetch_of_who_is_left_alone_is_not_relent(world: World) -> None:
    for name in "ab":
        harm(world, BAD, name)
    loan = world.lend("c", BAD)
    assert died(world, loan) is None
    assert world.loans.counters["left_alone_harm"] == 1
    assert ("c", "failed") in world.ended
    assert world.lend("good", GOOD).alone is False, "others are not"


@pytest.mark.clause("EC-9.4")
def test_who_cannot_be_reached_rests_for_every_reader(world: World) -> None:
    loan = world.lend("a", BAD)
    world.says("unreachable", loan)
    assert (loan.state, world.ended) == ("returned", [("a", "failed")])
    replace(world, loan.reader)
    replace(world, 3 - loan.reader)
    world.now += world.timing.heartbeat_timeout_s - 0.001
    assert world.fetch("b", BAD) == "failed"
    assert world.loans.counters["left_alone_unreachable"] == 1
    assert world.lend("c", GOOD)
    world.now += 0.001
    assert world.lend("d", BAD).alone is False, "it has done no harm"


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize("state", ["lost", "retired", "returned"])
def test_nobody_rests_for_a_stray_word(state: str) -> None:
    world = World()
    loan = world.bring(state)
    world.says("unreachable", loan)
    world.says("unreachable", world.lend("b", BAD), reader=99)
    assert world.loans.counters["stray_words"] == 2
    assert world.loans.counters["rests_unreachable"] == 0


# ------------------------------------------------------------------------------ traces
MOVES: dict[str, Callable[[World], object]] = {
    "Landed": lambda world: world.says("landed", world.bring("lent")),
    "Failed": lambda world: world.says("failed", world.bring("lent")),
    "Lost": lambda world: world.bring("lost"),
    "Overdue": lambda world: (
        world.loans.killed(world.bring("lent").reader, world.now),
        pass_time(world, world.timing.stall_s),
    ),
    "Proven": lambda world: world.says("proven", world.bring("lost")),
    "RetireLoan": lambda world: world.bring("retired"),
    "Exited": lambda world: world.loans.exited(world.bring("lost").reader, world.now),
    "Reclaim": lambda world: world.says("proven", world.bring("retired")),
}


@pytest.mark.clause("EC-1.3")
@pytest.mark.parametrize("action", MOVES)
def test_actions_are_recorded_with_what_they_fire(world: World, action: str) -> None:
    MOVES[action](world)
    names = [record["action"] for record in world.records]
    assert action in names
    lent = next(record for record in world.records if record["action"] == "Lend")
    assert lent["vars"]["loan:1"]["state"] == "lent"
    assert [item["event"] for item in lent["fired"]] == ["begin_write"]
    assert world.loans.counters[action.lower()] == (0 if action == "Reclaim" else 1)
