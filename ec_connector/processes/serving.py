# SPDX-License-Identifier: Apache-2.0
"""What a server does: requests answered, grants ended, events published.

It makes its sockets when it takes its place and not before: the one before it may still
have the port. One thread; nothing here waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import zmq

from ec_connector.network.control import ControlServer
from ec_connector.network.data.base import DataPlaneError, DataPlaneServer
from ec_connector.network.identity import Door
from ec_connector.network.stats import NetworkStats
from ec_connector.processes.checksums import Answers
from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.p2p.wire import XferAck
from ec_protocol.tables.timing import Timing

logger = logging.getLogger(__name__)

#: A served peer's last packets need a little progress after its grant has ended.
_LINGER_S: Final = 0.05


class Serving:
    """A control socket, the memory that is offered, and the grants on it.

    Args:
        context: The process's ZMQ context.
        grants: Who gets a grant.
        offer: The data plane's server; closed with this.
        bind: Host and port of the control socket.
        timing: Heartbeats.
        clock: Seconds of the common clock.
        stats: Where to count.
        door: Lets peers in, and says who they are; None: everybody who can connect.
        anywhere: Whether another address than a loopback one may be bound.
        memory: The region, where checksums are offered.

    Raises:
        BindError: In use, not ours to bind, or no such host; ``offer`` stays open.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        grants: ProducerGrants,
        offer: DataPlaneServer,
        bind: tuple[str, int],
        *,
        timing: Timing,
        clock: Callable[[], float],
        stats: NetworkStats,
        door: Door | None = None,
        anywhere: bool = False,
        memory: memoryview | None = None,
    ) -> None:
        self.grants = grants
        self._answers = None if memory is None else Answers(grants, memory)
        self._clock = clock
        self._stats = stats
        self._until = 0.0
        self._server = ControlServer(context, *bind, timing, door=door, anywhere=anywhere)
        self._offer = offer
        self.address = (bind[0], self._server.port)
        grants.agent_metadata = offer.agent_metadata

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return self._server.sockets

    def turn(self) -> bool:
        """Answer what has come, take the completion notices, end what is over.

        Returns:
            Whether there was anything.
        """
        grants, server = self.grants, self._server
        arrived = server.receive()
        for identity, frames, who in arrived:
            try:
                request = grants.read(frames)
            except RemoteProtocolError as exc:
                self._stats.malformed("request", exc)
                grants.counters["malformed_frames"] += 1
                continue
            ack = grants.on_request(who, request, self._clock())
            unhashed = None if self._answers is None else grants.unhashed(request, ack)
            if self._answers is not None and unhashed is not None:
                self._answers.wait(identity, who, unhashed, ack)
            else:
                self._send(identity, ack)
        hashing = self._answers is not None and len(self._answers) > 0
        for identity, ack in self._answers.turn() if self._answers is not None else ():
            self._send(identity, ack)
        now = self._clock()
        if grants.open_grants:
            self._until = now + _LINGER_S
        notices = self._notices() if now <= self._until else []
        for notice in notices:
            grants.on_notice(notice, self._clock())
        grants.tick(self._clock())
        return bool(arrived or notices or hashing)

    def _send(self, socket: bytes, ack: XferAck) -> None:
        if not self._server.send(socket, wire.encode(ack)):
            self._stats.counts["answers_dropped"] += 1

    def _notices(self) -> list[bytes]:
        """The completion notices. One that cannot be read takes those beside it along."""
        try:
            return self._offer.poll_notices()
        except DataPlaneError as exc:
            # Their leases end by themselves; nobody else may suffer from one bad peer.
            self._stats.malformed("notice", exc)
            return []

    def transferring(self, now: float) -> bool:
        """Whether READs from here may be under way: they need our progress."""
        return self.grants.open_grants > 0 or now <= self._until

    def next_deadline(self) -> float | None:
        """When ``turn`` has something to do next, unless something comes."""
        return self.grants.next_deadline()

    def close(self) -> None:
        """The orderly end: READs from here fail, grants end. May be called twice."""
        for what, end in (
            ("the data plane", self._offer.close),
            ("the grants", lambda: self.grants.shutdown(self._clock())),
            ("the control socket", self._server.close),
        ):
            try:
                end()
            except Exception:
                logger.exception("closing %s", what)
