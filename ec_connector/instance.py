# SPDX-License-Identifier: Apache-2.0
"""Puts one scheduler process together: node, delegate and, gated, peer-to-peer."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ec_connector.config.peers import AllowedPeers
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.scheduler import ECScheduler
from ec_connector.region.shared import SharedRegion
from ec_protocol import Node, Peering
from ec_protocol.items import Item
from ec_protocol.trace import NdjsonSink, Trace

if TYPE_CHECKING:
    from ec_connector.network.p2p import P2P


class SchedulerInstance:
    """One running scheduler delegate and all that it stands on.

    Args:
        config: Checked settings.
        facts: The model's.
        region: The mapped region; closed by whoever opened it, after ``shutdown``.
        items: Returns the items of a request.
        world_size: Ranks that load.
        engine_id: Names the data plane's agents and this node in traces.
        clock: Monotonic seconds.
        on_failure: Called once, from the pump thread, if the pump had to give up.
        wrap_reader: Puts something between the pump and the data plane's reader, for
            fault injection.

    Raises:
        ECError: See ``P2P.start``; nothing is left running.
    """

    def __init__(
        self,
        config: ECConfig,
        facts: ModelFacts,
        region: SharedRegion,
        *,
        items: Callable[[Any], list[Item]],
        world_size: int = 1,
        engine_id: str = "engine",
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[BaseException], None] | None = None,
        wrap_reader: Callable[[Any], Any] | None = None,
    ) -> None:
        self._sink = NdjsonSink(config.trace_file) if config.trace_file else None
        trace = Trace(engine_id, clock, self._sink) if self._sink else None
        # Another start is another incarnation, also under the same engine id (EC-9.2).
        incarnation = secrets.token_hex(8)
        allowed = AllowedPeers(config.allowed_peers)
        self.lock = threading.Lock()
        self.node = Node(
            blocks=region.num_blocks,
            block_bytes=region.block_size_bytes,
            role=config.role,
            ranks=world_size,
            timing=config.timing,
            allowed=allowed.allows,
            trace=trace,
            peering=Peering(
                vllm_version=facts.vllm_version,
                model=facts.model,
                # As torch prints it, which is what other implementations hash.
                dtype=f"torch.{facts.dtype}",
                incarnation=incarnation,
                base_addr=region.address,
                peer_quota=config.peer_quota,
                grant_quota=config.grant_quota,
            )
            if config.enable_nixl
            else None,
        )
        self.p2p: P2P | None = None
        if config.enable_nixl:
            # Only here: without the gate nothing of it is imported (EC-12.2).
            from ec_connector.network.p2p import P2P

            self.p2p = P2P(
                self.node,
                config,
                region,
                lock=self.lock,
                engine_id=engine_id,
                incarnation=incarnation,
                clock=clock,
                on_failure=on_failure,
                wrap_reader=wrap_reader,
            )
        self.scheduler = ECScheduler(
            self.node,
            items=items,
            element_size=facts.element_size,
            dtype=facts.dtype,
            lock=self.lock,
            p2p=self.p2p,
            clock=clock,
        )
        if self.p2p is not None:
            try:
                self.p2p.start()
            except BaseException:
                self._close_trace()
                raise

    def shutdown(self) -> None:
        """Stop the pump and close the trace. May be called twice."""
        self.scheduler.shutdown()
        self._close_trace()

    def _close_trace(self) -> None:
        if self._sink is not None:
            self._sink.close()
