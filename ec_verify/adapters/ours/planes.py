# SPDX-License-Identifier: Apache-2.0
"""Control and data plane as the kit simulates them, and the pump's real I/O on top.

``SimulatedIO`` is ``PumpIO`` with the four ends replaced: everything between the wire
and the core (decoding, dropping, posting, polling, releasing) is the code that runs in
a real process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, cast

from ec_connector.engine.stats import PumpStats
from ec_connector.network.control import Arrived, ControlClient, ControlServer
from ec_connector.network.data.base import (
    DataPlaneError,
    DataPlaneReader,
    DataPlaneServer,
    Pieces,
    ReadEvent,
)
from ec_connector.network.planes import Planes
from ec_connector.network.publisher import EventPublisher
from ec_connector.network.serving import Serving
from ec_connector.network.turn import PumpIO
from ec_protocol.node import Node
from ec_verify.adapters.ours.sockets import SimulatedNetwork

Emit = Callable[..., None]


class SimulatedServer:
    """A ROUTER without a socket: the kit puts frames in and takes them out."""

    def __init__(self, emit: Emit) -> None:
        self.inbox: list[Arrived] = []
        self._emit = emit

    def receive(self) -> list[Arrived]:
        """What has come."""
        arrived, self.inbox = self.inbox, []
        return arrived

    def send(self, identity: bytes, payload: bytes) -> bool:
        """Answer a peer."""
        self._emit("frames", to=identity.hex(), frames=["", payload.hex()])
        return True

    def close(self) -> None:
        """Nothing to close."""


class SimulatedOffer(DataPlaneServer):
    """The producer's data plane: notices come from the kit."""

    def __init__(self, agent: bytes) -> None:
        super().__init__()
        self._agent = agent
        self.inbox: list[bytes] = []

    @property
    def agent_metadata(self) -> bytes:
        """What acks carry."""
        return self._agent

    def poll_notices(self) -> list[bytes]:
        """Notices that came."""
        notices, self.inbox = self.inbox, []
        return notices

    def close(self) -> bool:
        """Gone at once."""
        return True


class SimulatedReader(DataPlaneReader):
    """The consumer's data plane: the kit moves the bytes and says what happened.

    Args:
        emit: Tells the kit.
        delay: Called while a READ is prepared: how the kit makes that take long.
    """

    def __init__(self, emit: Emit, delay: Callable[[], None]) -> None:
        super().__init__()
        self._emit = emit
        self._delay = delay
        self._prepared: dict[int, dict[str, Any]] = {}
        self._posted: set[int] = set()
        self._abandoned: set[int] = set()
        self.events: list[ReadEvent] = []
        self.proven: list[int] = []

    def prepare(
        self,
        attempt_id: int,
        agent_metadata: bytes,
        local: Pieces,
        remote: Pieces,
        device_id: int,
        notice: bytes,
    ) -> None:
        """See ``DataPlaneReader.prepare``."""
        if not agent_metadata:
            raise DataPlaneError("no agent metadata")
        self._delay()
        self._prepared[attempt_id] = {
            "read": attempt_id,
            "agent": agent_metadata.hex(),
            "device": device_id,
            "notice": notice.hex(),
            "local": [list(piece) for piece in local],
            "remote": [list(piece) for piece in remote],
        }

    def post(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.post``."""
        self._posted.add(attempt_id)
        self._emit("read", **self._prepared.pop(attempt_id))

    def discard(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.discard``."""
        self._prepared.pop(attempt_id, None)

    def poll(self) -> list[ReadEvent]:
        """What the kit said, of READs that are still of interest."""
        events, self.events = self.events, []
        told = []
        for event in events:
            if event.attempt_id not in self._posted:
                continue
            if event.outcome == "error" and event.attempt_id in self._abandoned:
                continue
            told.append(event)
        return told

    def release(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.release``."""
        if attempt_id in self._posted:
            self._posted.discard(attempt_id)
            self._abandoned.discard(attempt_id)
            self._emit("release", read=attempt_id)

    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        """See ``DataPlaneReader.notify``."""
        self._emit("notify", agent=agent_metadata.hex(), notice=notice.hex())

    def abandon(self, attempt_id: int) -> None:
        """See ``DataPlaneReader.abandon``."""
        self._abandoned.add(attempt_id)
        self._emit("abandon", read=attempt_id)

    def reap(self) -> list[int]:
        """Attempts whose endpoint the kit has torn down."""
        proven, self.proven = self.proven, []
        return proven

    def close(self) -> list[int]:
        """Tear everything down: the proof for every READ that is left."""
        posted, self._posted = self._posted, set()
        return sorted(posted)

    @property
    def reads(self) -> int:
        """READs whose end was not seen."""
        return len(self._posted)

    @property
    def sending(self) -> bool:
        """Notices leave at once."""
        return False

    @property
    def tainted(self) -> bool:
        """Whether ``reap`` has something to say."""
        return bool(self.proven)


class SimulatedServing(Serving):
    """The producer's half of the pump with the kit's ends in place of its own."""

    def __init__(
        self,
        node: Node,
        server: SimulatedServer,
        offer: SimulatedOffer,
        *,
        lock: threading.Lock,
        clock: Callable[[], float],
        stats: PumpStats,
    ) -> None:
        self.node = node
        self.address = ("", 0)
        self._lock = lock
        self._clock = clock
        self._stats = stats
        self._until = 0.0
        self._server = cast(ControlServer, server)
        self._offer = offer
        self._simulated = offer
        with lock:
            node.offer(offer.agent_metadata)

    def turn(self) -> bool:
        """As the real one, which need not look for notices while nothing is granted.

        The kit takes a notice that it delivers for seen, so here it always is.
        """
        if self._simulated.inbox:
            self._until = max(self._until, self._clock())
        return super().turn()


class SimulatedIO(PumpIO):
    """The pump's I/O between the core and the kit's planes; turned by the adapter."""

    def __init__(
        self,
        node: Node,
        *,
        lock: threading.Lock,
        clock: Callable[[], float],
        wake_fd: int,
        stats: PumpStats,
        emit: Emit,
        agent: bytes,
        delay: Callable[[], None],
        events: EventPublisher | None = None,
    ) -> None:
        self.server = SimulatedServer(emit)
        self.network = SimulatedNetwork(emit, clock)
        self.offer = SimulatedOffer(agent)
        self.reader = SimulatedReader(emit, delay)
        planes = Planes(
            reader=lambda: self.reader, server=lambda: self.offer, bind=("127.0.0.1", 0)
        )
        super().__init__(node, planes, lock=lock, clock=clock, wake_fd=wake_fd, stats=stats)
        self._events = events

    def open(self) -> None:
        """Put the simulated ends in place; no socket is opened."""
        if self.node.grants is not None:
            self._serving = SimulatedServing(
                self.node,
                self.server,
                self.offer,
                lock=self._lock,
                clock=self._clock,
                stats=self.stats,
            )
        if self.node.reads is not None:
            self._client = ControlClient(cast(Any, self.network), self.node.timing)
            self._reader = self.reader

    def say_goodbye(self) -> None:
        """Close what publishes: the last that is heard of the process."""
        if self._events is not None:
            self._events.close()

    def turn_all(self) -> None:
        """Turn until there is nothing left to do at this moment of the virtual clock."""
        for _ in range(1000):
            # A virtual clock may stand still or take steps of less than the pump's own.
            self._ticked_at = -math.inf
            if not self.turn():
                return
        raise DataPlaneError("the pump finds work for ever")
