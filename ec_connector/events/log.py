# SPDX-License-Identifier: Apache-2.0
"""Events on their way from the tier to the server: bounded, and never in anybody's way."""

from __future__ import annotations

from collections import deque
from typing import Final

from ec_connector.events.codec import Event
from ec_protocol.announcements import can_be_asked_for
from ec_protocol.tier.encodings import TierEvent
from ec_protocol.tier.entry import Entry

#: Events of one message.
MAX_BATCH: Final = 1024

#: One event as it is told: what happened, name, bytes and shape of the encoding.
Told = tuple[str, str, int, "list[int] | None"]


class EventLog:
    """A queue of events. Engine thread.

    Args:
        limit: Events that may wait. Further ones are dropped and counted, so that nobody
            believes to know everything.

    Attributes:
        missing: Events that were dropped since the last ``take``.
        dropped: The same since the start.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Told] = deque()
        self.missing = 0
        self.dropped = 0

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return something."""
        return bool(self._waiting or self.missing)

    def add(self, event: TierEvent, entry: Entry) -> None:
        """Something happened to ``entry``; ``EncodingTier.listener``."""
        if not can_be_asked_for(entry.mm_hash):
            return  # nobody was told of such a name
        if len(self._waiting) >= self._limit or self.missing:
            self.missing += 1
            self.dropped += 1
        else:
            shape = None if entry.shape is None else list(entry.shape)
            self._waiting.append((event, entry.mm_hash, entry.nbytes, shape))

    def take(self, most: int = MAX_BATCH) -> tuple[list[Told], int]:
        """The oldest events, and how many are missing after them."""
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        missing = 0
        if not self._waiting:
            missing, self.missing = self.missing, 0
        return taken, missing

    def put_back(self, taken: list[Told], missing: int) -> None:
        """They could not be handed on."""
        self._waiting.extendleft(reversed(taken))
        self.missing += missing


def as_events(taken: list[Told | int]) -> list[Event]:
    """What was told, as it travels; a number: so many are missing here."""
    events = []
    for item in taken:
        if isinstance(item, int):
            events.append(Event(event="dropped", count=item))
        else:
            event, mm_hash, nbytes, shape = item
            events.append(Event(event=event, mm_hash=mm_hash, nbytes=nbytes, shape=shape))
    return events
