# SPDX-License-Identifier: Apache-2.0
"""Puts one scheduler process together: engine, delegate and, gated, data processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ec_connector.clock import boottime
from ec_connector.config.keyfiles import KeyList, check_key_file
from ec_connector.config.peers import AllowedPeers
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.scheduler import ECScheduler
from ec_connector.region.shared import SharedRegion
from ec_protocol.announcements import PeerRules
from ec_protocol.engine import Engine
from ec_protocol.items import Item
from ec_protocol.trace import NdjsonSink, Trace

if TYPE_CHECKING:
    from ec_connector.processes.engine import DataProcesses


logger = logging.getLogger(__name__)


def peer_rules(config: ECConfig) -> PeerRules:
    """Whom a request may have this instance read from.

    Raises:
        KeyFileError: The list of keys cannot be used.
    """
    return PeerRules(
        allowed=AllowedPeers(config.allowed_peers).allows,
        known=None if config.peer_keys is None else KeyList(config.peer_keys).knows,
    )


class SchedulerInstance:
    """One running scheduler delegate and all that it stands on.

    Args:
        config: Checked settings.
        facts: The model's.
        region: The mapped region; closed by whoever opened it, after ``shutdown``.
        items: Returns the items of a request.
        world_size: Ranks that load.
        engine_id: Names the data plane's agents and this node in traces.
        clock: Seconds of the common clock.

    Attributes:
        node: The protocol's state.
        data: The data processes, or None without the gate.
        scheduler: The delegate.

    Raises:
        ECError: A file with keys cannot be used, or see ``DataProcesses.start``; nothing is
            left running.
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
        clock: Callable[[], float] = boottime,
    ) -> None:
        if config.key_file is not None:
            check_key_file(config.key_file)
        elif config.side_channel is not None and config.insecure_control:
            logger.warning(
                "ec_insecure_control: whoever reaches %s:%s can read the whole region",
                *config.side_channel,
            )
        self._sink = NdjsonSink(config.trace_file) if config.trace_file else None
        trace = Trace(engine_id, clock, self._sink) if self._sink else None
        self.node = Engine(
            blocks=region.num_blocks,
            block_bytes=region.block_size_bytes,
            role=config.role,
            ranks=world_size,
            timing=config.timing,
            rules=peer_rules(config),
            trace=trace,
        )
        self.data: DataProcesses | None = None
        if config.enable_nixl:
            # Only here: without the gate nothing of it is imported (EC-12.2).
            from ec_connector.processes.engine import DataProcesses

            self.data = DataProcesses(
                self.node, config, facts, region, engine_id=engine_id, clock=clock
            )
        self.scheduler = ECScheduler(
            self.node,
            items=items,
            element_size=facts.element_size,
            dtype=facts.dtype,
            region=region.identity,
            data=self.data,
            clock=clock,
        )
        if self.data is not None:
            try:
                self.data.start()
            except BaseException:
                self._close_trace()
                raise

    def shutdown(self) -> None:
        """End the data processes and close the trace. May be called twice."""
        self.scheduler.shutdown()
        self._close_trace()

    def _close_trace(self) -> None:
        if self._sink is not None:
            self._sink.close()
