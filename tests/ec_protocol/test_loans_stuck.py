# SPDX-License-Identifier: Apache-2.0
"""Readers that were killed and do not exit, or say nothing of what they were lent."""

from __future__ import annotations

import pytest

from ec_protocol.loans import EndReader
from tests.world.lending import World, pass_time


@pytest.fixture
def world() -> World:
    return World()


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
    world.loans.working([3 - reader, 3, 4])
    assert {world.lend(n, (f"host-{n}", 1)).reader for n in "efgh"} == {3 - reader, 3}


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
