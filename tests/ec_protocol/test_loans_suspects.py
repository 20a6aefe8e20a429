# SPDX-License-Identifier: Apache-2.0
"""Whose fetches share a reader, and who is left alone."""

from __future__ import annotations

import pytest

from ec_protocol.loans import Lend
from ec_protocol.waiters import Address
from tests.world.lending import BAD, GOOD, World, died, pass_time


@pytest.fixture
def world() -> World:
    return World()


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
    world.now += world.timing.heartbeat_timeout_s
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


def test_producers_are_spread_over_all_readers_but_the_last() -> None:
    world = World(blocks=64, readers=(1, 2, 3, 4))
    readers = {world.lend(f"h{n}", (f"host-{n}", 1)).reader for n in range(60)}
    assert readers == {1, 2, 3}
    same = {world.lend(f"s{n}").reader for n in range(4)}
    assert len(same) == 1, "one producer has one reader"
