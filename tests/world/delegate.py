# SPDX-License-Identifier: Apache-2.0
"""A scheduler delegate with everything around it played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ec_connector.engine.messages import CopyReport, StepMetadata, WorkerReport
from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.announcements import PeerRules
from ec_protocol.engine import Engine as Core
from ec_protocol.items import Item
from ec_protocol.tier.encodings import EncodingTier
from tests.recording import played
from tests.world import core
from tests.world.core import BELIEVED, BLOCK, ELEMENT
from tests.world.peers import Played


@dataclass
class Request:
    request_id: str
    items: list[Item]
    ec_transfer_params: Any = None
    num_preemptions: int = 0


def item(name: str, rows: int = 1, **kw: Any) -> Item:
    return core.item(name, rows, **kw)


@dataclass
class Engine:
    """One scheduler with its clock; with ``p2p`` the test plays the data processes."""

    role: str = "ec_both"
    blocks: int = 8
    world_size: int = 1
    p2p: bool = False
    rules: PeerRules = BELIEVED
    now: float = 100.0
    node: Core = field(init=False)
    data: Played = field(init=False)
    scheduler: ECScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.node = Core(
            rules=self.rules,
            blocks=self.blocks,
            block_bytes=BLOCK,
            role=self.role.removeprefix("ec_"),  # type: ignore[arg-type]
            ranks=self.world_size,
            trace=played("engine", lambda: self.now),
        )
        if self.p2p:
            self.data = Played(self.node)
            self.data.turn = self._turn  # type: ignore[method-assign]
        self.scheduler = ECScheduler(
            self.node,
            items=lambda request: request.items,
            element_size=ELEMENT,
            dtype="bfloat16",
            data=self.data if self.p2p else None,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def _turn(self) -> None:
        self.data.turns += 1
        self.data.at(self.now)

    @property
    def tier(self) -> EncodingTier:
        return self.node.tier

    def step(self, *requests: Request) -> StepMetadata:
        """One engine step that schedules every item of every admitted request."""
        scheduler = self.scheduler
        admitted = [r for r in requests if scheduler.ensure_cache_available(r, 0)]
        for request in admitted:
            for wanted in request.items:
                scheduler.has_cache_item(wanted.mm_hash)
        for request in admitted:
            for index in range(len(request.items)):
                scheduler.update_state_after_alloc(request, index)
        return scheduler.build_connector_meta()

    def report(self, metadata: StepMetadata, landed: bool = True) -> None:
        """All ranks finish everything that the step named."""
        entries = [CopyReport(op.copy_id, 0, landed) for op in metadata.saves]
        entries += [
            CopyReport(op.copy_id, rank, landed)
            for op in metadata.loads
            for rank in range(self.world_size)
        ]
        self.scheduler.update_connector_output(WorkerReport(tuple(entries)))

    def save(self, name: str, rows: int = 1) -> None:
        self.report(self.step(Request(f"save-{name}", [item(name, rows)])))
