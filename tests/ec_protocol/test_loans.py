# SPDX-License-Identifier: Apache-2.0
"""The engine lends blocks to readers, and takes them back when it is proven that it may."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ec_protocol import circuits
from ec_protocol import loans as module
from ec_protocol.loans import Lend, Loan, TakeBack
from ec_protocol.tables.dispatch import LOAN
from ec_protocol.tier.copies import CopyTable
from ec_protocol.waiters import Address, Wanted
from tests.world.lending import BAD, BLOCK, GOOD, START, World, died, pass_time


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


@pytest.mark.parametrize("landed", [True, False])
def test_what_was_encoded_here_meanwhile_needs_no_turn(world: World, landed: bool) -> None:
    world.loans.working([1])
    world.lend()
    world.loans.exited(1, world.now)
    copies = CopyTable(world.tier)
    copy = copies.plan_save("h", BLOCK)
    assert copy is not None
    copies.submit(copy)
    if landed:
        copies.report(copy.copy_id, 0, landed=True)
    world.loans.working([2, 3])
    world.loans.tick(world.now)
    assert (world.loans.drain(), len(world.loans)) == ([], 0)
    assert world.ended == [("h", "landed" if landed else "failed")]
    assert len(world.holds) == landed


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
