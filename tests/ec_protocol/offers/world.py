# SPDX-License-Identifier: Apache-2.0
"""An engine and a server on one table, in one process, where either may act in between.

``Locks`` calls ``between`` at every lock that is tried, taken and let go, on whichever
side: whatever the other side might do at that moment a test can do there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ec_protocol.offers.engine import Offers
from ec_protocol.offers.server import SharedShelf
from ec_protocol.offers.table import (
    Ledger,
    OfferTable,
    format_ledger,
    format_table,
    ledger_bytes,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p import wire
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.p2p.wire import XferAck, XferReq
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.trace import Recorder, Trace
from tests.recording import beside, world_sink

BLOCK = 64
COMPAT = "compat"
START = 1000.0

Sink = Callable[[Mapping[str, Any]], None]


class Locks:
    """Locks of the slots as the kernel keeps them, for one side."""

    def __init__(self, held: dict[int, object], between: Callable[[str], None]) -> None:
        self.held = held
        self._between = between

    def acquire(self, slot: int) -> bool:
        self._between("before")
        if self.held.setdefault(slot, self) is not self:
            return False
        self._between("locked")
        return True

    def release(self, slot: int) -> None:
        assert self.held.pop(slot) is self
        self._between("after")

    def die(self) -> None:
        """The process is gone, and its locks with it."""
        for slot in [s for s, owner in self.held.items() if owner is self]:
            del self.held[slot]


class World:
    """One engine, and one server after another."""

    def __init__(
        self, blocks: int = 8, timing: Timing | None = None, sink: Sink | None = None
    ) -> None:
        self.timing = timing or Timing()
        self.now = START
        self._write = beside(sink) if sink is not None else world_sink()
        self._servers = itertools.count(1)
        self.tier = EncodingTier(blocks, BLOCK, self._trace("engine", 0))
        self.copies = CopyTable(self.tier)
        self.held: dict[int, object] = {}
        slots = slots_for(blocks)
        self.table_buffer = bytearray(table_bytes(slots))
        self.ledger_buffer = bytearray(ledger_bytes(slots))
        format_table(memoryview(self.table_buffer), slots, b"k" * 16)
        format_ledger(memoryview(self.ledger_buffer), slots)
        self.between_engine: Callable[[str], None] = lambda _: None
        self.between_server: Callable[[str], None] = lambda _: None
        self.engine_locks = Locks(self.held, lambda at: self.between_engine(at))
        self.offers = Offers(
            OfferTable(memoryview(self.table_buffer)),
            Ledger(memoryview(self.ledger_buffer)),
            self.engine_locks,
            lease_s=self.timing.lease_s,
            max_blocks=int(blocks * 0.9),
            recorder=self.tier.recorder,
            clock=lambda: self.now,
        )
        self.tier.gate = self.offers
        self.offers.catch_up(self.now)
        self.server = self.start_server()

    def _trace(self, node: str, number: int) -> Trace | None:
        """Engine and servers are one instance, and record in the order of what they do."""
        if self._write is None:
            return None
        trace = Trace(node, lambda: self.now, self._write)
        trace.facts("instance", name="world", process=number)
        return trace

    def start_server(self) -> ProducerGrants:
        number = next(self._servers)
        self.server_locks = Locks(self.held, lambda at: self.between_server(at))
        self.shelf = SharedShelf(
            OfferTable(memoryview(self.table_buffer).toreadonly()),
            Ledger(memoryview(self.ledger_buffer)),
            self.server_locks,
            num_blocks=self.tier.num_blocks,
            block_size_bytes=BLOCK,
            now=self.now,
            lease_s=self.timing.lease_s,
            recorder=Recorder(self._trace(f"server-{number}", number)),
        )
        self.server = ProducerGrants(
            self.shelf,
            timing=self.timing,
            compat_hash=COMPAT,
            incarnation="server",
            base_addr=0,
            agent_metadata=b"agent",
        )
        return self.server

    def restart_server(self) -> None:
        self.server_locks.die()
        self.start_server()

    # ------------------------------------------------------------------- engine
    def save(self, name: str, nbytes: int = BLOCK) -> Entry:
        """An entry that has landed and is offered."""
        entry = self.begin(name, nbytes)
        self.land(entry)
        return entry

    def begin(self, name: str, nbytes: int = BLOCK) -> Entry:
        copy = self.copies.plan_save(name, nbytes)
        assert copy is not None
        self.copies.submit(copy)
        self.offers.catch_up(self.now)
        return copy.entry

    def land(self, entry: Entry, landed: bool = True) -> None:
        """The save has ended, with the bytes in place or without."""
        copy = self.copies.save_of(entry.mm_hash)
        assert copy is not None
        self.copies.report(copy.copy_id, 0, landed)
        self.offers.catch_up(self.now)

    # ------------------------------------------------------------------- server
    def ask(self, name: str, attempt: int = 1, identity: bytes = b"peer") -> XferAck:
        request = XferReq(name, COMPAT, f"c.{attempt}", 2, attempt, "c")
        return self.server.on_request(identity, request, self.now)

    def done(self, name: str, attempt: int = 1) -> None:
        self.server.on_notice(wire.notice(f"c.{attempt}", name), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.server.tick(self.now)
