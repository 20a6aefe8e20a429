# SPDX-License-Identifier: Apache-2.0
"""The locks of the slots: record locks that the kernel gives and takes (EC-14.3).

They are *open file description* locks: they belong to whoever opened the file, so each
process opens it anew and never inherits it, and they are gone with the last descriptor of
that opening, however its process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for these locks).
_FLOCK: Final = struct.Struct("@hhqqi4x")
_SETLK: Final = 37  # F_OFD_SETLK, which the fcntl module has from Python 3.13 on
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


#: A slot that no table has: who holds its lock is the server.
_THE_SERVER: Final = 1 << 32


class KernelSlotLocks:
    """One process's hold on the locks. One thread only.

    Args:
        fd: The ledger's file, readable and writable. It is opened anew, so that two
            processes that were handed the same descriptor exclude each other.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def acquire(self, slot: int) -> bool:
        """Try to take the lock of a slot; never waits, and has none once it is closed."""
        if self._fd < 0:
            return False
        try:
            fcntl.fcntl(self._fd, _SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
        except OSError as exc:
            if exc.errno in _BUSY:
                return False
            raise
        return True

    def release(self, slot: int) -> None:
        """Let it go."""
        fcntl.fcntl(self._fd, _SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, slot, 1, 0))

    def acquire_for_life(self) -> bool:
        """Try to become the one server of the ledger; let go by the process's end (EC-14.6).

        The parent starts a server when the one before it has exited. Should the parent
        itself die in between, this is what keeps the next parent's from being a second.
        """
        return self.acquire(_THE_SERVER)

    def close(self) -> None:
        """Let all of them go. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
