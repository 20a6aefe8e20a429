# SPDX-License-Identifier: Apache-2.0
"""Events on their way from the tier to the pump: bounded, and never in anybody's way."""

from __future__ import annotations

from typing import Final

from ec_connector.events.codec import Event
from ec_protocol.announcements import can_be_asked_for
from ec_protocol.tier.encodings import TierEvent
from ec_protocol.tier.entry import Entry

#: Events of one message.
MAX_BATCH: Final = 1024


class EventLog:
    """A queue of events. Both ends are used under the tier's lock.

    Args:
        limit: Events that may wait. Further ones are dropped, and a ``dropped`` event
            takes their place, so that nobody believes to know everything.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: list[tuple[TierEvent, Entry]] = []
        self._missing = 0
        self._closed = False
        self.dropped = 0

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return something; any thread."""
        return bool(self._waiting or self._missing)

    def add(self, event: TierEvent, entry: Entry) -> None:
        """Something happened to ``entry``; ``EncodingTier.listener``."""
        if self._closed or not can_be_asked_for(entry.mm_hash):
            return  # nobody was told of such a name
        if len(self._waiting) >= self._limit:
            self._missing += 1
            self.dropped += 1
        else:
            self._waiting.append((event, entry))

    def take(self) -> list[tuple[TierEvent, Entry] | int]:
        """Everything that waits, in order; a number at the end: so many are missing."""
        taken: list[tuple[TierEvent, Entry] | int] = [*self._waiting]
        if self._missing:
            taken.append(self._missing)
        self._waiting.clear()
        self._missing = 0
        return taken

    def close(self) -> list[tuple[TierEvent, Entry] | int]:
        """The last ``take``: nobody publishes any more, so nothing is kept from here on."""
        self._closed = True
        return self.take()


def as_events(taken: list[tuple[TierEvent, Entry] | int]) -> list[Event]:
    """What ``take`` returned, as it travels. Needs no lock: these fields never change."""
    events = []
    for item in taken:
        if isinstance(item, int):
            events.append(Event(event="dropped", count=item))
        else:
            event, entry = item
            shape = None if entry.shape is None else list(entry.shape)
            events.append(
                Event(event=event, mm_hash=entry.mm_hash, nbytes=entry.nbytes, shape=shape)
            )
    return events
