# SPDX-License-Identifier: Apache-2.0
"""The one loop of a data process: it turns its work, shows that it lives, and sleeps.

Only while a transfer is under way does it keep looking: NIXL moves nothing unless both
sides progress their agents.
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

#: Longest sleep: it must give a sign of life well within ``stall_s``.
_IDLE_S: Final = 0.5
#: Pause between two looks while a transfer is under way, and when it takes long.
_BUSY_PAUSE_S: Final = 30e-6
_SLOW_PAUSE_S: Final = 300e-6
_SLOW_AFTER_S: Final = 0.1
#: Figures are written down no more often.
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
        clock: Seconds of the common clock.
    """

    def __init__(
        self,
        parent: Channel,
        engine: Channel,
        status: StatusPage,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._parent = parent
        self._engine = engine
        self._status = status
        self._clock = clock
        self._busy_since: float | None = None
        self._figures_at = float("-inf")
        self._changed = False
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
            poller.poll(int(_IDLE_S * 1000))
            for message in self._parent.hear():
                return message if isinstance(message, words.Take) else None
        return None

    def run(self, work: Work) -> None:
        """Work until the instance ends."""
        while not self.stopped and self._parent.open and self._engine.open:
            now = self._clock()
            self._status.beat(now)
            worked = work.turn()
            for message in self._parent.hear():
                self.stopped = self.stopped or isinstance(message, words.Stop)
            self._changed = self._changed or worked
            if now >= self._figures_at + (_FIGURES_S if self._changed else _IDLE_S):
                self._figures_at, self._changed = now, False
                self._status.write(work.figures())
            self._sleep(work, worked)

    def _sleep(self, work: Work, worked: bool) -> None:
        """Wait until there may be something to do; not at all after work was found."""
        now = self._clock()
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
        wait = _FIGURES_S if self._changed else _IDLE_S
        wait = wait if deadline is None else min(wait, deadline - now)
        poller = zmq.Poller()
        for end in (self._parent, self._engine):
            if end.open:
                poller.register(end.fileno(), zmq.POLLIN)
        for sock in work.sockets:
            poller.register(sock, zmq.POLLIN)
        poller.poll(max(1, int(wait * 1000 + 0.999)) if wait > 0 else 0)
