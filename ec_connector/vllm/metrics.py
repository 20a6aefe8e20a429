# SPDX-License-Identifier: Apache-2.0
"""Statistics in the shapes that vLLM passes on; what they mean is in ``metrics``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.ec_transfer.ec_connector.metrics import (
    ECConnectorPromMetrics,
    ECConnectorStats,
)

from ec_connector import metrics


@dataclass
class ECStats(ECConnectorStats):
    """What was counted in an interval: ``metrics.Stats``, as vLLM carries it."""

    data: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget everything."""
        self.data = {}

    def aggregate(self, other: ECConnectorStats) -> ECStats:
        """This interval and the later one ``other`` together."""
        return ECStats(metrics.aggregate(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """What goes into the log line."""
        return metrics.reduce(self.data)

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return metrics.is_empty(self.data)


class ECPromMetrics(ECConnectorPromMetrics):
    """The Prometheus metrics of all engines of a server."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        # vLLM may wrap the metric classes, for Ray for example.
        self._recorder = metrics.PromRecorder(
            metric_types[Counter], metric_types[Gauge], metric_types[Histogram], labelnames
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one interval of one engine."""
        self._recorder.observe(transfer_stats_data, self.per_engine_labelvalues[engine_idx])
