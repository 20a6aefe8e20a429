# SPDX-License-Identifier: Apache-2.0
"""A channel between two processes of one instance: whole messages, and nobody waits.

It is a pair of SEQPACKET sockets: a message comes whole or not at all, and one that does
not fit is refused at once. What is then done about it is the sender's business, so that
nothing grows without bound (EC-14.4). Descriptors may travel with a message.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import words

_INT: Final = struct.Struct("@i")
#: Descriptors that may come with a message.
_MAX_FDS: Final = 4
#: Messages, and bytes of them, that are taken in one turn: the other side may be faster
#: than we.
_BURST: Final = 256
_BURST_BYTES: Final = 256 << 10
#: What says nothing about the other end: the kernel is short of something just now, or
#: takes no message of that length here.
_NOT_NOW: Final = frozenset(
    {errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMSGSIZE, errno.ETOOMANYREFS, errno.EMFILE}
)


class Channel:
    """One end. One thread only.

    Args:
        sock: The socket; the channel owns it from here on.
        hears: The messages that may come.

    Attributes:
        open: Whether the other end may still hear and say something.
        garbage: Messages that were none of ours.
    """

    def __init__(self, sock: socket.socket, hears: Any) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._hears = hears
        self.open = True
        self.garbage = 0

    @classmethod
    def from_fd(cls, fd: int, hears: Any) -> Channel:
        """An end that this process was handed."""
        return cls(socket.socket(fileno=fd), hears)

    def fileno(self) -> int:
        """What to poll for input; -1 once it is closed."""
        return self._sock.fileno()

    def say(self, message: Any, fds: Sequence[int] = ()) -> bool:
        """Say something; never waits.

        Returns:
            False when the other end does not read, or is gone: it was not said.
        """
        if not self.open:
            return False
        raw = words.encode(message)
        if len(raw) > words.MAX_BYTES:
            return False
        try:
            if fds:
                socket.send_fds(self._sock, [raw], list(fds))
            else:
                self._sock.send(raw, socket.MSG_NOSIGNAL)
        except OSError as exc:
            self.open = exc.errno in _NOT_NOW
            return False
        return True

    def hear(self) -> list[Any]:
        """What has come; see ``hear_with_fds``. Descriptors that come are closed."""
        heard = []
        for message, fds in self.hear_with_fds():
            _close(fds)
            heard.append(message)
        return heard

    def hear_with_fds(self) -> list[tuple[Any, list[int]]]:
        """What has come, at most so much, each with its descriptors.

        What is none of ours is counted and dropped.
        """
        heard: list[tuple[Any, list[int]]] = []
        taken = 0
        for _ in range(_BURST):
            if not self.open or taken >= _BURST_BYTES:
                break
            try:
                raw, fds, flags = self._receive()
            except OSError as exc:
                self.open = exc.errno in _NOT_NOW
                break
            taken += len(raw)
            if not raw and not fds:
                self.open = False
                break
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self.garbage += 1
                _close(fds)
                continue
            try:
                heard.append((words.decode(raw, self._hears), fds))
            except RemoteProtocolError:
                self.garbage += 1
                _close(fds)
        return heard

    def _receive(self) -> tuple[bytes, list[int], int]:
        """One message, its descriptors, and the kernel's flags.

        Descriptors are closed on exec from the first moment, since the host may start a
        process at any; ``socket.recv_fds`` drops the flag that says so.
        """
        room = socket.CMSG_LEN(_MAX_FDS * _INT.size)
        raw, more, flags, _ = self._sock.recvmsg(words.MAX_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, data in more:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(data) - len(data) % _INT.size
                fds += [fd for (fd,) in _INT.iter_unpack(data[:whole])]
        return raw, fds, flags

    def close(self) -> None:
        """Close this end. May be called twice."""
        self.open = False
        self._sock.close()


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends; each is closed on exec unless it is passed on."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
