# SPDX-License-Identifier: Apache-2.0
"""Those from whom an engine reads: played by the test, or real.

``Remote`` has no sockets: the core is real and the test its pump. ``outcomes`` says per
encoding how a READ of it goes; ``play`` carries out what the core has asked for since
the last call. ``RealPeers`` is pump thread, ZMQ and NIXL.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Any, Literal

import torch

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_protocol.node import Node
from ec_protocol.p2p.commands import AbandonRead, PrepareRead, SendReq
from ec_protocol.p2p.wire import XferAck, XferStatus
from tests.world.engine import FACTS
from tests.world.host import BLOCK, expected
from tests.world.processes import until

PEER = ("peer.example", 5601)

Outcome = Literal["lands", "missing", "not_ready", "breaks", "silent"]


class Remote:
    """The peer-to-peer half of a harness engine."""

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = ("127.0.0.1", 5601)
        self.healthy = True
        self.outcomes: dict[str, Outcome] = {}
        self.asked: list[str] = []
        self.patience_s = 0.5
        self.node: Node

    def prepare(self, engine: Any) -> None:
        pass

    def attach(self, engine: Any) -> None:
        self.node = engine.node
        if self.node.grants is not None:
            self.node.offer(b"agent")

    def wake(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def play(self, engine: Any) -> None:
        """Carry out every command, and let some time pass."""
        node = self.node
        engine.now += self.patience_s
        if node.reads is None:
            return
        node.reads.tick(engine.now)
        for command in node.commands():
            if isinstance(command, SendReq):
                self._answer(command, engine)
            elif isinstance(command, PrepareRead):
                self._read(command, engine)
            elif isinstance(command, AbandonRead):
                # The endpoint is torn down at once: the proof that ends the quarantine.
                node.proven([command.attempt_id], engine.now)

    def settle(self, engine: Any) -> None:
        """Let every fetch end that nobody waits for any more."""
        for _ in range(100):
            if self.node.reads is None or self.node.reads.idle:
                return
            self.play(engine)
        raise AssertionError("fetches do not end")

    def _answer(self, command: SendReq, engine: Any) -> None:
        req = command.req
        self.asked.append(req.mm_hash)
        outcome = self.outcomes.get(req.mm_hash, "lands")
        if outcome == "silent":
            return
        status = {"missing": XferStatus.NACK_MISSING, "not_ready": XferStatus.NACK_NOT_READY}.get(
            outcome, XferStatus.OK
        )
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
        self.node.answer(command.peer, ack, engine.now)

    def _read(self, command: PrepareRead, engine: Any) -> None:
        node = self.node
        if not node.may_post(command.attempt_id, engine.now):
            return
        mm_hash = command.notice.decode().partition(":")[2]
        if self.outcomes.get(mm_hash) == "breaks":
            node.read_failed(command.attempt_id, engine.now)
            return
        nbytes = sum(size for _, size in command.local)
        source = expected(mm_hash, nbytes // BLOCK).reshape(-1).view(torch.uint8)
        for offset, size in command.local:
            engine.region.tensor[offset : offset + size].copy_(source[:size])
            source = source[size:]
        node.read_done(command.attempt_id, engine.now)


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
        self.p2p: Any = None

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
        # Who plays the peers must not need ZMQ and NIXL.
        from ec_connector.network.p2p import P2P

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
        grants = engine.node.grants

        def ended() -> bool:
            if grants is None or not grants.open_grants:
                return True
            # Only then: a pump that is woken also closes what has been idle since the leap.
            self.p2p.pump.wake()
            return False

        until(ended, "the end of all grants")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.p2p, name)
