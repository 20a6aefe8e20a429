# SPDX-License-Identifier: Apache-2.0
"""What a reader does: requests, READs, and the words that the engine is told.

One thread; nothing here waits. Times that are compared with a fence are taken *after*
the library reported the end of a READ, so the end they are compared for lies before them
(EC-5.3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import zmq

from ec_connector.config.keyfiles import KeyPair
from ec_connector.config.peers import AllowedPeers
from ec_connector.network.control import ControlClient
from ec_connector.network.data.base import DataPlaneError, DataPlaneReader
from ec_connector.network.names import Names
from ec_connector.network.stats import NetworkStats
from ec_connector.processes.checksums import Comparing
from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import (
    AbandonRead,
    ClosePeer,
    Command,
    ForgetRead,
    OpenPeer,
    PeerKey,
    PrepareRead,
    ReleaseGrant,
    SendReq,
)
from ec_protocol.p2p.reader import Reader
from ec_protocol.p2p.wire import XferStatus

logger = logging.getLogger(__name__)

#: Requests of which is remembered when they were sent; some are never answered.
_MAX_UNANSWERED: Final = 4096
#: Producers of which it is logged that they cannot be read from.
_MAX_NOTED: Final = 256
#: Timers are looked at no more often while a transfer keeps the process busy.
TICK_S: Final = 1e-3


class Reading:
    """The connections and READs of one reader.

    Args:
        context: The process's ZMQ context.
        reader: The protocol's state.
        plane: The data plane; closed with this.
        names: Looks host names up.
        clock: Seconds of the common clock.
        stats: Where to count.
        tick_s: Timers are looked at no more often.
        pair: Our keys, where peers have keys.
        allowed: Hosts that may be connected to; None: this one only.
        memory: The region, where checksums are demanded.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        reader: Reader,
        plane: DataPlaneReader,
        names: Names,
        *,
        clock: Callable[[], float],
        stats: NetworkStats,
        tick_s: float = TICK_S,
        pair: KeyPair | None = None,
        allowed: AllowedPeers | None = None,
        memory: memoryview | None = None,
    ) -> None:
        self._comparing = None if memory is None else Comparing(memory)
        self.reader = reader
        self._tick_s = tick_s
        self._fetches = reader.fetches
        self._plane = plane
        self._clock = clock
        self._stats = stats
        self._client = ControlClient(
            context, self._fetches.timing, names, pair=pair, allowed=allowed
        )
        self._sent_at: dict[int, float] = {}
        self._posted_at: dict[int, float] = {}
        self._incompatible: set[PeerKey] = set()
        self._ticked_at = float("-inf")

    @property
    def sockets(self) -> list[Any]:
        """What to poll for input."""
        return self._client.sockets

    def turn(self) -> bool:
        """Look at everything once.

        Returns:
            Whether something happened.
        """
        worked = self._hear()
        worked = self._progress() or worked
        worked = self._compare() or worked
        now = self._clock()
        if now >= self._ticked_at + self._tick_s:
            self._ticked_at = now
            self._fetches.tick(now)
        return self._run_commands() or worked

    def transferring(self, now: float) -> bool:
        """Whether a READ may be under way, or a notice: they need progress."""
        return self.reader.reading or self._plane.sending

    def next_deadline(self) -> float | None:
        """When ``turn`` has something to do next, unless something comes."""
        due = (self._fetches.next_deadline(), self._client.next_deadline())
        return min((moment for moment in due if moment is not None), default=None)

    def close(self) -> None:
        """The orderly end: what is not posted fails. May be called twice."""
        self._fetches.shutdown(self._clock())
        self.reader.commands()
        self._client.close_all()
        try:
            self._plane.close()
        except Exception:
            logger.exception("closing the data plane")

    def _hear(self) -> bool:
        """The answers of those who are asked, and their connections."""
        client, fetches = self._client, self._fetches
        arrived = client.receive()
        for peer, frames, _ in arrived:
            now = self._clock()
            try:
                ack = wire.keep_named_rows(wire.decode_ack(frames))
            except RemoteProtocolError as exc:
                self._stats.malformed("ack", exc)
                fetches.counters["malformed_frames"] += 1
                continue
            fetches.attempts.peers.heard_from(peer)
            if ack.status == XferStatus.NACK_INCOMPAT:
                self._note_incompatible(peer)
            attempt = fetches.on_ack(peer, ack, now)
            if attempt is not None and attempt in self._sent_at:
                self._stats.sample("ack", now - self._sent_at.pop(attempt))
        changes = client.changes(self._clock())
        if client.refused:
            self._stats.counts["handshakes_failed"] = client.refused
        for peer, made in changes:
            if made:
                fetches.attempts.peers.heard_from(peer)
            else:
                fetches.peer_lost(peer, self._clock())
                client.close(peer)
        return bool(arrived or changes)

    def _note_incompatible(self, peer: PeerKey) -> None:
        """Say once of each producer that it has another encoder: nobody reads from it."""
        if peer not in self._incompatible and len(self._incompatible) < _MAX_NOTED:
            self._incompatible.add(peer)
            logger.warning(
                "%s:%s refuses: its vLLM, model, dtype, width or encoder is another one; compare "
                "the lines that begin with `encoder` in both logs",
                *peer[:2],
            )

    def _progress(self) -> bool:
        """The READs."""
        plane, fetches = self._plane, self._fetches
        events = plane.poll() if plane.reads or plane.sending else []
        for attempt, outcome, reason in events:
            now = self._clock()
            posted_at = self._posted_at.pop(attempt, None)
            if outcome == "done":
                if posted_at is not None:
                    self._stats.sample("read", now - posted_at)
                if self._comparing is None or not self._comparing.done(attempt, now):
                    fetches.read_done(attempt, now)
            else:
                fetches.read_error(attempt, now)
                logger.warning("READ %d failed: %s", attempt, reason)
        return bool(events)

    def _compare(self) -> bool:
        """A piece of the READs that are done and do not count yet (EC-8.11)."""
        comparing = self._comparing
        if comparing is None or not comparing:
            return False
        decided = comparing.turn()
        if decided is not None:
            attempt, done_at, right = decided
            if right:
                self._fetches.read_done(attempt, done_at)
            else:
                logger.error(
                    "READ %d brought other bytes than its producer had: they are dropped. Memory, "
                    "the way between, or somebody changes them",
                    attempt,
                )
                self._fetches.read_corrupt(attempt, done_at)
        return True

    def _run_commands(self) -> bool:
        worked = False
        while commands := self.reader.commands():
            worked = True
            for command in commands:
                self._run(command)
        return worked

    def _run(self, command: Command) -> None:
        client, plane = self._client, self._plane
        if isinstance(command, OpenPeer):
            client.open(command.peer, self._clock())
        elif isinstance(command, ClosePeer):
            client.close(command.peer)
        elif isinstance(command, SendReq):
            self._send(command)
        elif isinstance(command, PrepareRead):
            self._post(command)
        elif isinstance(command, ReleaseGrant):
            try:
                plane.notify(command.agent_metadata, command.notice)
            except (DataPlaneError, RemoteProtocolError) as exc:
                # The lease ends the grant anyway.
                logger.info("grant not released: %s", exc)
                self._stats.counts["releases_dropped"] += 1
        elif isinstance(command, AbandonRead):
            self._posted_at.pop(command.attempt_id, None)
            if self._comparing is not None:
                self._comparing.forget(command.attempt_id)
            plane.abandon(command.attempt_id)
        elif isinstance(command, ForgetRead):
            plane.release(command.attempt_id)

    def _send(self, command: SendReq) -> None:
        if command.req.attempt_id is not None:
            if len(self._sent_at) >= _MAX_UNANSWERED:
                self._sent_at.clear()
            self._sent_at[command.req.attempt_id] = self._clock()
        if not self._client.send(command.peer, wire.encode(command.req)):
            self._stats.counts["requests_dropped"] += 1

    def _post(self, command: PrepareRead) -> None:
        attempt, plane, fetches = command.attempt_id, self._plane, self._fetches
        try:
            plane.prepare(
                attempt,
                command.agent_metadata,
                command.local,
                command.remote,
                command.device_id,
                command.notice,
            )
        except (DataPlaneError, RemoteProtocolError) as exc:
            logger.warning("READ %d cannot be prepared: %s", attempt, exc)
            self._stats.counts["prepare_failures"] += 1
            fetches.post_failed(attempt, self._clock())
            return
        if not fetches.post_read(attempt, self._clock()):
            plane.discard(attempt)
            return
        self._posted_at[attempt] = self._clock()
        if self._comparing is not None and command.checksum:
            self._comparing.posted(command)
        try:
            plane.post(attempt)
        except DataPlaneError as exc:
            logger.warning("READ %d cannot be posted: %s", attempt, exc)
            fetches.read_error(attempt, self._clock())
