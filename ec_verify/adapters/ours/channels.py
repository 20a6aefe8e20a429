# SPDX-License-Identifier: Apache-2.0
"""What joins the processes of one instance, when they are one process of the kit's.

Messages are encoded and decoded as between real processes. A channel holds as much as
the kernel lets a pair of sockets hold, roughly; slots have locks that go with whoever
holds them.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import words

#: Bytes that may be on their way in one direction.
_ROOM: Final = 200 << 10


class KitChannel:
    """One end of a channel, like ``processes.channel.Channel``.

    Args:
        sends: What the other end has not heard yet.
        hears: What this one has not.
        kinds: The messages that may come.
    """

    def __init__(self, sends: deque[bytes], hears: deque[bytes], kinds: Any) -> None:
        self._sends = sends
        self._hears = hears
        self._kinds = kinds
        self.open = True
        self.other: KitChannel | None = None
        self.garbage = 0

    @property
    def waiting(self) -> bool:
        """Whether there is something to hear."""
        return bool(self._hears)

    def say(self, message: Any) -> bool:
        """Say something; False when it does not fit, or nobody is there to hear it."""
        raw = words.encode(message)
        if not self.open or self.other is None or not self.other.open:
            self.open = False
            return False
        if len(raw) > words.MAX_BYTES or sum(map(len, self._sends)) + len(raw) > _ROOM:
            return False
        self._sends.append(raw)
        return True

    def hear(self) -> list[Any]:
        """What has come; the end of it when the other end is closed."""
        heard = []
        while self._hears and self.open:
            try:
                heard.append(words.decode(self._hears.popleft(), self._kinds))
            except RemoteProtocolError:
                self.garbage += 1
        if self.other is None or not self.other.open:
            self.open = False
        return heard

    def close(self) -> None:
        """Close this end; what it has said can still be heard."""
        self.open = False


def channel(here: Any, there: Any) -> tuple[KitChannel, KitChannel]:
    """Both ends of a channel.

    Args:
        here: What the first end may hear.
        there: What the second may.
    """
    to, fro = deque[bytes](), deque[bytes]()
    first, second = KitChannel(to, fro, here), KitChannel(fro, to, there)
    first.other, second.other = second, first
    return first, second


class KitSlotLocks:
    """One process's hold on the locks of the slots.

    Args:
        taken: The locks, by slot, and who has each.
    """

    def __init__(self, taken: dict[int, KitSlotLocks]) -> None:
        self._taken = taken

    def acquire(self, slot: int) -> bool:
        """Try to take the lock of a slot."""
        return self._taken.setdefault(slot, self) is self

    def release(self, slot: int) -> None:
        """Let it go."""
        if self._taken.get(slot) is self:
            del self._taken[slot]

    def close(self) -> None:
        """Let all of them go, as the kernel does when a process ends."""
        for slot in [slot for slot, owner in self._taken.items() if owner is self]:
            del self._taken[slot]
