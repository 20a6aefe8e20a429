# SPDX-License-Identifier: Apache-2.0
"""Which data processes there are, with a driven clock and processes that are numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ec_protocol.errors import LocalProtocolError, RemoteProtocolError
from ec_protocol.processes import KillProcess, Kind, StartProcess, TakePlace, Wanted
from ec_protocol.tables.timing import Timing
from tests.world.parent import BOTH, READERS, SERVER, START, World, running


# ------------------------------------------------------------------------- the start
def test_all_that_are_wanted_are_started_at_once_and_no_more() -> None:
    world = World(BOTH)
    started = world.tick()
    assert started == [
        StartProcess(1, "server"),
        StartProcess(2, "server"),
        StartProcess(3, "reader"),
        StartProcess(4, "reader"),
        StartProcess(5, "reader"),
    ]
    assert (world.tick(), len(world.processes)) == ([], 5)


def test_who_is_ready_first_works_and_the_rest_stands_by() -> None:
    world = World(BOTH)
    world.tick()
    assert world.ready(5) == [TakePlace(5, "reader")]
    assert world.ready(1, 2, 3, 4) == [TakePlace(1, "server"), TakePlace(3, "reader")]
    assert (world.of("working"), world.of("spare")) == ([1, 3, 5], [2, 4])
    assert world.processes.counters["starts"] == 5


def test_nothing_of_a_kind_that_is_not_wanted() -> None:
    world = World({"server": Wanted(0, 0)})
    assert (world.tick(), world.processes.next_deadline()) == ([], None)


def test_ready_is_said_once() -> None:
    world = running(READERS)
    with pytest.raises(RemoteProtocolError):
        world.processes.ready(1, world.now)
    assert world.of("working") == [1, 2]


def test_ready_may_cross_the_kill_on_its_way() -> None:
    world = World(READERS)
    world.tick()
    world.tick(world.timing.start_s)
    world.processes.ready(1, world.now)
    assert (world.of("killed"), world.of("spare")) == ([1, 2, 3], [])


@pytest.mark.parametrize("what", ["ready", "beat", "drain", "exited"])
def test_of_a_process_that_is_not_there_nobody_speaks(what: str) -> None:
    world = running(READERS)
    world.exit(1)
    for number in (1, 99):
        with pytest.raises(LocalProtocolError, match=f"process {number} is not there"):
            getattr(world.processes, what)(number, world.now)


# --------------------------------------------------------------------- takes a place
@pytest.mark.clause("EC-14.9")
def test_a_spare_takes_the_place_of_one_that_exits_and_another_is_started() -> None:
    world = running(READERS)
    assert world.exit(1) == [TakePlace(3, "reader"), StartProcess(4, "reader")]
    assert world.ready() == []
    assert (world.of("working"), world.of("spare")) == ([2, 3], [4])


@pytest.mark.clause("EC-14.9")
def test_a_reader_that_drains_is_replaced_at_once_and_killed_when_its_grace_is_over() -> None:
    world = running(READERS)
    world.processes.drain(1, world.now)
    assert world.tick() == [TakePlace(3, "reader"), StartProcess(4, "reader")]
    drain_s = world.timing.drain_s
    assert world.processes.next_deadline() == START + drain_s
    assert world.tick(drain_s - 0.001) == []
    world.now = START + drain_s
    assert world.tick() == [KillProcess(1, "drained")]
    assert (world.tick(), world.of("killed")) == ([], [1]), "killed once"
    assert world.exit(1) == []
    assert world.processes.counters["killed_drained"] == 1
    assert world.processes.counters["died"] == 0


def test_only_one_that_works_can_drain_and_its_grace_begins_once() -> None:
    world = World(READERS)
    world.tick()
    world.processes.drain(3, world.now)
    world.ready()
    world.processes.drain(3, world.now)
    assert (world.of("spare"), world.of("draining")) == ([3], [])
    world.processes.drain(1, world.now)
    world.tick(0.5)
    world.processes.drain(1, world.now)
    assert world.tick(0.5) == [KillProcess(1, "drained")]
    world.processes.drain(1, world.now)
    assert (world.of("killed"), world.processes.counters["drained"]) == ([1], 1)


def test_who_drains_and_stands_still_is_killed_for_whatever_comes_first() -> None:
    world = World(READERS, Timing(drain_s=10.0))
    world.tick()
    world.ready()
    world.processes.drain(1, world.now)
    world.beat(2, 3)
    world.tick(world.timing.stall_s - 0.5)
    world.beat(2, 3)
    assert KillProcess(1, "stalled") in world.tick(0.5)


@pytest.mark.clause("EC-14.6")
@pytest.mark.parametrize("end", ["stalled", "drained"])
def test_a_server_takes_its_place_when_the_one_before_has_exited(end: str) -> None:
    """That it was killed proves nothing."""
    world = running(SERVER)
    if end == "drained":
        world.processes.drain(1, world.now)
        world.now += world.timing.drain_s
    else:
        world.now += world.timing.stall_s
    world.beat(2)
    assert KillProcess(1, end) in world.tick()
    for _ in range(50):
        assert not any(isinstance(c, TakePlace) for c in world.live(1.0))
        world.ready()
    assert world.of("working") == []
    assert TakePlace(2, "server") in world.exit(1)


@pytest.mark.clause("EC-14.6")
def test_not_while_the_one_before_drains_either() -> None:
    world = running(SERVER)
    world.processes.drain(1, world.now)
    assert not any(isinstance(c, TakePlace) for c in world.tick())
    assert TakePlace(2, "server") in world.exit(1)


@pytest.mark.clause("EC-14.6")
def test_two_spare_servers_do_not_both_take_the_place() -> None:
    world = World({"server": Wanted(1, 2)})
    world.tick()
    assert world.ready() == [TakePlace(1, "server")]
    assert [c for c in world.exit(1) if isinstance(c, TakePlace)] == [TakePlace(2, "server")]
    assert world.of("working") == [2]


def test_readers_do_not_wait_for_the_exit_of_others() -> None:
    world = running(READERS)
    world.now += world.timing.stall_s
    world.beat(2, 3)
    assert TakePlace(3, "reader") in world.tick()
    assert world.of("killed") == [1]


# ------------------------------------------------------------------- stalls, starts
@pytest.mark.clause("EC-14.5")
@pytest.mark.clause("EC-14.9")
@pytest.mark.parametrize("wanted", [SERVER, READERS])
@pytest.mark.parametrize("state", ["working", "spare"])
def test_one_that_stands_still_is_killed(wanted: Mapping[Kind, Wanted], state: str) -> None:
    world = running(wanted)
    number = world.of(state)[0]
    others = [n for n in world.running if n != number]
    world.beat()
    world.tick(world.timing.stall_s - 0.001)
    world.beat(*others)
    assert not world.killed
    assert world.processes.next_deadline() == START + world.timing.stall_s
    world.now = START + world.timing.stall_s
    assert world.tick()[0] == KillProcess(number, "stalled")
    assert world.processes.counters["killed_stalled"] == 1


def test_signs_of_life_keep_everybody_and_old_ones_take_nothing_back() -> None:
    world = running(BOTH)
    assert world.live(30.0) == []
    for number in world.running:
        world.processes.beat(number, START)
    assert world.tick() == []
    assert world.processes.next_deadline() == world.now + world.timing.stall_s


@pytest.mark.clause("EC-14.9")
def test_one_that_is_not_ready_in_time_is_killed_and_another_started() -> None:
    world = World(READERS)
    world.tick()
    world.ready(1, 2)
    assert world.live(world.timing.start_s - 0.001) == []
    world.now = START + world.timing.start_s
    world.beat()
    assert world.tick() == [KillProcess(3, "not_ready"), StartProcess(4, "reader")]


def test_signs_of_life_make_nobody_ready() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    assert KillProcess(1, "not_ready") in world.live(world.timing.start_s)


def test_while_it_starts_nobody_asks_for_signs_of_life() -> None:
    world = World({"reader": Wanted(1, 0)})
    world.tick()
    assert world.tick(world.timing.start_s - 0.001) == []
    assert world.processes.next_deadline() == START + world.timing.start_s
    world.ready(1)
    assert world.processes.next_deadline() == world.now + world.timing.stall_s


# ----------------------------------------------------------------------------- the end
def test_at_the_end_all_are_killed_and_none_is_started() -> None:
    world = running(BOTH)
    world.processes.drain(3, world.now)
    world.tick()
    world.processes.stop()
    assert world.tick() == [KillProcess(n, "at_the_end") for n in sorted(world.running)]
    assert world.processes.next_deadline() is None
    for number in list(world.running):
        assert world.exit(number) == []
    world.tick(1000.0)
    assert (len(world.processes), world.running) == (0, {})


def test_nobody_takes_a_place_at_the_end() -> None:
    world = World(SERVER)
    world.tick()
    world.processes.ready(1, world.now)
    world.processes.stop()
    assert world.tick() == [KillProcess(1, "at_the_end"), KillProcess(2, "at_the_end")]


# ------------------------------------------------------------------------------ traces
@pytest.mark.clause("EC-1.3")
def test_every_move_is_recorded_under_its_action() -> None:
    world = running(READERS)
    world.processes.drain(1, world.now)
    world.tick(world.timing.drain_s)
    world.exit(1)
    actions = [record["action"] for record in world.records]
    assert set(actions) == {
        "StartProcess",
        "ProcessReady",
        "TakePlace",
        "DrainProcess",
        "KillProcess",
        "Exited",
    }
    fired = {
        (record["action"], item["lifecycle"], item["event"])
        for record in world.records
        for item in record["fired"]
    }
    assert fired == {
        ("ProcessReady", "process", "ready"),
        ("TakePlace", "process", "take"),
        ("DrainProcess", "process", "drain"),
        ("KillProcess", "process", "kill"),
        ("Exited", "process", "exited"),
    }
    first = world.records[0]["vars"]["process:1"]
    assert first == {"state": "starting", "kind": "reader"}
