# SPDX-License-Identifier: Apache-2.0
"""The work of a server: grants on what the engine offers, and events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq

from ec_connector.clock import boottime
from ec_connector.config.keyfiles import KeyList, read_key_pair
from ec_connector.network.data.base import DataPlaneServer
from ec_connector.network.identity import Door, KeyDoor, OpenDoor
from ec_connector.network.stats import NetworkStats
from ec_connector.processes.channel import Channel
from ec_connector.processes.locks import KernelSlotLocks
from ec_connector.processes.memory import Shared
from ec_connector.processes.serving import Serving
from ec_connector.processes.spec import DataSpec, InstanceSpec
from ec_protocol.errors import ECError
from ec_protocol.offers.server import SharedShelf
from ec_protocol.offers.table import Ledger, OfferTable, SlotLocks
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.trace import Recorder, Trace

#: Table, ledger and the slots' locks, as one server has them.
OfferMemory = tuple[OfferTable, Ledger, SlotLocks]


class DataProcessError(ECError):
    """A data process cannot take its place; the message says why."""


class Server:
    """The work of a server.

    Args:
        spec: What it was started with.
        engine: Channel to the engine, which tells it events.
        plane: The data plane's server; None publishes events only.
        base_addr: Address of block 0, as registered.
        clock: Seconds of the common clock.
        trace: Where actions are recorded.
        context: Makes the sockets; None makes one of ZMQ's own.
        offered: Table, ledger and the slots' locks; None maps those of ``spec``.
        wall_clock: Seconds since 1970, for events.
        memory: The region, for checksums; None where there are none.

    Raises:
        ECError: A port is taken, or cannot be bound here, or a file with keys is none.

    Attributes:
        address: Where peers find it; None where nobody does.
        bound: The port that it has bound.
        key: The public key that peers need; ``""`` where they have none.
    """

    def __init__(
        self,
        spec: DataSpec,
        engine: Channel,
        plane: DataPlaneServer | None,
        base_addr: int,
        *,
        clock: Callable[[], float] = boottime,
        trace: Trace | None = None,
        context: zmq.Context[Any] | None = None,
        offered: OfferMemory | None = None,
        wall_clock: Callable[[], float] = time.time,
        memory: memoryview | None = None,
    ) -> None:
        instance = spec.instance
        self._engine = engine
        self._clock = clock
        self._wall_clock = wall_clock
        self._stats = NetworkStats()
        self._context: zmq.Context[Any] = zmq.Context() if context is None else context
        self._serving: Serving | None = None
        self._events: Any = None
        self.address: tuple[str, int] | None = None
        self.bound = 0
        self.key = ""
        try:
            if instance.bind is not None and plane is not None:
                grants = self._grants(spec, base_addr, trace, offered or _map_offered(spec))
                self._serving = Serving(
                    self._context,
                    grants,
                    plane,
                    instance.bind,
                    timing=instance.timers(),
                    clock=clock,
                    stats=self._stats,
                    door=self._door(instance),
                    anywhere=instance.anywhere,
                    memory=memory if instance.checksum else None,
                )
                host, port = instance.advertised
                bound = self._serving.address
                self.address = (host or bound[0], port or bound[1])
                self.bound = bound[1]
            if instance.events is not None:
                self._events = self._publisher(spec)
        except BaseException:
            self.close()
            raise

    def _door(self, instance: InstanceSpec) -> Door:
        """Who lets peers in, and says who they are."""
        if instance.key_file is None and instance.peer_keys is None:
            return OpenDoor(self._stats)
        if instance.key_file is None or instance.peer_keys is None:
            # The engine has seen to it; what it was would be open to everybody.
            raise DataProcessError("ec_key_file and ec_peer_keys: one without the other; set both")
        pair = read_key_pair(instance.key_file)
        self.key = pair.public
        return KeyDoor(pair, KeyList(instance.peer_keys, clock=self._clock), self._stats)

    def _grants(
        self, spec: DataSpec, base_addr: int, trace: Trace | None, offered: OfferMemory
    ) -> ProducerGrants:
        instance = spec.instance
        shelf = SharedShelf(
            *offered,
            num_blocks=instance.num_blocks,
            block_size_bytes=instance.block_size_bytes,
            now=self._clock(),
            lease_s=instance.timers().lease_s,
            recorder=Recorder(trace),
        )
        return ProducerGrants(
            shelf,
            timing=instance.timers(),
            compat_hash=instance.compat_hash,
            # Each process grants under a number of its own (EC-9.2).
            incarnation=f"{instance.incarnation}-{spec.process}",
            base_addr=base_addr,
            peer_quota=instance.peer_quota,
            grant_quota=instance.grant_quota,
            terms=instance.terms(),
        )

    def _publisher(self, spec: DataSpec) -> Any:
        from ec_connector.network.publisher import EventPublisher

        instance = spec.instance
        if instance.events is None:
            return None
        return EventPublisher(
            self._context,
            instance.events,
            engine_id=instance.engine_id,
            # Its messages are numbered from 0, so it is another one to those who listen.
            incarnation=f"{instance.incarnation}-{spec.process}",
            address=self.address,
            sign_of_life_s=instance.timers().heartbeat_interval_s,
            stats=self._stats,
            wall_clock=self._wall_clock,
        )

    @property
    def sockets(self) -> list[Any]:
        """What to poll for input."""
        ends = (self._serving, self._events)
        return [sock for end in ends if end is not None for sock in end.sockets]

    def turn(self) -> bool:
        """Answer, end grants, publish."""
        worked = self._serving is not None and self._serving.turn()
        heard = self._engine.hear()
        if self._events is not None:
            for message in heard:
                self._events.add(message.events, message.missing)
            worked = self._events.turn(self._clock()) or worked
        return worked or bool(heard)

    def transferring(self, now: float) -> bool:
        """Whether peers may be reading from here."""
        return self._serving is not None and self._serving.transferring(now)

    def next_deadline(self) -> float | None:
        """When there is something to do next."""
        due = [end.next_deadline() for end in (self._serving, self._events) if end is not None]
        return min((moment for moment in due if moment is not None), default=None)

    def figures(self) -> dict[str, Any]:
        """Counters and gauges."""
        figures: dict[str, Any] = {"stats": dict(self._stats.counts)}
        if self._serving is not None:
            grants = self._serving.grants
            figures["grants"] = dict(grants.counters)
            figures["open_grants"] = grants.open_grants
            figures["granted_blocks"] = grants.granted_blocks
        return figures

    def goodbye(self) -> None:
        """Tell subscribers what was said last; peers find out by themselves.

        Leases stay in the ledger: a peer may be reading, and the engine may live on.
        """
        if self._events is not None:
            for message in self._engine.hear():
                self._events.add(message.events, message.missing)
            self._events.turn(self._clock())
            self._events.close()

    def close(self) -> None:
        """Close everything, where the process goes on."""
        for end in (self._events, self._serving):
            if end is not None:
                end.close()
        self._context.destroy(linger=0)


def _map_offered(spec: DataSpec) -> OfferMemory:
    table, ledger = Shared(spec.table, writable=False), Shared(spec.ledger, writable=True)
    locks = KernelSlotLocks(spec.ledger)
    if not locks.acquire_for_life():
        raise DataProcessError("another server still has the ledger")
    return OfferTable(table.view), Ledger(ledger.view), locks
