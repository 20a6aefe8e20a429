# SPDX-License-Identifier: Apache-2.0
"""The worker's half of the connector: copies what the scheduler decided, and reports.

The methods carry vLLM's hook names but know nothing of vLLM. In every engine step
the host calls, in this order::

    start_save_caches             what is to be saved, and what the host holds already
    start_load_caches             fill encoder_cache out of the region
    save_caches                   the encoder produced one encoding
    get_finished                  the step is over: submit all saves at once
    build_connector_worker_meta   which copies have ended

Which rank does what: all ranks hold the same encoder outputs, so rank 0 of the
tensor- and context-parallel group alone writes them; every rank loads into its own
encoder cache. Each participating rank reports each copy that the metadata names
**exactly once**, whatever became of it (EC-4.1): an encoder that never ran, an
output of the wrong size and a failed copy are reports too, since without one the
blocks would stay held for ever.

What a step's blocks are in, the metadata names. A worker that has another file open
refuses the step with an error before it copies anything (EC-10.7): its blocks hold other
bytes, or none, and nobody would read what it saves.

When a save is reported: the host asks once per step, right after it has queued the
encoder on the device, and so before the encoder has run. A host copy is waited for
(``settle``) and reported at once. A device copy waits for the encoder, and whoever waited
for that would stop the host for the whole encoder in every step; so it is reported with
the next step, which the scheduler delegate's ``has_pending_push_work`` brings about even
when no request wants one. Meanwhile a reader is told NACK_NOT_READY and asks again.

Main thread of the worker process only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

import torch

from ec_connector.copies.base import CopyEngine, CopyJob
from ec_connector.engine.messages import CopyReport, LoadOp, SaveOp, StepMetadata, WorkerReport
from ec_connector.region.errors import RegionIdentityError
from ec_protocol.errors import ConfigError

if TYPE_CHECKING:
    from ec_connector.config.settings import ECConfig
    from ec_connector.region.shared import SharedRegion

logger = logging.getLogger(__name__)

EncoderCache = MutableMapping[str, torch.Tensor]

#: How long the end of a step that saves may be held up, so that the saves can be
#: reported with it. An encoder's step takes many times that.
SETTLE_S: Final = 0.005


class ECWorker:
    """Worker delegate of one rank.

    Args:
        config: Settings of the process.
        region: The mapped region. Whoever opened it closes it, after ``shutdown``.
        engine: Copies between this rank's device and the region.
        rank: This rank among those that load, from 0.
        world_size: Ranks that load.
        is_saver: Whether this rank writes saves; exactly one rank of an instance
            does. None means rank 0.

    Raises:
        ConfigError: The rank is not among the ranks.
    """

    def __init__(
        self,
        config: ECConfig,
        region: SharedRegion,
        engine: CopyEngine,
        rank: int = 0,
        world_size: int = 1,
        is_saver: bool | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"rank={rank!r}: expected 0 to {world_size - 1} of {world_size} ranks"
            )
        self.config = config
        self.region = region
        self.engine = engine
        self.rank = rank
        self.world_size = world_size
        self.is_saver = rank == 0 if is_saver is None else is_saver
        # Saves of the step whose encoder output has not been seen yet, by hash.
        self._planned: dict[str, SaveOp] = {}
        # Encodings in the host's cache that are a stranger's word, and whose (EC-15.8).
        self._strangers: dict[str, str] = {}
        self._batch: list[CopyJob] = []
        self._reports: list[CopyReport] = []
        self._settling = False

    # ------------------------------------------------------------------- step hooks
    def start_save_caches(
        self, metadata: StepMetadata, encoder_cache: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Learn which encoder outputs of this step are to be saved.

        A host that evicts an encoding and allocates it again in one scheduling pass keeps
        it: it neither encodes it nor calls ``save_caches``. So what it holds now is saved
        as it is (EC-4.7).

        Args:
            metadata: The step's metadata.
            encoder_cache: The host's cache, in which nothing of this step is yet; None if
                the host does not tell.

        Raises:
            RegionIdentityError: The step is about another region; so do all hooks.
        """
        self._check(metadata)
        # Left over only if the host gave a step up half-way.
        self._flush()
        if self.is_saver:
            for op in metadata.saves:
                if self._planned.setdefault(op.mm_hash, op) is not op:
                    logger.error("step %d saves %s twice", metadata.step_id, op.mm_hash)
                    self._report(op.copy_id, False)
            held = encoder_cache or {}
            own = [name for name in self._planned if name in held and name not in self._strangers]
            for mm_hash in own:
                self._save(self._planned.pop(mm_hash), held)

    def start_load_caches(self, encoder_cache: EncoderCache, metadata: StepMetadata) -> None:
        """Fill ``encoder_cache`` with every encoding that the step loads.

        When this returns the model may read the new tensors: on a CPU they are
        filled, on a device the compute stream is ordered behind the copies.

        Args:
            encoder_cache: The host's cache. A hash that is in it already is kept
                as it is and reported as landed, unless it is there by the word of a
                stranger that the step does not take (EC-15.8).
            metadata: The step's metadata.
        """
        self._check(metadata)
        loads: list[tuple[LoadOp, torch.Tensor]] = []
        self._strangers = {h: who for h, who in self._strangers.items() if h in encoder_cache}
        for op in metadata.loads:
            if self._strangers.get(op.mm_hash, op.stranger) != op.stranger:
                # Another's word; and if the load fails, then better none.
                del encoder_cache[op.mm_hash], self._strangers[op.mm_hash]
            if op.mm_hash in encoder_cache:
                self._report(op.copy_id, True)
                continue
            tensor = self._make_tensor(op)
            if tensor is not None:
                loads.append((op, tensor))
        if not loads:
            return
        self.engine.submit_loads(
            [CopyJob(op.copy_id, tensor, op.extents, op.nbytes) for op, tensor in loads]
        )
        failed = self.engine.order_loads()
        for op, tensor in loads:
            if op.copy_id not in failed:
                encoder_cache[op.mm_hash] = tensor
                self._comes_from(op.mm_hash, op.stranger)

    def save_caches(
        self, encoder_cache: EncoderCache, mm_hash: str, metadata: StepMetadata
    ) -> None:
        """The encoder produced ``encoder_cache[mm_hash]``.

        It is copied with the whole step's saves, in ``get_finished``. A hash that
        the step does not save (the region was full) is ignored.

        Args:
            encoder_cache: The host's cache; the tensor is not changed any more.
            mm_hash: Key of the encoding.
            metadata: The step's metadata.
        """
        self._check(metadata)
        self._comes_from(mm_hash, "")
        op = self._planned.pop(mm_hash, None)
        if op is not None:
            self._save(op, encoder_cache)

    def get_finished(
        self, finished_req_ids: Iterable[str] = ()
    ) -> tuple[set[str] | None, set[str] | None]:
        """The step is over: submit its saves in one batch, give up the others.

        A planned save whose encoder never ran (the request was aborted, or the
        step failed) is reported as not landed (EC-4.3).

        Returns:
            ``(None, None)``: no request waits for a copy.
        """
        self._flush()
        return None, None

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """What has ended since the last call, or None if nothing has."""
        if self._settling:
            self._settling = False
            self.engine.settle(SETTLE_S)
        for verdict in self.engine.poll():
            self._report(verdict.copy_id, verdict.ok)
        if not self._reports:
            return None
        report = WorkerReport(tuple(self._reports))
        self._reports.clear()
        return report

    # --------------------------------------------------------------------- the rest
    @property
    def has_pending(self) -> bool:
        """Whether a report is still owed, so that the host must not stop stepping."""
        return bool(self._planned or self._batch or self._reports or self.engine.pending)

    def shutdown(self) -> None:
        """Finish or give up what is left; nothing touches the region afterwards.

        Reports can still be had from ``build_connector_worker_meta``.
        """
        self._flush()
        self.engine.shutdown()

    # -------------------------------------------------------------------- internals
    def _comes_from(self, mm_hash: str, stranger: str) -> None:
        """Note by whose word the host's cache has an encoding now."""
        self._strangers.pop(mm_hash, None)
        if stranger:
            self._strangers[mm_hash] = stranger

    def _check(self, metadata: StepMetadata) -> None:
        mine = self.region.identity
        if metadata.region != mine:
            raise RegionIdentityError(
                self.region.path,
                f"step {metadata.step_id} is about region {metadata.region.hex() or 'of no name'}, "
                f"and rank {self.rank} has {mine.hex()} open: the scheduler's blocks are in "
                "another file. Nothing was copied. Stop all processes of the instance and start "
                "it again; all of them must see the same /dev/shm",
            )

    def _save(self, op: SaveOp, encoder_cache: Mapping[str, torch.Tensor]) -> None:
        tensor = encoder_cache.get(op.mm_hash)
        if tensor is None:
            logger.warning("save of %s: the encoder cache does not hold it", op.mm_hash)
            self._report(op.copy_id, False)
        else:
            self._batch.append(CopyJob(op.copy_id, tensor, op.extents, op.nbytes))

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        planned, self._planned = self._planned, {}
        for op in planned.values():
            self._report(op.copy_id, False)
        if batch:
            self.engine.submit_saves(batch)
            self._settling = True

    def _make_tensor(self, op: LoadOp) -> torch.Tensor | None:
        """The tensor that a load fills; None, and a report, if it cannot be made."""
        dtype = getattr(torch, op.dtype, None)
        try:
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{op.dtype!r} is not the name of a torch dtype")
            return self.engine.empty(op.shape, dtype)
        except Exception:
            logger.exception("load of %s: no tensor of %s %s", op.mm_hash, op.shape, op.dtype)
            self._report(op.copy_id, False)
            return None

    def _report(self, copy_id: int, landed: bool) -> None:
        self._reports.append(CopyReport(copy_id, self.rank, landed))
