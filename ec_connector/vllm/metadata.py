# SPDX-License-Identifier: Apache-2.0
"""What scheduler and workers send each other, in the wrappers that vLLM asks for."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorMetadata,
    ECConnectorWorkerMetadata,
)

from ec_connector.engine.messages import StepMetadata, WorkerReport


@dataclass(frozen=True)
class ECStepMetadata(ECConnectorMetadata):
    """Scheduler to workers: the copies of one step."""

    step: StepMetadata


@dataclass(frozen=True)
class ECWorkerMetadata(ECConnectorWorkerMetadata):
    """Workers to scheduler: the reports of one rank, or of several aggregated."""

    report: WorkerReport

    def aggregate(self, other: ECConnectorWorkerMetadata) -> ECWorkerMetadata:
        """Both ranks' reports in one; neither is changed.

        Raises:
            TypeError: ``other`` comes from another connector.
        """
        if not isinstance(other, ECWorkerMetadata):
            raise TypeError(f"cannot aggregate {type(other).__name__} with ECWorkerMetadata")
        return ECWorkerMetadata(self.report.aggregate(other.report))
