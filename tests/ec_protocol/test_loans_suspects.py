# SPDX-License-Identifier: Apache-2.0
"""Who has done harm to a reader, and what becomes of him."""

from __future__ import annotations

import pytest

from ec_protocol import loans as module
from ec_protocol.loans import Lend
from ec_protocol.waiters import Address
from tests.world.lending import BAD, GOOD, World, died


@pytest.fixture
def world() -> World:
    return World()


def harm(world: World, source: Address, name: str) -> None:
    """A READ from a producer is lost; its reader is replaced by the next one."""
    loan = world.lend(name, source)
    world.says("lost", loan)
    replace(world, loan.reader)


def replace(world: World, reader: int) -> None:
    working = [number for number in world.loans._working if number != reader]
    number = max([reader, *working]) + 1
    world.loans.working([*working, number][-2:])
    world.loans.exited(reader, world.now)


def last(world: World) -> int:
    return world.loans._working[-1]


def test_producers_are_spread_over_all_readers_but_the_last() -> None:
    world = World(blocks=64, readers=(1, 2, 3, 4))
    readers = {world.lend(f"h{n}", (f"host-{n}", 1)).reader for n in range(60)}
    assert readers == {1, 2, 3}
    same = {world.lend(f"s{n}").reader for n in range(4)}
    assert len(same) == 1, "one producer has one reader"


def test_whose_read_was_lost_is_suspect_and_has_the_last_reader_to_itself(world: World) -> None:
    harm(world, BAD, "a")
    clean = world.lend("b", GOOD)
    suspect = world.lend("c", BAD)
    assert (suspect.reader, clean.reader != suspect.reader) == (last(world), True)
    for number in range(4):
        assert world.lend(f"n{number}", (f"host-{number}", 1)).reader != last(world)


def test_who_was_being_read_from_when_a_reader_died_is_suspect_too(world: World) -> None:
    loan = world.lend("a", BAD)
    assert loan.reader == 1
    world.loans.working([1, 2, 3])
    world.loans.exited(1, world.now)
    (again,) = world.loans.drain()
    assert isinstance(again, Lend)
    assert (again.reader, world.loans.counters["harms"]) == (3, 1)


def test_who_had_ended_before_its_reader_died_is_not(world: World) -> None:
    world.says("landed", world.lend("a", BAD))
    world.says("failed", world.lend("b", BAD))
    world.loans.exited(1, world.now)
    assert world.loans.counters["harms"] == 0


def test_a_death_is_one_harm_however_many_fetches_it_ends(world: World) -> None:
    for name in "abcd":
        assert world.lend(name, BAD).reader == 1
    world.loans.exited(1, world.now)
    assert world.loans.counters["harms"] == 1


def test_a_lost_read_is_not_held_against_its_producer_again_when_the_reader_exits(
    world: World,
) -> None:
    loan = world.bring("lost")
    world.loans.exited(loan.reader, world.now)
    assert world.loans.counters["harms"] == 1


def test_suspects_wait_for_each_other(world: World) -> None:
    """Two at once on one reader: its death would not show whose doing it was."""
    harm(world, BAD, "a")
    harm(world, GOOD, "b")
    first = world.lend("c", BAD)
    assert world.fetch("d", GOOD) == "failed"
    assert world.loans.counters["suspect_waits"] == 1
    more = world.lend("e", BAD)
    assert more.reader == first.reader, "its own fetches may be several"
    world.says("failed", first)
    assert world.fetch("f", GOOD, "f") == "failed", "one of them is still there"
    world.says("failed", more)
    assert world.lend("g", GOOD).reader == last(world)


def test_a_suspect_waits_for_a_clean_fetch_on_the_only_reader(world: World) -> None:
    harm(world, BAD, "a")
    world.loans.working([last(world)])
    clean = world.lend("b", GOOD)
    assert world.fetch("c", BAD) == "failed"
    world.says("landed", clean)
    assert world.fetch("d", BAD) == "pending"


