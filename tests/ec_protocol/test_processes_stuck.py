# SPDX-License-Identifier: Apache-2.0
"""Data processes that were killed, or condemned, and are still there."""

from __future__ import annotations

import pytest

from ec_protocol.processes import KillProcess, Kind, ReportStuck, Wanted
from tests.world.parent import READERS, World, running


@pytest.mark.clause("EC-14.13")
@pytest.mark.parametrize("kind", ["server", "reader"])
def test_who_was_killed_and_does_not_exit_is_reported_once(kind: Kind) -> None:
    world = running({kind: Wanted(1, 1)})
    world.now += world.timing.stall_s
    world.beat(2)
    assert KillProcess(1, "stalled") in world.tick()
    world.ready()
    killed_at, told = world.now, []
    while world.now < killed_at + 30.0:
        due = world.processes.next_deadline()
        assert due is not None
        world.now = due
        world.beat(*(number for number in world.running if number != 1))
        told += [(world.now - killed_at, c) for c in world.tick() if isinstance(c, ReportStuck)]
    assert told == [(world.timing.stall_s, ReportStuck(1))]
    assert (world.processes.stuck, world.processes.counters["stuck"]) == ([1], 1)
    # A reader's place is taken, a server's is not (EC-14.6).
    assert world.of("working") == ([2] if kind == "reader" else [])
    world.exit(1)
    assert (world.processes.stuck, world.of("working")) == ([], [2])


@pytest.mark.clause("EC-14.13")
def test_who_exits_in_time_is_not_reported() -> None:
    world = running(READERS)
    world.now += world.timing.stall_s
    world.beat(2, 3)
    world.tick()
    world.live(world.timing.stall_s - 0.001)
    world.exit(1)
    assert not any(isinstance(c, ReportStuck) for c in world.live(30.0))


@pytest.mark.clause("EC-14.11")
@pytest.mark.clause("EC-14.13")
def test_time_in_which_the_parent_stood_still_makes_nobody_stuck() -> None:
    world = running(READERS)
    world.now += world.timing.stall_s
    world.beat(2, 3)
    world.tick()
    world.now += 1000.0
    world.processes.stood_still(1000.0, world.now)
    assert not any(isinstance(c, ReportStuck) for c in world.tick())
    assert ReportStuck(1) in world.live(world.timing.stall_s)


@pytest.mark.parametrize("state", ["starting", "spare", "working", "draining"])
def test_who_is_condemned_is_killed_next_whatever_it_does(state: str) -> None:
    world = running(READERS) if state in ("working", "draining") else World(READERS)
    world.tick()
    if state == "spare":
        world.processes.ready(1, world.now)
    if state == "draining":
        world.processes.drain(1, world.now)
    assert world.processes.numbers(state)[0] == 1
    world.processes.condemn(1, "replaced")
    assert KillProcess(1, "replaced") in world.tick()
    assert (world.tick(), world.processes.counters["killed_replaced"]) == ([], 1)
    world.processes.condemn(1, "again")
    assert world.tick() == []
