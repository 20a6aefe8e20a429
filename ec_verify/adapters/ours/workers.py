# SPDX-License-Identifier: Apache-2.0
"""Worker delegates of the adapter ``ours``, on a device that the kit plays."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies.base import CopyEngine, CopyJob, Verdict
from ec_connector.engine.messages import StepMetadata
from ec_connector.engine.worker import ECWorker
from ec_connector.region.shared import SharedRegion

Reports = list[list[Any]]


class KitEngine(CopyEngine):
    """Starts copies and hears from the kit how they end; moves no byte itself."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.verdicts: list[Verdict] = []
        self._pending: set[int] = set()

    @property
    def device(self) -> torch.device:
        """Tensors are made in host memory; nobody looks at them."""
        return torch.device("cpu")

    def submit_saves(self, batch: Sequence[CopyJob]) -> None:
        """See ``CopyEngine``."""
        self.started += [job.copy_id for job in batch]
        self._pending.update(job.copy_id for job in batch)

    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        """See ``CopyEngine``."""
        self.submit_saves(batch)

    def order_loads(self) -> set[int]:
        """No load has failed yet."""
        return set()

    def poll(self) -> list[Verdict]:
        """What the kit said."""
        verdicts, self.verdicts = self.verdicts, []
        self._pending -= {verdict.copy_id for verdict in verdicts}
        return verdicts

    @property
    def pending(self) -> int:
        """Copies without a verdict."""
        return len(self._pending)

    def shutdown(self) -> None:
        """Nothing runs."""


class KitWorker:
    """One rank: the real delegate, its encoder cache, and the kit's device."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.engine = KitEngine()
        # The delegate only keeps both. On the kit's device no region is mapped, and the
        # scheduler names none.
        config, region = cast(ECConfig, None), cast(SharedRegion, SimpleNamespace(identity=b""))
        self.worker = ECWorker(config, region, self.engine, rank, world_size)

    def step(
        self, metadata: StepMetadata, held: dict[str, int], encoded: dict[str, int]
    ) -> tuple[list[int], Reports]:
        """The hooks of one step.

        Args:
            metadata: What the scheduler said.
            held: Encodings that the host's cache has, and their bytes.
            encoded: Encodings that the encoder produced in it, and their bytes.

        Returns:
            Copies that were started, and reports ``[copy, landed]``.
        """
        self.engine.started = []
        cache = {name: torch.zeros(size, dtype=torch.uint8) for name, size in held.items()}
        self.worker.start_save_caches(metadata, cache)
        self.worker.start_load_caches(cache, metadata)
        for mm_hash, nbytes in encoded.items():
            cache[mm_hash] = torch.zeros(nbytes, dtype=torch.uint8)
            self.worker.save_caches(cache, mm_hash, metadata)
        self.worker.get_finished()
        reports = self._reports()
        return self.engine.started, reports

    def ended(self, copy_id: int, ok: bool) -> Reports:
        """The device ended a copy; what is reported with the next step's output."""
        self.engine.verdicts.append(Verdict(copy_id, ok))
        return self._reports()

    def _reports(self) -> Reports:
        report = self.worker.build_connector_worker_meta()
        return [[row.copy_id, row.landed] for row in report.entries] if report else []
