# SPDX-License-Identifier: Apache-2.0
"""Marks: who of a start has which file open (EC-10.7)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ec_connector.region import marks as region_marks
from ec_connector.region.file import Directory
from ec_connector.region.header import RegionHeader
from ec_connector.region.marks import Marks
from tests.ec_connector.region.region_driver import NAME, open_region

pytestmark = pytest.mark.clause("EC-10.7")

NONCE = b"n" * 16


@pytest.fixture
def directory(folder: Path) -> Iterator[Directory]:
    with Directory(str(folder)) as opened:
        yield opened


def header(identity: bytes, nonce: bytes = NONCE) -> RegionHeader:
    return RegionHeader("t", 0, 7, 5120, nonce, identity.ljust(16, b"\0"), 1, "boot")


FIRST, MIDDLE, LAST = bytes(4), b"\x12\x34\x56\x78", b"\xff" * 4


@pytest.mark.parametrize("mine", [FIRST, MIDDLE, LAST])
@pytest.mark.parametrize("theirs", [FIRST, MIDDLE, LAST])
def test_marks_tell_files_and_starts_apart(
    directory: Directory, mine: bytes, theirs: bytes
) -> None:
    own, others = Marks(directory, NAME), Marks(directory, NAME)
    own.set(header(mine))
    assert not own.any_of_start(NONCE), "one's own mark does not count"
    others.set(header(theirs))
    assert own.any_of_start(NONCE)
    assert own.any_of_other_file(header(mine)) == (mine != theirs)
    assert not own.any_of_start(bytes(16))
    assert not own.any_of_other_file(header(mine, bytes(16)))
    elsewhere = Marks(directory, "vllm_ec_t_dp1.mmap")
    assert not elsewhere.any_of_start(NONCE)
    elsewhere.close()
    others.clear()
    assert not own.any_of_start(NONCE)
    others.set(header(theirs))
    others.close()
    others.close()
    assert not own.any_of_start(NONCE)
    own.close()


def test_marks_of_two_are_two(directory: Directory) -> None:
    marks = [Marks(directory, NAME) for _ in range(3)]
    for mark in marks[:2]:
        mark.set(header(MIDDLE))
    marks[0].close()
    assert marks[2].any_of_start(NONCE)
    marks[1].close()
    assert not marks[2].any_of_start(NONCE)
    marks[2].close()


def test_starts_next_to_each_other_do_not_overlap(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = {bytes(16): 4, b"\1" * 16: 5, b"\2" * 16: 6}
    monkeypatch.setattr(Marks, "_start", lambda _, nonce: starts[nonce] << 26)
    own, below, above = (Marks(directory, NAME) for _ in range(3))
    below.set(header(LAST, bytes(16)))
    above.set(header(FIRST, b"\2" * 16))
    for identity in (FIRST, MIDDLE, LAST):
        assert not own.any_of_start(b"\1" * 16)
        assert not own.any_of_other_file(header(identity, b"\1" * 16))
    for mark in (own, below, above):
        mark.close()


@pytest.mark.parametrize("refused", ["open", "lock"])
def test_a_folder_that_takes_no_locks_only_costs_the_marks(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: str,
) -> None:
    real_open, real_lock = os.open, region_marks.fcntl.fcntl

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == ".":
            raise PermissionError(13, "no")
        return real_open(path, *args, **kwargs)

    def lock(fd: int, *args: Any) -> Any:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(22, "no")
        return real_lock(fd, *args)

    if refused == "open":
        monkeypatch.setattr(os, "open", opened)
    else:
        monkeypatch.setattr(region_marks.fcntl, "fcntl", lock)
    with open_region(folder, nonce=NONCE) as first, open_region(folder, nonce=NONCE) as second:
        assert first.created
        assert not second.created
        assert "takes no locks" in caplog.text
        os.unlink(first.path)
        with open_region(folder, nonce=NONCE) as late:
            # What is left is the second safeguard.
            assert late.identity != first.identity
