# SPDX-License-Identifier: Apache-2.0
"""Remote endpoints as a consumer sees them: one ``Peer`` per incarnation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ec_protocol.p2p.commands import ClosePeer, Command, OpenPeer, PeerKey
from ec_protocol.p2p.wire import PREFERRED_VERSION
from ec_protocol.rests import Rests
from ec_protocol.tables.dispatch import PEER, Dispatcher
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Recorder

#: How many replaced incarnations of an address are told from a new one.
MAX_FORMER: Final = 4
#: Producers that are connected to at once. Requests name them, and each connection takes
#: descriptors of the process.
MAX_PEERS: Final = 256
#: A peer without attempts for this many heartbeat TTLs is disconnected.
IDLE_TTLS: Final = 8

_NO_READS: Final = PEER.mask("no_reads")
#: Requests without an answer that are remembered per connection.
_MAX_UNANSWERED: Final = 256


class Unanswered:
    """Requests of one connection, so that a refusal without a name finds its own.

    vLLM's producer echoes ``session_id`` in OK acks only. Its answers keep the order of
    the requests, as the connection does, so a refusal that says only ``mm_hash`` answers
    the oldest request for it that has none (EC-5.6). A request beyond the bound is not
    remembered: such a refusal then finds an older one or none, never a younger one.
    """

    __slots__ = ("_by_hash", "_size")

    def __init__(self) -> None:
        self._by_hash: dict[str, list[str]] = {}
        self._size = 0

    def sent(self, mm_hash: str, session_id: str) -> None:
        """A request leaves."""
        if self._size < _MAX_UNANSWERED:
            self._by_hash.setdefault(mm_hash, []).append(session_id)
            self._size += 1

    def answered(self, mm_hash: str, session_id: str) -> None:
        """An answer names its request: that one and the older ones wait for none."""
        waiting = self._by_hash.get(mm_hash, [])
        if session_id in waiting:
            self._drop(mm_hash, waiting.index(session_id) + 1)

    def take_oldest(self, mm_hash: str) -> str:
        """An answer names none: the session of its request, or ``""``."""
        waiting = self._by_hash.get(mm_hash)
        if not waiting:
            return ""
        session_id = waiting[0]
        self._drop(mm_hash, 1)
        return session_id

    def _drop(self, mm_hash: str, count: int) -> None:
        waiting = self._by_hash[mm_hash]
        del waiting[:count]
        self._size -= count
        if not waiting:
            del self._by_hash[mm_hash]


@dataclass(slots=True, eq=False)
class Peer:
    """One incarnation of one remote endpoint.

    Attributes:
        peer_id: Unique in the table for ever.
        key: Control address.
        opened_at: When its connection was asked for, seconds.
        state: State of the peer lifecycle.
        incarnation: The producer process's own number once it is known; ``""``
            before, and for old producers.
        former: Numbers of the processes that were replaced at this address, latest
            last, a few of them; an ack of theirs is late and void (EC-9.2).
        version: Wire version to ask with.
        attempts: Ids of the attempts that are not settled.
        last_used: When an attempt was last made, seconds.
        unanswered: Requests that its connection has carried and that have no answer.
    """

    lifecycle: ClassVar[Dispatcher] = PEER

    peer_id: int
    key: PeerKey
    opened_at: float
    last_used: float
    state: str = PEER.initial
    incarnation: str = ""
    former: tuple[str, ...] = ()
    version: int = PREFERRED_VERSION
    attempts: set[int] = field(default_factory=set)
    unanswered: Unanswered = field(default_factory=Unanswered)

    @property
    def label(self) -> str:
        """Its name in traces."""
        return f"peer:{self.peer_id}"

    def variables(self) -> dict[str, Any]:
        """The peer's spec variables, for traces."""
        return {
            "key": ":".join(map(str, self.key)),
            "state": self.state,
            "incarnation": self.incarnation,
            "version": self.version,
            "attempts": sorted(self.attempts),
        }


