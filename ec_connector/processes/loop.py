# SPDX-License-Identifier: Apache-2.0
"""The one loop of a data process: it turns its work, shows that it lives, and sleeps.

Only while a transfer is under way does it keep looking: NIXL moves nothing unless both
sides progress their agents. Otherwise it sleeps until something comes or is due, and gets
up in between for nothing but a sign of life, which touches nothing else: a host has many
instances, and most of them are idle most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import zmq

from ec_connector.clock import boottime
from ec_connector.processes.channel import Channel
from ec_connector.processes.memory import StatusPage
from ec_protocol.p2p import words

#: The work is turned at least this often, whatever it says of its deadlines.
_LONGEST_S: Final = 10.0
#: Pause between two looks while a transfer is under way, and when it takes long.
_BUSY_PAUSE_S: Final = 30e-6
_SLOW_PAUSE_S: Final = 300e-6
_SLOW_AFTER_S: Final = 0.1
#: Figures are written down this long after something has happened, and no more often.
_FIGURES_S: Final = 0.1


class Work(Protocol):
    """What a kind of data process does once it has taken its place."""

    @property
    def sockets(self) -> list[Any]:
        """What to poll for input."""

    def turn(self) -> bool:
        """Look at everything once; whether something happened."""

    def transferring(self, now: float) -> bool:
        """Whether the data plane needs progress."""

    def next_deadline(self) -> float | None:
        """When there is something to do next."""

    def figures(self) -> dict[str, Any]:
        """What operators see."""

    def goodbye(self) -> None:
        """The orderly end: the process exits next, which ends everything else."""


class Loop:
    """Runs one data process's work, and shows that it does.

    Args:
        parent: Channel to the parent.
        engine: Channel to the engine.
        status: Its status page.
        beat_s: Longest time between two signs of life (EC-14.11).
        clock: Seconds of the common clock.
    """

    def __init__(
        self,
        parent: Channel,
        engine: Channel,
        status: StatusPage,
        beat_s: float,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._parent = parent
        self._engine = engine
        self._status = status
        self._beat_s = beat_s
        self._clock = clock
        self._busy_since: float | None = None
        self._figures_at = float("-inf")
        self._changed = True
        self.stopped = False

    def wait_for_place(self) -> words.Take | None:
        """Stand by.

        Returns:
            What it is told when it is to take its place; None when the instance has ended.
        """
        poller = zmq.Poller()
        poller.register(self._parent.fileno(), zmq.POLLIN)
        while self._parent.open:
            self._status.beat(self._clock())
            if not poller.poll(max(1, int(self._beat_s * 1000))):
                continue
            for message in self._parent.hear():
                return message if isinstance(message, words.Take) else None
        return None

    def run(self, work: Work) -> None:
        """Work until the instance ends."""
        while self._parent.open and self._engine.open:
            self._status.beat(self._clock())
            worked = work.turn()
            self._changed = True
            for message in self._parent.hear():
                self.stopped = self.stopped or isinstance(message, words.Stop)
            if self.stopped:
                return
            self._sleep(work, worked)

    def _sleep(self, work: Work, worked: bool) -> None:
        """Wait until there may be something to do; not at all after work was found."""
        now = self._clock()
        self._write_figures(work, now)
        if work.transferring(now):
            self._busy_since = now if self._busy_since is None or worked else self._busy_since
            if not worked:
                slow = now - self._busy_since > _SLOW_AFTER_S
                time.sleep(_SLOW_PAUSE_S if slow else _BUSY_PAUSE_S)
            return
        self._busy_since = None
        if worked:
            return
        deadline = work.next_deadline()
        until = now + _LONGEST_S if deadline is None else min(deadline, now + _LONGEST_S)
        poller = zmq.Poller()
        for end in (self._parent, self._engine):
            if end.open:
                poller.register(end.fileno(), zmq.POLLIN)
        for sock in work.sockets:
            poller.register(sock, zmq.POLLIN)
        while not poller.poll(self._milliseconds(until - now)):
            now = self._clock()
            self._status.beat(now)
            self._write_figures(work, now)
            if now >= until:
                return

    def _milliseconds(self, wait: float) -> int:
        """How long to poll: until it is time for a sign of life, or for figures."""
        wait = min(wait, self._beat_s, _FIGURES_S if self._changed else wait)
        return max(1, int(wait * 1000 + 0.999)) if wait > 0 else 0

    def _write_figures(self, work: Work, now: float) -> None:
        if self._changed and now >= self._figures_at + _FIGURES_S:
            self._figures_at, self._changed = now, False
            self._status.write(work.figures())
