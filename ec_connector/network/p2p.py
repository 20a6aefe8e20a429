# SPDX-License-Identifier: Apache-2.0
"""The peer-to-peer half of one scheduler process: data plane, control, events, pump.

Imported only behind the peer-to-peer gate (EC-12.2). The engine thread talks to the
node under the lock and wakes the pump; everything that touches a socket or NIXL happens
on the pump's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ec_connector.engine.stats import PumpStats
from ec_connector.events.log import EventLog
from ec_connector.network.data import DataPlaneReader, DataPlaneServer, NixlReader, NixlServer
from ec_connector.network.planes import Planes
from ec_connector.network.publisher import EventPublisher
from ec_connector.network.pump import Pump
from ec_protocol.node import Node

if TYPE_CHECKING:
    from ec_connector.config.settings import ECConfig
    from ec_connector.region.shared import SharedRegion


class P2P:
    """Peer-to-peer reads of one scheduler process.

    Args:
        node: The protocol's state, made with ``Peering``.
        config: Settings; ``enable_nixl`` is on.
        region: The mapped region, registered with the data plane.
        lock: The node's lock.
        engine_id: Names the data plane's agents, with a number per start.
        incarnation: That number.
        clock: Monotonic seconds.
        on_failure: Called once, from the pump thread, if the pump had to give up.
        wrap_reader: Puts something between the pump and the data plane's reader, for
            fault injection.

    Attributes:
        pump: The thread that owns sockets and data plane.
        events: What waits to be published, or None when nothing is.
    """

    def __init__(
        self,
        node: Node,
        config: ECConfig,
        region: SharedRegion,
        *,
        lock: threading.Lock,
        engine_id: str,
        incarnation: str,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[BaseException], None] | None = None,
        wrap_reader: Callable[[Any], Any] | None = None,
    ) -> None:
        agent = f"{engine_id}-{incarnation}"
        size = region.num_blocks * region.block_size_bytes
        self.node = node
        self.clock = clock
        self.lock = lock
        self._advertised = config.advertised
        self.events: EventLog | None = None

        def make_reader() -> DataPlaneReader:
            reader = NixlReader(
                agent,
                region.address,
                size,
                config.nixl_backends,
                # A sleeping producer may wake up; the proof still comes before retirement.
                grace_s=config.timing.quarantine_s / 2,
            )
            return reader if wrap_reader is None else wrap_reader(reader)

        def make_server() -> DataPlaneServer:
            return NixlServer(agent, region.address, size, config.nixl_backends)

        stats = PumpStats()
        planes = Planes(reader=make_reader, server=make_server, bind=config.side_channel)
        settings = config.events
        if settings is not None:
            log = self.events = EventLog(settings.queue)
            node.tier.listener = log.add
            planes.events = lambda context, bound: EventPublisher(
                context,
                settings,
                log,
                lock,
                engine_id=engine_id,
                incarnation=incarnation,
                address=self._announced(bound),
                sign_of_life_s=config.timing.heartbeat_interval_s,
                stats=stats,
            )
        self.pump = Pump(
            node,
            planes,
            lock=lock,
            clock=clock,
            stats=stats,
            on_failure=on_failure,
            memory=region.buffer,
        )

    @property
    def address(self) -> tuple[str, int] | None:
        """Where consumers reach this producer; None for a consumer, or once unhealthy.

        What is advertised, if that was configured; otherwise what is bound.
        """
        return self._announced(self.pump.address) if self.pump.healthy else None

    def _announced(self, bound: tuple[str, int] | None) -> tuple[str, int] | None:
        if bound is None:
            return None
        host, port = self._advertised
        return host or bound[0], port or bound[1]

    def start(self) -> None:
        """Start the pump; returns when its sockets are bound.

        Raises:
            ECError: A port in use, an unknown backend, or a region that cannot be
                registered; nothing is left running.
        """
        self.pump.start()

    @property
    def healthy(self) -> bool:
        """Whether the pump runs."""
        return self.pump.healthy

    def wake(self) -> None:
        """Wake the pump if the engine thread has left something to do for it.

        Called after every hook, so it costs next to nothing when there is nothing.
        """
        if self.node.has_commands or (self.events is not None and self.events.pending):
            self.pump.wake()

    def shutdown(self) -> None:
        """Stop the pump: waiting fetches fail, grants end, sockets close."""
        self.pump.stop()
