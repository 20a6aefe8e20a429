# SPDX-License-Identifier: Apache-2.0
"""What an engine knows of producers: blame, trust and rest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ec_protocol import circuits as module
from ec_protocol import rests
from ec_protocol.circuits import Circuits
from ec_protocol.tables.timing import Timing
from ec_protocol.waiters import Address

START = 1000.0
BAD: Address = ("bad", 5601)
GOOD: Address = ("good", 5601)


class World:
    def __init__(self) -> None:
        self.now = START
        self.counters: Counter[str] = Counter()
        self.timing = Timing()
        self.circuits = Circuits(self.timing, self.counters)

    def blame(self, *sources: Address) -> None:
        self.circuits.blame(sources or (BAD,), "reader_ended", self.now)

    def standing(self, source: Address = BAD) -> str:
        return self.circuits.standing(source, self.now)

    def lands_until_trusted(self, source: Address = BAD) -> int:
        count = 0
        while self.standing(source) != "trusted":
            self.circuits.landed(source)
            count += 1
        return count

    def why(self) -> str:
        """Why it has rested until now."""
        return self.circuits.why(BAD, self.now - 0.001)

    def rest_of(self) -> float:
        """How long it rests from now on: the first moment at which it does not."""
        ends = [circuit.rests_until for circuit in self.circuits._circuits.values()]
        ends += [rest.until for rest in self.circuits.rests._rests.values()]
        since, self.now = self.now, max(ends) - 0.001
        assert self.standing() == "resting"
        self.now = max(ends)
        assert self.standing() != "resting"
        return self.now - since


@pytest.fixture
def world() -> World:
    return World()


def test_nobody_is_suspect_from_the_start(world: World) -> None:
    assert (world.standing(), len(world.circuits)) == ("trusted", 0)
    assert not any(world.circuits.amounts(START).values())
    world.circuits.landed(BAD)
    assert len(world.circuits) == 0


@pytest.mark.clause("EC-14.14")
def test_so_many_fetches_must_land_and_twice_as_many_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HARMS", 100)
    paid = []
    for _ in range(9):
        world.blame()
        assert world.standing() == "suspect"
        paid.append(world.lands_until_trusted())
    assert paid == [1, 2, 4, 8, 16, 32, 64, 64, 64]


@pytest.mark.clause("EC-14.14")
def test_who_was_blamed_with_others_pays_less(world: World) -> None:
    paid = []
    for _ in range(6):
        world.blame(BAD, GOOD)
        paid.append((world.lands_until_trusted(), world.lands_until_trusted(GOOD)))
    assert paid == [(1, 1), (2, 2), (4, 4), (8, 8), (8, 8), (8, 8)]
    assert world.counters["rests_harm"] == 0, "nobody knows whose doing it was"


@pytest.mark.clause("EC-14.14")
def test_blame_that_is_added_is_not_less_than_what_was_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HARMS", 100)
    for _ in range(6):
        world.blame()
    world.circuits.landed(BAD)
    world.blame(BAD, GOOD)
    assert world.lands_until_trusted() == 31


@pytest.mark.clause("EC-14.14")
def test_who_does_harm_three_times_rests_and_longer_each_time(world: World) -> None:
    world.blame()
    world.blame()
    assert world.standing() == "suspect", "two are not enough"
    rests = []
    for _ in range(9):
        world.blame()
        rests.append(world.rest_of())
        assert world.standing() == "suspect"
    assert rests == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert (world.counters["rests_harm"], world.why()) == (9, "left_alone_harm")


@pytest.mark.clause("EC-14.14")
def test_who_is_trusted_in_between_does_not_rest(world: World) -> None:
    for _ in range(4):
        world.blame()
        world.blame()
        world.lands_until_trusted()
    assert world.counters["rests_harm"] == 0


@pytest.mark.clause("EC-9.4")
def test_who_cannot_be_reached_rests_and_is_no_suspect(world: World) -> None:
    world.circuits.unreachable(BAD, 9.0, world.now)
    world.circuits.unreachable(BAD, 9.0, world.now)
    assert world.counters["rests_unreachable"] == 1
    assert world.standing(GOOD) == "trusted"
    assert world.rest_of() == world.timing.heartbeat_timeout_s
    assert world.standing() == "trusted"


@pytest.mark.clause("EC-9.4")
def test_a_longer_rest_is_not_cut(world: World) -> None:
    for _ in range(3):
        world.blame()
    world.circuits.unreachable(BAD, 9.0, world.now)
    assert (world.rest_of(), world.why()) == (10, "left_alone_harm")
    world.blame()
    world.now += 19.0
    world.circuits.unreachable(BAD, 9.0, world.now)
    assert (world.rest_of(), world.why()) == (4, "left_alone_unreachable")


@pytest.mark.clause("EC-9.5", "EC-14.14")
def test_what_is_over_is_forgotten(world: World) -> None:
    world.circuits.unreachable(GOOD, 9.0, world.now)
    world.blame()
    world.now += world.timing.heartbeat_timeout_s
    world.circuits.forget(world.now)
    assert len(world.circuits.rests) == 1
    world.now += world.timing.heartbeat_timeout_s
    world.circuits.forget(world.now)
    assert (list(world.circuits._circuits), len(world.circuits.rests)) == ([BAD], 0)
    world.now = START + module.FORGET_S - 0.001
    world.circuits.forget(world.now)
    assert world.standing() == "suspect"
    world.now += 1.0
    world.circuits.forget(world.now)
    assert len(world.circuits) == 0


@pytest.mark.clause("EC-14.14")
def test_who_rests_is_not_forgotten(world: World) -> None:
    for _ in range(9):
        world.blame()
    world.now = START + module.FORGET_S - 0.001
    world.circuits.forget(world.now)
    assert world.standing() == "resting"


@pytest.mark.clause("EC-14.14")
def test_producers_have_a_bound_and_names_push_out_nobody_who_was_blamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCERS", 3)
    monkeypatch.setattr(rests, "MAX_RESTS", 5)
    world.blame(BAD)
    for number in range(20):
        world.circuits.unreachable((f"host-{number}", 1), 9.0, world.now)
        assert len(world.circuits.rests) <= 5
    assert world.standing() == "suspect"
    for number in range(20):
        world.blame((f"host-{number}", 1))
    assert len(world.circuits) == 3
    assert world.standing() == "trusted", "the longest quiet goes"


def test_notes_name_a_few_and_are_taken_once(world: World) -> None:
    world.circuits.blame([BAD], "read_lost", world.now)
    assert world.circuits.take_notes() == [
        "producer bad:5601: a READ from it was lost; it gets a reader to itself"
    ]
    world.blame(*((f"host-{number}", 1) for number in range(7)))
    (note,) = world.circuits.take_notes()
    assert note.startswith("producer host-0:1, host-1:1, host-2:1, host-3:1 and 3 more: ")
    world.circuits.landed(BAD)
    assert world.circuits.take_notes() == [
        "producer bad:5601: its fetches land; it is trusted again"
    ]
    assert world.circuits.take_notes() == []


PRODUCERS = st.sampled_from([("a", 1), ("b", 1), ("c", 1)])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("blame"), st.lists(PRODUCERS, min_size=1, unique=True)),
            st.tuples(st.just("landed"), PRODUCERS),
            st.tuples(st.just("unreachable"), PRODUCERS),
            st.tuples(st.just("time"), st.sampled_from([1.0, 5.0, 11.0])),
        ),
        max_size=60,
    )
)
def test_any_history(history: list[tuple[str, object]]) -> None:
    """Who does nothing but harm is never trusted, who only lands always is."""
    world = World()
    landed: Counter[Address] = Counter()
    blamed: Counter[Address] = Counter()
    for what, about in history:
        match what, about:
            case "blame", list(sources):
                world.blame(*sources)
                for source in sources:
                    blamed[source] += 1
                    landed[source] = 0
            case "landed", tuple(source):
                world.circuits.landed(source)
                landed[source] += 1
            case "unreachable", tuple(source):
                world.circuits.unreachable(source, 1.0, world.now)
            case "time", float(seconds):
                world.now += seconds
                world.circuits.forget(world.now)
        assert set(world.circuits._circuits) >= set(blamed), "too early to forget"
        for source in blamed:
            due = min(2 ** (blamed[source] - 1), module.MOST_TO_LAND)
            if landed[source] < due:
                assert world.standing(source) != "trusted"
            if landed[source] >= module.MOST_TO_LAND_ALONE:
                assert world.standing(source) != "suspect"
        amounts = world.circuits.amounts(world.now)
        assert amounts.get("suspect", 0) + amounts.get("harmful", 0) <= len(world.circuits)
