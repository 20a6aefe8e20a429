# SPDX-License-Identifier: Apache-2.0
"""The region's file: how it appears, who may use it, and how it goes away.

Three rules carry everything:

1. A file gets its name only when it is complete (``linkat`` of an unnamed file).
   Nobody can see half a region, and a creator that dies before leaves nothing.
2. Every process that maps the file holds a shared ``flock`` on it. The kernel
   drops the lock with the process, however it dies. So an exclusive lock that can
   be had proves that nobody uses the file, whatever age or pids may suggest.
3. A name is removed only under a lock that makes the remover the only one:
   reapers and the guard hold the exclusive ``flock``; a process of the instance
   itself holds its shared one plus an exclusive record lock. Whoever opened a
   file and then got its lock looks again whether the name still means that file.

What is not ours (no trailer, wrong size, another user's) is never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ec_connector.region import guard
from ec_connector.region.errors import RegionError, RegionForeignError
from ec_connector.region.header import (
    STATE_DRAINING,
    Foreign,
    RegionHeader,
    identify,
    read_state,
)
from ec_connector.region.memory import allocate
from ec_connector.region.numa import near_the_gpus
from ec_connector.region.scratch import remove_orphan
from ec_protocol.tables.dispatch import REGION

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"vllm_ec_[A-Za-z0-9._-]+_dp[0-9]+\.mmap")
_TEMPORARY: Final = re.compile(r"\.vllm_ec_[A-Za-z0-9._-]+\.mmap\.[0-9a-f]{32}\.tmp")
_NO_HOLDERS: Final = REGION.mask("no_holders")
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# struct flock of 64-bit Linux: type, whence, start, length, pid.
FLOCK: Final = struct.Struct("@hhqqi4x")
# Not every file system can make a file without a name (and linking one needs /proc).
_NO_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS)


class Directory:
    """The folder of the region files, held open so that it cannot change under us."""

    def __init__(self, path: str) -> None:
        self.path: Final = os.path.abspath(path)
        try:
            self.fd: Final = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise RegionError(
                self.path, f"regions need this folder ({exc.strerror}): mount a tmpfs there"
            ) from exc

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def join(self, name: str) -> str:
        """The absolute path of a name in here."""
        return os.path.join(self.path, name)

    def open(self, name: str, flags: int) -> int | None:
        """Open a regular file, or tell that there is none.

        Raises:
            RegionForeignError: The name is taken by something that cannot be opened.
        """
        try:
            return os.open(name, flags | _OPEN_FLAGS, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as exc:
            reason = {
                errno.ELOOP: "a symbolic link",
                errno.EISDIR: "a directory",
                errno.ENXIO: "a socket or FIFO",
                errno.EACCES: "a file that this user may not open",
            }.get(exc.errno or 0)
            if reason is None:
                raise
            raise foreign_error(self.join(name), reason) from exc

    def has(self, name: str) -> bool:
        """Whether anything has the name."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self, name: str, fd: int) -> bool:
        """Whether the name still means the open file."""
        try:
            named = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def foreign_error(path: str, reason: str) -> RegionForeignError:
    """The error for something that is not ours at the path of a region."""
    return RegionForeignError(
        path,
        f"expected a region file, found {reason}. It is left alone: remove it if nobody needs "
        "it, or start with another instance id",
    )


