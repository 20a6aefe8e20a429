# SPDX-License-Identifier: Apache-2.0
"""Host names are looked up off every I/O loop, bounded in time and number.

Names come from requests, and one that answers slowly must stall nobody: ZMQ, which would
look a name up on the one thread that moves everybody's messages, is given addresses only.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Final

from ec_connector.config.peers import is_address

logger = logging.getLogger(__name__)

#: Threads that look up: as many slow names do not delay a quick one.
THREADS: Final = 16
#: Names that may wait to be looked up; further ones count as unknown.
MAX_WAITING: Final = 256
#: Names that are remembered, and for how long.
MAX_KNOWN: Final = 1024
KNOWN_FOR_S: Final = 60.0
#: The same for names that have no address.
UNKNOWN_FOR_S: Final = 5.0

#: All addresses of a name, in the resolver's order; none: it has none.
Addresses = tuple[str, ...]


def look_up(name: str) -> Addresses:
    """Ask the system; may take long. All addresses of a name, IPv4 first; none: it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    addresses = dict.fromkeys(str(item[4][0]) for item in found)
    # Producers that are given a name bind its IPv4 address, if it has one.
    return tuple(sorted(addresses, key=lambda address: ":" in address))


class Names:
    """Looks names up on threads of its own. Used by one thread.

    Args:
        ask: Looks one up; called on any of the threads.

    Attributes:
        fd: Becomes readable when there is news.
        refused: Names that were not looked up, too many having waited.
    """

    def __init__(self, ask: Callable[[str], Addresses] = look_up) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.refused = 0
        self._ask = ask
        self._known: dict[str, tuple[Addresses, float]] = {}
        self._waiting: set[str] = set()
        self._todo: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Addresses]] = queue.SimpleQueue()
        self._unanswered = 0  # names that a thread looks up, or is to look up
        self._threads = 0
        self._lock = threading.Lock()

    def get(self, name: str, now: float) -> Addresses | None:
        """What a name means; None: not known yet, ask again when ``news`` has named it.

        Args:
            name: A name or an address.
            now: Seconds.
        """
        if is_address(name):
            return (name,)
        addresses, until = self._known.get(name, ((), 0.0))
        if now < until:
            return addresses
        if name not in self._waiting:
            if len(self._waiting) >= MAX_WAITING or not self._have_asked(name):
                self.refused += 1
                return ()
            self._waiting.add(name)
        return None

    def news(self, now: float) -> list[str]:
        """Names that have been looked up since the last call."""
        try:
            os.eventfd_read(self.fd)
        except (BlockingIOError, ValueError):
            return []  # none, or closed
        names = []
        while not self._done.empty():
            name, addresses = self._done.get()
            self._waiting.discard(name)
            while len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[name] = (addresses, now + (KNOWN_FOR_S if addresses else UNKNOWN_FOR_S))
            names.append(name)
        return names

    def close(self) -> None:
        """Take no more news. Threads that wait for a resolver end with the process."""
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd < 0:
                return
            os.close(fd)
            for _ in range(self._threads):
                self._todo.put(None)

    def _have_asked(self, name: str) -> bool:
        """Hand a name to a thread that has nothing else to do, while there may be such."""
        with self._lock:
            if self.fd < 0:
                return False
            if self._unanswered >= self._threads and self._threads < THREADS:
                thread = threading.Thread(target=self._work, name="ec-names", daemon=True)
                try:
                    thread.start()
                    self._threads += 1
                except RuntimeError:  # the system has no more threads for us
                    if not self._threads:
                        return False
            self._unanswered += 1
        self._todo.put(name)
        return True

    def _work(self) -> None:
        while (name := self._todo.get()) is not None:
            try:
                found = self._ask(name)
            except Exception:
                logger.exception("looking up %r", name)
                found = ()
            with self._lock:
                self._unanswered -= 1
                if self.fd < 0:
                    return
                self._done.put((name, found))
                os.eventfd_write(self.fd, 1)
