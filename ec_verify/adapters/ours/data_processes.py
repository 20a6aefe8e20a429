# SPDX-License-Identifier: Apache-2.0
"""The data processes of one instance, played in one process on the kit's clock.

What they do is the code that runs in real ones (``ec_connector.processes``): the link of
the engine, server and readers with their sockets and data planes, and the rules by which
a parent starts and kills them. Only starting, killing and the end of a process are the
kit's: a process starts at once, and one that is killed is gone when nothing of its READs
is under way any more, since the kit's network card is what may outlast the signal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import zmq

from ec_connector.network.data.base import ReadEvent
from ec_connector.network.names import Names
from ec_connector.processes.channel import Channel
from ec_connector.processes.link import Link
from ec_connector.processes.reader import ReaderWork
from ec_connector.processes.server import Server
from ec_connector.processes.spec import DataSpec, InstanceSpec
from ec_protocol.engine import Engine
from ec_protocol.errors import LocalProtocolError, RemoteProtocolError
from ec_protocol.offers.table import (
    Ledger,
    OfferTable,
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import wire, words
from ec_protocol.processes import (
    KillProcess,
    Kind,
    Processes,
    StartProcess,
    TakePlace,
    Wanted,
)
from ec_protocol.trace import Recorder, Trace
from ec_verify.adapters.ours.channels import KitChannel, KitSlotLocks, channel
from ec_verify.adapters.ours.planes import SimulatedOffer, SimulatedReader
from ec_verify.adapters.ours.sockets import Address, SimulatedNetwork

#: Turns that may follow each other at one moment of the virtual clock.
_MOST_TURNS: Final = 1000


class _Names:
    """Names that mean themselves, at once."""

    fd = -1

    def get(self, name: str, now: float) -> tuple[str, ...]:
        """The address of a name."""
        return (name,)

    def news(self, now: float) -> list[str]:
        """Nothing takes time."""
        return []


@dataclass(eq=False)
class _Child:
    """One data process.

    Attributes:
        engine: The engine's end of its channel.
        parent: The parent's.
        ours: Its own ends of both.
        work: What it does; None while it stands by.
        dying: It was killed, and is not gone yet.
        sends: When it last sent something to each peer, as a number that grows.
    """

    number: int
    kind: Kind
    engine: KitChannel
    parent: KitChannel
    ours: tuple[KitChannel, KitChannel]
    network: SimulatedNetwork
    locks: KitSlotLocks
    offer: SimulatedOffer
    reader: SimulatedReader
    session: str
    work: Server | ReaderWork | None = None
    dying: bool = False
    sends: dict[Address, int] = field(default_factory=dict)


class KitProcesses:
    """What ``processes.engine.DataProcesses`` is to a real engine.

    Args:
        engine: The protocol's state.
        spec: The instance.
        emit: Tells the kit.
        clock: The kit's clock.
        delay: Called while a READ is prepared.
        base_addr: Address of block 0.
        trace: Makes the trace of a process, by its name.
        memory: The region.
    """

    def __init__(
        self,
        engine: Engine,
        spec: InstanceSpec,
        *,
        emit: Callable[..., None],
        clock: Callable[[], float],
        delay: Callable[[], None],
        base_addr: int,
        trace: Callable[[str], Trace | None],
        memory: memoryview,
    ) -> None:
        self._spec = spec
        self._emit = emit
        self._clock = clock
        self._delay = delay
        self._base_addr = base_addr
        self._trace = trace
        self._memory = memory
        self._children: dict[int, _Child] = {}
        self._silent: set[Address] = set()
        self._sends = 0
        self._stopped = False
        self._counted: Counter[str] = Counter()
        slots = slots_for(spec.num_blocks)
        self._table = memoryview(bytearray(table_bytes(slots)))
        self._ledger = memoryview(bytearray(ledger_bytes(slots)))
        self._taken: dict[int, KitSlotLocks] = {}
        format_table(self._table, slots, spec.incarnation.encode()[-16:])
        format_ledger(self._ledger, slots)
        timing = spec.timers()
        self.link = Link(engine, timing, fetches=spec.readers > 0)
        if spec.bind is not None:
            table, ledger = OfferTable(self._table), Ledger(self._ledger)
            locks = KitSlotLocks(self._taken)
            self.link.offer_in(table, ledger, locks, spec.grant_quota, clock)
        if spec.events is not None:
            self.link.publish(spec.events.queue)
        wanted: dict[Kind, Wanted] = {}
        if spec.serves:
            wanted["server"] = Wanted(1, 1)
        if spec.readers:
            wanted["reader"] = Wanted(spec.readers, 1)
        self._rules = Processes(wanted, timing, Recorder(trace("parent")))

    # ------------------------------------------------------------- as the engine sees it
    @property
    def address(self) -> tuple[str, int] | None:
        """Where consumers reach this producer; None while nobody serves."""
        server = self._server
        return server.work.address if server is not None else None  # type: ignore[union-attr]

    def turn(self) -> None:
        """The engine looks at what has come, and says what there is to say."""
        now = self._clock()
        for child in list(self._children.values()):
            if child.kind == "reader" and child.work is not None:
                self.link.hear(child.number, now)
        self.link.turn(now)
        for number, _ in self.link.to_end(now):
            if number in self._children:
                self._rules.condemn(number, "replaced")

    def shutdown(self) -> None:
        """The orderly end. May be called twice."""
        if self._stopped:
            return
        self.run()
        self._stopped = True
        for child in list(self._children.values()):
            if child.work is not None and not child.dying:
                child.work.goodbye()
            self._gone(child)

    # --------------------------------------------------------------- as the kit sees it
    @property
    def agent(self) -> bytes:
        """Metadata of the data plane's agent that serves now."""
        server = self._server
        return server.offer.agent_metadata if server is not None else b""

    def counters(self) -> Counter[str]:
        """What all parts have counted, of processes that are gone too."""
        total = self._counted + self._rules.counters
        for part in (self.link.loans, self.link.offers):
            if part is not None:
                total += part.counters
        for child in self._children.values():
            total += _counters(child)
        return total

    def run(self) -> None:
        """Turn everybody until nothing is left to do at this moment."""
        for _ in range(_MOST_TURNS):
            if self._stopped or not self._turn_all():
                return
        raise LocalProtocolError("the data processes find work for ever")

    def request(self, identity: bytes, frames: list[bytes]) -> None:
        """Frames reach the server, if there is one."""
        server = self._server
        if server is not None and server.network.router is not None:
            server.network.router.inbox.append([identity, *frames])

    def answer(self, peer: Address, frames: list[bytes]) -> None:
        """Frames reach the reader that has asked."""
        child = self._asker(peer, frames)
        if child is not None:
            child.network.deliver(peer, frames)

    def connection(self, peer: Address, what: str) -> None:
        """Something becomes of every connection to a peer: heard, lost, silent."""
        (self._silent.add if what == "silent" else self._silent.discard)(peer)
        for child in self._children.values():
            network = child.network
            act = {"heard": network.heard, "lost": network.lost, "silent": network.falls_silent}
            act[what](peer)

    def notice(self, raw: bytes) -> None:
        """A notice reaches the server."""
        server = self._server
        if server is not None:
            server.offer.inbox.append(raw)

    def read_event(self, read: str, event: ReadEvent) -> None:
        """The data plane says something about a READ. The dead hear nothing."""
        child, attempt = self._poster(read)
        if child is not None:
            child.reader.happened(attempt, event._replace(attempt_id=attempt))
            if child.dying and not child.reader.under_way:
                self._gone(child)

    def endpoint_closed(self, read: str) -> None:
        """Nothing goes through a READ's endpoint any more: its process has ended."""
        child, _ = self._poster(read)
        if child is not None:
            self._gone(child)

    def kill(self, kind: Kind, read: str | None) -> None:
        """The kernel says that these processes are gone."""
        for child in list(self._children.values()):
            meant = read is None or self._poster(read)[0] is child
            if meant and child.kind == kind and child.work is not None:
                self._gone(child)

    # ------------------------------------------------------------------------ who is who
    @property
    def _server(self) -> _Child | None:
        return next(
            (c for c in self._children.values() if c.kind == "server" and c.work is not None), None
        )

    def _poster(self, read: str) -> tuple[_Child | None, int]:
        number, _, attempt = str(read).partition(".")
        return self._children.get(int(number)), int(attempt or 0)

    def _asker(self, peer: Address, frames: list[bytes]) -> _Child | None:
        """Whose connection an answer comes over: of whoever asked what it answers.

        What answers nothing comes over the connection that was used last.
        """
        asked = [c for c in self._children.values() if peer in c.network.dealers]
        try:
            session = wire.decode_ack(frames).session_id
        except RemoteProtocolError:
            session = ""
        if session.startswith(self._spec.incarnation + "-"):
            process = session.rpartition(".")[0]
            return next((c for c in asked if c.session == process), None)
        return max(asked, key=lambda c: c.sends.get(peer, 0), default=None)

    # ---------------------------------------------------------------------------- turns
    def _turn_all(self) -> bool:
        worked = False
        for child in list(self._children.values()):
            if child.work is not None and not child.dying:
                worked = child.work.turn() or worked
        worked = self._turn_parent() or worked
        self.turn()
        ends = [
            end
            for child in self._children.values()
            for end in ((child.engine, child.parent) if child.dying else
                        (child.engine, child.parent, *child.ours))
        ]  # fmt: skip
        return worked or any(end.waiting for end in ends)

    def _turn_parent(self) -> bool:
        now = self._clock()
        for child in self._children.values():
            for message in child.parent.hear():
                if isinstance(message, words.Drain):
                    self._rules.drain(child.number, now)
                    self.link.reader_leaves(child.number)
            if not child.dying:
                # None stands still, but for all of them together.
                self._rules.beat(child.number, now)
        worked = False
        for what in self._rules.tick(now):
            worked = True
            if isinstance(what, StartProcess):
                self._children[what.process] = self._start(what.process, what.kind)
                self._rules.ready(what.process, now)
            elif isinstance(what, TakePlace):
                self._take_place(self._children[what.process])
            elif isinstance(what, KillProcess):
                child = self._children[what.process]
                child.dying = True
                self.link.reader_leaves(child.number)
                self.link.reader_killed(child.number, now)
                if not child.reader.under_way:
                    self._gone(child)
        return worked

    # ------------------------------------------------------------------------- processes
    def _start(self, number: int, kind: Kind) -> _Child:
        engine, its_engine = channel(words.FromReader, words.ToReader | words.ToServer)
        parent, its_parent = channel(words.FromData, words.ToData)
        name = f"{self._spec.incarnation}-{number}"

        def emit(what: str, **fields: Any) -> None:
            if what == "frames" and not isinstance(fields["to"], str):
                self._sends += 1
                child.sends[fields["to"][0], fields["to"][1]] = self._sends
            self._emit(what, **fields)

        child = _Child(
            number,
            kind,
            engine,
            parent,
            (its_engine, its_parent),
            SimulatedNetwork(emit, self._clock, self._silent),
            KitSlotLocks(self._taken),
            SimulatedOffer(f"agent-{name}".encode()),
            SimulatedReader(emit, lambda attempt: f"{number}.{attempt}", self._delay),
            name,
        )
        return child

    def _take_place(self, child: _Child) -> None:
        spec = DataSpec(
            instance=self._spec,
            kind=child.kind,
            process=child.number,
            parent_pid=0,
            parent=-1,
            engine=-1,
            status=-1,
            region=-1,
        )
        engine, parent = (cast(Channel, end) for end in child.ours)
        context = cast("zmq.Context[Any]", child.network)
        trace = self._trace(f"{child.kind}-{child.number}")
        if child.kind == "reader":
            child.work = ReaderWork(
                spec, engine, parent, child.reader, clock=self._clock, trace=trace,
                context=context, names=cast(Names, _Names()), tick_s=0.0, memory=self._memory,
            )  # fmt: skip
            self.link.reader_works(child.number, child.engine)
            return
        table = OfferTable(self._table.toreadonly())
        child.work = Server(
            spec, engine, child.offer, self._base_addr, clock=self._clock, trace=trace,
            context=context, offered=(table, Ledger(self._ledger), child.locks),
            wall_clock=self._clock, memory=self._memory.toreadonly(),
        )  # fmt: skip
        self.link.server_works(child.number, child.engine)

    def _gone(self, child: _Child) -> None:
        """The kernel has closed what it had, and says that it is gone."""
        now = self._clock()
        del self._children[child.number]
        self._counted += _counters(child)
        child.reader.go()
        child.network.destroy()
        child.locks.close()
        for end in child.ours:
            end.close()
        self._rules.exited(child.number, now)
        self.link.exited(child.number, now)


def _counters(child: _Child) -> Counter[str]:
    figures = child.work.figures() if child.work is not None else {}
    return Counter(figures.get("reads")) + Counter(figures.get("grants"))
