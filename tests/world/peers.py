# SPDX-License-Identifier: Apache-2.0
"""Producers elsewhere, without sockets or processes: the test is server, reader and network.

What the engine lends goes to the real core of a reader, whose requests and READs are
answered as ``outcomes`` says per encoding; ``play`` carries out what has been asked for
since the last call.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from typing import Any, Literal

import torch

from ec_connector.clock import boottime
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.processes.engine import DataProcesses
from ec_connector.processes.figures import Figures
from ec_connector.processes.link import Link
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
from ec_protocol.p2p.commands import AbandonRead, PrepareRead, SendReq
from ec_protocol.p2p.reader import Reader
from ec_protocol.p2p.wire import XferAck, XferStatus
from tests.world.engine import FACTS
from tests.world.host import BLOCK, expected

PEER = ("peer.example", 5601)
#: Number of the one reader.
READER = 1

Outcome = Literal["lands", "missing", "not_ready", "breaks", "silent"]


class End:
    """The engine's end of a channel to a reader that the test plays."""

    def __init__(self) -> None:
        self.open = True
        self.full = False
        self.said: list[Any] = []
        self.coming: list[Any] = []

    def say(self, message: Any) -> bool:
        if self.full:
            return False
        self.said.append(message)
        return True

    def hear(self) -> list[Any]:
        heard, self.coming = self.coming, []
        return heard

    def take(self) -> list[Any]:
        """What was said since the last call."""
        said, self.said = self.said, []
        return said


class FreeLocks:
    """Locks of the slots that nobody else wants."""

    def acquire(self, slot: int) -> bool:
        return True

    def release(self, slot: int) -> None:
        pass


class Played:
    """Data processes that are not there; what they would say comes from the test.

    Args:
        engine: The protocol's state.
        address: Where consumers reach this producer.
    """

    def __init__(self, engine: Engine, address: tuple[str, int] | None = PEER) -> None:
        self.address = address
        self.figures = Figures()
        self.stuck = 0
        self.stopped = False
        self.turns = 0
        self.now = 0.0
        self.reader = End()
        self.server = End()
        self.link = Link(engine, engine.timing, fetches=engine.loads)
        if engine.saves:
            slots = slots_for(engine.tier.num_blocks)
            self.table = memoryview(bytearray(table_bytes(slots)))
            self.ledger = memoryview(bytearray(ledger_bytes(slots)))
            format_table(self.table, slots, b"k" * 16)
            format_ledger(self.ledger, slots)
            table, ledger = OfferTable(self.table), Ledger(self.ledger)
            self.link.offer_in(table, ledger, FreeLocks(), 0.9, lambda: self.now)
            self.link.server_works(2, self.server)
        if engine.loads:
            self.link.reader_works(READER, self.reader)

    def at(self, now: float) -> None:
        """Hear and say what there is to hear and to say."""
        self.now = now
        self.link.hear(READER, now)
        self.link.turn(now)

    def turn(self) -> None:
        """As the scheduler's hooks call it; at the time of the last ``at``."""
        self.turns += 1
        self.at(self.now)

    def read_figures(self) -> Figures:
        return self.figures

    def shutdown(self) -> None:
        self.stopped = True


