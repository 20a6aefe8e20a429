# SPDX-License-Identifier: Apache-2.0
"""The pump's I/O: sockets and data plane on one side, the core on the other.

``PumpIO`` has no thread of its own and starts nothing: the pump's thread makes it,
turns it and closes it. It takes the lock for one short core call at a time and does
no I/O under it.

Times that are compared with a fence are taken *after* the library reported the end
of a READ, so the end they are compared for lies before them (EC-5.3).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import zmq

from ec_connector.engine.stats import PumpStats
from ec_connector.network.control import ControlClient
from ec_connector.network.data.base import DataPlaneError, DataPlaneReader
from ec_connector.network.planes import Planes
from ec_connector.network.publisher import EventPublisher
from ec_connector.network.serving import Serving
from ec_protocol.errors import ECError, RemoteProtocolError
from ec_protocol.node import Node
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import (
    AbandonRead,
    ClosePeer,
    Command,
    ForgetRead,
    OpenPeer,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)

logger = logging.getLogger(__name__)

#: Longest sleep: holds that the engine thread made meanwhile end this much late.
_IDLE_S: Final = 1.0
#: Pause between two looks while a transfer is under way, and when it takes long.
_BUSY_PAUSE_S: Final = 30e-6
_SLOW_PAUSE_S: Final = 300e-6
_SLOW_AFTER_S: Final = 0.1
#: Requests of which is remembered when they were sent; some are never answered.
_MAX_UNANSWERED: Final = 4096
#: Timers are looked at no more often while a transfer keeps the pump busy.
_TICK_S: Final = 1e-3


class PumpError(ECError):
    """The pump cannot be used: wrongly made, started twice, or failed."""


class PumpIO:
    """Everything that the pump's thread owns. Pump thread only.

    Args:
        node: The protocol's state.
        planes: What ``open`` makes.
        lock: The node's lock.
        clock: Monotonic seconds.
        wake_fd: Becomes readable when the engine thread has left something to do.
        stats: Where to count.

    Raises:
        PumpError: A plane is missing that the node's role needs.
    """

    def __init__(
        self,
        node: Node,
        planes: Planes,
        *,
        lock: threading.Lock,
        clock: Callable[[], float],
        wake_fd: int,
        stats: PumpStats,
    ) -> None:
        if node.grants is not None and (planes.bind is None or planes.server is None):
            raise PumpError("a producer needs an address to bind and a data plane to serve")
        if node.reads is not None and planes.reader is None:
            raise PumpError("a consumer needs a data plane to read with")
        self.node = node
        self._planes = planes
        self._lock = lock
        self._clock = clock
        self._wake_fd = wake_fd
        self.stats = stats
        self.address: tuple[str, int] | None = None
        self._context: zmq.Context[Any] | None = None
        self._events: EventPublisher | None = None
        self._serving: Serving | None = None
        self._client: ControlClient | None = None
        self._reader: DataPlaneReader | None = None
        self._sent_at: dict[int, float] = {}
        self._posted_at: dict[int, float] = {}
        self._busy_since: float | None = None
        self._ticked_at = -math.inf

    def open(self) -> None:
        """Bind, connect and register; then ``close`` must follow.

        Raises:
            ECError: A port in use, an unknown backend, or a refused region.
        """
        planes = self._planes
        self._context = zmq.Context()
        if self.node.grants is not None and planes.bind and planes.server is not None:
            self._serving = Serving(
                self._context,
                self.node,
                planes.server,
                planes.bind,
                lock=self._lock,
                clock=self._clock,
                stats=self.stats,
            )
            self.address = self._serving.address
        if self.node.reads is not None and planes.reader is not None:
            self._client = ControlClient(self._context, self.node.timing)
            self._reader = planes.reader()
        if planes.events is not None:
            self._events = planes.events(self._context, self.address)

    def close(self) -> None:
        """Close everything; each thing on its own, so that none keeps another open."""
        for thing in (self._events, self._reader, self._serving):
            if thing is not None:
                try:
                    thing.close()
                except Exception:
                    logger.exception("closing %s", type(thing).__name__)
        if self._client is not None:
            self._client.close_all()
        if self._context is not None:
            self._context.destroy(linger=0)

    def shut_down(self) -> None:
        """The orderly end: waiting fetches fail, READs get their last proof, grants end."""
        with self._lock:
            self.node.stop_reading(self._clock())
        self._run_commands()
        self._close_reader()
        if self._serving is not None:
            self._serving.shut_down()

    def fail_closed(self) -> None:
        """After a failure: fetches fail, READs are quarantined, grants keep their lease.

        Never raises: what fails here leaves blocks where they are, which is safe.
        """
        try:
            with self._lock:
                self.node.stop_reading(self._clock())
                self.node.commands()
            self._close_reader()
        except Exception:
            logger.exception("failing closed")

    def _close_reader(self) -> None:
        """Tear the reading side's endpoints down: the last proof of each READ."""
        if self._reader is None:
            return
        proven = self._reader.close()
        with self._lock:
            self.node.proven(proven, self._clock())
            self.node.commands()

    # ------------------------------------------------------------------ one turn
    def turn(self) -> bool:
        """Look at everything once.

        Returns:
            Whether something happened.
        """
        self._drain_wake()
        worked = self._serving is not None and self._serving.turn()
        worked = self._hear() or worked
        worked = self._progress() or worked
        now = self._clock()
        if now >= self._ticked_at + _TICK_S:
            self._ticked_at = now
            with self._lock:
                self.node.tick(now)
        worked = self._run_commands() or worked
        # Last, so that what this turn did is told with it.
        return (self._events is not None and self._events.turn(now)) or worked

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _hear(self) -> bool:
        """The answers of those who are asked, and their connections."""
        client, node = self._client, self.node
        if client is None:
            return False
        arrived = client.receive()
        for peer, frames in arrived:
            now = self._clock()
            try:
                ack = node.read_answer(frames)
            except RemoteProtocolError as exc:
                self.stats.malformed("ack", exc)
                with self._lock:
                    node.malformed("answer")
                continue
            with self._lock:
                attempt_id = node.answer(peer, ack, now)
            if attempt_id is not None and attempt_id in self._sent_at:
                self.stats.sample("ack", now - self._sent_at.pop(attempt_id))
        changes = client.changes(self._clock())
        for peer, made in changes:
            with self._lock:
                (node.heard if made else node.lost)(peer, self._clock())
            if not made:
                client.close(peer)
        return bool(arrived or changes)

    def _progress(self) -> bool:
        """The READs of others' encodings."""
        reader, node = self._reader, self.node
        if reader is None:
            return False
        events = reader.poll() if reader.reads or reader.sending else []
        for attempt_id, outcome, reason in events:
            now = self._clock()
            posted_at = self._posted_at.pop(attempt_id, None)
            if outcome == "done" and posted_at is not None:
                self.stats.sample("read", now - posted_at)
            with self._lock:
                if outcome == "done":
                    node.read_done(attempt_id, now)
                else:
                    node.read_failed(attempt_id, now)
            if outcome != "done":
                logger.warning("READ %d failed: %s", attempt_id, reason)
        proven = reader.reap() if reader.tainted else []
        if proven:
            with self._lock:
                node.proven(proven, self._clock())
        return bool(events or proven)

    def _run_commands(self) -> bool:
        client, reader = self._client, self._reader
        if client is None or reader is None:
            return False
        worked = False
        while True:
            with self._lock:
                commands = self.node.commands()
            if not commands:
                return worked
            worked = True
            for command in commands:
                self._run(command, client, reader)

    def _run(self, command: Command, client: ControlClient, reader: DataPlaneReader) -> None:
        if isinstance(command, OpenPeer):
            client.open(command.peer, self._clock())
        elif isinstance(command, ClosePeer):
            client.close(command.peer)
        elif isinstance(command, SendReq):
            if command.req.attempt_id is not None:
                if len(self._sent_at) >= _MAX_UNANSWERED:
                    self._sent_at.clear()
                self._sent_at[command.req.attempt_id] = self._clock()
            if not client.send(command.peer, wire.encode(command.req)):
                self.stats.count("requests_dropped")
        elif isinstance(command, PrepareRead):
            self._post(command, reader)
        elif isinstance(command, ReleaseGrant):
            try:
                reader.notify(command.agent_metadata, command.notice)
            except (DataPlaneError, RemoteProtocolError) as exc:
                # The lease ends the grant anyway.
                logger.info("grant not released: %s", exc)
                self.stats.count("releases_dropped")
        elif isinstance(command, AbandonRead):
            self._posted_at.pop(command.attempt_id, None)
            reader.abandon(command.attempt_id)
        elif isinstance(command, ForgetRead):
            reader.release(command.attempt_id)

    def _post(self, command: PrepareRead, reader: DataPlaneReader) -> None:
        attempt_id = command.attempt_id
        try:
            reader.prepare(
                attempt_id,
                command.agent_metadata,
                command.local,
                command.remote,
                command.device_id,
                command.notice,
            )
        except (DataPlaneError, RemoteProtocolError) as exc:
            logger.warning("READ %d cannot be prepared: %s", attempt_id, exc)
            self.stats.count("prepare_failures")
            with self._lock:
                self.node.post_failed(attempt_id, self._clock())
            return
        with self._lock:
            may_post = self.node.may_post(attempt_id, self._clock())
        if not may_post:
            reader.discard(attempt_id)
            return
        self._posted_at[attempt_id] = self._clock()
        try:
            reader.post(attempt_id)
        except DataPlaneError as exc:
            logger.warning("READ %d cannot be posted: %s", attempt_id, exc)
            with self._lock:
                self.node.read_failed(attempt_id, self._clock())

    # ------------------------------------------------------------------- waiting
    def sleep(self, worked: bool) -> None:
        """Wait until there may be something to do; not at all after work was found."""
        now = self._clock()
        if self._transferring(now):
            self._busy_since = now if self._busy_since is None or worked else self._busy_since
            if worked:
                return  # a READ that was just posted may be over: some copy at once
            slow = now - self._busy_since > _SLOW_AFTER_S
            time.sleep(_SLOW_PAUSE_S if slow else _BUSY_PAUSE_S)
            return
        self._busy_since = None
        if worked:
            return
        with self._lock:
            if self.node.has_commands:
                return
            due = [self.node.next_deadline()]
            for plane in (self._client, self._events):
                due.append(plane.next_deadline() if plane is not None else None)
        wait = min([_IDLE_S, *(moment - now for moment in due if moment is not None)])
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        for end in (self._serving, self._client, self._events):
            for sock in end.sockets if end is not None else ():
                poller.register(sock, zmq.POLLIN)
        poller.poll(max(1, int(wait * 1000 + 0.999)) if wait > 0 else 0)

    def _transferring(self, now: float) -> bool:
        sending = self._reader is not None and self._reader.sending
        serving = self._serving is not None and self._serving.lingering(now)
        return self.node.transferring or sending or serving
