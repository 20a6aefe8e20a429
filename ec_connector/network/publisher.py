# SPDX-License-Identifier: Apache-2.0
"""The publishing side: one PUB socket, and one ROUTER that sends again. One thread only.

Nothing here waits for a subscriber. One that does not read loses messages, sees it by
their numbers, and may ask for them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import zmq

from ec_connector.events.codec import (
    END_OF_REPLAY,
    Event,
    EventBatch,
    encode,
    pack_number,
    unpack_number,
)
from ec_connector.events.log import MAX_BATCH, Told, as_events
from ec_connector.network.control import BindError
from ec_connector.network.stats import NetworkStats
from ec_protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from ec_connector.config.settings import EventSettings
    from ec_connector.processes.spec import EventsSpec

logger = logging.getLogger(__name__)

#: Bytes of messages that are kept to be sent again, whatever their number.
MAX_KEPT_BYTES: Final = 64 << 20
#: Subscribers that are being sent old messages at the same time.
MAX_REPLAYS: Final = 64
#: Old messages that go out between two looks at the other sockets.
_BURST: Final = 64
#: A request to send again is a number, a subscription a topic.
_MAX_REQUEST_BYTES: Final = 1024
#: How long the last message may keep a process that ends.
_LINGER_MS: Final = 200


class EventPublisher:
    """Sends what it is told.

    Args:
        context: The process's ZMQ context.
        settings: Endpoints, topic and bounds.
        engine_id: Names the server.
        incarnation: This start of it.
        address: Where consumers read from it, if they can.
        sign_of_life_s: Longest silence: after it an empty message is sent.
        stats: Where to count.
        wall_clock: Seconds since 1970.

    Raises:
        BindError: An endpoint is in use, or cannot be bound here.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        settings: EventSettings | EventsSpec,
        *,
        engine_id: str,
        incarnation: str,
        address: tuple[str, int] | None,
        sign_of_life_s: float,
        stats: NetworkStats,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._limit = settings.queue
        self._waiting: list[Told | int] = []
        self._topic = settings.topic.encode()
        self._who = {
            "engine_id": engine_id,
            "incarnation": incarnation,
            "host": address[0] if address else None,
            "port": address[1] if address else None,
        }
        self._interval = sign_of_life_s
        self._wall_clock = wall_clock
        self._stats = stats
        self._number = 0
        self._buffer = settings.buffer
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._speak_at = 0.0
        self._replays: dict[bytes, int] = {}
        self._publish = _bound(
            context, zmq.PUB, settings.endpoint, "ec_events_endpoint", settings.buffer
        )
        self._replay: zmq.Socket[bytes] | None = None
        if settings.replay_endpoint is not None:
            try:
                self._replay = _bound(
                    context,
                    zmq.ROUTER,
                    settings.replay_endpoint,
                    "ec_events_replay_endpoint",
                    settings.buffer + _BURST,
                )
            except BindError:
                self._publish.close(0)
                raise
            self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return [self._replay] if self._replay is not None else []

    def add(self, events: list[Told], missing: int = 0) -> None:
        """Take what is to be published; too much of it is dropped, and that is said.

        Args:
            events: What has become of encodings, in order.
            missing: So many more followed and did not come.
        """
        room = max(0, self._limit - len(self._waiting))
        self._waiting += events[:room]
        missing += len(events[room:])
        if missing:
            self._waiting.append(missing)

    def turn(self, now: float) -> bool:
        """Send what there is.

        Returns:
            Whether something was sent, or more is to be sent at once.
        """
        worked = False
        if self._waiting:
            taken, self._waiting = self._waiting, []
            for first in range(0, len(taken), MAX_BATCH):
                self._send(as_events(taken[first : first + MAX_BATCH]))
            self._speak_at = now + self._interval
            worked = True
        elif now >= self._speak_at:
            # Its number is the next message's, so that a quiet stream shows what is missing.
            self._put(self._number, encode(self._batch([])))
            self._speak_at = now + self._interval
        return self._send_again() or worked

    def next_deadline(self) -> float:
        """When ``turn`` has something to do next."""
        return self._speak_at

    def close(self) -> None:
        """Say goodbye and close. May be called twice."""
        if not self._publish.closed:
            taken, self._waiting = self._waiting, []
            self._send([*as_events(taken), Event(event="stopped")])
            self._publish.close(_LINGER_MS)
        if self._replay is not None:
            self._replay.close(0)

    # -------------------------------------------------------------------- internals
    def _batch(self, events: list[Event]) -> EventBatch:
        return EventBatch(ts=self._wall_clock(), events=events, **self._who)  # type: ignore[arg-type]

    def _send(self, events: list[Event]) -> None:
        payload = encode(self._batch(events))
        self._kept.append((self._number, payload))
        self._kept_bytes += len(payload)
        while len(self._kept) > self._buffer or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
        self._put(self._number, payload)
        self._number += 1
        for event in events:
            if event.event == "dropped":
                self._stats.counts["tier_events_dropped"] += event.count
            else:
                self._stats.counts["tier_events_published"] += 1

    def _put(self, number: int, payload: bytes) -> None:
        try:
            self._publish.send_multipart(
                [self._topic, pack_number(number), payload], zmq.NOBLOCK, copy=True
            )
        except zmq.ZMQError as exc:
            # A PUB socket drops instead; whatever this is, the numbers tell of it.
            logger.warning("event message %d was not sent: %s", number, exc)

    def _send_again(self) -> bool:
        socket = self._replay
        if socket is None:
            return False
        for _ in range(_BURST):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._start_replay(frames)
        left = _BURST
        for identity in list(self._replays):
            left = self._go_on(socket, identity, left)
        return left < _BURST

    def _start_replay(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 3 or frames[1]:
                raise RemoteProtocolError(f"replay: {len(frames)} frames", clause="EC-13.4")
            start = unpack_number(frames[2])
        except RemoteProtocolError:
            self._stats.counts["malformed_frames"] += 1
            return
        if frames[0] in self._replays or len(self._replays) < MAX_REPLAYS:
            self._replays[frames[0]] = start
        else:
            self._stats.counts["replays_refused"] += 1

    def _go_on(self, socket: zmq.Socket[bytes], identity: bytes, left: int) -> int:
        """Send one subscriber some more; returns how many messages may still go out."""
        first = self._kept[0][0] if self._kept else self._number
        number = max(first, self._replays[identity])
        try:
            while left > 0:
                left -= 1
                if number >= self._number:
                    socket.send_multipart([identity, b"", END_OF_REPLAY, b""], zmq.NOBLOCK)
                    del self._replays[identity]
                    return left
                payload = self._kept[number - first][1]
                socket.send_multipart([identity, b"", pack_number(number), payload], zmq.NOBLOCK)
                number += 1
                self._stats.counts["tier_events_resent"] += 1
        except zmq.ZMQError as exc:
            logger.info("a subscriber stopped reading what it had asked for: %s", exc)
            del self._replays[identity]
            return left
        self._replays[identity] = number
        return left


def _bound(
    context: zmq.Context[Any], kind: int, endpoint: str, key: str, high_water: int
) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, high_water)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    # Of subscriptions too: a longer frame ends its connection before it is in memory.
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
    try:
        socket.bind(endpoint)
    except (zmq.ZMQError, OSError) as exc:
        socket.close(0)
        raise BindError(
            f"{key}={endpoint!r}: {exc}. Set it to an interface and port, or a path, that this "
            "process may bind and that nobody else has"
        ) from exc
    return socket
