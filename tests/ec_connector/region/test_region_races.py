# SPDX-License-Identifier: Apache-2.0
"""Concurrent creators, reapers and joiners, and restarts under the same id. Real processes."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.region.shared import reap_orphans
from tests.ec_connector.region.region_driver import (
    GEOMETRY,
    NAME,
    gone,
    names_in,
    no_guard,
    nothing_left,
)
from tests.world.processes import eventually

pytestmark = [pytest.mark.timeout(300)]


BIG: dict[str, Any] = {"num_blocks": 1200, "block_size_bytes": 4096}  # 4.7 of 8 MiB


# ----------------------------------------------------------------------------- races
def test_concurrent_creators_make_exactly_one_region(folder, spawn):
    crowd = [spawn() for _ in range(6)]
    for _ in range(8):
        for child in crowd:
            child.send("open", directory=str(folder), **GEOMETRY)
        answers = [child.answer() for child in crowd]
        assert sum(answer["created"] for answer in answers) == 1, answers
        assert len({answer["inode"] for answer in answers}) == 1
        for child in crowd:
            child.call("close", unlink=True)
        assert gone(folder)
    assert eventually(lambda: no_guard(folder))


def test_concurrent_creators_need_the_memory_once(small_tmpfs, spawn):
    crowd = [spawn() for _ in range(5)]
    for child in crowd:
        child.send("open", directory=str(small_tmpfs), **{**GEOMETRY, **BIG})
    answers = [child.answer() for child in crowd]
    assert [answer.get("created") for answer in answers].count(True) == 1, answers
    assert [answer.get("created") for answer in answers].count(False) == 4, answers


def test_a_creator_killed_in_its_turn_lets_the_next_one_create(folder, spawn):
    first, second = spawn(), spawn()
    first.open_until("allocated", folder)
    second.send("open", directory=str(folder), **GEOMETRY)
    first.kill()
    assert second.answer()["created"]


@pytest.mark.clause("EC-10.3")
def test_reaping_races_joining_without_losing_a_region(folder, spawn):
    users = [spawn() for _ in range(3)]
    reaper = spawn()
    common: dict[str, Any] = {"directory": str(folder), "seconds": 6.0}
    for user in users:
        user.send("hold_loop", guard=False, prefault=False, **common, **GEOMETRY)
    reaper.send("reap_loop", **common)
    results = [user.answer() for user in users]
    reaped = reaper.answer()["reaped"]
    assert all(result["lost"] == 0 for result in results), results
    assert all(result["rounds"] > 20 for result in results), results
    # the race was real: regions died and were born many times
    assert sum(result["created"] for result in results) > 20, (results, reaped)
    reap_orphans(str(folder))
    assert gone(folder)


def test_guards_race_joining_without_losing_a_region(folder, spawn):
    users = [spawn() for _ in range(3)]
    for user in users:
        user.send("hold_loop", directory=str(folder), seconds=6.0, prefault=False, **GEOMETRY)
    results = [user.answer() for user in users]
    assert all(result["lost"] == 0 for result in results), results
    assert sum(result["created"] for result in results) > 10, results
    assert nothing_left(folder)


# -------------------------------------------------------------------------- restarts
def test_restart_with_the_same_id_waits_for_the_old_processes(folder, spawn):
    old_scheduler, old_worker, new = spawn(), spawn(), spawn()
    old = old_scheduler.open(folder)
    old_worker.open(folder)
    old_scheduler.kill()
    new.send("open", directory=str(folder), create=True, **GEOMETRY)
    refused = spawn().open(folder, create=True, timeout_s=0.2)
    assert refused["error"] == "RegionBusyError"
    assert f"pids: {old_worker.pid}" in refused["message"]
    old_worker.kill()
    answer = new.answer()
    assert answer["created"]
    assert answer["inode"] != old["inode"] or gone(folder) is False
    assert names_in(folder) == [NAME]


def test_a_worker_of_the_new_start_does_not_join_the_old_region(folder, spawn):
    old_nonce, new_nonce = "aa" * 16, "bb" * 16
    old_worker, new_worker, new_scheduler = spawn(), spawn(), spawn()
    old_worker.open(folder, nonce=old_nonce)
    old_worker.call("write", block=0, value=13)
    for child in (new_worker, new_scheduler):
        child.send("open", directory=str(folder), nonce=new_nonce, **GEOMETRY)
    old_worker.kill()
    answers = [new_worker.answer(), new_scheduler.answer()]
    assert sorted(answer["created"] for answer in answers) == [False, True]
    assert answers[0]["inode"] == answers[1]["inode"]
    assert new_worker.call("read", block=0) == {"value": 0}


def test_restart_while_the_old_instance_shuts_down(folder, spawn):
    old, new = spawn(), spawn()
    old.open(folder)
    old.call("drain")
    new.send("open", directory=str(folder), **GEOMETRY)
    old.call("close", unlink=True)
    assert new.answer()["created"]


@pytest.mark.parametrize("guard", [True, False])
def test_restart_after_sigkill_where_one_region_fits(small_tmpfs, spawn, guard):
    for turn in range(4):
        child = spawn()
        # the same id, then another one: both find the room that the dead one took
        answer = child.open(small_tmpfs, **BIG, guard=guard, instance_id=f"t{turn // 2}")
        assert answer.get("created"), answer
        child.kill()


def test_restart_at_once_after_an_ordinary_stop_where_one_region_fits(small_tmpfs, spawn):
    child = spawn()
    for _ in range(4):
        assert child.open(small_tmpfs, **BIG)["created"]
        child.call("close", unlink=True)
    assert gone(small_tmpfs)


def test_a_live_region_in_the_way_is_an_error_that_names_the_numbers(small_tmpfs, spawn):
    first, second = spawn(), spawn()
    first.open(small_tmpfs, **BIG)
    answer = second.open(small_tmpfs, **BIG, instance_id="another")
    assert answer["error"] == "RegionSpaceError"
    assert "ec_cpu_bytes" in answer["message"]
    assert names_in(small_tmpfs) == [NAME]
    first.call("write", block=1199, value=1)
