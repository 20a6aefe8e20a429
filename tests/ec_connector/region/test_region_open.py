# SPDX-License-Identifier: Apache-2.0
"""Creating or joining a region in one process; see test_region_crash for several."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any

import pytest

from ec_connector.region import file as region_file
from ec_connector.region import opening
from ec_connector.region.errors import RegionBusyError, RegionError, RegionMissingError
from ec_connector.region.shared import SharedRegion, reap_orphans
from tests import needs
from tests.ec_connector.region.region_driver import NAME, open_region


# --------------------------------------------------------------------------- joining
def test_the_second_opening_joins_the_first(folder):
    with open_region(folder) as first, open_region(folder) as second:
        assert (first.created, second.created) == (True, False)
        assert second.header == first.header
        first.view((1, 1))[0] = 77
        assert second.view((1, 1))[0] == 77


def test_insisting_on_creating_does_not_join(folder):
    with open_region(folder), pytest.raises(RegionBusyError, match="exists already") as caught:
        open_region(folder, create=True)
    assert f"pids: {os.getpid()}" in str(caught.value)


def test_insisting_on_joining_does_not_create(folder):
    with pytest.raises(RegionMissingError, match="nobody created"):
        open_region(folder, create=False)
    assert not list(folder.iterdir())


def test_another_geometry_is_not_joined(folder):
    with open_region(folder) as first:
        with pytest.raises(RegionBusyError, match=r"7 blocks of 5120 bytes, wanted 8 of 5120"):
            open_region(folder, num_blocks=8)
        assert os.path.exists(first.path)


def test_processes_of_one_start_find_each_other_by_nonce(folder):
    nonce = bytes(range(16))
    with open_region(folder, nonce=nonce) as first:
        with open_region(folder, nonce=nonce) as second:
            assert not second.created
        with pytest.raises(RegionBusyError, match="another start"):
            open_region(folder, nonce=bytes(16))
        assert os.path.exists(first.path)


def test_instances_and_ranks_do_not_share(folder):
    with (
        open_region(folder) as a,
        open_region(folder, dp_rank=1) as b,
        open_region(folder, instance_id="u") as c,
    ):
        assert a.created
        assert b.created
        assert c.created


def test_a_file_under_the_name_of_another_region_is_not_joined(folder):
    with open_region(folder, instance_id="other") as other:
        os.link(other.path, folder / NAME)
        with pytest.raises(RegionBusyError, match="calls itself 'other' dp0"):
            open_region(folder)


def test_root_does_not_join_the_region_of_another_user_but_reaps_its_orphan(folder):
    needs.optional(os.geteuid() == 0, "needs the right to give a file away")
    first = open_region(folder)
    os.chown(first.path, 65534, 65534)
    with pytest.raises(RegionBusyError, match="another user \\(uid 65534\\)"):
        open_region(folder)
    first.close(unlink=False)
    with open_region(folder) as second:
        assert second.created


def test_a_draining_region_is_not_joined(folder):
    with open_region(folder) as first:
        first.drain()
        assert first.state == "draining"
        with pytest.raises(RegionBusyError, match="shutting down"):
            open_region(folder)
        first.drain()  # again: nothing to do


def test_a_drain_between_look_and_lock_is_noticed(folder, monkeypatch):
    with open_region(folder) as first:
        real = region_file.try_lock

        def lock(fd: int, how: int) -> bool:
            if how == fcntl.LOCK_SH:
                first.drain()
            return real(fd, how)

        monkeypatch.setattr(region_file, "try_lock", lock)
        with pytest.raises(RegionError):
            open_region(folder)


def test_an_unlink_between_look_and_lock_is_noticed(folder, monkeypatch):
    first = open_region(folder)
    inode = os.stat(first.path).st_ino
    real = region_file.try_lock

    def lock(fd: int, how: int) -> bool:
        if how == fcntl.LOCK_SH and not first.closed:
            first.close(unlink=True)
        return real(fd, how)

    monkeypatch.setattr(region_file, "try_lock", lock)
    with open_region(folder, timeout_s=30.0) as second:
        assert second.created
        assert os.stat(second.path).st_ino != inode


# ------------------------------------------------------------- without unnamed files
@pytest.fixture
def no_tmpfile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda p: p != "/proc/self/fd" and real(p))


@pytest.mark.usefixtures("no_tmpfile")
def test_named_temporaries_work_and_leave_nothing(folder):
    seen: list[str] = []
    real = region_file.allocate

    def allocate(*args: Any) -> None:
        seen.extend(os.listdir(folder))
        assert reap_orphans(str(folder)).live == 1  # one under construction is in use
        real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_file, "allocate", allocate)
        with open_region(folder) as region, open_region(folder) as second:
            assert region.created
            assert not second.created
            assert [p.name for p in folder.iterdir()] == [NAME]
    assert len(seen) == 1
    assert seen[0].startswith(f".{NAME}.")
    assert not list(folder.iterdir())


@pytest.mark.usefixtures("no_tmpfile")
def test_a_sweep_that_takes_a_fresh_temporary_is_survived(folder, monkeypatch):
    real = region_file.try_lock
    swept: list[tuple[str, ...]] = []

    def lock(fd: int, how: int) -> bool:
        if not swept and how == fcntl.LOCK_SH:
            swept.append(())  # the sweep below locks as well
            swept[0] = reap_orphans(str(folder)).names
        return real(fd, how)

    monkeypatch.setattr(region_file, "try_lock", lock)
    with open_region(folder) as region:
        assert region.created
    assert len(swept[0]) == 1


@pytest.mark.usefixtures("no_tmpfile")
def test_errors_drop_the_temporary(folder, monkeypatch):
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(region_file, "allocate", fail)
    with pytest.raises(KeyboardInterrupt):
        open_region(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("code", region_file._NO_TMPFILE)
def test_o_tmpfile_refused_by_the_file_system(folder, monkeypatch, code):
    real = os.open

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)
    with open_region(folder) as region:
        assert region.created


def test_without_abstract_sockets_the_name_still_decides(folder, monkeypatch):
    class Refused(socket.socket):
        def bind(self, *_: Any) -> None:
            raise PermissionError(1, "no")

    monkeypatch.setattr(region_file.socket, "socket", Refused)
    with open_region(folder) as first, open_region(folder) as second:
        assert first.created
        assert not second.created


def test_a_creator_that_takes_for_ever_is_named(folder):
    with region_file.Directory(str(folder)) as directory:
        with region_file.creation_turn(directory, NAME) as ours:
            assert ours
            with pytest.raises(RegionBusyError, match="has been creating it for too long"):
                open_region(folder)
        with open_region(folder) as region:
            assert region.created


def test_losing_the_name_at_the_last_moment_joins_the_winner(folder, monkeypatch):
    real = region_file._link
    winners: list[SharedRegion] = []

    def link(*args: Any) -> bool:
        if not winners:
            monkeypatch.setattr(region_file, "_link", real)
            turn = opening.region_file.creation_turn
            with pytest.MonkeyPatch.context() as patch:
                # as if the other process could not see our turn
                patch.setattr(
                    region_file, "creation_turn", lambda d, _: turn(d, "another namespace")
                )
                winners.append(open_region(folder))
        return real(*args)

    monkeypatch.setattr(region_file, "_link", link)
    with open_region(folder, timeout_s=30.0) as second:
        assert not second.created
        assert second.header == winners[0].header
    winners[0].close(unlink=True)
    assert not list(folder.iterdir())