class Remote:
    """The data processes of a harness engine."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.asked: list[str] = []
        self.patience_s = 0.5
        self.data: Played

    def prepare(self, engine: Any) -> None:
        pass

    def attach(self, engine: Any) -> Played:
        """The engine exists; what its scheduler talks to."""
        self.data = Played(engine.node, ("127.0.0.1", 5601))
        self.data.turn = lambda: self.data.at(engine.now)  # type: ignore[method-assign]
        self.reader = Reader(
            engine.node.tier.num_blocks,
            BLOCK,
            timing=engine.node.timing,
            compat_hash="compat",
            session="reader",
        )
        return self.data

    def play(self, engine: Any) -> None:
        """Carry out every command, and let some time pass."""
        engine.now += self.patience_s
        now, reader = engine.now, self.reader
        self.data.at(now)
        for message in self.data.reader.take():
            if isinstance(message, words.Lend):
                reader.lend(
                    message.loan,
                    message.mm_hash,
                    (message.host, message.port),
                    message.nbytes,
                    message.extents,
                    message.deadline,
                    now,
                )
            else:
                reader.take_back(message.loan, now)
        reader.fetches.tick(now)
        for command in reader.commands():
            if isinstance(command, SendReq):
                self._answer(command, engine)
            elif isinstance(command, PrepareRead):
                self._read(command, engine)
            elif isinstance(command, AbandonRead):
                # It is seen to be over after all: the proof that ends the quarantine.
                reader.fetches.read_done(command.attempt_id, now)
        if said := reader.words():
            self.data.reader.coming.append(words.Words(said))
        self.data.at(now)

    def settle(self, engine: Any) -> None:
        """Let every fetch end that nobody waits for any more."""
        for turn in range(100):
            loans = self.data.link.loans
            if not loans and self.reader.fetches.idle:
                return
            if turn == 50 and loans:  # what is overdue ends with its reader
                for reader in {loan.reader for loan in loans._loans.values()}:
                    loans.exited(reader, engine.now)
            self.play(engine)
        raise AssertionError("fetches do not end")

    def _answer(self, command: SendReq, engine: Any) -> None:
        req = command.req
        self.asked.append(req.mm_hash)
        outcome = self.outcomes.get(req.mm_hash, "lands")
        if outcome == "silent":
            return
        status = {
            "missing": XferStatus.NACK_MISSING,
            "not_ready": XferStatus.NACK_NOT_READY,
        }.get(outcome, XferStatus.OK)
        fields: dict[str, Any] = {}
        if status is XferStatus.OK:
            entry = engine.tier.get(req.mm_hash)
            if entry is None:
                return  # given up meanwhile; what a late ack does is tested elsewhere
            fields = {
                "agent_metadata": b"agent",
                "lease_s": 30.0,
                "base_addr": 1 << 32,
                "block_size": BLOCK,
                "extents": [(5, entry.num_blocks)],
                "nbytes": entry.nbytes,
            }
        ack = XferAck(
            mm_hash=req.mm_hash,
            status=int(status),
            session_id=req.session_id,
            attempt_id=req.attempt_id,
            incarnation="i",
            **fields,
        )
        self.reader.fetches.on_ack(command.peer, ack, engine.now)

    def _read(self, command: PrepareRead, engine: Any) -> None:
        fetches = self.reader.fetches
        if not fetches.post_read(command.attempt_id, engine.now):
            return
        mm_hash = command.notice.decode().partition(":")[2]
        if self.outcomes.get(mm_hash) == "breaks":
            fetches.read_error(command.attempt_id, engine.now)
            return
        nbytes = sum(size for _, size in command.local)
        source = expected(mm_hash, nbytes // BLOCK).reshape(-1).view(torch.uint8)
        for offset, size in command.local:
            engine.region.tensor[offset : offset + size].copy_(source[:size])
            source = source[size:]
        fetches.read_done(command.attempt_id, engine.now)


def announcement(mm_hash: str, rows: int, **change: Any) -> dict[str, Any]:
    """What a producer announces for an encoding of the harness."""
    host, port = PEER
    item = {
        "metadata": {"rows": [rows]},
        "peer_host": host,
        "peer_port": port,
        "size_bytes": rows * BLOCK,
        "shape": list(expected(mm_hash, rows).shape),
    }
    return {mm_hash: {**item, **change}}


class RealPeers:
    """Starts with its engine and is everything that the delegate expects.

    Args:
        port: Control port; 0 takes a free one.
        facts: What the compatibility hash is made of.
        extra: More of ``ec_connector_extra_config``.
    """

    #: Its engine speaks with others: their traces belong together.
    is_real = True

    def __init__(self, port: int = 0, facts: ModelFacts = FACTS, **extra: Any) -> None:
        self._port = port
        self.facts = facts
        self._extra = extra
        self.data: DataProcesses

    def prepare(self, engine: Any) -> None:
        config = ECConfig.parse(
            {"ec_cpu_bytes": engine.blocks * BLOCK, "ec_enable_nixl": True, **self._extra},
            f"ec_{engine.config.role}",
            environ={},
        )
        if config.side_channel is not None:
            config = dataclasses.replace(config, side_channel=("127.0.0.1", self._port))
        engine.config = config
        engine.now = 0.0
        engine.clock = lambda: boottime() + engine.now

    def attach(self, engine: Any) -> DataProcesses:
        self.engine_id = f"harness-{os.getpid()}-{id(engine)}"
        self.data = DataProcesses(
            engine.node,
            engine.config,
            self.facts,
            engine.region,
            engine_id=self.engine_id,
            clock=engine.clock,
        )
        self.data.start()
        return self.data

    def play(self, engine: Any) -> None:
        """They play by themselves; an engine with nothing to schedule idles."""
        time.sleep(0.001)
        self.data.turn()

    def settle(self, engine: Any) -> None:
        """Let the server see that its READs are over."""
        deadline = time.monotonic() + 60
        while self.data.read_figures().gauge("open_grants"):
            assert time.monotonic() < deadline, "grants are left"
            self.play(engine)

    def counters(self) -> Counter[str]:
        """What engine and data processes have counted."""
        figures, link = self.data.read_figures(), self.data.link
        result = figures.totals("reads") + figures.totals("grants")
        for half in (link.loans, link.offers):
            result.update(half.counters if half is not None else {})
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)
