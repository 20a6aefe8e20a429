# SPDX-License-Identifier: Apache-2.0
"""The peer-to-peer half of one scheduler process: core, data plane, control, pump.

Imported only behind the peer-to-peer gate (EC-12.2). The engine thread talks to
``consumer`` and ``producer`` under the lock and wakes the pump; everything that
touches a socket or NIXL happens on the pump's thread.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ec_connector.events.log import EventLog
from ec_connector.events.publisher import EventPublisher
from ec_connector.network.data import DataPlaneReader, DataPlaneServer, NixlReader, NixlServer
from ec_connector.network.pump import Pump
from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.consumer import ConsumerReads
from ec_protocol.p2p.grants import ProducerGrants

if TYPE_CHECKING:
    from ec_connector.config.settings import ECConfig
    from ec_connector.instance import ModelFacts
    from ec_connector.region.shared import SharedRegion
    from ec_protocol.tier.encodings import EncodingTier
    from ec_protocol.tier.holds import HoldTable


class P2P:
    """Peer-to-peer reads of one scheduler process.

    Args:
        config: Settings; ``enable_nixl`` is on.
        facts: What the compatibility hash is made of.
        region: The mapped region, registered with the data plane.
        tier: Its entries.
        holds: Holds on announced and fetched entries.
        lock: The tier's lock.
        engine_id: Names the data plane's agents, with a number per start.
        clock: Monotonic seconds.
        on_failure: Called once, from the pump thread, if the pump had to give up.
        wrap_reader: Puts something between the pump and the data plane's reader, for
            fault injection.

    Attributes:
        consumer: Fetches, or None when the role only produces.
        producer: Grants, or None when the role only consumes.
        pump: The thread that owns sockets and data plane.
        events: What waits to be published, or None when nothing is.
    """

    def __init__(
        self,
        config: ECConfig,
        facts: ModelFacts,
        region: SharedRegion,
        tier: EncodingTier,
        holds: HoldTable,
        *,
        lock: threading.Lock,
        engine_id: str,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[BaseException], None] | None = None,
        wrap_reader: Callable[[Any], Any] | None = None,
    ) -> None:
        # Another start is another incarnation, also under the same engine id (EC-9.2).
        incarnation = secrets.token_hex(8)
        agent = f"{engine_id}-{incarnation}"
        size = region.num_blocks * region.block_size_bytes
        # The dtype as torch prints it, which is what other implementations hash.
        compat = wire.compatibility_hash(
            facts.vllm_version, facts.model, f"torch.{facts.dtype}", region.block_size_bytes
        )
        self.clock = clock
        self.lock = lock
        self._advertised = config.advertised
        self.events: EventLog | None = None
        self.consumer: ConsumerReads | None = None
        self.producer: ProducerGrants | None = None
        if config.consumes:
            self.consumer = ConsumerReads(
                tier,
                holds=holds,
                timing=config.timing,
                compat_hash=compat,
                session=incarnation,
            )
        if config.produces:
            self.producer = ProducerGrants(
                tier,
                timing=config.timing,
                compat_hash=compat,
                incarnation=incarnation,
                base_addr=region.address,
                peer_quota=config.peer_quota,
                grant_quota=config.grant_quota,
            )

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

        settings = config.events
        if settings is not None:
            self.events = EventLog(settings.queue)
            tier.listener = self.events.add

        def make_events(context: Any, bound: tuple[str, int] | None) -> EventPublisher:
            if settings is None or self.events is None:
                raise LocalProtocolError("events are published without settings")
            return EventPublisher(
                context,
                settings,
                self.events,
                lock,
                engine_id=engine_id,
                incarnation=incarnation,
                address=self._announced(bound),
                sign_of_life_s=config.timing.heartbeat_interval_s,
                stats=self.pump.stats,
            )

        self.pump = Pump(
            lock=lock,
            consumer=self.consumer,
            producer=self.producer,
            reader_factory=make_reader if self.consumer is not None else None,
            server_factory=make_server if self.producer is not None else None,
            bind=config.side_channel,
            timing=config.timing,
            holds=holds,
            clock=clock,
            on_failure=on_failure,
            events_factory=None if settings is None else make_events,
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
        waiting = self.consumer is not None and self.consumer.has_commands
        if waiting or (self.events is not None and self.events.pending):
            self.pump.wake()

    def tick_without_pump(self, now: float) -> None:
        """Let timers run out when the pump cannot: leases and quarantines must end.

        Engine thread, under the lock.
        """
        if self.pump.healthy:
            return
        if self.consumer is not None:
            self.consumer.tick(now)
            self.consumer.drain()
        if self.producer is not None:
            self.producer.tick(now)

    def shutdown(self) -> None:
        """Stop the pump: waiting fetches fail, grants end, sockets close."""
        self.pump.stop()