def test_what_landed_forgives(world: World) -> None:
    harm(world, BAD, "a")
    world.says("landed", world.lend("b", BAD))
    assert world.lend("c", BAD).reader != last(world)


def test_what_merely_failed_does_not(world: World) -> None:
    harm(world, BAD, "a")
    world.says("failed", world.lend("b", BAD))
    assert world.lend("c", BAD).reader == last(world)


def test_who_does_harm_three_times_is_left_alone_and_longer_each_time(world: World) -> None:
    for name in "ab":
        harm(world, BAD, name)
    assert world.fetch("x", BAD, "x") == "pending", "two are not enough"
    world.says("failed", world.loans._by_hash["x"])
    pauses = []
    for number in range(9):
        harm(world, BAD, f"h{number}")
        since = world.now
        assert world.fetch("y", BAD, f"y{number}") == "failed"
        # The first moment at which it is fetched from again.
        (suspect,) = world.loans._suspects.values()
        world.now = suspect.not_before - 0.001
        assert world.fetch("z", BAD, f"z{number}") == "failed"
        world.now = suspect.not_before
        pauses.append(world.now - since)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert world.loans.counters["left_alone"] == 18
    assert world.lend("good", GOOD).reader != last(world), "others are not"


def test_after_it_is_forgiven_the_count_begins_anew(world: World) -> None:
    for name in "ab":
        harm(world, BAD, name)
    world.says("landed", world.lend("c", BAD))
    for name in "de":
        harm(world, BAD, name)
        assert world.fetch(f"not-{name}", BAD, name) == "pending"
        world.says("failed", world.loans._by_hash[f"not-{name}"])


def test_a_fetch_of_who_is_left_alone_is_not_relent(world: World) -> None:
    for name in "ab":
        harm(world, BAD, name)
    loan = world.lend("c", BAD)
    assert died(world, loan) is None
    assert world.loans.counters["left_alone"] == 1
    assert ("c", "failed") in world.ended


@pytest.mark.clause("EC-14.4")
def test_suspects_have_a_bound_and_the_longest_quiet_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUSPECTS", 3)
    world = World()
    for number in (1, 2, 3, 1, 4):
        harm(world, (f"host-{number}", 1), f"h{number}-{world.loans.counters['harms']}")
    assert [host for host, _ in world.loans._suspects] == ["host-3", "host-1", "host-4"]
    assert [s.harms for s in world.loans._suspects.values()] == [1, 2, 1]


@pytest.mark.clause("EC-14.9")
def test_reads_that_one_end_takes_along_are_one_harm(world: World) -> None:
    """A server that dies with many READs from it under way has died once."""
    loans = [world.lend(name, BAD) for name in "abcde"]
    for loan in loans:
        world.says("lost", loan)
    assert world.loans.counters["harms"] == 1
    replace(world, loans[0].reader)
    assert world.loans.counters["harms"] == 1
    assert world.fetch("f", BAD, "f") == "pending", "it is not left alone for that"


def test_two_producers_whose_reads_one_reader_loses_have_both_done_harm(world: World) -> None:
    one, other = world.lend("a", BAD), world.lend("b", GOOD)
    assert one.reader == other.reader
    world.says("lost", one)
    world.says("lost", other)
    assert world.loans.counters["harms"] == 2


def test_who_was_in_bad_company_has_done_nothing(world: World) -> None:
    """Its reader was ended for what another one had done."""
    bad, good = world.lend("a", BAD), world.lend("b", GOOD)
    assert bad.reader == good.reader
    world.says("lost", bad)
    replace(world, bad.reader)
    assert world.loans.counters["harms"] == 1
    (again,) = world.loans.drain()
    assert isinstance(again, Lend)
    assert again.loan.wanted.source == GOOD
    assert again.reader != last(world), "it is no suspect"