def try_lock(fd: int, how: int) -> bool:
    """Try an ``flock`` (``LOCK_SH`` or ``LOCK_EX``) without waiting."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---------------------------------------------------------------------- making
@dataclass(slots=True)
class NewFile:
    """A file under construction.

    Attributes:
        fd: Open for reading and writing, with the shared lock.
        temporary: Its temporary name, None where files without a name exist.
    """

    fd: int
    temporary: str | None


def new_file(directory: Directory, name: str) -> NewFile:
    """Make an empty file that nobody else can find, and lock it."""
    try:
        if not os.path.isdir("/proc/self/fd"):
            raise OSError(errno.ENOENT, "no /proc")
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        fd = os.open(directory.path, flags, 0o600)
    except OSError as exc:
        if exc.errno not in _NO_TMPFILE:
            raise
        return _new_temporary(directory, name)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return NewFile(fd, None)


def _new_temporary(directory: Directory, name: str) -> NewFile:
    while True:
        temporary = f".{name}.{secrets.token_hex(16)}.tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | _OPEN_FLAGS
        fd = os.open(temporary, flags, 0o600, dir_fd=directory.fd)
        # A sweep may come between the two calls and take it for a stale one.
        if try_lock(fd, fcntl.LOCK_SH) and os.fstat(fd).st_nlink:
            return NewFile(fd, temporary)
        os.close(fd)


def build(
    file: NewFile, directory: Directory, name: str, header: RegionHeader, guarded: bool
) -> bool:
    """Complete the file and give it its name (the edge ``creating --publish--> live``).

    Returns:
        False when another process was first; the file is then dropped, and so
        it is on every error.
    """
    path = directory.join(name)
    try:
        os.fchmod(file.fd, 0o600)  # whatever the umask says
        with near_the_gpus():
            allocate(file.fd, path, directory.path, header.file_bytes)
        os.pwrite(file.fd, header.pack(), header.trailer_at)
        # The guard comes before the name: there is no moment at which a named
        # file has none.
        if guarded:
            paths = [path]
            if file.temporary is not None:
                paths.append(directory.join(file.temporary))
            problem = guard.start_guard(file.fd, paths)
            if problem is not None:
                logger.warning("no guard for %s (%s): the next start reaps it", path, problem)
        published = _link(file, directory, name)
    except BaseException:
        drop_new(file, directory)
        raise
    if not published:
        drop_new(file, directory)
    return published


def drop_new(file: NewFile, directory: Directory) -> None:
    """Give a file up before it has its name (the edge ``creating --abandon--> unlinked``)."""
    REGION.fire("creating", "abandon")
    if file.temporary is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.temporary, dir_fd=directory.fd)
    os.close(file.fd)


def _link(file: NewFile, directory: Directory, name: str) -> bool:
    try:
        if file.temporary is None:
            # With a dir_fd CPython calls linkat(2), which alone can follow
            # the /proc link to a file without a name.
            source = f"/proc/self/fd/{file.fd}"
            os.link(source, name, dst_dir_fd=directory.fd, follow_symlinks=True)
        else:
            here = directory.fd
            os.link(file.temporary, name, src_dir_fd=here, dst_dir_fd=here)
            os.unlink(file.temporary, dir_fd=here)
            file.temporary = None
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def creation_turn(directory: Directory, name: str) -> Iterator[bool]:
    """Let one process at a time create a region, so that N workers need the memory once.

    Yields whether the turn is ours. It is a bound abstract socket: the kernel
    frees it with the process, and it leaves no file. Only memory depends on it,
    not correctness: where it does not reach (another network namespace) the
    name still goes to one process.
    """
    where = os.fstat(directory.fd)
    key = f"{os.geteuid()}:{where.st_dev}:{where.st_ino}:{name}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as turn:
        ours = True
        try:
            turn.bind(f"\0vllm_ec_{digest}")
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                ours = False
            else:
                logger.debug("no abstract sockets (%s): creating without taking turns", exc)
        yield ours


# -------------------------------------------------------------------- removing
def unlink_own(fd: int, directory: Directory, name: str) -> bool:
    """Remove the name of a region that this process holds.

    Several processes of an instance may shut down at once, and a new instance of
    the same id may take the name the moment it is free. The record lock makes the
    look and the unlink one step among them.

    Returns:
        Whether this call removed it.
    """
    lock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    except OSError as exc:
        if exc.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False  # another process of the instance is doing it right now
    try:
        if not directory.names(name, fd):
            return False
        os.unlink(name, dir_fd=directory.fd)
        return True
    finally:
        unlock = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, unlock)


def reap(fd: int, directory: Directory, name: str) -> bool:
    """Remove a file whose exclusive lock the caller holds through ``fd``.

    Returns:
        False when the name has gone, or means another file by now.
    """
    if not directory.names(name, fd):
        return False
    found = identify(fd)
    state = "live"
    if _TEMPORARY.fullmatch(name):
        state = "creating"
    elif isinstance(found, RegionHeader) and read_state(fd, found) == STATE_DRAINING:
        state = "draining"
    state = REGION.fire(state, "holders_died").state
    if state == "orphan":
        REGION.fire(state, "reap", _NO_HOLDERS)
    os.unlink(name, dir_fd=directory.fd)
    return True


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a sweep did.

    Attributes:
        names: Files removed.
        nbytes: Memory that they held.
        live: Files left because a process uses them.
        foreign: Files left because they are not ours to judge.
    """

    names: tuple[str, ...] = ()
    nbytes: int = 0
    live: int = 0
    foreign: int = 0


def reap_orphans(directory: str = "/dev/shm") -> Reaped:
    """Remove every region file, stale temporary one, and folder, that no process uses.

    Safe at any time and from any process: a live file is never touched, nor is one
    that is not ours.

    Args:
        directory: Where to look.
    """
    names: list[str] = []
    nbytes = live = foreign = 0
    with Directory(directory) as folder:
        for name in sorted(os.listdir(folder.path)):
            if remove_orphan(os.path.join(folder.path, name)):
                names.append(name)
                continue
            temporary = _TEMPORARY.fullmatch(name) is not None
            if not temporary and not _NAME.fullmatch(name):
                continue
            try:
                fd = folder.open(name, os.O_RDONLY)
            except RegionForeignError:
                foreign += 1
                continue
            if fd is None:
                continue
            try:
                # A temporary file may have no trailer yet; its name (with 128
                # random bits), owner and lock must do.
                found = identify(fd)
                if isinstance(found, Foreign) and not (temporary and _is_own_file(fd)):
                    foreign += 1
                elif not try_lock(fd, fcntl.LOCK_EX):
                    live += 1
                elif reap(fd, folder, name):
                    names.append(name)
                    nbytes += os.fstat(fd).st_blocks * 512
            except PermissionError:
                foreign += 1  # the directory's sticky bit: another user's file
            finally:
                os.close(fd)
    if names:
        logger.info("reaped %d orphan(s): %s", len(names), ", ".join(names))
    return Reaped(tuple(names), nbytes, live, foreign)


def _is_own_file(fd: int) -> bool:
    info = os.fstat(fd)
    return stat.S_ISREG(info.st_mode) and info.st_uid in (os.geteuid(), 0)


def holders(fd: int) -> tuple[int, ...]:
    """Pids that hold a lock on the file, as far as ``/proc/locks`` tells. For messages."""
    info = os.fstat(fd)
    device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    pids = set()
    try:
        with open("/proc/locks", encoding="ascii") as file:
            for line in file:
                row = line.split()
                if len(row) == 8 and row[5] == device and row[1] == "FLOCK":
                    pids.add(int(row[4]))
    except OSError:
        return ()
    return tuple(sorted(pids - {0, -1}))
