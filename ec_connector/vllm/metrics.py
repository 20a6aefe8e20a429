# SPDX-License-Identifier: Apache-2.0
"""Statistics for vLLM's log line and for Prometheus.

The scheduler half hands over what was counted since the last time; vLLM adds that up
per interval and per engine. Names of counters are those of ``ECScheduler.stats`` and
of the peer-to-peer half, with the part they come from in front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import prometheus_client
from vllm.distributed.ec_transfer.ec_connector.metrics import (
    ECConnectorPromMetrics,
    ECConnectorStats,
)

if TYPE_CHECKING:
    from ec_connector.instance import SchedulerInstance

#: Not counters: amounts at a moment.
GAUGES: Final = ("free_blocks", "retired_blocks", "quarantined_blocks")


@dataclass
class ECStats(ECConnectorStats):
    """Counted in an interval, and amounts at its end: ``{name: number}``, picklable."""

    data: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: ECConnectorStats) -> ECStats:
        """This interval and the later one ``other`` together."""
        total = dict(self.data)
        for name, value in other.data.items():
            total[name] = value if name in GAUGES else total.get(name, 0) + value
        return ECStats(total)

    def reduce(self) -> dict[str, int | float]:
        """What goes into the log line."""
        return dict(sorted(self.data.items()))

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not any(value for name, value in self.data.items() if name not in GAUGES)


class StatsSource:
    """Turns an instance's running totals into what was counted since the last call."""

    def __init__(self, instance: SchedulerInstance) -> None:
        self._instance = instance
        self._told: Counter[str] = Counter()

    def take(self) -> ECStats | None:
        """What was counted since the last call; None if nothing was."""
        totals = self._totals()
        data: dict[str, Any] = {
            name: value - self._told[name]
            for name, value in totals.items()
            if name not in GAUGES and value != self._told[name]
        }
        if not data:
            return None
        self._told.update(data)
        data.update({name: totals[name] for name in GAUGES})
        return ECStats(data)

    def _totals(self) -> dict[str, int]:
        totals = dict(self._instance.scheduler.stats())
        p2p = self._instance.p2p
        if p2p is not None:
            for part, half in (("consumer", p2p.consumer), ("producer", p2p.producer)):
                if half is not None:
                    with p2p.lock:
                        counted: Mapping[str, int] = dict(half.counters)
                    totals.update({f"{part}_{name}": n for name, n in counted.items()})
        return totals


class ECPromMetrics(ECConnectorPromMetrics):
    """``vllm:ec_events`` by event, ``vllm:ec_blocks`` by state; both per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        # vLLM may wrap the metric classes, for Ray for example.
        self._events = metric_types[prometheus_client.Counter](
            name="vllm:ec_events",
            documentation="Events of the encoder-cache connector since the start.",
            labelnames=[*labelnames, "event"],
        )
        self._blocks = metric_types[prometheus_client.Gauge](
            name="vllm:ec_blocks",
            documentation="Blocks of the encoder-cache region by state.",
            labelnames=[*labelnames, "state"],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one interval of one engine."""
        labels = [str(value) for value in self.per_engine_labelvalues[engine_idx]]
        for name, value in transfer_stats_data.items():
            if name in GAUGES:
                self._blocks.labels(*labels, name.removesuffix("_blocks")).set(value)
            elif value > 0:
                self._events.labels(*labels, name).inc(value)
