# SPDX-License-Identifier: Apache-2.0
"""Data processes that die again and again, and a parent that stood still itself."""

from __future__ import annotations

import pytest

from ec_protocol.processes import KillProcess, StartProcess, TakePlace, Wanted, beat_interval
from ec_protocol.tables.timing import Timing
from tests.world.parent import BOTH, READERS, START, World, running


def pauses(world: World, count: int, lives_s: float = 0.0) -> list[float]:
    """How long it takes each time until one that died is started again."""
    waited = []
    for _ in range(count):
        (number,) = world.running
        world.ready()
        world.live(lives_s)
        since = world.now
        commands = world.exit(number)
        while not commands:
            deadline = world.processes.next_deadline()
            assert deadline is not None
            assert deadline > world.now
            assert world.tick(0.5 * (deadline - world.now)) == []
            world.now = deadline
            commands = world.tick()
        waited.append(world.now - since)
    return waited


@pytest.mark.clause("EC-14.12")
def test_one_that_dies_again_and_again_is_started_later_and_later() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    expected = [0.0, 0.0, 0.0, *(0.1 * 2**n for n in range(9)), 30.0, 30.0]
    assert pauses(world, 14) == pytest.approx(expected, abs=1e-6)


def test_one_that_dies_for_ever_is_started_for_ever() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    assert pauses(world, 1200)[-1] == pytest.approx(30.0, abs=1e-6)


@pytest.mark.clause("EC-14.12")
def test_one_that_has_worked_for_a_while_has_not_failed() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    assert pauses(world, 6)[-1] > 0.3
    # A pause that has begun is kept, and no other one follows.
    assert pauses(world, 3, lives_s=world.timing.lived_s) == [0.0, 0.0, 0.0]
    assert pauses(world, 4) == pytest.approx([0.0, 0.0, 0.0, 0.1], abs=1e-6)


@pytest.mark.clause("EC-14.12")
def test_almost_as_long_is_not_enough() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    lives_s = world.timing.lived_s - 0.01
    assert pauses(world, 4, lives_s) == pytest.approx([0.0, 0.0, 0.0, 0.1], abs=1e-6)


@pytest.mark.clause("EC-14.12")
def test_a_start_ends_no_pause_of_those_that_follow() -> None:
    """Each is started, is ready and takes its place; that is no life yet."""
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    found = pauses(world, 6, lives_s=0.5)
    assert found == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.4], abs=1e-6)
    assert world.processes.counters["starts"] == 7


def test_to_stand_by_is_not_to_work() -> None:
    """A start that takes long and ends by itself, again and again."""
    world = World({"reader": Wanted(0, 1)})
    world.tick()
    assert pauses(world, 4, lives_s=60.0) == pytest.approx([0.0, 0.0, 0.0, 0.1], abs=1e-6)


# -------------------------------------------------------- a parent that stood still itself
@pytest.mark.clause("EC-14.11")
def test_a_parent_that_stood_still_blames_nobody() -> None:
    world = running(BOTH)
    world.now += 100.0
    world.processes.stood_still(100.0, world.now)
    assert world.tick() == []
    world.now += world.timing.stall_s
    assert len(world.tick()) >= 5, "but for the time after that"


@pytest.mark.clause("EC-14.11")
def test_who_was_starting_meanwhile_has_all_of_its_time_left() -> None:
    world = World(READERS)
    world.tick()
    world.tick(1.0)
    world.now += 3600.0
    world.processes.stood_still(3600.0, world.now)
    assert world.tick(world.timing.start_s - 1.001) == []
    assert world.tick(0.002)[:3] == [KillProcess(n, "not_ready") for n in (1, 2, 3)]


@pytest.mark.clause("EC-14.11")
def test_who_was_draining_meanwhile_has_all_of_its_grace_left() -> None:
    world = running(READERS)
    world.processes.drain(1, world.now)
    world.tick(0.25)
    world.now += 3600.0
    world.processes.stood_still(3600.0, world.now)
    assert world.tick(world.timing.drain_s - 0.251) == []
    assert world.tick(0.002) == [KillProcess(1, "drained")]


@pytest.mark.clause("EC-14.11")
def test_who_went_on_meanwhile_gets_no_time_on_top() -> None:
    """Only the parent was stopped: the others have given signs of life all along."""
    world = running(BOTH)
    world.now += 3600.0
    world.beat()
    world.processes.stood_still(3600.0, world.now)
    assert world.processes.next_deadline() == world.now + world.timing.stall_s
    assert len(world.tick(world.timing.stall_s)) >= 5


