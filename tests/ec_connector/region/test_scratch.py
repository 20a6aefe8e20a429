# SPDX-License-Identifier: Apache-2.0
"""Folders beside the region: whose they are, and when they go."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import pytest

from ec_connector.region import scratch as module
from ec_connector.region.file import reap_orphans
from ec_connector.region.scratch import Scratch, remove_orphan

ORPHAN = "ec_ucx_vllm_ec_e_dp0.0123456789abcdef"


def made(folder: Path) -> Scratch:
    return Scratch(str(folder / "vllm_ec_e_dp0.mmap"))


def test_it_lies_beside_the_region_and_is_nobody_elses_business(tmp_path: Path) -> None:
    scratch = made(tmp_path)
    path = Path(scratch.path)
    assert path.parent == tmp_path
    assert re.fullmatch(r"ec_ucx_vllm_ec_e_dp0\.[0-9a-f]{16}", path.name)
    assert path.stat().st_mode & 0o777 == 0o700
    assert not os.get_inheritable(scratch.fd)
    scratch.close()


def test_it_goes_with_what_is_in_it_and_links_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    scratch = made(tmp_path)
    path = Path(scratch.path)
    (path / "1").mkdir()
    (path / "1" / "ucx_shm").touch()
    (path / "2").symlink_to(other)
    scratch.clear()
    assert [p.name for p in path.iterdir() if not p.is_symlink()] == []
    assert path.exists()
    scratch.close()
    scratch.close()
    assert not path.exists()
    assert (other / "kept").exists()


@pytest.mark.clause("EC-10.3", "EC-10.6")
def test_the_next_start_removes_what_nobody_keeps_and_nothing_else(tmp_path: Path) -> None:
    kept = made(tmp_path)
    (Path(kept.path) / "1").mkdir()
    orphan = tmp_path / ORPHAN
    (orphan / "7").mkdir(parents=True)
    (orphan / "7" / "ucx_shm").touch()
    assert reap_orphans(str(tmp_path)).names == (ORPHAN,)
    assert os.listdir(tmp_path) == [os.path.basename(kept.path)]
    assert os.listdir(kept.path) == ["1"]
    kept.close()


@pytest.mark.clause("EC-10.3")
def test_it_is_kept_by_whoever_has_inherited_it(tmp_path: Path) -> None:
    scratch = made(tmp_path)
    inherited = os.dup(scratch.fd)
    os.close(scratch.fd)
    assert not remove_orphan(scratch.path)
    os.close(inherited)
    assert remove_orphan(scratch.path)


@pytest.mark.clause("EC-10.4")
@pytest.mark.parametrize(
    "name", ["ec_ucx", "ec_ucx_vllm_ec_e_dp0", ORPHAN + "0", "x" + ORPHAN, ORPHAN.upper()]
)
def test_what_is_not_named_as_ours_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert not remove_orphan(str(tmp_path / name))
    assert reap_orphans(str(tmp_path)).names == ()
    assert (tmp_path / name).exists()


@pytest.mark.clause("EC-10.4")
def test_neither_is_a_file_nor_a_link_of_that_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / ORPHAN).touch()
    (tmp_path / ORPHAN.replace("_e_", "_f_")).symlink_to(other)
    reap_orphans(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.clause("EC-10.4")
def test_nor_what_is_another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ORPHAN).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    real = os.fstat

    def theirs(fd: int) -> os.stat_result:
        found = list(real(fd))
        found[4] = 54321
        return os.stat_result(found)

    monkeypatch.setattr(module.os, "fstat", theirs)
    monkeypatch.setattr(module, "_locked", lambda path, how: os.open(path, os.O_RDONLY))
    assert not remove_orphan(str(tmp_path / ORPHAN))
    assert (tmp_path / ORPHAN).exists()


def test_one_that_was_taken_for_an_orphan_before_it_had_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaper comes between its name and its lock."""
    real, reaped = module._locked, []

    def late(path: str, how: int) -> int | None:
        if how == fcntl.LOCK_SH and not reaped:
            monkeypatch.setattr(module, "_locked", real)
            reaped.append(remove_orphan(path))
        return real(path, how)

    monkeypatch.setattr(module, "_locked", late)
    scratch = made(tmp_path)
    assert reaped == [True]
    assert os.listdir(tmp_path) == [os.path.basename(scratch.path)]
    assert not remove_orphan(scratch.path)
    scratch.close()
