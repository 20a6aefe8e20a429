# SPDX-License-Identifier: Apache-2.0
"""Puts the messages of one publisher in order, and notices what is missing. No I/O.

What was missed and cannot be had again means one thing for whoever keeps a picture of
the tier: everything in it may be wrong (EC-13.3).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

from ec_connector.events.codec import EventBatch

#: Messages that are kept back while older ones are being sent again.
MAX_HELD: Final = 100_000

Kind = Literal["events", "missed", "restarted", "silent"]


@dataclass(frozen=True, slots=True)
class Update:
    """What a subscriber is told.

    Attributes:
        kind: ``events``: a message, in order. ``missed``: ``count`` messages are lost.
            ``restarted``: another process speaks; what the one before it held is gone.
            ``silent``: nothing was heard for a while, so nothing is known.
        batch: The message of ``events``; of ``restarted`` the first one heard.
        count: Of ``missed``.
    """

    kind: Kind
    batch: EventBatch | None = None
    count: int = 0


class EventStream:
    """The messages of one publisher.

    Args:
        replay: Whether lost messages can be asked for.
    """

    def __init__(self, replay: bool = False) -> None:
        self._replay = replay
        self._incarnation: str | None = None
        # Messages of a process that is gone may still be on their way.
        self._former: deque[str] = deque(maxlen=4)
        self._expected = 0
        self._told = 0
        self._held: dict[int, EventBatch] = {}
        self._wanted: int | None = None

    def feed(self, number: int, batch: EventBatch) -> list[Update]:
        """A message came, live or sent again.

        Returns:
            What follows from it; nothing for a message that was seen before.
        """
        updates: list[Update] = []
        if batch.incarnation != self._incarnation:
            if batch.incarnation in self._former:
                return updates
            if self._incarnation is not None:
                updates.append(Update("restarted", batch))
                self._former.append(self._incarnation)
            self._incarnation = batch.incarnation
            self._expected = self._told = 0
            self._held.clear()
            self._wanted = None
        # An empty message takes no number: it has the next one's.
        self._told = max(self._told, number)
        if number < self._expected:
            return updates
        if number == self._expected:
            self._deliver(batch, updates)
            self._deliver_held(updates)
            return updates
        # Something is missing before it.
        if batch.events:
            self._held[number] = batch
        if not self._replay or len(self._held) > MAX_HELD:
            self._skip_to(number, updates)
            if not batch.events:
                self._deliver(batch, updates)
        elif self._wanted is None:
            self._wanted = self._expected
        return updates

    def take_request(self) -> int | None:
        """The number from which on messages are to be sent again; once each time."""
        if self._wanted is None or self._wanted < 0:
            return None
        wanted, self._wanted = self._wanted, -1
        return wanted

    @property
    def waiting(self) -> bool:
        """Whether an answer to ``take_request`` is awaited."""
        return self._wanted is not None and self._wanted < 0

    def replay_over(self) -> list[Update]:
        """Nothing more is sent again: what is still missing is lost."""
        self._wanted = None
        updates: list[Update] = []
        next_known = min(self._held, default=self._told)
        if next_known > self._expected:
            self._skip_to(next_known, updates)
        return updates

    def _skip_to(self, number: int, updates: list[Update]) -> None:
        updates.append(Update("missed", count=number - self._expected))
        self._expected = number
        self._wanted = None
        self._deliver_held(updates)

    def _deliver(self, batch: EventBatch, updates: list[Update]) -> None:
        updates.append(Update("events", batch))
        if batch.events:
            self._expected += 1

    def _deliver_held(self, updates: list[Update]) -> None:
        while (batch := self._held.pop(self._expected, None)) is not None:
            self._deliver(batch, updates)
