# SPDX-License-Identifier: Apache-2.0
"""The producer's half of the pump: requests answered, grants ended. Pump thread only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import zmq

from ec_connector.engine.stats import PumpStats
from ec_connector.network.control import ControlServer
from ec_connector.network.data.base import DataPlaneServer
from ec_protocol.errors import RemoteProtocolError
from ec_protocol.node import Node
from ec_protocol.p2p import wire

logger = logging.getLogger(__name__)

#: A served peer's last packets need a little progress after its grant has ended.
_LINGER_S: Final = 0.05


class Serving:
    """A control socket, the memory that is offered, and the grants on it.

    Args:
        context: The pump's ZMQ context.
        node: The protocol's state; it grants.
        make_offer: Makes the data plane's server.
        bind: Host and port of the control socket.
        lock: The node's lock.
        clock: Monotonic seconds.
        stats: Where to count.

    Raises:
        ECError: A port in use, an unknown backend, or a refused region; nothing of it
            is left open.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        node: Node,
        make_offer: Callable[[], DataPlaneServer],
        bind: tuple[str, int],
        *,
        lock: threading.Lock,
        clock: Callable[[], float],
        stats: PumpStats,
    ) -> None:
        self.node = node
        self._lock = lock
        self._clock = clock
        self._stats = stats
        self._until = 0.0
        self._server = ControlServer(context, *bind, node.timing)
        try:
            self._offer = make_offer()
        except BaseException:
            self._server.close()
            raise
        self.address = (bind[0], self._server.port)
        with lock:
            node.offer(self._offer.agent_metadata)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for input."""
        return self._server.sockets

    def turn(self) -> bool:
        """Answer what has come, and take the completion notices.

        Returns:
            Whether there was anything.
        """
        node, server = self.node, self._server
        arrived = server.receive()
        for identity, frames in arrived:
            try:
                request = node.read_request(frames)
            except RemoteProtocolError as exc:
                self._stats.malformed("request", exc)
                with self._lock:
                    node.malformed("request")
                continue
            with self._lock:
                ack = node.request(identity, request, self._clock())
            if not server.send(identity, wire.encode(ack)):
                self._stats.count("answers_dropped")
        now = self._clock()
        if self._granting:
            self._until = now + _LINGER_S
        if now > self._until:
            return bool(arrived)
        notices = self._offer.poll_notices()
        if notices:
            with self._lock:
                for notice in notices:
                    node.notice(notice, self._clock())
        return bool(arrived or notices)

    def lingering(self, now: float) -> bool:
        """Whether peers may need a little progress although no grant is open."""
        return now <= self._until

    @property
    def _granting(self) -> bool:
        grants = self.node.grants
        return grants is not None and grants.open_grants > 0

    def shut_down(self) -> None:
        """The orderly end: READs from us fail, grants end."""
        self._offer.close()
        with self._lock:
            self.node.stop_serving(self._clock())

    def close(self) -> None:
        """Close socket and data plane, each on its own. May be called twice."""
        for thing in (self._offer, self._server):
            try:
                thing.close()
            except Exception:
                logger.exception("closing %s", type(thing).__name__)
