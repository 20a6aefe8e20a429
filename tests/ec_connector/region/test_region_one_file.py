# SPDX-License-Identifier: Apache-2.0
"""The region of one start is one file (EC-10.7), whatever becomes of its name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ec_connector.region import file as region_file
from ec_connector.region import header as region_header
from ec_connector.region.errors import (
    RegionBusyError,
    RegionLostError,
    RegionMissingError,
)
from ec_connector.region.file import Directory
from ec_connector.region.header import MAGIC, TRAILER_BYTES, RegionHeader
from ec_connector.region.marks import Marks
from ec_connector.region.shared import SharedRegion, reap_orphans
from tests.ec_connector.region.region_driver import (
    GEOMETRY,
    NAME,
    Child,
    names_in,
    open_region,
)

pytestmark = [pytest.mark.timeout(300)]

NONCE = b"n" * 16
START = NONCE.hex()
OTHER_NONCE = b"o" * 16
OTHER_START = OTHER_NONCE.hex()
PATIENCE: dict[str, Any] = {"timeout_s": 60.0, "guard": False}


# ------------------------------------------------------------ a late process of a start
@pytest.mark.clause("EC-10.7")
def test_a_late_process_gets_an_error_and_no_zeros(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creator = open_region(folder, nonce=NONCE)
    scheduler = open_region(folder, nonce=NONCE)
    creator.view((0, 1))[:4] = b"DATA"
    creator.close(unlink=True)
    made: list[str] = []
    real = region_file.new_file
    monkeypatch.setattr(region_file, "new_file", lambda d, name: made.append(name) or real(d, name))
    for create in (None, True):
        with pytest.raises(RegionLostError, match="its name is gone while other") as caught:
            open_region(folder, nonce=NONCE, create=create)
        assert caught.value.path == str(folder / NAME)
        assert "start it again" in str(caught.value)
    with pytest.raises(RegionMissingError, match="nobody created"):
        open_region(folder, nonce=NONCE, create=False)
    assert names_in(folder) == []
    assert made == [], "not even for a moment"
    assert bytes(scheduler.view((0, 1))[:4]) == b"DATA"
    scheduler.close(unlink=True)
    # Nobody has it any more: there is nothing that a fresh file could be mistaken for.
    with open_region(folder, nonce=NONCE) as region:
        assert region.created


@pytest.mark.clause("EC-10.7")
@pytest.mark.parametrize("how", ["the creator ends", "a joiner ends", "somebody removes it"])
def test_a_late_process_is_refused_however_the_name_went(
    folder: Path, spawn: Callable[[], Child], how: str
) -> None:
    creator, joiner, stays, late = (spawn() for _ in range(4))
    for child in (creator, joiner, stays):
        child.open(folder, nonce=START)
    if how == "somebody removes it":
        (folder / NAME).unlink()
    else:
        (creator if how == "the creator ends" else joiner).call("close", unlink=True)
    answer = late.open(folder, nonce=START, timeout_s=0.2)
    assert answer["error"] == "RegionLostError", answer
    assert names_in(folder) == []


@pytest.mark.clause("EC-10.7")
def test_a_late_process_waits_for_the_others_to_go(
    folder: Path, spawn: Callable[[], Child]
) -> None:
    creator, stays, late = spawn(), spawn(), spawn()
    creator.open(folder, nonce=START, guard=False)
    stays.open(folder, nonce=START)
    creator.call("close", unlink=True)
    late.send("open", directory=str(folder), nonce=START, **GEOMETRY, **PATIENCE)
    stays.kill()
    assert late.answer()["created"]


def test_a_new_start_does_not_wait_for_stragglers_of_the_old_one(
    folder: Path, spawn: Callable[[], Child]
) -> None:
    creator, straggler, new = spawn(), spawn(), spawn()
    creator.open(folder, nonce=START)
    straggler.open(folder, nonce=START)
    creator.call("close", unlink=True)
    assert new.open(folder, nonce=OTHER_START, timeout_s=0.0)["created"]
    refused = spawn().open(folder, nonce=START, timeout_s=0.2)
    assert refused["error"] == "RegionBusyError", refused


def test_ranks_and_instances_of_one_start_are_told_apart(folder: Path) -> None:
    with (
        open_region(folder, nonce=NONCE) as first,
        open_region(folder, nonce=NONCE, dp_rank=1) as rank,
        open_region(folder, nonce=NONCE, instance_id="u") as other,
        open_region(folder, nonce=OTHER_NONCE, dp_rank=2) as start,
    ):
        for region in (first, rank, other, start):
            assert region.created
            os.unlink(region.path)
        # Of the same name and another start, of the same start and another name.
        for more in ({"nonce": OTHER_NONCE}, {"nonce": NONCE, "dp_rank": 2}):
            with open_region(folder, **more) as fresh:
                assert fresh.created
        with pytest.raises(RegionLostError):
            open_region(folder, nonce=NONCE, dp_rank=1)


@pytest.mark.clause("EC-10.7")
def test_a_forked_child_has_the_file_open_as_well(folder: Path, spawn: Callable[[], Child]) -> None:
    parent, late = spawn(), spawn()
    parent.open(folder, nonce=START, guard=False)
    child = parent.call("fork_and_stay")["pid"]
    parent.call("close", unlink=True)
    assert late.open(folder, nonce=START, timeout_s=0.2)["error"] == "RegionLostError"
    os.kill(child, signal.SIGKILL)
    assert late.open(folder, nonce=START, **PATIENCE)["created"]


def test_closing_takes_the_mark_away_though_views_are_left(folder: Path) -> None:
    region = open_region(folder, nonce=NONCE)
    view = region.view((0, 1))
    region.close(unlink=True)
    with open_region(folder, nonce=NONCE) as fresh:
        assert fresh.created
    view.release()


def test_the_mark_goes_after_the_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = region_file.unlink_own
    seen: list[bool] = []

    def unlink(fd: int, directory: Directory, name: str) -> bool:
        removed = real(fd, directory, name)
        marks = Marks(directory, name)
        seen.append(marks.any_of_start(NONCE))
        marks.close()
        return removed

    monkeypatch.setattr(region_file, "unlink_own", unlink)
    open_region(folder, nonce=NONCE).close(unlink=True)
    assert seen == [True]


def test_an_opening_that_fails_leaves_no_mark_and_no_descriptor(folder: Path) -> None:
    with open_region(folder, nonce=NONCE) as first:
        os.unlink(first.path)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RegionLostError):
            open_region(folder, nonce=NONCE)
        assert len(os.listdir("/proc/self/fd")) == before
    with open_region(folder, nonce=NONCE) as second:
        assert second.created


# ----------------------------------------------------------------------------- in between
def finish(child: Child) -> dict[str, Any]:
    """Let a process that was stopped go on, each time that it is, to the end."""
    child.go_on()
    while "paused" in (answer := child.answer()):
        child.go_on()
    return answer


@pytest.mark.clause("EC-10.7")
@pytest.mark.parametrize("start", [{"nonce": START}, {}], ids=["of one start", "of any"])
@pytest.mark.parametrize("how", ["a joiner ends", "somebody removes it"])
def test_a_creator_that_loses_its_name_before_its_mark_joins_the_next_file(
    folder: Path, spawn: Callable[[], Child], how: str, start: dict[str, str]
) -> None:
    slow, passing, next_one = spawn(), spawn(), spawn()
    slow.open_until("before_mark", folder, **start, guard=False)
    if how == "a joiner ends":
        assert not passing.open(folder, **start)["created"]
        passing.call("close", unlink=True)
    else:
        (folder / NAME).unlink()
    # `slow` still holds the turn to create.
    next_one.call("no_turns")
    following = next_one.open(folder, **start, **PATIENCE)
    assert following["created"]
    answer = finish(slow)
    assert not answer["created"]
    assert answer["inode"] == following["inode"]
    # and does not stand in anybody's way with a mark of the former one
    assert spawn().open(folder, **start, timeout_s=0.0)["inode"] == following["inode"]


@pytest.mark.clause("EC-10.7")
def test_a_joiner_whose_file_loses_its_name_before_the_mark_joins_the_next_file(
    folder: Path, spawn: Callable[[], Child]
) -> None:
    first, slow, next_one = spawn(), spawn(), spawn()
    first.open(folder, nonce=START, guard=False)
    slow.open_until("before_mark", folder, nonce=START, guard=False)
    first.call("close", unlink=True)
    following = next_one.open(folder, nonce=START, **PATIENCE)
    assert following["created"]
    answer = finish(slow)
    assert answer["inode"] == following["inode"], answer
    assert spawn().open(folder, nonce=START, timeout_s=0.0)["inode"] == following["inode"]


@pytest.mark.clause("EC-10.7")
def test_a_mark_that_comes_while_a_file_is_made_is_seen_without_turns(
    folder: Path, spawn: Callable[[], Child]
) -> None:
    slow, creator, stays = spawn(), spawn(), spawn()
    slow.call("no_turns")
    slow.open_until("before_file", folder, nonce=START, guard=False, timeout_s=0.0)
    creator.open(folder, nonce=START, guard=False)
    stays.open(folder, nonce=START)
    creator.call("close", unlink=True)
    answer = finish(slow)
    assert answer["error"] == "RegionLostError", answer
    assert names_in(folder) == []


def test_a_file_that_comes_this_moment_has_not_lost_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Marks.any_of_start
    others: list[SharedRegion] = []

    def look(marks: Marks, nonce: bytes) -> bool:
        monkeypatch.setattr(Marks, "any_of_start", real)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(region_file, "creation_turn", lambda *_: contextlib.nullcontext(True))
            others.append(open_region(folder, nonce=NONCE))
        return real(marks, nonce)

    monkeypatch.setattr(Marks, "any_of_start", look)
    # There is no time to look again, which is all that there is to say.
    with pytest.raises(RegionMissingError) as caught:
        open_region(folder, nonce=NONCE)
    assert not isinstance(caught.value, RegionLostError)
    with open_region(folder, nonce=NONCE) as second:
        assert second.identity == others[0].identity
    others[0].close(unlink=True)


# ------------------------------------------------------------------------- killed meanwhile
@pytest.mark.clause("EC-10.7")
@pytest.mark.parametrize(
    "moment",
    ["before_file", "allocated", "before_link", "linked", "before_mark", "marked", "populated"],
)
def test_a_start_whose_creator_was_killed_creates_again(
    folder: Path, spawn: Callable[[], Child], moment: str
) -> None:
    creator, second, third = spawn(), spawn(), spawn()
    creator.open_until(moment, folder, nonce=START, guard=False)
    second.send("open", directory=str(folder), nonce=START, **GEOMETRY, **PATIENCE)
    third.send("open", directory=str(folder), nonce=START, **GEOMETRY, **PATIENCE)
    creator.kill()
    answers = [second.answer(), third.answer()]
    assert len({answer["inode"] for answer in answers}) == 1, answers
    assert names_in(folder) == [NAME]


@pytest.mark.clause("EC-10.7")
@pytest.mark.parametrize("moment", ["before_mark", "marked", "populated"])
def test_a_joiner_that_is_killed_leaves_no_mark(
    folder: Path, spawn: Callable[[], Child], moment: str
) -> None:
    creator, joiner, late = spawn(), spawn(), spawn()
    creator.open(folder, nonce=START, guard=False)
    joiner.open_until(moment, folder, nonce=START)
    joiner.kill()
    creator.call("close", unlink=True)
    assert late.open(folder, nonce=START, timeout_s=0.2)["created"]


def test_processes_of_a_start_that_come_at_once_share_one_file(
    folder: Path, spawn: Callable[[], Child]
) -> None:
    crowd = [spawn() for _ in range(6)]
    for child in crowd[:3]:
        child.call("no_turns")
    for _ in range(8):
        for child in crowd:
            child.send("open", directory=str(folder), nonce=START, **GEOMETRY, **PATIENCE)
        answers = [child.answer() for child in crowd]
        assert sum(answer["created"] for answer in answers) == 1, answers
        assert len({answer["inode"] for answer in answers}) == 1
        for child in crowd:
            child.call("close", unlink=True)
        assert names_in(folder) == []


# ------------------------------------------------------------------------------- identity
@pytest.mark.clause("EC-10.7")
def test_no_two_files_have_one_identity(folder: Path) -> None:
    seen: set[bytes] = set()
    for _ in range(3):
        with open_region(folder, nonce=NONCE) as first:
            with open_region(folder, nonce=NONCE) as second:
                assert second.identity == first.identity
            assert len(first.identity) == 16
            with open(first.path, "rb") as file:
                found = region_header.identify(file.fileno())
            assert isinstance(found, RegionHeader)
            assert found.identity == first.identity
            seen.add(first.identity)
    assert len(seen) == 3


def _former_layout() -> bytes:
    """A region as the first layout had it: without an identity."""
    fields = struct.Struct("<QQII16s36sH128s")
    page = bytearray(TRAILER_BYTES)
    name = GEOMETRY["instance_id"].encode()
    boot = region_header.boot_id().encode()
    fields.pack_into(page, 24, 5120, 7, 0, 1, NONCE, boot, len(name), name)
    struct.pack_into("<16sII", page, 0, MAGIC, 1, zlib.crc32(page[24:4092]))
    struct.pack_into("<I", page, 4092, 1)
    return bytes(36864) + bytes(page)


def test_a_region_of_the_former_layout_is_reaped_or_left_to_its_users(folder: Path) -> None:
    path = folder / NAME
    path.write_bytes(_former_layout())
    with path.open("rb") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        with pytest.raises(RegionBusyError, match="layout version 1"):
            open_region(folder, nonce=NONCE)
        assert reap_orphans(str(folder)).live == 1
    with open_region(folder, nonce=NONCE) as region:
        assert region.created
    path.write_bytes(_former_layout())
    assert reap_orphans(str(folder)).names == (NAME,)
    assert names_in(folder) == []
