# SPDX-License-Identifier: Apache-2.0
"""The class that vLLM loads: a shell that routes each hook to the half it belongs to.

vLLM makes one object per process. Worker processes get the worker half (region, copy
engine, ``ECWorker``), the scheduler's process the scheduler half (region,
``SchedulerInstance``). A single-process engine has one of each, which share nothing
but the region, as always. Only public base classes of vLLM are used.

Every hook is called on the main thread of its process.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
    ECConnectorWorkerMetadata,
)

from ec_connector.engine.messages import StepMetadata
from ec_connector.engine.worker import ECWorker
from ec_connector.instance import SchedulerInstance
from ec_connector.metrics import StatsSource
from ec_connector.region.shared import SharedRegion
from ec_connector.vllm.encoder import encoder_hash
from ec_connector.vllm.features import RequestItems, placeholder_fields
from ec_connector.vllm.metadata import ECStepMetadata, ECWorkerMetadata
from ec_connector.vllm.metrics import ECPromMetrics, ECStats
from ec_connector.vllm.setup import Setup, read_setup, warn_of_strangers
from ec_protocol.errors import LocalProtocolError

logger = logging.getLogger(__name__)


class _SchedulerHalf:
    """What the scheduler's process holds."""

    def __init__(self, setup: Setup, vllm_config: Any) -> None:
        setup.names.warn()
        warn_of_strangers(setup.config)
        fields = placeholder_fields(vllm_config.model_config)
        self.items = RequestItems(setup.widths, setup.facts.element_size, fields, setup.names)
        facts = setup.facts
        if setup.config.enable_nixl:
            said = setup.config.encoder_revision
            facts = replace(facts, encoder_hash=encoder_hash(vllm_config, said))
        self.region = setup.open_region()
        try:
            self.instance = SchedulerInstance(
                setup.config,
                facts,
                self.region,
                items=self.items,
                world_size=setup.load_ranks,
                engine_id=setup.engine_id,
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        self.delegate = self.instance.scheduler
        self.stats = StatsSource(self.instance)

    def shutdown(self) -> None:
        try:
            self.instance.shutdown()
        finally:
            self.region.close(unlink=True)


class _WorkerHalf:
    """What one worker process holds."""

    def __init__(self, setup: Setup) -> None:
        rank, world_size = _rank_among_loaders()
        if world_size != setup.load_ranks:
            raise LocalProtocolError(
                f"{world_size} ranks load, but the scheduler expects {setup.load_ranks} reports"
            )
        self.region: SharedRegion = setup.open_region()
        try:
            self.delegate = ECWorker(
                setup.config,
                self.region,
                setup.make_engine(self.region),
                rank=rank,
                world_size=world_size,
            )
        except BaseException:
            self.region.close(unlink=self.region.created)
            raise

    def shutdown(self) -> None:
        try:
            self.delegate.shutdown()
        finally:
            # Whoever maps the region keeps it; only the name goes.
            self.region.close(unlink=self.region.created)


class ECConnector(ECConnectorBase):
    """Encoder-cache connector: a shared-memory tier, and READs between instances.

    Args:
        vllm_config: vLLM's configuration; ``ec_transfer_config`` is set.
        role: Which half this process gets.

    Raises:
        ValueError: Not the V2 model runner, or a wrong setting (``ConfigError``).
        RuntimeError: Peer-to-peer is on and a package is missing.
        ECError: The region cannot be made, or the control socket cannot be bound.
    """

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        # A vLLM that has only one runner left does not ask which.
        if not getattr(vllm_config, "use_v2_model_runner", True):
            raise ValueError(
                f"{type(self).__name__} works with vLLM's V2 model runner only, and this server "
                "has V1; start it with VLLM_USE_V2_MODEL_RUNNER=1"
            )
        self._scheduler: _SchedulerHalf | None = None
        self._worker: _WorkerHalf | None = None
        setup = read_setup(vllm_config, vllm_version)
        if role == ECConnectorRole.SCHEDULER:
            self._scheduler = _SchedulerHalf(setup, vllm_config)
        elif role == ECConnectorRole.WORKER:
            if setup.device_type == "cpu" and vllm_config.is_mm_encoder_only:
                from ec_connector.vllm.encoder_only import use_encoder_only_runner

                use_encoder_only_runner()
            if _holds_encoder():
                self._worker = _WorkerHalf(setup)
        else:
            raise ValueError(f"role={role!r}: expected SCHEDULER or WORKER")

    # ------------------------------------------------------------ scheduler's hooks
    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Whether the request may be scheduled, or an encoding of it is under way."""
        return self._sched.delegate.ensure_cache_available(request, num_computed_tokens)

    def has_cache_item(self, identifier: str) -> bool:
        """Whether ``identifier`` will be loaded in this step if the host wants it."""
        return self._sched.delegate.has_cache_item(identifier)

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Item ``index`` is part of the step: it is loaded, or encoded and saved."""
        self._sched.delegate.update_state_after_alloc(request, index)

    def update_state_after_free(self, request: Any, index: int) -> None:
        """The host may drop item ``index`` from its own encoder cache."""
        self._sched.delegate.update_state_after_free(request, index)

    def build_connector_meta(self, scheduler_output: Any) -> ECStepMetadata:
        """What the workers copy in this step."""
        return ECStepMetadata(self._sched.delegate.build_connector_meta(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """The ranks' reports, of this step or of an earlier one."""
        meta = connector_output.ec_connector_worker_meta
        if isinstance(meta, ECWorkerMetadata):
            self._sched.delegate.update_connector_output(meta.report)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """The request is over: its ``ec_transfer_params``, on a producer."""
        half = self._sched
        try:
            return half.delegate.request_finished(request)
        finally:
            half.items.forget(request.request_id)

    def take_unavailable_requests(self) -> set[str]:
        """Requests whose encoding is lost and whose media is gone; the host fails them."""
        return self._sched.delegate.take_unavailable_requests()

    def has_pending_push_work(self) -> bool:
        """Whether a report is still to come, so that the host must go on stepping."""
        half = self._scheduler
        return half is not None and half.delegate.has_pending_push_work()

    # --------------------------------------------------------------- worker's hooks
    def start_worker_services(self) -> None:
        """The model is in place. Nothing waits for that: copies need no service."""

    def start_save_caches(
        self, encoder_cache: dict[str, torch.Tensor] | None = None, **kwargs: Any
    ) -> None:
        """The step begins: learn what its encoder will produce, and what it need not."""
        if self._worker is not None:
            self._worker.delegate.start_save_caches(self._step, encoder_cache)

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Fill ``encoder_cache`` with every encoding that the step loads."""
        if self._worker is not None:
            self._worker.delegate.start_load_caches(encoder_cache, self._step)

    def save_caches(
        self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any
    ) -> None:
        """The encoder produced ``encoder_cache[mm_hash]``."""
        if self._worker is not None:
            self._worker.delegate.save_caches(encoder_cache, mm_hash, self._step)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The step is over: start its saves. No request ever waits for one."""
        if self._worker is not None:
            return self._worker.delegate.get_finished(finished_req_ids)
        return None, None

    def build_connector_worker_meta(self) -> ECConnectorWorkerMetadata | None:
        """Which copies have ended, or None."""
        if self._worker is None:
            return None
        report = self._worker.delegate.build_connector_worker_meta()
        return None if report is None else ECWorkerMetadata(report)

    # ------------------------------------------------------------------------- both
    def get_ec_connector_stats(self) -> ECStats | None:
        """What the scheduler half counted since the last call; workers count nothing."""
        taken = None if self._scheduler is None else self._scheduler.stats.take()
        return None if taken is None else ECStats(taken)

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> ECStats:
        """Statistics that travelled as a plain mapping."""
        return ECStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ECPromMetrics:
        """The Prometheus metrics; called in the API server's process."""
        return ECPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Stop what runs in this process and remove the region's name. Idempotent."""
        scheduler, self._scheduler = self._scheduler, None
        worker, self._worker = self._worker, None
        for half in (scheduler, worker):
            if half is not None:
                half.shutdown()

    # -------------------------------------------------------------------- internals
    @property
    def _sched(self) -> _SchedulerHalf:
        if self._scheduler is None:
            raise LocalProtocolError("a scheduler's hook was called without a scheduler half")
        return self._scheduler

    @property
    def _step(self) -> StepMetadata:
        metadata: ECConnectorMetadata | None = self._connector_metadata
        if not isinstance(metadata, ECStepMetadata):
            raise LocalProtocolError(
                f"a worker's hook was called with metadata of {type(metadata).__name__}"
            )
        return metadata.step


def _holds_encoder() -> bool:
    """Whether this process runs the encoder: the first pipeline stage alone does."""
    from vllm.distributed.parallel_state import get_pp_group

    return bool(get_pp_group().is_first_rank)


def _rank_among_loaders() -> tuple[int, int]:
    """This process's number among the tensor- and context-parallel ranks, and theirs."""
    from vllm.distributed.parallel_state import get_pcp_group, get_tp_group

    tp, pcp = get_tp_group(), get_pcp_group()
    return (
        int(pcp.rank_in_group * tp.world_size + tp.rank_in_group),
        int(pcp.world_size * tp.world_size),
    )
