# SPDX-License-Identifier: Apache-2.0
"""Memory behind the region: is there room, take it, fault it in.

Writing to a page of a full tmpfs is a SIGBUS, and one page more than a memory
limit allows is a SIGKILL. So the room is checked first, then every page is
allocated with ``fallocate``, which *returns* an error; from then on no access to
the mapping can fail.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ec_connector.region.errors import RegionSpaceError

MADV_POPULATE_READ: Final = 22
MADV_POPULATE_WRITE: Final = 23

_MIB: Final = 1 << 20
# A signal makes the kernel undo the fallocate call under way. Short calls keep
# what was done before, so a process with an interval timer gets there as well.
_ALLOCATE_STEP: Final = 16 * _MIB
_POPULATE_STEP: Final = 64 * _MIB
_MAX_POPULATE_THREADS: Final = 8
_POLL_S: Final = 0.02

# The mmap object's own madvise() keeps the GIL, which would make threads take turns.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int


@dataclass(frozen=True, slots=True)
class Populated:
    """How the pages were faulted in.

    Attributes:
        method: ``madvise``, or ``touch`` on kernels before 5.14.
        threads: Threads that took part.
        seconds: Time it took.
    """

    method: Literal["madvise", "touch"]
    threads: int
    seconds: float


def check_space(path: str, directory: str, wanted: int, grace_s: float = 0.0) -> None:
    """Refuse a region that cannot fit, before anything is allocated.

    Args:
        path: The region's path, for the message.
        directory: Where the file will lie.
        wanted: Bytes of the whole file, trailer included.
        grace_s: How long room may still be missing. A file that was unlinked a
            moment ago keeps its memory until the last process is torn down.

    Raises:
        RegionSpaceError: Names ``ec_cpu_bytes``, the numbers and the fix.
    """
    deadline = time.monotonic() + grace_s
    while (error := _space_error(path, directory, wanted)) is not None:
        info = os.statvfs(directory)
        if 0 < info.f_blocks * info.f_frsize < wanted or time.monotonic() >= deadline:
            raise error
        time.sleep(_POLL_S)


def _space_error(path: str, directory: str, wanted: int) -> RegionSpaceError | None:
    info = os.statvfs(directory)
    free = info.f_bavail * info.f_frsize
    # A tmpfs mounted with size=0 has no limit of its own and says 0 blocks.
    if info.f_blocks and wanted > free:
        return _no_room(path, directory, wanted)
    room, what = memory_room()
    if wanted > room:
        return RegionSpaceError(
            path,
            f"ec_cpu_bytes asks for a region of {_size(wanted)}, but {what} leaves "
            f"{_size(room)}. Lower ec_cpu_bytes, or give the host or container more memory",
            wanted=wanted,
            free=room,
        )
    return None


def _no_room(path: str, directory: str, wanted: int) -> RegionSpaceError:
    info = os.statvfs(directory)
    free = info.f_bavail * info.f_frsize
    total = info.f_blocks * info.f_frsize
    return RegionSpaceError(
        path,
        f"ec_cpu_bytes asks for a region of {_size(wanted)}, but {directory} has {_size(free)} "
        f"free of {_size(total)}. Lower ec_cpu_bytes, remove files from {directory}, or enlarge "
        f"it (mount -o remount,size=… {directory}; docker run --shm-size; the sizeLimit of a "
        "Kubernetes emptyDir of medium Memory)",
        wanted=wanted,
        free=free,
    )


def allocate(fd: int, path: str, directory: str, nbytes: int) -> None:
    """Give the file its size and all of its pages.

    Raises:
        RegionSpaceError: The file system ran full after ``check_space``; the
            file holds whatever was allocated and the caller drops it.
    """
    try:
        for start in range(0, nbytes, _ALLOCATE_STEP):
            os.posix_fallocate(fd, start, min(_ALLOCATE_STEP, nbytes - start))
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
            raise
        raise _no_room(path, directory, nbytes) from exc


def populate(
    address: int, view: memoryview, *, write: bool, threads: int | None = None
) -> Populated:
    """Fault pages in, in parallel. Never changes a byte, so others may use them meanwhile.

    Args:
        address: Page-aligned start of the mapping.
        view: The mapping's bytes.
        write: True for the process that made the file (its pages are zeroed
            here), False to map what is there.
        threads: None chooses by CPUs and size.

    Raises:
        OSError: The kernel cannot give the pages.
    """
    nbytes = len(view)
    advice = MADV_POPULATE_WRITE if write else MADV_POPULATE_READ
    if threads is None:
        threads = min(_MAX_POPULATE_THREADS, len(os.sched_getaffinity(0)))
    threads = max(1, min(threads, -(-nbytes // _POPULATE_STEP)))
    starts = itertools.count(0, _POPULATE_STEP)  # next() on it is atomic
    errors: list[int] = []

    def work() -> None:
        for start in starts:
            if start >= nbytes or errors:
                return
            code = _madvise(address + start, min(_POPULATE_STEP, nbytes - start), advice)
            if code:
                errors.append(code)

    began = time.monotonic()
    helpers = [
        threading.Thread(target=work, name=f"ec-populate-{i}", daemon=True)
        for i in range(1, threads)
    ]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    method: Literal["madvise", "touch"] = "madvise"
    if errors:
        if errors[0] not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
            raise OSError(errors[0], f"populate: {os.strerror(errors[0])}")
        method, threads = "touch", 1
        _touch(view)
    return Populated(method, threads, time.monotonic() - began)


def _madvise(address: int, nbytes: int, advice: int) -> int:
    """madvise(2) without the GIL; returns 0 or the errno."""
    while _libc.madvise(address, nbytes, advice):
        code = ctypes.get_errno()
        if code not in (errno.EINTR, errno.EAGAIN):
            return code
    return 0


def _touch(view: memoryview) -> None:
    """Read one byte of every page.

    Reading is enough for shared memory and, unlike a read-modify-write, cannot
    undo what another process writes at the same moment.
    """
    for start in range(0, len(view), _POPULATE_STEP):
        bytes(view[start : start + _POPULATE_STEP : 4096])


def memory_room(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> tuple[int, str]:
    """Bytes that could be allocated before something is killed, and what sets the limit.

    An estimate from above: the host's available memory and swap, and for each
    control group that this process is in, its limit less what cannot be reclaimed.
    """
    room, what = 1 << 62, "nothing"
    host = _numbers(proc / "meminfo")
    if "MemAvailable:" in host:
        kib = host["MemAvailable:"] + host.get("SwapFree:", 0)
        room, what = kib * 1024, "the host's available memory"
    for folder in _memory_cgroups(proc, cgroups):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit is None:
            continue
        used = _numbers(folder / "memory.stat")
        # Version 1 counts children only under the total_ names.
        prefix = "total_" if "total_rss" in used else ""
        kept = sum(used.get(prefix + key, 0) for key in ("anon", "rss", "shmem"))
        if limit - kept < room:
            room, what = max(0, limit - kept), f"the memory limit of control group {folder}"
    return room, what


def _memory_cgroups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Folders of the memory control groups of this process, innermost first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inner = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = cgroups / "memory" if controllers else cgroups
        folder = top / inner.lstrip("/")
        yield folder
        yield from (p for p in folder.parents if p == top or top in p.parents)


def _number(*paths: Path) -> int | None:
    for path in paths:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() else None  # "max" = no limit
    return None


def _numbers(path: Path) -> dict[str, int]:
    """A file of lines ``name number …`` as a dict; empty if it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdecimal()}


def _size(nbytes: int) -> str:
    if nbytes < 10 * _MIB:
        return f"{nbytes} bytes"
    if nbytes < 10 << 30:
        return f"{nbytes} bytes ({nbytes / _MIB:.0f} MiB)"
    return f"{nbytes} bytes ({nbytes / (1 << 30):.1f} GiB)"
