# SPDX-License-Identifier: Apache-2.0
"""Who of a start has which file open, whatever became of the file's name.

A file can lose its name while processes of its start use it: one of them shut down, or
somebody emptied ``/dev/shm``. A process of the same start that comes then finds
nothing, and must not take that for the beginning: a fresh file is full of zeros, and
the scheduler believes that encodings are in it (EC-10.7).

So each process that has a region open holds a *mark*, a shared record lock on the
folder itself, at an offset that stands for the start (name and nonce) and the file
(its identity). The folder has no bytes there and needs none. Such a lock leaves
nothing behind, the kernel drops it with the process, children inherit it with the
descriptor as they do the mapping, and it is seen by exactly those who see the name,
in whatever network or pid namespace.

One's own mark is set first, then the name is looked at again, and other marks. Of two
processes with two files at least one sees the other's mark, and lets go.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from typing import Final

from ec_connector.region.file import FLOCK, Directory
from ec_connector.region.header import RegionHeader

logger = logging.getLogger(__name__)

# An offset has 62 bits here: 36 for the start, 26 for the file.
_FILE_BITS: Final = 26
_FILES: Final = 1 << _FILE_BITS
_START_BITS: Final = 36


class Marks:
    """The mark of one ``SharedRegion``, and a look at those of others.

    Where the folder takes no locks there are no marks: nobody has any, then, and what is
    left is the identity in the step's metadata.

    Args:
        folder: Where the region's file lies.
        name: The file's name.
    """

    def __init__(self, folder: Directory, name: str) -> None:
        self._folder: Final = folder.path
        self._name: Final = name
        self._fd: int | None = None
        try:
            # The folder's own descriptor can carry no locks.
            self._fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder.fd)
        except OSError as exc:
            self._give_up(exc)

    def set(self, header: RegionHeader) -> None:
        """Let the processes of the same start know that this one has the file open."""
        at = self._start(header.nonce) + _file(header)
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, at, 1)

    def clear(self) -> None:
        """Take the mark away."""
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)

    def any_of_start(self, nonce: bytes) -> bool:
        """Whether another process has a file of this start open."""
        return self._seen(self._start(nonce), _FILES)

    def any_of_other_file(self, header: RegionHeader) -> bool:
        """The same for a file of the header's start that is not the header's."""
        start, file = self._start(header.nonce), _file(header)
        return self._seen(start, file) or self._seen(start + file + 1, _FILES - file - 1)

    def close(self) -> None:
        """Take the mark away for good; in a forked child, that of the child alone."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _start(self, nonce: bytes) -> int:
        digest = hashlib.sha256(self._name.encode() + b"\0" + nonce).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - _START_BITS) << _FILE_BITS

    def _seen(self, at: int, count: int) -> bool:
        # A length of 0 would mean everything behind.
        if not count:
            return False
        return self._lock(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, at, count) != fcntl.F_UNLCK

    def _lock(self, command: int, kind: int, at: int, count: int) -> int:
        """One call of ``fcntl``; returns the kind of lock that it answers with."""
        if self._fd is None:
            return fcntl.F_UNLCK
        try:
            raw = fcntl.fcntl(self._fd, command, FLOCK.pack(kind, os.SEEK_SET, at, count, 0))
        except OSError as exc:
            self._give_up(exc)
            return fcntl.F_UNLCK
        return int(FLOCK.unpack(raw)[0])

    def _give_up(self, exc: OSError) -> None:
        self.close()
        logger.warning(
            "%s takes no locks (%s): a process that comes after the name of %s is gone cannot "
            "tell, and is refused at its first step only",
            self._folder,
            exc,
            self._name,
        )


def _file(header: RegionHeader) -> int:
    return int.from_bytes(header.identity[:4], "big") >> (32 - _FILE_BITS)