@pytest.mark.clause("EC-14.11", "EC-14.12")
def test_to_be_stopped_is_not_to_have_worked() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    for _ in range(4):
        (number,) = world.running
        world.ready()
        world.now += 3600.0
        world.processes.stood_still(3600.0, world.now)
        assert world.tick() == []
        world.exit(number)
    assert world.processes._not_before["reader"] == world.now + 0.1


@pytest.mark.clause("EC-14.11")
@pytest.mark.parametrize("stall_s", [0.05, 0.5, 4.0, 20.0])
def test_signs_of_life_are_several_times_faster_than_the_bound(stall_s: float) -> None:
    assert beat_interval(Timing(stall_s=stall_s)) * 4 == stall_s


@pytest.mark.parametrize("state", ["starting", "spare", "working", "draining", "killed"])
def test_a_short_life_counts_in_whatever_state_it_ends(state: str) -> None:
    world = World({"reader": Wanted(0, 1) if state == "spare" else Wanted(1, 0)})
    world.tick()
    followed = []
    for _ in range(4):
        (number,) = world.of("starting")
        if state == "killed":
            world.tick(world.timing.start_s)
        elif state != "starting":
            world.processes.ready(number, world.now)
            world.processes.tick(world.now)
            if state == "draining":
                world.processes.drain(number, world.now)
        assert number in world.of(state)
        world.exit(number)
        followed.append(len(world.of("starting")))
    assert followed[:3] == [1, 1, 1]
    assert world.processes._not_before["reader"] == world.now + 0.1


def test_a_start_that_fails_at_once_counts_as_a_death() -> None:
    """No descriptors, no memory: who starts it says that it has exited."""
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    for _ in range(3):
        (number,) = world.of("starting")
        world.exit(number)
        world.tick(1.0)
    assert world.processes.counters["starts"] == 4
    assert world.processes.counters["died"] == 3


def test_kinds_do_not_wait_for_each_other() -> None:
    world = running(BOTH)
    for number in world.of("working", "reader") + world.of("spare", "reader"):
        world.exit(number)
    assert world.of("starting", "reader") != []
    commands = world.exit(1)
    assert [type(c) for c in commands if c.kind == "server"] == [TakePlace, StartProcess]  # type: ignore[union-attr]


def short_lives() -> World:
    """Three have died at once: after the next one comes a pause."""
    world = running(READERS)
    for number in (1, 2, 3):
        world.exit(number)
    world.ready(4, 5, 6)
    return world


def test_a_spare_takes_its_place_although_no_start_is_due() -> None:
    world = short_lives()
    assert world.exit(4) == [TakePlace(6, "reader")]
    assert world.of("working") == [5, 6]


def test_a_kind_that_lacks_one_has_the_end_of_its_pause_as_deadline() -> None:
    world = short_lives()
    world.exit(4)
    assert world.processes.next_deadline() == world.now + 0.1
    assert world.tick(0.1) == [StartProcess(7, "reader")]
    assert world.processes.next_deadline() == START + world.timing.stall_s


@pytest.mark.clause("EC-14.4")
def test_processes_that_cannot_be_ended_do_not_pile_up() -> None:
    """Killed, and stuck in the kernel: each next one would get stuck too."""
    world = running(BOTH)
    for _ in range(50):
        world.tick(world.timing.stall_s)
        world.tick(world.timing.start_s)
    assert len(world.processes) <= 2 * (2 + 3)
    kinds = list(world.running.values())
    assert (kinds.count("server"), kinds.count("reader")) == (4, 6)
    stuck = world.of("killed", "reader")
    assert len(stuck) == 6
    deadline = world.processes.next_deadline()
    assert deadline is None or deadline >= world.now, "nothing to do but to wait"
    for number in stuck:
        world.exit(number)
    world.tick(60.0)
    assert len(world.of("starting", "reader")) == 3, "all is well when they end after all"


def test_at_the_end_nobody_waits_for_a_start_that_will_not_be() -> None:
    world = short_lives()
    world.exit(4)
    world.processes.stop()
    world.tick()
    world.now += 60.0
    assert world.processes.next_deadline() is None
