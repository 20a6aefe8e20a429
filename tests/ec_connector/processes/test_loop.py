# SPDX-License-Identifier: Apache-2.0
"""The loop of a data process, with a driven clock: sleep is time that the test lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

from ec_connector.processes import loop as loop_module
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.loop import Loop
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_protocol.p2p import words

BEAT_S = 1.0
#: Turns, and polls, of a loop that ends.
MOST = 50_000


class Page(StatusPage):
    """A status page that keeps when it was written."""

    def __init__(self, world: World) -> None:
        super().__init__(Shared.create("ec-test", STATUS_BYTES))
        self._world = world
        self.beats: list[float] = []
        self.written: list[tuple[float, int]] = []

    def beat(self, now: float) -> None:
        self.beats.append(now)
        super().beat(now)

    def write(self, figures: dict[str, Any]) -> bool:
        self.written.append((self._world.now, figures["stats"]["turns"]))
        return super().write(figures)


class World:
    """Loop, clock and work in one; whatever sleeps moves the clock.

    Attributes:
        ready: Polls that find input, by their number.
        ends_at: When the parent says Stop.
        registered: What the poller was told to look at.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.turns: list[float] = []
        self.polls = 0
        self.naps: list[float] = []
        self.ready: set[int] = set()
        self.deadline: Callable[[], float | None] = lambda: None
        self.found = 0
        self.transfers = 0
        self.ends_at = 1000.0 + 60.0
        ours, theirs = channel_pair()
        self.parent, self.engine = Channel(ours, words.FromData), channel_pair()
        self.page = Page(self)
        self.theirs = Channel(theirs, words.ToData)
        self.engine_end = Channel(self.engine[0], words.ToServer)
        self.loop = Loop(self.theirs, self.engine_end, self.page, BEAT_S, lambda: self.now)
        self.sockets: list[Any] = ["a socket"]
        self.registered: set[Any] = set()
        monkeypatch.setattr(loop_module.zmq, "Poller", lambda: self)
        monkeypatch.setattr(loop_module.time, "sleep", self.nap)

    def nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    # The poller.
    def register(self, what: Any, events: int) -> None:
        self.registered.add(what)

    def poll(self, milliseconds: int) -> list[Any]:
        self.polls += 1
        assert self.polls < MOST, "it does not end"
        if self.polls in self.ready:
            return [("input", 1)]
        if self.now + milliseconds / 1000 >= self.ends_at:
            self.now = self.ends_at
            self.parent.say(words.Stop())
            return [("parent", 1)]
        self.now += milliseconds / 1000
        return []

    # The work.
    def turn(self) -> bool:
        self.turns.append(self.now)
        assert len(self.turns) < MOST, "it does not end"
        self.found -= 1
        return self.found >= 0

    def transferring(self, now: float) -> bool:
        self.transfers -= 1
        return self.transfers >= 0

    def next_deadline(self) -> float | None:
        return self.deadline()

    def figures(self) -> dict[str, Any]:
        return {"stats": {"turns": len(self.turns)}}

    def goodbye(self) -> None:
        pass

    def run(self) -> None:
        self.loop.run(self)

    def close(self) -> None:
        for end in (self.parent, self.theirs, self.engine_end, self.engine[1]):
            end.close()
        self.page.shared.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.close()


@pytest.mark.clause("EC-14.11")
def test_an_idle_process_gets_up_for_signs_of_life_and_for_nothing_else(world: World) -> None:
    world.run()
    gaps = [b - a for a, b in pairwise(world.page.beats)]
    assert max(gaps) <= BEAT_S + 1e-9
    assert len(world.turns) <= 60 / 10 + 2, "the work is not turned for that"
    assert world.polls <= 60 / BEAT_S + 2 * len(world.turns), "nor more often"


@pytest.mark.clause("EC-14.11")
def test_who_stands_by_gives_signs_of_life_and_is_told(world: World) -> None:
    assert world.loop.wait_for_place() is None, "the instance has ended"
    assert world.page.beats == [1000.0 + n * BEAT_S for n in range(60)]
    world.parent.say(words.Take(4711))
    world.ready = {world.polls + 1}
    assert world.loop.wait_for_place() == words.Take(4711)


def test_the_work_is_turned_when_it_is_due_and_when_something_comes(world: World) -> None:
    due = iter([1003.25, 1004.0])
    world.deadline = lambda: next(due, None)
    world.run()
    assert world.turns[:3] == pytest.approx([1000.0, 1003.25, 1004.0], abs=0.002)
    world.turns.clear()
    world.ready = {world.polls + 3}
    world.ends_at = world.now + 60.0
    world.loop.stopped = False
    began = world.now
    world.run()
    assert world.turns[1] < began + 2 * BEAT_S + 0.01


def test_whoever_may_say_something_wakes_it(world: World) -> None:
    world.run()
    assert world.registered == {world.theirs.fileno(), world.engine_end.fileno(), "a socket"}


@pytest.mark.parametrize("deadline", [None, 1e9])
def test_work_that_does_not_say_when_it_is_due_is_turned_all_the_same(
    world: World, deadline: float | None
) -> None:
    world.deadline = lambda: deadline
    world.run()
    gaps = [b - a for a, b in pairwise(world.turns)]
    assert max(gaps) <= 10.0 + BEAT_S


def test_figures_follow_what_has_happened_and_are_written_no_more_often(world: World) -> None:
    world.ready = {1, 2, 6}
    world.run()
    for count, turned in enumerate(world.turns[:-1], 1):
        soon = [turns for at, turns in world.page.written if turned <= at <= turned + 0.21]
        assert max(soon) >= count
    assert len(world.page.written) <= len(world.turns)
    times = [at for at, _ in world.page.written]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= 0.1 - 1e-9


def test_while_work_is_found_it_does_not_sleep(world: World) -> None:
    world.found = 50
    world.run()
    assert world.turns[:51] == [1000.0] * 51


def test_while_a_transfer_is_under_way_it_only_naps(world: World) -> None:
    world.transfers = 10_000
    world.run()
    assert world.naps[0] == 30e-6
    assert world.naps[-1] == 300e-6, "one that takes long is looked at less often"
    assert len(world.naps) == 10_000
    assert max(world.page.beats[1:][i] - world.page.beats[i] for i in range(9_999)) < BEAT_S


def test_work_that_is_found_during_a_transfer_is_not_slept_over(world: World) -> None:
    world.transfers, world.found = 20, 12
    world.run()
    assert len(world.naps) == 20 - 12


def test_stop_is_not_slept_over(world: World) -> None:
    world.parent.say(words.Stop())
    world.run()
    assert (world.polls, len(world.turns)) == (0, 1)


@pytest.mark.clause("EC-14.1")
@pytest.mark.parametrize("who", ["parent", "engine"])
def test_it_ends_when_nobody_is_there_any_more(world: World, who: str) -> None:
    world.ready = {1}
    if who == "parent":
        world.parent.close()
    else:
        world.engine[1].close()
        world.engine_end.hear()
    world.run()
    assert world.polls <= 1
