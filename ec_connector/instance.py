# SPDX-License-Identifier: Apache-2.0
"""Puts one scheduler process together: tier, holds, delegate and, gated, peer-to-peer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ec_connector.config.settings import ECConfig
from ec_connector.engine.items import Item
from ec_connector.engine.params import AllowedPeers
from ec_connector.engine.scheduler import ECScheduler
from ec_connector.region.shared import SharedRegion
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import NdjsonSink, Trace

if TYPE_CHECKING:
    from ec_connector.network.p2p import P2P


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What decides whether the bytes of two processes mean the same (EC-8.4).

    Attributes:
        vllm_version: Version of the host.
        model: Name of the model.
        dtype: Torch dtype name of encoder outputs, such as ``bfloat16``.
        element_size: Bytes per element.
    """

    vllm_version: str
    model: str
    dtype: str
    element_size: int


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
        self.tier = EncodingTier(region.num_blocks, region.block_size_bytes, trace)
        self.holds = HoldTable(self.tier)
        self.lock = threading.Lock()
        self.p2p: P2P | None = None
        if config.enable_nixl:
            # Only here: without the gate nothing of it is imported (EC-12.2).
            from ec_connector.network.p2p import P2P

            self.p2p = P2P(
                config,
                facts,
                region,
                self.tier,
                self.holds,
                lock=self.lock,
                engine_id=engine_id,
                clock=clock,
                on_failure=on_failure,
                wrap_reader=wrap_reader,
            )
        self.scheduler = ECScheduler(
            self.tier,
            role=config.role,
            items=items,
            element_size=facts.element_size,
            dtype=facts.dtype,
            world_size=world_size,
            timing=config.timing,
            lock=self.lock,
            holds=self.holds,
            p2p=self.p2p,
            allowed_peers=AllowedPeers(config.allowed_peers),
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
