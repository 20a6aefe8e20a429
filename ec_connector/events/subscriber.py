# SPDX-License-Identifier: Apache-2.0
"""A subscriber for Python programs: sockets around ``EventStream``.

    subscriber = EventSubscriber("tcp://10.0.0.5:5650", "tcp://10.0.0.5:5651")
    while True:
        for update in subscriber.poll(timeout_s=1.0):
            ...

One thread at a time. Use one subscriber per server and data-parallel rank: numbers are
each publisher's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from ec_connector.events.codec import (
    END_OF_REPLAY,
    MAX_PAYLOAD_BYTES,
    decode,
    pack_number,
    unpack_number,
)
from ec_connector.events.stream import EventStream, Update
from ec_protocol.errors import ConfigError, RemoteProtocolError

#: Three signs of life that did not come, at the default heartbeat.
SILENCE_S: Final = 6.0
#: What has not been sent again by then will not be.
_REPLAY_S: Final = 2.0
#: Messages that may wait to be read, and that are read at once.
_HIGH_WATER: Final = 100_000
_BURST: Final = 1024


class EventSubscriber:
    """Connected to one publisher; connects again by itself.

    Args:
        endpoint: Its ``ec_events_endpoint``, as seen from here.
        replay_endpoint: Its ``ec_events_replay_endpoint``, likewise; None takes losses
            as they come.
        topic: Its ``ec_events_topic``.
        silence_s: After this long without a sign of life nothing is known.
        clock: Monotonic seconds.

    Attributes:
        malformed: Messages that were none.

    Raises:
        ConfigError: An endpoint that cannot be connected to.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "ec",
        *,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.malformed = 0
        self._topic = topic.encode()
        self._silence_s = silence_s
        self._clock = clock
        self._heard_at: float | None = None
        self._asked_at = 0.0
        self._stream = EventStream(replay_endpoint is not None)
        self._context: zmq.Context[Any] = zmq.Context()
        self._live = self._connect(zmq.SUB, endpoint)
        self._live.setsockopt(zmq.SUBSCRIBE, self._topic)
        self._again: zmq.Socket[bytes] | None = None
        if replay_endpoint is not None:
            try:
                self._again = self._connect(zmq.DEALER, replay_endpoint)
            except ConfigError:
                self.close()
                raise

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return [self._live] if self._again is None else [self._live, self._again]

    def poll(self, timeout_s: float) -> list[Update]:
        """Wait for messages, at most ``timeout_s`` seconds, and say what they mean."""
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        poller.poll(max(0, int(timeout_s * 1000)))
        return self.receive()

    def receive(self) -> list[Update]:
        """What has come, and whether it has been silent; never waits."""
        now = self._clock()
        updates: list[Update] = []
        for frames in _messages(self._live):
            if len(frames) == 3 and frames[0] == self._topic:
                updates += self._feed(frames[1], frames[2], now)
            elif not (frames and frames[0].startswith(self._topic) and len(frames) == 3):
                self.malformed += 1
        if self._again is not None:
            updates += self._hear_again(self._again, now)
        if self._heard_at is not None and now >= self._heard_at + self._silence_s:
            self._heard_at = None
            updates.append(Update("silent"))
        return updates

    def close(self) -> None:
        """Close the sockets. May be called twice."""
        self._context.destroy(linger=0)

    # -------------------------------------------------------------------- internals
    def _connect(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as exc:
            socket.close()
            raise ConfigError(
                f"events endpoint {endpoint!r}: {exc}; expected tcp://HOST:PORT or ipc://PATH"
            ) from exc
        return socket

    def _feed(self, number: bytes, payload: bytes, now: float) -> list[Update]:
        try:
            found = self._stream.feed(unpack_number(number), decode(payload))
        except RemoteProtocolError:
            self.malformed += 1
            return []
        self._heard_at = now
        return found

    def _hear_again(self, socket: zmq.Socket[bytes], now: float) -> list[Update]:
        updates: list[Update] = []
        for frames in _messages(socket):
            if len(frames) != 3 or frames[0]:
                self.malformed += 1
            elif frames[1] == END_OF_REPLAY:
                updates += self._stream.replay_over()
            else:
                self._asked_at = now  # it is still sending
                updates += self._feed(frames[1], frames[2], now)
        start = self._stream.take_request()
        if start is not None:
            self._asked_at = now
            try:
                socket.send_multipart([b"", pack_number(start)], zmq.NOBLOCK)
            except zmq.ZMQError:
                updates += self._stream.replay_over()
        elif self._stream.waiting and now >= self._asked_at + _REPLAY_S:
            updates += self._stream.replay_over()
        return updates


def lines_of(update: Update) -> list[dict[str, Any]]:
    """An update as plain mappings, one per event: for logs and other programs."""
    who = {}
    if update.batch is not None:
        batch = update.batch
        who = {"engine_id": batch.engine_id, "incarnation": batch.incarnation, "ts": batch.ts}
    if update.kind == "events" and update.batch is not None:
        return [{**msgspec.to_builtins(event), **who} for event in update.batch.events]
    return [{"event": update.kind, **({"count": update.count} if update.count else {}), **who}]


def _messages(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    while len(found) < _BURST:
        try:
            found.append(socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            break
    return found
