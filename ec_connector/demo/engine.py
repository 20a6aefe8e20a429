# SPDX-License-Identifier: Apache-2.0
"""A very small host: one process, one rank, engine steps in the order of the hooks.

It does with pictures what a model server does with requests, calls the scheduler's
and the worker's hooks in the real order, and nothing else of the connector.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.demo.encoder import (
    DTYPE,
    HIDDEN,
    VisionEncoder,
    mm_hash_of,
    output_bytes,
    output_shape,
)
from ec_connector.demo.errors import DemoError
from ec_connector.demo.images import Picture
from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.worker import ECWorker
from ec_connector.instance import SchedulerInstance
from ec_connector.region.shared import SharedRegion
from ec_protocol.items import Item, make_item

BLOCK_BYTES = HIDDEN * DTYPE.itemsize
FACTS = ModelFacts(
    vllm_version="demo", model="demo-vision", dtype="bfloat16", element_size=DTYPE.itemsize
)


@dataclass(slots=True)
class Request:
    """One request with one picture.

    Attributes:
        request_id: Unique in the process.
        picture: What it shows.
        ec_transfer_params: What a producer announced, if anything.
    """

    request_id: str
    picture: Picture
    ec_transfer_params: dict[str, Any] | None = None
    items: list[Item] = field(init=False)

    def __post_init__(self) -> None:
        rows, width = output_shape(self.picture)
        size = {"width": self.picture.width, "height": self.picture.height}
        self.items = [
            make_item(mm_hash_of(self.picture), rows, width, DTYPE.itemsize, metadata=size)
        ]


def region_bytes(pictures: list[Picture]) -> int:
    """Room for every picture's encoding, twice, so that nothing need be evicted."""
    return 2 * sum(output_bytes(picture) for picture in pictures)


#: Data processes write their figures down at least this often.
_FIGURES_S = 0.6


class DemoEngine:
    """One engine instance.

    Args:
        instance_id: Names the region.
        role: ``ec_producer``, ``ec_consumer`` or ``ec_both``.
        cpu_bytes: Size of the region.
        peer_to_peer: Whether to serve or read peers.
        encoder: The encoder; None makes one.
        trace: File for a trace of what the process does; none if empty.
    """

    def __init__(
        self,
        instance_id: str,
        role: str,
        cpu_bytes: int,
        *,
        peer_to_peer: bool,
        encoder: VisionEncoder | None = None,
        trace: str = "",
    ) -> None:
        extra: dict[str, Any] = {"ec_cpu_bytes": cpu_bytes, "ec_enable_nixl": peer_to_peer}
        if trace:
            extra["ec_trace_file"] = trace
        config = ECConfig.parse(extra, role)
        if config.side_channel is not None:
            # Any free port: several demos may run side by side.
            config = dataclasses.replace(config, side_channel=("127.0.0.1", 0))
        self.region = SharedRegion.open(
            instance_id, 0, config.num_blocks(BLOCK_BYTES), BLOCK_BYTES, create=True
        )
        try:
            self.instance = SchedulerInstance(
                config,
                FACTS,
                self.region,
                items=lambda request: request.items,
                engine_id=instance_id,
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        self.worker = ECWorker(config, self.region, CpuCopyEngine(self.region))
        self.encoder = encoder or VisionEncoder()
        self.encoder_cache: dict[str, torch.Tensor] = {}
        self.encoded = 0
        self.encode_s = 0.0
        self.load_s = 0.0

    def admit(
        self, request: Request, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Step until the request may be scheduled.

        Args:
            request: The request.
            timeout_s: Longest wait.
            meanwhile: Called once, while an encoding is being fetched.

        Raises:
            DemoError: It is still deferred after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        waits = False
        while not self.instance.scheduler.ensure_cache_available(request, 0):
            if not waits:
                waits = True
                meanwhile()
            if time.monotonic() > deadline:
                raise DemoError(f"{request.picture.name}: still deferred after {timeout_s:g} s")
            # An engine with nothing to schedule idles between its steps.
            time.sleep(0.0002)

    def run(self, request: Request) -> torch.Tensor:
        """One engine step with the request: load its encoding, or encode the picture."""
        scheduler, worker = self.instance.scheduler, self.worker
        (item,) = request.items
        cached = scheduler.has_cache_item(item.mm_hash)
        scheduler.update_state_after_alloc(request, 0)
        metadata = scheduler.build_connector_meta()
        worker.start_save_caches(metadata)
        started = time.perf_counter()
        worker.start_load_caches(self.encoder_cache, metadata)
        if cached:
            self.load_s += time.perf_counter() - started
        else:
            started = time.perf_counter()
            self.encoder_cache[item.mm_hash] = self.encoder.encode(request.picture)
            self.encode_s += time.perf_counter() - started
            self.encoded += 1
            worker.save_caches(self.encoder_cache, item.mm_hash, metadata)
        worker.get_finished()
        self.report()
        return self.encoder_cache[item.mm_hash]

    def report(self) -> None:
        """What the worker has finished goes back to the scheduler."""
        self.instance.scheduler.update_connector_output(self.worker.build_connector_worker_meta())

    def drain(self, timeout_s: float) -> None:
        """Empty steps until every copy has been reported.

        Raises:
            DemoError: A copy is still under way after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while self.instance.scheduler.has_pending_push_work():
            if time.monotonic() > deadline:
                raise DemoError(f"copies are still under way after {timeout_s:g} s")
            self.worker.get_finished()
            self.report()
            time.sleep(0.0005)

    def data_pids(self) -> list[int]:
        """Process ids of those that serve for this engine, and first of who replaces them."""
        data = self.instance.data
        return [] if data is None else [*data.pids("parent"), *data.pids("server")]

    def measured(self) -> dict[str, dict[str, float]]:
        """Mean latencies in milliseconds, and what the reading side counted."""
        data = self.instance.data
        if data is None:
            return {"stats": {}, "counters": {}}
        time.sleep(_FIGURES_S)
        figures = data.read_figures()
        stats = {}
        for what in ("ack", "read"):
            samples = figures.take_samples(what)
            if samples:
                stats[f"{what}_ms"] = sum(samples) / len(samples) * 1e3
        loans = data.link.loans
        counters = figures.totals("reads") + (Counter() if loans is None else loans.counters)
        return {"stats": stats, "counters": dict(counters)}

    def close(self) -> None:
        """Stop everything and remove the region."""
        self.instance.shutdown()
        self.worker.shutdown()
        self.region.close(unlink=True)
