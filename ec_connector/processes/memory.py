# SPDX-License-Identifier: Apache-2.0
"""Memory without a name that the processes of one instance share.

``Shared``      a piece of it: made by one process, mapped by those who are handed its
                descriptor; gone with the last of them
``StatusPage``  what one data process says of itself: when it last turned, and figures.
                It writes when it likes and others read when they like, so nothing
                grows, whoever does not look (EC-14.4)
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Any, Final

import msgspec

_BEAT: Final = struct.Struct("<d")
_SIZE: Final = struct.Struct("<II")  # number of the writing, odd while it goes on; bytes
_STATUS_AT: Final = 16
STATUS_BYTES: Final = 16384


class Shared:
    """A mapped piece of shared memory.

    Args:
        fd: Its file; the object owns it from here on.
        writable: Whether this process may write.

    Attributes:
        fd: What to hand to others.
        view: The bytes.
    """

    def __init__(self, fd: int, *, writable: bool) -> None:
        self.fd = fd
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, access)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, name: str, nbytes: int) -> Shared:
        """Zeros that nobody else can see yet; pages take memory when they are touched.

        Raises:
            OSError: No memory, or no descriptors.
        """
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            # A shorter file would kill whoever reads beyond its end.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return cls(fd, writable=True)
        except BaseException:
            os.close(fd)
            raise

    def read_only(self) -> int:
        """A descriptor through which nobody can write; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmap, unless somebody still looks at the bytes. May be called twice."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        os.close(fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # goes with the last view


class StatusPage:
    """One data process's page; it alone writes.

    Args:
        shared: ``STATUS_BYTES`` of shared memory.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._writings = 0

    def beat(self, now: float) -> None:
        """Its loop has turned."""
        _BEAT.pack_into(self.shared.view, 0, now)

    @property
    def beat_at(self) -> float:
        """When its loop last turned, by its own account; seconds of the common clock."""
        (at,) = _BEAT.unpack_from(self.shared.view, 0)
        return float(at)

    def write(self, figures: dict[str, Any]) -> bool:
        """Say how things are.

        Returns:
            False when it is too much to say.
        """
        raw = msgspec.msgpack.encode(figures)
        at = _STATUS_AT + _SIZE.size
        if at + len(raw) > STATUS_BYTES:
            return False
        self._writings += 2
        _SIZE.pack_into(self.shared.view, _STATUS_AT, self._writings - 1 & 0xFFFFFFFF, len(raw))
        self.shared.view[at : at + len(raw)] = raw
        _SIZE.pack_into(self.shared.view, _STATUS_AT, self._writings & 0xFFFFFFFF, len(raw))
        return True

    def read(self) -> dict[str, Any]:
        """What was last said; empty when that cannot be told just now, or makes no sense.

        Whoever runs there may be under a stranger's control: what it says is data.
        """
        view = self.shared.view
        before, size = _SIZE.unpack_from(view, _STATUS_AT)
        at = _STATUS_AT + _SIZE.size
        if before % 2 or at + size > STATUS_BYTES:
            return {}
        raw = bytes(view[at : at + size])
        if _SIZE.unpack_from(view, _STATUS_AT) != (before, size):
            return {}
        try:
            said = msgspec.msgpack.decode(raw, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return {}
        return said
