# SPDX-License-Identifier: Apache-2.0
"""How a process of ours comes to be, and what it gives up first (EC-14.1).

It is started with exec and inherits the descriptors that it is named and its standard
error, nothing else. It dies with its parent, whatever it is doing: the channel's end is
what it looks for, a parent-death signal the second line. That one belongs to the *thread*
that made the process, so only a process with one thread may rely on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping as Environ
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Descriptors that a data process may have: NIXL and UCX take some for each peer.
MAX_FILES: Final = 16384

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38


def start(
    argv: Sequence[str], fds: Sequence[int], environ: Environ[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process of ours.

    Args:
        argv: Command line; see ``spec.command``.
        fds: Descriptors that it is handed, under their numbers.
        environ: Its environment; where our packages are is added.

    Raises:
        OSError: No memory, no processes, no descriptors.
    """
    root = str(Path(__file__).resolve().parents[2])
    others = [path for path in sys.path if path and path != root]
    environ = {**environ, "PYTHONPATH": os.pathsep.join([root, *others])}
    return subprocess.Popen(
        list(argv),
        pass_fds=list(fds),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_stderr() else subprocess.DEVNULL,
        env=environ,
        close_fds=True,
    )


def wait_readable(fd: int, seconds: float) -> bool:
    """Whether a descriptor is readable within that time; a pidfd is when its process is gone."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _has_stderr() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def settle(name: str, parent_pid: int, *, dies_with_parent: bool) -> None:
    """First thing in a process of ours: a name, and nothing that it does not need.

    Args:
        name: At most 15 characters; shown by ``ps``.
        parent_pid: Who started it.
        dies_with_parent: Whether the parent has one thread only.

    Raises:
        SystemExit: The parent is gone already.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if dies_with_parent:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit(0)
    # Ctrl-C in a terminal, and a supervisor's signal to a whole group, go to everybody in
    # it; the engine decides what they mean, and serves until then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)  # it would hold the region
    _limit(resource.RLIMIT_NOFILE, MAX_FILES)
    with contextlib.suppress(OSError):
        # Short of memory, the system is to take one of us and not the engine.
        Path("/proc/self/oom_score_adj").write_text("500")


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(what, (most, most))


class Mapping:
    """A file mapped into this process, by address. It stays for the process's life.

    Args:
        fd: The file.
        nbytes: Its length.
        writable: Whether the memory may be written; a peer that tries kills the process
            otherwise, and changes nothing.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        ]  # fmt: skip
        protection = 1 | (2 if writable else 0)  # PROT_READ, PROT_WRITE
        address = libc.mmap(None, nbytes, protection, 1, fd, 0)  # MAP_SHARED
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, f"mapping {nbytes} bytes of the region: {os.strerror(number)}")
        self.address = int(address)
        self.nbytes = nbytes

    def view(self) -> memoryview:
        """The memory, to be read."""
        array = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        return memoryview(array).cast("B").toreadonly()