class PeerTable:
    """The current incarnation of each address, and older ones until they drain.

    Args:
        timing: Timers of the heartbeat.
        recorder: Moves the peers.
        commands: Where it asks for connections and their ends.

    Attributes:
        rests: Addresses that were lost, which are not tried again for a while.
    """

    def __init__(self, timing: Timing, recorder: Recorder, commands: list[Command]) -> None:
        self.rests = Rests(timing)
        self._idle_s = IDLE_TTLS * timing.heartbeat_ttl_s
        self._recorder = recorder
        self._commands = commands
        self._current: dict[PeerKey, Peer] = {}
        self._down: dict[int, Peer] = {}
        self._ids = itertools.count(1)

    def current(self, key: PeerKey) -> Peer | None:
        """The usable incarnation behind ``key``, or None."""
        return self._current.get(key)

    def reach(self, key: PeerKey, now: float) -> bool:
        """Whether a producer is connected or may be; the longest idle one gives way."""
        if key in self._current or len(self._current) < MAX_PEERS:
            return True
        idle = min(self.idle(), key=lambda peer: peer.last_used, default=None)
        if idle is None:
            return False
        self.disconnect(idle, "close", now)
        return True

    def usable(self) -> list[Peer]:
        """The incarnations to which requests may be sent: one for each address."""
        return list(self._current.values())

    def idle(self) -> list[Peer]:
        """Usable incarnations that no attempt needs."""
        return [peer for peer in self._current.values() if not peer.attempts]

    def all(self) -> list[Peer]:
        """Every incarnation that is not drained."""
        return [*self._current.values(), *self._down.values()]

    def close_idle(self, now: float) -> None:
        """Disconnect those that have not been needed for long."""
        for peer in self.idle():
            if now >= peer.last_used + self._idle_s:
                self.disconnect(peer, "close", now)

    def next_deadline(self) -> float | None:
        """When ``close_idle`` has something to do next; None when nobody is idle."""
        return min((peer.last_used + self._idle_s for peer in self.idle()), default=None)

    def was_lost(self, key: PeerKey) -> bool:
        """Whether the address was lost lately and has not been tried since."""
        return key in self.rests and key not in self._current

    def open(self, key: PeerKey, now: float) -> Peer:
        """A new incarnation in ``connecting``."""
        peer = Peer(next(self._ids), key, now, now)
        self._current[key] = peer
        self.rests.tried(key, now)
        self._record(peer, "PeerOpen")
        return peer

    def connect(self, key: PeerKey, now: float) -> Peer:
        """A new incarnation, and a connection for it."""
        self._commands.append(OpenPeer(key))
        return self.open(key, now)

    def replace(self, peer: Peer, incarnation: str, now: float) -> Peer:
        """A new incarnation at the connection of ``peer``, which is to go down."""
        fresh = self.open(peer.key, now)
        fresh.incarnation = incarnation
        fresh.former = (*peer.former, peer.incarnation)[-MAX_FORMER:]
        return fresh

    def disconnect(self, peer: Peer, event: str, now: float) -> None:
        """Go down by ``lost`` or ``close``, with the connection; drain if nothing is left."""
        self.down(peer, event, now)
        self._commands.append(ClosePeer(peer.key))
        self.drain(peer)

    def heard_from(self, key: PeerKey) -> None:
        """The control plane got traffic from the address."""
        peer = self._current.get(key)
        if peer is not None:
            self.heard(peer)

    def heard(self, peer: Peer) -> None:
        """Action ``PeerHeard``."""
        self._recorder.move(peer, "heard")
        self._record(peer, "PeerHeard")

    def down(self, peer: Peer, event: str, now: float) -> None:
        """Action ``PeerDown`` by ``lost``, ``replaced`` or ``close``: nothing new is sent."""
        tried = now - peer.opened_at if peer.state == "connecting" else 0.0
        self._recorder.move(peer, event)
        if self._current.get(peer.key) is peer:
            del self._current[peer.key]
        self._down[peer.peer_id] = peer
        if event == "lost":
            self.rests.lost(peer.key, tried, now)
        self._record(peer, "PeerDown")

    def drain(self, peer: Peer) -> bool:
        """Action ``PeerDrained``, if nothing refers to the incarnation any more."""
        if peer.state != "down" or peer.attempts:
            return False
        self._recorder.move(peer, "drain", _NO_READS)
        del self._down[peer.peer_id]
        self._record(peer, "PeerDrained")
        return True

    def _record(self, peer: Peer, action: str) -> None:
        self._recorder.action(action, peer, peer=peer.peer_id)
