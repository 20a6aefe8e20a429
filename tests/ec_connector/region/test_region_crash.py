# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of any process at any moment leaves nothing (schedule F10). Real processes."""

from __future__ import annotations

import os
import random
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from ec_connector.region.shared import SharedRegion, reap_orphans
from tests.ec_connector.region.region_driver import (
    GEOMETRY,
    NAME,
    gone,
    guards_of,
    names_in,
    no_guard,
    nothing_left,
)
from tests.world.processes import DEADLINE_S, eventually

pytestmark = [pytest.mark.timeout(300)]

# Every moment of a creation at which the creator is killed below.
MOMENTS = (
    "before_file",
    "empty_file",
    "before_allocate",
    "allocated",
    "header_written",
    "guarded",
    "before_link",
    "linked",
    "before_mark",
    "marked",
    "mapped",
    "populated",
)
NAMED_FROM = MOMENTS.index("linked")
GUARDED_FROM = MOMENTS.index("guarded")
WITHOUT_GUARD = tuple(m for m in MOMENTS if m not in ("header_written", "guarded"))


# ------------------------------------------------------------- killed at each moment
@pytest.mark.clause("EC-10.1", "EC-10.6")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_creator_leaves_nothing(folder, spawn, moment):
    creator = spawn()
    creator.open_until(moment, folder)
    named = MOMENTS.index(moment) >= NAMED_FROM
    assert names_in(folder) == ([NAME] if named else [])
    creator.kill()
    assert nothing_left(folder)


@pytest.mark.clause("EC-10.6")
@pytest.mark.parametrize("moment", WITHOUT_GUARD)
def test_without_a_guard_the_next_start_reaps(folder, spawn, moment):
    creator = spawn()
    creator.open_until(moment, folder, guard=False)
    creator.kill()
    left = names_in(folder)
    assert left == ([NAME] if MOMENTS.index(moment) >= NAMED_FROM else [])
    assert spawn().open(folder, instance_id="another")["reaped"] == left
    assert names_in(folder) == ["vllm_ec_another_dp0.mmap"]


@pytest.mark.parametrize(
    ("moment", "guard"), [(m, True) for m in MOMENTS] + [(m, False) for m in WITHOUT_GUARD]
)
def test_the_same_with_temporary_names(folder, spawn, moment, guard):
    creator = spawn()
    creator.call("no_tmpfile")
    creator.open_until(moment, folder, guard=guard)
    creator.kill()
    if guard and MOMENTS.index(moment) >= GUARDED_FROM:
        assert eventually(lambda: gone(folder))
        return
    assert len(names_in(folder)) == (0 if moment == "before_file" else 1)
    successor = spawn().open(folder)
    assert successor["created"]
    assert names_in(folder) == [NAME]


def test_a_creator_killed_at_any_instant_leaves_nothing(folder, spawn):
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    for _ in range(25):
        creator = spawn()
        creator.call("pause", at="never")  # it is up and listening
        creator.send("open", directory=str(folder), **{**GEOMETRY, "num_blocks": 4096})
        assert creator.process.stdout is not None
        # an opening takes 30-60 ms here; the kill falls anywhere into it
        select.select([creator.process.stdout], [], [], dice.uniform(0.0, 0.08))
        creator.kill()
        assert eventually(lambda: gone(folder)), seed
    assert eventually(lambda: no_guard(folder)), seed


# ------------------------------------------------------------------ others still map
@pytest.mark.clause("EC-10.2", "EC-10.3")
def test_a_killed_creator_does_not_take_the_region_from_others(folder, spawn):
    creator, worker = spawn(), spawn()
    assert creator.open(folder)["created"]
    assert not worker.open(folder)["created"]
    creator.call("write", block=3, value=42)
    creator.kill()
    late = spawn()
    assert not late.open(folder)["created"]
    assert late.call("read", block=3) == {"value": 42}
    assert reap_orphans(str(folder)).live == 1
    worker.kill()
    assert late.call("read", block=3) == {"value": 42}
    assert names_in(folder) == [NAME]
    late.kill()
    assert nothing_left(folder)


def test_a_joiner_killed_while_joining_changes_nothing(folder, spawn):
    creator = spawn()
    creator.open(folder)
    creator.call("write", block=0, value=7)
    for moment in ("before_identify", "identified", "before_mark", "marked", "mapped", "populated"):
        joiner = spawn()
        joiner.open_until(moment, folder)
        joiner.kill()
        assert names_in(folder) == [NAME]
        assert creator.call("read", block=0) == {"value": 7}


