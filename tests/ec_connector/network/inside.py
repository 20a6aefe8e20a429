# SPDX-License-Identifier: Apache-2.0
"""An instance whose data processes are objects in the test's own process and thread.

Everything else is real: region, table, ledger and locks, channels, ZMQ, NIXL. ``turn``
turns the engine and its data processes once each, so a test that waits moves everybody.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

from ec_connector.clock import boottime
from ec_connector.engine.facts import ModelFacts
from ec_connector.network.data import NixlReader, NixlServer
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.data import _trace
from ec_connector.processes.instance import instance_spec
from ec_connector.processes.link import Link
from ec_connector.processes.locks import KernelSlotLocks
from ec_connector.processes.memory import Shared
from ec_connector.processes.reader import ReaderWork
from ec_connector.processes.server import Server
from ec_connector.processes.spec import DataSpec
from ec_connector.region.shared import SharedRegion
from ec_protocol.engine import Engine
from ec_protocol.offers.table import (
    Ledger,
    OfferTable,
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import words
from ec_protocol.trace import NdjsonSink, Trace
from tests.world.instance import BLOCK, FACTS, Instance, parse

SERVER, READER = 1, 2


class Inside(Instance):
    """One instance.

    Args:
        role, blocks, bind, facts, extra: See ``pair.Node``.
        wrap_reader: Stands between the reader and its data plane.
        clock: Seconds; everybody's.
        world_size: Ranks that load.

    Attributes:
        parent: The parent's end of the reader's channel.
    """

    def __init__(
        self,
        role: str,
        blocks: int = 64,
        *,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        facts: ModelFacts = FACTS,
        extra: dict[str, Any] | None = None,
        wrap_reader: Callable[[Any], Any] = lambda reader: reader,
        clock: Callable[[], float] = boottime,
        world_size: int = 1,
    ) -> None:
        config = parse(role, blocks, bind, extra)
        self.clock = clock
        self.name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
        self.region = SharedRegion.open(self.name, 0, blocks, BLOCK, create=True, guard=False)
        self._closing: list[Callable[[], object]] = [lambda: self.region.close(unlink=True)]
        self.server: Server | None = None
        self.reader: ReaderWork | None = None
        self._past: Counter[str] = Counter()
        try:
            self._sink = NdjsonSink(config.trace_file) if config.trace_file else None
            trace = Trace(self.name, clock, self._sink) if self._sink else None
            self.node = Engine(
                blocks=blocks,
                block_bytes=BLOCK,
                role=config.role,
                ranks=world_size,
                timing=config.timing,
                trace=trace,
            )
            self.spec = instance_spec(config, facts, self.region, self.name)
            self.node.tier.recorder.facts("instance", name=self.spec.incarnation, process=0)
            self.link = Link(self.node, config.timing, fetches=self.spec.readers > 0)
            if self.spec.serves:
                self._start_server(config.grant_quota)
            if config.events is not None:
                self.link.publish(config.events.queue)
            if self.spec.readers:
                self._start_reader(wrap_reader)
        except BaseException:
            self._close_all()
            raise
        Instance.running.append(self)

    def _start_server(self, grant_quota: float) -> None:
        slots = slots_for(self.spec.num_blocks)
        self.table = Shared.create("ec-offers", table_bytes(slots))
        self.ledger = Shared.create("ec-ledger", ledger_bytes(slots))
        format_table(self.table.view, slots, secrets.token_bytes(16))
        format_ledger(self.ledger.view, slots)
        self.locks = KernelSlotLocks(self.ledger.fd)
        self._closing += [self.table.close, self.ledger.close, self.locks.close]
        if self.spec.bind is not None:
            table, ledger = OfferTable(self.table.view), Ledger(self.ledger.view)
            self.link.offer_in(table, ledger, self.locks, grant_quota, self.clock)
        self.start_server()

    def start_server(self, process: int = SERVER) -> None:
        """A server takes its place."""
        ours, theirs = channel_pair()
        end, other = Channel(ours, words.FromReader), Channel(theirs, words.ToServer)
        plane = None
        if self.spec.bind is not None:
            plane = NixlServer(*self._where(process))
            self._closing.append(plane.close)
        spec = self._data_spec("server", process)
        # The ledger's lock belongs to one server for its process's life, which here is ours.
        locks = KernelSlotLocks(self.ledger.fd)
        self._closing.append(locks.close)
        offered = (OfferTable(self.table.view), Ledger(self.ledger.view), locks)
        self.server = Server(
            spec,
            other,
            plane,
            self.region.address,
            clock=self.clock,
            trace=_trace(spec, self.clock),
            offered=offered,
        )
        self._closing += [end.close, other.close, self.server.close]
        self.link.server_works(process, end)

    def _start_reader(self, wrap_reader: Callable[[Any], Any]) -> None:
        ours, theirs = channel_pair()
        end, other = Channel(ours, words.FromReader), Channel(theirs, words.ToReader)
        parents, readers = channel_pair()
        self.parent = Channel(parents, words.FromData)
        told = Channel(readers, words.ToData)
        plane = wrap_reader(NixlReader(*self._where(READER)))
        spec = self._data_spec("reader", READER)
        trace = _trace(spec, self.clock)
        self.reader = ReaderWork(spec, other, told, plane, clock=self.clock, trace=trace)
        self._closing += [end.close, other.close, told.close, self.parent.close, plane.close]
        self.link.reader_works(READER, end)

    def _where(self, process: int) -> tuple[str, int, int, tuple[str, ...], str]:
        spec = self.spec
        agent = f"{spec.engine_id}-{spec.incarnation}-{process}"
        return agent, self.region.address, spec.region_bytes, spec.backends, spec.nixl

    def _data_spec(self, kind: str, process: int) -> DataSpec:
        return DataSpec(
            instance=self.spec,
            kind=kind,
            process=process,
            parent_pid=0,
            parent=-1,
            engine=-1,
            status=-1,
            region=-1,
        )

    @property
    def address(self) -> tuple[str, int]:
        assert self.server is not None
        assert self.server.address is not None
        return self.server.address

    def turn(self) -> None:
        self.turn_engine()
        for work in (self.server, self.reader):
            if work is not None:
                work.turn()

    def turn_engine(self) -> None:
        """As ``DataProcesses.turn``, but for who comes and goes."""
        now = self.clock()
        self.link.hear(READER, now)
        self.link.turn(now)

    def reader_exits(self) -> None:
        """Its process is gone, as the kernel tells the engine (EC-14.8).

        The parent has it killed ``data_drain_s`` after it said that a READ is lost. Here
        its sockets and its agent go, as they would with it; it says nothing any more.
        """
        reader, self.reader = self.reader, None
        assert reader is not None
        self._past.update(reader.reader.counters)
        reader.close()
        self.link.exited(READER, self.clock())

    def counters(self) -> Counter[str]:
        result = self._past + self.node.counters
        for half in (self.link.loans, self.link.offers):
            result.update(half.counters if half is not None else {})
        if self.reader is not None:
            result.update(self.reader.reader.counters)
            result.update(self.reader._stats.counts)
        if self.server is not None:
            result.update(self.server._stats.counts)
            if self.server._serving is not None:
                result.update(self.server._serving.grants.counters)
        return result

    def close(self) -> None:
        if self in Instance.running:
            Instance.running.remove(self)
        if self.reader is not None:
            self.reader.close()
            self.link.hear(READER, self.clock())
        self.link.exited(READER, self.clock())
        self._close_all()

    def _close_all(self) -> None:
        while self._closing:
            self._closing.pop()()
        if self._sink is not None:
            self._sink.close()
