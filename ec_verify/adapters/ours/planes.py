# SPDX-License-Identifier: Apache-2.0
"""The data plane as the kit plays it: it moves the bytes, and says what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ec_connector.network.data.base import (
    DataPlaneError,
    DataPlaneReader,
    DataPlaneServer,
    Pieces,
    ReadEvent,
)

Emit = Callable[..., None]


class SimulatedOffer(DataPlaneServer):
    """A server's data plane: notices come from the kit."""

    def __init__(self, agent: bytes) -> None:
        super().__init__()
        self._agent = agent
        self.inbox: list[bytes] = []

    @property
    def agent_metadata(self) -> bytes:
        """What acks carry."""
        return self._agent

    def poll_notices(self) -> list[bytes]:
        """Notices that came."""
        notices, self.inbox = self.inbox, []
        return notices

    def close(self) -> None:
        """Nothing to close."""


class SimulatedReader(DataPlaneReader):
    """A reader's data plane.

    Args:
        emit: Tells the kit.
        name: Names a READ to the kit: numbers of attempts are each process's own.
        delay: Called while a READ is prepared: how the kit makes that take long.
    """

    def __init__(self, emit: Emit, name: Callable[[int], str], delay: Callable[[], None]) -> None:
        super().__init__()
        self._emit = emit
        self._name = name
        self._delay = delay
        self._prepared: dict[int, dict[str, Any]] = {}
        self._posted: set[int] = set()
        self._abandoned: set[int] = set()
        self._ended: set[int] = set()
        self._events: list[ReadEvent] = []

    # ------------------------------------------------------------- what the kit does
    def happened(self, attempt_id: int, event: ReadEvent) -> None:
        """The kit says something about a READ."""
        self._events.append(event)
        if event.outcome == "done":
            self._ended.add(attempt_id)

    @property
    def under_way(self) -> bool:
        """Whether the kit may still move a byte of a READ of this process."""
        return not self._posted <= self._ended

    def go(self) -> None:
        """The process is gone, and with it whatever it had posted (EC-14.8)."""
        for attempt_id in sorted(self._posted):
            self._emit("gone", read=self._name(attempt_id))
        self._posted.clear()

    # ---------------------------------------------------------------- DataPlaneReader
    def prepare(
        self,
        attempt_id: int,
        agent_metadata: bytes,
        local: Pieces,
        remote: Pieces,
        device_id: int,
        notice: bytes,
    ) -> None:
        """See ``DataPlaneReader.prepare``."""
        if not agent_metadata:
            raise DataPlaneError("no agent metadata")
        self._delay()
        self._prepared[attempt_id] = {
            "read": self._name(attempt_id),
            "agent": agent_metadata.hex(),
            "device": device_id,
            "notice": notice.hex(),
            "local": [list(piece) for piece in local],
            "remote": [list(piece) for piece in remote],
        }

    def post(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.post``."""
        self._posted.add(attempt_id)
        self._emit("read", **self._prepared.pop(attempt_id))

    def discard(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.discard``."""
        self._prepared.pop(attempt_id, None)

    def poll(self) -> list[ReadEvent]:
        """What the kit said, of READs that are still of interest."""
        events, self._events = self._events, []
        told = []
        for event in events:
            if event.attempt_id not in self._posted:
                continue
            if event.outcome == "error" and event.attempt_id in self._abandoned:
                continue
            told.append(event)
        return told

    def release(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.release``."""
        if attempt_id in self._posted:
            self._posted.discard(attempt_id)
            self._abandoned.discard(attempt_id)
            self._emit("release", read=self._name(attempt_id))

    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        """See ``DataPlaneReader.notify``."""
        self._emit("notify", agent=agent_metadata.hex(), notice=notice.hex())

    def abandon(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.abandon``."""
        self._abandoned.add(attempt_id)
        self._emit("abandon", read=self._name(attempt_id))

    def close(self) -> None:
        """The process ends next, which is the proof."""

    @property
    def reads(self) -> int:
        """READs whose end was not seen."""
        return len(self._posted)

    @property
    def sending(self) -> bool:
        """Notices leave at once."""
        return False