@pytest.mark.clause("EC-10.6")
def test_everything_killed_at_once_the_guard_cleans_up(folder, spawn):
    crowd = [spawn() for _ in range(4)]
    for child in crowd:
        child.open(folder)
    for child in crowd:
        child.process.send_signal(signal.SIGKILL)
    assert nothing_left(folder)


@pytest.mark.clause("EC-10.3", "EC-10.6")
def test_everything_killed_and_the_guard_too_the_next_start_reaps(folder, spawn):
    crowd = [spawn() for _ in range(3)]
    for child in crowd:
        child.open(folder)
    (pid,) = guards_of(folder)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: no_guard(folder))
    for child in crowd:
        child.kill()
    assert names_in(folder) == [NAME]
    successor = spawn().open(folder)
    assert successor["created"]
    assert successor["reaped"] == []  # the opening itself took the orphan at its own path
    assert names_in(folder) == [NAME]


def test_killed_during_shutdown(folder, spawn):
    creator, worker = spawn(), spawn()
    creator.open(folder)
    worker.open(folder)
    creator.call("drain")
    creator.kill()
    assert names_in(folder) == [NAME]
    worker.kill()
    assert eventually(lambda: gone(folder))


# ----------------------------------------------------------------------------- guard
def test_the_guard_is_small_and_alone(folder, spawn):
    creator = spawn()
    creator.open(folder)
    (pid,) = guards_of(folder)
    proc = Path(f"/proc/{pid}")
    inodes = sorted(p.stat().st_ino for p in (proc / "fd").iterdir())
    null, region = os.stat("/dev/null").st_ino, os.stat(folder / NAME).st_ino
    assert inodes == sorted([null] * 3 + [region])
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    assert int(status["VmRSS"].split()[0]) < 8 * 1024
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(creator.pid))
    assert os.readlink(proc / "cwd") == "/"
    # only its own name is in the environment, if anything
    assert b"PYTHONPATH" not in (proc / "environ").read_bytes()


def test_the_guard_ends_by_itself_after_an_ordinary_unlink(folder, spawn):
    creator = spawn()
    creator.open(folder)
    assert len(guards_of(folder)) == 1
    creator.call("close", unlink=True)
    assert eventually(lambda: no_guard(folder))
    assert creator.open(folder)["created"]


def test_the_guard_outlives_signals_for_its_group(folder, spawn):
    creator = spawn()
    creator.open(folder)
    (pid,) = guards_of(folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    os.killpg(creator.pid, signal.SIGKILL)
    assert nothing_left(folder)


def test_the_guard_never_removes_a_successor(folder, spawn):
    old, straggler, new = spawn(), spawn(), spawn()
    old.open(folder)
    straggler.open(folder)
    old.call("close", unlink=True)  # the guard still waits for the straggler
    assert new.open(folder, guard=False)["created"]
    straggler.kill()
    assert eventually(lambda: no_guard(folder))
    assert names_in(folder) == [NAME]


def test_no_guard_when_it_is_switched_off(folder, spawn):
    spawn().open(folder, guard=False)
    assert no_guard(folder)


def test_a_guard_that_cannot_start_is_only_a_warning(folder, monkeypatch, caplog):
    arguments: dict[str, Any] = {**GEOMETRY, "directory": str(folder)}
    for executable in ("", "/nowhere/python", "/bin/false"):
        monkeypatch.setattr("sys.executable", executable)
        with SharedRegion.open(**arguments) as region:
            assert region.created
        assert "no guard" in caplog.text
        caplog.clear()


def test_a_forked_child_counts_as_a_user(folder, spawn):
    creator = spawn()
    creator.open(folder, guard=False)
    creator.call("fork")
    creator.process.kill()
    creator.process.wait(DEADLINE_S)
    assert reap_orphans(str(folder)).live == 1  # the child still maps it
    creator.process.stdin.close()
    assert eventually(lambda: reap_orphans(str(folder)).names == (NAME,))


def test_a_forked_child_cannot_unlink_the_region_of_its_parent(folder, spawn):
    creator = spawn()
    creator.open(folder)
    assert creator.call("fork_and_close") == {"status": 0}
    assert names_in(folder) == [NAME]
    assert not spawn().open(folder)["created"]  # it still holds the lock as well
