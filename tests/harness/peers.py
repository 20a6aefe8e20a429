# SPDX-License-Identifier: Apache-2.0
"""The real peer-to-peer half for a harness engine: pump thread, ZMQ and NIXL."""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Any

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.network.p2p import P2P
from tests.harness.content import BLOCK
from tests.harness.engine import FACTS


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
        self.p2p: P2P

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
        engine.clock = lambda: time.monotonic() + engine.now

    def attach(self, engine: Any) -> None:
        self.p2p = P2P(
            engine.node,
            engine.config,
            engine.region,
            lock=engine.lock,
            engine_id=f"harness-{id(engine)}",
            incarnation=secrets.token_hex(8),
            clock=engine.clock,
        )
        self.p2p.start()

    def play(self, engine: Any) -> None:
        """The pump plays by itself; an engine with nothing to schedule idles."""
        time.sleep(0.001)

    def settle(self, engine: Any) -> None:
        """Let the pump see that all leases have run out."""
        deadline = time.monotonic() + 20
        grants = engine.node.grants
        while grants is not None and grants.open_grants:
            assert time.monotonic() < deadline, "grants are left"
            self.p2p.pump.wake()
            time.sleep(0.001)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.p2p, name)
