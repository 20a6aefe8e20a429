# SPDX-License-Identifier: Apache-2.0
"""The publisher of events on sockets that are the kit's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import zmq

from ec_connector.config.settings import EventSettings
from ec_connector.engine.stats import PumpStats
from ec_connector.events.log import EventLog
from ec_connector.network.publisher import EventPublisher

_SETTINGS = EventSettings(
    endpoint="inproc://events", replay_endpoint=None, topic="ec", buffer=64, queue=64
)


class _Socket:
    """A PUB socket that hands its frames to the kit."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self.closed = False

    def setsockopt(self, option: int, value: int) -> None:
        """Nothing to set."""

    def bind(self, endpoint: str) -> None:
        """Nothing to bind."""

    def send_multipart(self, frames: list[bytes], flags: int = 0, copy: bool = True) -> None:
        """Publish."""
        self._emit("event", frames=[frame.hex() for frame in frames])

    def close(self, linger: int | None = None) -> None:
        """Closed."""
        self.closed = True


class _Context:
    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit

    def socket(self, kind: int) -> _Socket:
        """A socket of any kind."""
        return _Socket(self._emit)


def make_publisher(
    emit: Callable[..., None],
    log: EventLog,
    lock: Any,
    *,
    incarnation: str,
    address: tuple[str, int],
    sign_of_life_s: float,
    clock: Callable[[], float],
) -> EventPublisher:
    """The real publisher, publishing to the kit."""
    return EventPublisher(
        cast("zmq.Context[Any]", _Context(emit)),
        _SETTINGS,
        log,
        lock,
        engine_id="conformance",
        incarnation=incarnation,
        address=address,
        sign_of_life_s=sign_of_life_s,
        stats=PumpStats(),
        wall_clock=clock,
    )
