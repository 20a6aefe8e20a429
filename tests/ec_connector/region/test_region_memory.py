# SPDX-License-Identifier: Apache-2.0
"""Room for the region: refused before anything is allocated, never a SIGBUS later."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ec_connector.region import file as region_file
from ec_connector.region import memory as region_memory
from ec_connector.region import opening
from ec_connector.region.errors import RegionError, RegionSpaceError
from ec_connector.region.memory import allocate, check_space, memory_room, populate
from ec_connector.region.shared import SharedRegion

MIB = 1 << 20


def open_region(folder: Path, nbytes: int, **more: Any) -> SharedRegion:
    return SharedRegion.open(
        "t", 0, nbytes // 4096, 4096, directory=str(folder), guard=False, timeout_s=0.0, **more
    )


# ------------------------------------------------------------------------ space
@pytest.mark.clause("EC-10.5")
def test_a_region_larger_than_the_tmpfs_is_refused_before_any_allocation(folder, monkeypatch):
    def never(*_: Any) -> None:
        raise AssertionError("something was allocated")

    monkeypatch.setattr(region_file, "allocate", never)
    monkeypatch.setattr(region_file, "new_file", never)
    total = os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize
    with pytest.raises(RegionSpaceError) as caught:
        open_region(folder, 2 * total)
    message = str(caught.value)
    assert "ec_cpu_bytes" in message
    assert f"{caught.value.wanted} bytes" in message
    assert f"{caught.value.free} bytes" in message
    assert "Lower ec_cpu_bytes" in message
    assert caught.value.wanted > 2 * total
    assert not list(folder.iterdir())


def test_a_full_tmpfs_is_refused(small_tmpfs, monkeypatch):
    monkeypatch.setattr(opening, "_SPACE_GRACE_S", 0.0)
    (small_tmpfs / "filler").write_bytes(bytes(5 * MIB))
    with pytest.raises(RegionSpaceError, match="ec_cpu_bytes") as caught:
        open_region(small_tmpfs, 4 * MIB)
    assert caught.value.free == 3 * MIB
    assert os.listdir(small_tmpfs) == ["filler"]
    with open_region(small_tmpfs, 2 * MIB) as region:
        region.buffer[:] = b"\x01" * region.nbytes  # every page can be written


def test_a_tmpfs_that_fills_up_during_creation_is_a_typed_error(small_tmpfs, monkeypatch):
    monkeypatch.setattr(opening, "check_space", lambda *_: None)
    with pytest.raises(RegionSpaceError, match="ec_cpu_bytes"):
        open_region(small_tmpfs, 16 * MIB)
    assert not list(small_tmpfs.iterdir())
    assert os.statvfs(small_tmpfs).f_bfree == os.statvfs(small_tmpfs).f_blocks


@pytest.mark.clause("EC-10.5")
def test_pages_cannot_run_out_after_creation(small_tmpfs):
    with open_region(small_tmpfs, 6 * MIB, prefault=False) as region:
        with pytest.raises(OSError, match="No space left"):
            (small_tmpfs / "filler").write_bytes(bytes(4 * MIB))
        region.buffer[:] = b"\x01" * region.nbytes  # a sparse file would be a SIGBUS here


def test_room_that_comes_back_in_time_is_waited_for(small_tmpfs, monkeypatch):
    filler = small_tmpfs / "filler"
    filler.write_bytes(bytes(5 * MIB))
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            filler.unlink()

    monkeypatch.setattr(region_memory.time, "sleep", sleep)
    check_space("path", str(small_tmpfs), 4 * MIB, grace_s=60.0)
    assert len(pauses) == 3


def test_what_can_never_fit_is_not_waited_for(small_tmpfs, monkeypatch):
    monkeypatch.setattr(region_memory.time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(RegionSpaceError):
        check_space("path", str(small_tmpfs), 9 * MIB, grace_s=60.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG])
def test_errors_of_fallocate_are_space_errors(folder, monkeypatch, code):
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(RegionSpaceError, match="ec_cpu_bytes"):
        allocate(0, "path", str(folder), 1)


def test_other_errors_of_fallocate_stay_what_they_are(folder, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="I/O error"):
        open_region(folder, MIB)
    assert not list(folder.iterdir())


def test_allocation_goes_in_steps_that_a_signal_cannot_undo(folder):
    steps: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda _, start, n: steps.append((start, n)))
        allocate(0, "path", str(folder), 40 * MIB + 1)
    assert steps == [(0, 16 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 8 * MIB + 1)]


# ----------------------------------------------------------------- memory limits
def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 4000 kB\nSwapFree: 500 kB\n"


def test_memory_room_of_the_host(tmp_path):
    _write(tmp_path, {"proc/meminfo": MEMINFO})
    room, what = memory_room(tmp_path / "proc", tmp_path / "cgroup")
    assert (room, what) == (4500 * 1024, "the host's available memory")


def test_memory_room_of_a_version_2_group_and_its_parents(tmp_path):
    _write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/main\n",
            "cgroup/pod/main/memory.max": "max\n",
            "cgroup/pod/main/memory.stat": "anon 1\nfile 2\nshmem 3\n",
            "cgroup/pod/memory.max": "1000000\n",
            "cgroup/pod/memory.stat": "anon 100\nfile 77777\nshmem 23\nkernel 5\n",
        },
    )
    room, what = memory_room(tmp_path / "proc", tmp_path / "cgroup")
    assert room == 1000000 - 123
    assert str(tmp_path / "cgroup/pod") in what


def test_memory_room_of_a_version_1_group(tmp_path):
    _write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:cpu,memory:/docker/abc\n3:freezer:/\n0::/\n",
            # inside a container the group itself is mounted as the root
            "cgroup/memory/memory.limit_in_bytes": "2000000\n",
            "cgroup/memory/memory.stat": "rss 9\ntotal_rss 1000\ntotal_shmem 500\n",
        },
    )
    room, _ = memory_room(tmp_path / "proc", tmp_path / "cgroup")
    assert room == 2000000 - 1500


def test_memory_room_without_any_information(tmp_path):
    room, _ = memory_room(tmp_path / "proc", tmp_path / "cgroup")
    assert room > 1 << 60


def test_memory_room_here_is_plausible():
    room, what = memory_room()
    assert 0 < room <= 1 << 62
    assert what


def test_a_memory_limit_is_a_typed_error(folder, monkeypatch):
    monkeypatch.setattr(opening, "_SPACE_GRACE_S", 0.0)
    monkeypatch.setattr(region_memory, "memory_room", lambda: (MIB, "the memory limit of x"))
    with pytest.raises(RegionSpaceError, match=r"ec_cpu_bytes .* the memory limit of x leaves"):
        open_region(folder, 2 * MIB)
    assert not list(folder.iterdir())


# --------------------------------------------------------------------- populate
@pytest.fixture
def mapping(folder: Path) -> tuple[int, memoryview]:
    """A mapping of 130 MiB: more than two steps."""
    with open(folder / "file", "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 130 * MIB)
        mapped = mmap.mmap(file.fileno(), 130 * MIB)
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped)), memoryview(mapped)


def resident_kib(address: int) -> int:
    """Resident size of the mapping at an address."""
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{address:x}-"):
                for row in file:
                    if row.startswith("Rss:"):
                        return int(row.split()[1])
    raise AssertionError("no such mapping")


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_populate_faults_everything_in(mapping, write, threads):
    address, view = mapping
    assert resident_kib(address) == 0
    done = populate(address, view, write=write, threads=threads)
    assert (done.method, done.threads) == ("madvise", threads)
    # The system may take a page away again.
    assert 129 * 1024 < resident_kib(address) <= 130 * 1024


def test_populate_uses_no_more_threads_than_steps(mapping):
    address, view = mapping
    assert populate(address, view, write=True, threads=64).threads == 3


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_old_kernels_fall_back_to_touching(mapping, monkeypatch, code):
    address, view = mapping
    monkeypatch.setattr(region_memory, "_madvise", lambda *_: code)
    assert populate(address, view, write=True, threads=2).method == "touch"
    # The system may take a page away again.
    assert 129 * 1024 < resident_kib(address) <= 130 * 1024


def test_other_errors_are_raised(mapping, monkeypatch):
    address, view = mapping
    monkeypatch.setattr(region_memory, "_madvise", lambda *_: errno.ENOMEM)
    with pytest.raises(OSError, match="populate"):
        populate(address, view, write=True)


def test_the_kernel_is_asked_again_after_an_interruption(monkeypatch):
    answers = [(-1, errno.EINTR), (-1, errno.EAGAIN), (0, 0)]

    class Libc:
        @staticmethod
        def madvise(*_: Any) -> int:
            result, code = answers.pop(0)
            ctypes.set_errno(code)
            return result

    monkeypatch.setattr(region_memory, "_libc", Libc)
    assert region_memory._madvise(0, 0, 0) == 0
    assert not answers


@pytest.mark.parametrize("fallback", [False, True])
def test_populate_never_changes_what_others_write(mapping, monkeypatch, fallback):
    address, view = mapping
    if fallback:
        monkeypatch.setattr(region_memory, "_madvise", lambda *_: errno.EINVAL)
    started = threading.Event()

    def writer() -> None:
        for start in range(0, len(view), 4096):
            view[start] = 1 + start // 4096 % 250
            if start == 16 * MIB:
                started.set()

    other = threading.Thread(target=writer)
    other.start()
    assert started.wait(60)
    populate(address, view, write=True)
    other.join()
    populate(address, view, write=True)
    assert all(view[start] == 1 + start // 4096 % 250 for start in range(0, len(view), 4096))


def test_a_region_populates_itself(folder):
    with open_region(folder, 130 * MIB, prefault_threads=2) as first:
        assert first.populated.threads == 2
        assert resident_kib(first.address) == first.header.file_bytes // 1024 - 4
        with open_region(folder, 130 * MIB) as second:
            assert second.populated is not None
    with open_region(folder, MIB, prefault=False) as lazy:
        assert lazy.populated is None


def test_an_error_of_populate_is_typed(folder, monkeypatch):
    monkeypatch.setattr(region_memory, "_madvise", lambda *_: errno.EFAULT)
    with pytest.raises(RegionError, match="lower ec_cpu_bytes or free memory"):
        open_region(folder, MIB)
    assert not list(folder.iterdir())
