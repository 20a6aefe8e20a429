# SPDX-License-Identifier: Apache-2.0
"""The data processes of a harness engine, as objects in the test's own thread.

Everything else is real: region, table, ledger and locks, channels, ZMQ, NIXL. A test can
let one part stand still, break another, and move the instance's clock.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ec_connector.clock import boottime
from ec_connector.engine.facts import ModelFacts
from ec_connector.processes.instance import instance_spec
from ec_connector.processes.link import Link
from tests.ec_connector.network.inside import Inside
from tests.world.engine import FACTS
from tests.world.instance import Instance, parse


class Hooks:
    """What the delegate talks to: the engine's side moves, server and reader do not."""

    def __init__(self, peers: InsidePeers) -> None:
        self._peers = peers
        self.turn = peers.turn_engine
        self.shutdown = peers.close

    @property
    def address(self) -> tuple[str, int] | None:
        return None if self._peers.server is None else self._peers.server.address


class InsidePeers(Inside):
    """What ``RealPeers`` is, without processes.

    Args:
        facts: What the compatibility hash is made of.
        wrap_reader: Stands between the reader and its data plane.
        extra: More of ``ec_connector_extra_config``.

    Attributes:
        stands: Server and reader of this instance do nothing.
    """

    def __init__(
        self,
        facts: ModelFacts = FACTS,
        wrap_reader: Callable[[Any], Any] = lambda reader: reader,
        **extra: Any,
    ) -> None:
        self.facts = facts
        self.stands = False
        self._wrap_reader = wrap_reader
        self._extra = extra

    def prepare(self, engine: Any) -> None:
        # The engine has a trace of its own.
        extra = {"ec_trace_file": None, **self._extra}
        bind = ("127.0.0.1", 0)
        engine.config = parse(f"ec_{engine.config.role}", engine.blocks, bind, extra)
        engine.now = 0.0
        engine.clock = lambda: boottime() + engine.now

    def attach(self, engine: Any) -> Hooks:
        """The engine exists; what its scheduler talks to."""
        self.clock = engine.clock
        self.name = f"harness-{os.getpid()}-{secrets.token_hex(4)}"
        self.region, self.node, config = engine.region, engine.node, engine.config
        self.server = self.reader = self._sink = None
        self._past: Counter[str] = Counter()
        self._closing: list[Callable[[], object]] = []
        try:
            self.spec = instance_spec(config, self.facts, self.region, self.name)
            self.link = Link(self.node, config.timing, fetches=self.spec.readers > 0)
            if self.spec.serves:
                self._start_server(config.grant_quota)
            if self.spec.readers:
                self._start_reader(self._wrap_reader)
        except BaseException:
            self._close_all()
            raise
        Instance.running.append(self)
        return Hooks(self)

    def turn(self) -> None:
        self.turn_engine()
        self.work()

    def work(self) -> None:
        """Server and reader look at everything once."""
        for part in (self.server, self.reader):
            if part is not None and not self.stands:
                part.turn()

    def play(self, engine: Any) -> None:
        """Everybody's data processes work; no engine but this one does anything."""
        for instance in Instance.running:
            assert isinstance(instance, InsidePeers)
            instance.work()
        self.turn_engine()
        time.sleep(0.0002)

    def settle(self, engine: Any) -> None:
        """Let the server see that all leases have run out."""
        deadline = time.monotonic() + 60
        while self.server is not None and self.server.figures()["open_grants"]:
            assert time.monotonic() < deadline, "grants are left"
            self.play(engine)

    def counters(self) -> Counter[str]:
        """What was counted; nothing that was not."""
        return +super().counters()
