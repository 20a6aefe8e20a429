# SPDX-License-Identifier: Apache-2.0
"""Worker ranks in processes of their own, on one real region file.

What a rank encodes is what the name stands for (``content.expected``), so that whoever
loads it can tell whether the bytes are right.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
from dataclasses import dataclass
from typing import Any

from ec_connector.config.settings import ECConfig
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.engine.messages import StepMetadata, WorkerReport
from ec_connector.engine.worker import ECWorker
from ec_connector.region.shared import SharedRegion
from tests.world.host import BLOCK, expected, same

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Place:
    """Which region, as every process of an instance knows it."""

    instance_id: str
    dp_rank: int
    blocks: int
    directory: str
    nonce: bytes = b"0123456789abcdef"

    def open(self) -> SharedRegion:
        return SharedRegion.open(
            self.instance_id,
            self.dp_rank,
            self.blocks,
            BLOCK,
            directory=self.directory,
            nonce=self.nonce,
            guard=False,
        )


@dataclass(frozen=True)
class StepResult:
    """What a rank says about one step.

    Attributes:
        report: Its report.
        wrong: Names of loaded encodings whose bytes are not what they stand for.
        loaded: Names of loaded encodings.
    """

    report: WorkerReport | None
    wrong: list[str]
    loaded: list[str]


def _serve(
    pipe: multiprocessing.connection.Connection, place: Place, rank: int, world_size: int
) -> None:
    with place.open() as region:
        engine = CpuCopyEngine(region)
        config = ECConfig.parse({"ec_cpu_bytes": place.blocks * BLOCK}, "ec_both")
        worker = ECWorker(config, region, engine, rank, world_size)
        pipe.send((region.created, str(region.path), region.identity))
        cache: dict[str, Any] = {}
        while (step := pipe.recv()) is not None:
            metadata, encode = step
            cache.clear()
            worker.start_save_caches(metadata)
            worker.start_load_caches(cache, metadata)
            loaded = sorted(cache)
            wrong = [n for n in loaded if not same(cache[n], expected(n, cache[n].shape[0]))]
            for name, rows in encode:
                cache[name] = expected(name, rows).clone()
                worker.save_caches(cache, name, metadata)
            worker.get_finished(set())
            pipe.send(StepResult(worker.build_connector_worker_meta(), wrong, loaded))
        worker.shutdown()
        region.close(unlink=region.created)


class RankProcess:
    """One rank; ``start`` and ``finish`` may be far apart, as with a late rank."""

    def __init__(self, place: Place, rank: int, world_size: int) -> None:
        # Forked by a server that has imported everything once, and has no threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, place, rank, world_size))
        self.process.start()
        self.created, self.path, self.region = self._receive()

    def start(self, metadata: StepMetadata, *encode: tuple[str, int]) -> None:
        """Give it a step, with what the encoder makes in it."""
        self._pipe.send((metadata, encode))

    def finish(self) -> StepResult:
        """Its result."""
        result: StepResult = self._receive()
        return result

    def _receive(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "a rank does not answer"
        return self._pipe.recv()

    def close(self) -> None:
        if self.process.is_alive():
            self._pipe.send(None)
            self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
