# SPDX-License-Identifier: Apache-2.0
"""Copy engine for tensors on a CUDA device: the GPU's copy engines, beside the model.

One stream for each direction, since the GPU has one copy engine for each; a whole batch
is submitted at once and ends with one event, which is pooled. What orders what:

* **A save** waits, on the device, for everything that was queued on the compute stream
  when it was submitted: the encoder that fills its tensor.
* **A load** fills memory that belongs to the load stream (``empty``), so it waits for no
  computation and runs beside the step before. The compute stream waits for its end
  event (``order_loads``).
* A load into a tensor that the caller made himself waits for the compute stream first:
  the caching allocator may have handed out memory that a kernel still uses.

The second stream that uses a load's memory is made known to the caching allocator
(``record_stream``), and a batch keeps its tensors, sources as well, until its end event
has been seen. Only then are there verdicts, and only then is the event used again.

When a submission fails half-way, what was queued is waited for and the whole batch is
reported as failed. If even waiting fails, the CUDA context is lost: nothing proves that
a copy is over, so there is no verdict and the blocks stay held until the process has
died, which it must (EC-4.2).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ec_connector.copies.base import CopyEngine, CopyJob, Verdict, byte_spans
from ec_connector.copies.cuda_methods import CopyMethod, Piece, PlainMethod, choose_method
from ec_connector.copies.cuda_pinning import CHUNK_BYTES, Pinning
from ec_connector.region.shared import SharedRegion

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Task:
    """A checked job.

    Attributes:
        copy_id: Names the copy in its verdict.
        tensor: Contiguous, on the device.
        own: Whether its memory belongs to the load stream.
        pinned: Pieces in page-locked memory.
        loose: Pieces in memory that could not be page-locked.
    """

    copy_id: int
    tensor: torch.Tensor
    own: bool
    pinned: list[Piece]
    loose: list[Piece]


@dataclass(slots=True, eq=False)
class _Batch:
    """Copies that were submitted together, until their end has been seen."""

    tasks: list[_Task]
    end: torch.cuda.Event


class CudaCopyEngine(CopyEngine):
    """Copies between tensors of one CUDA device and a region.

    Args:
        region: The region; it must stay open until ``shutdown`` has returned.
        device: The device; None is the current one.
        method: ``batch``, ``swap`` or ``plain``; None takes the cheapest that works.
        chunk_bytes: Longest piece that is page-locked at once.

    Raises:
        MethodUnavailable: The method that was asked for cannot be used here.
    """

    def __init__(
        self,
        region: SharedRegion,
        device: torch.device | int | None = None,
        method: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        index = torch.cuda.current_device() if device is None else device
        self._device: Final = torch.device("cuda", index) if isinstance(index, int) else index
        self._num_blocks: Final = region.num_blocks
        self._block_size: Final = region.block_size_bytes
        self._base: Final = region.address
        # Keeps the mapping: closing the region too early crashes no copy under way.
        self._keep: torch.Tensor | None = region.tensor
        # One guard for all calls: making one costs more than entering it, and the engine
        # step waits for a submission. They never nest.
        self._on_device: Final = torch.cuda.device(self._device)
        with self._on_device:
            self._saves = _stream(self._device)
            self._loads = _stream(self._device)
            self.method: CopyMethod = choose_method(region.tensor, method)
            self._plain: CopyMethod = PlainMethod(region.tensor)
            self.pinning = Pinning(region.address, region.nbytes, chunk_bytes)
        self._gate: Final = _event()
        self._events: list[torch.cuda.Event] = []
        self._in_flight: list[_Batch] = []
        self._unordered: list[_Batch] = []
        self._failed_loads: set[int] = set()
        self._verdicts: list[Verdict] = []
        # Tensors that `empty` made and no load has been given yet, by id.
        self._made: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._pending = 0
        self._closed = False
        self._lost = False

    # ------------------------------------------------------------------- interface
    @property
    def device(self) -> torch.device:
        """The CUDA device."""
        return self._device

    @property
    def pending(self) -> int:
        """Jobs whose verdict ``poll`` has not returned yet."""
        return self._pending

    def stream(self, save: bool) -> torch.cuda.Stream:
        """The stream of one direction, for measurements."""
        return self._saves if save else self._loads

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor for a load: its memory is the load stream's, so the load need not wait."""
        with torch.cuda.stream(self._loads):
            tensor = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        self._made[id(tensor)] = tensor
        return tensor

    def submit_saves(self, batch: Sequence[CopyJob]) -> None:
        """Start copying tensors into the region, after what the compute stream does now."""
        self._submit(batch, save=True)

    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        """Start copying out of the region into contiguous tensors."""
        accepted = self._submit(batch, save=False)
        if accepted is not None:
            self._unordered.append(accepted)
        going = {task.copy_id for task in accepted.tasks} if accepted is not None else set()
        self._failed_loads.update(job.copy_id for job in batch if job.copy_id not in going)

    def order_loads(self) -> set[int]:
        """Make the compute stream wait for every load so far, and only it."""
        failed, self._failed_loads = self._failed_loads, set()
        batches, self._unordered = self._unordered, []
        if not batches:
            return failed
        try:
            with self._on_device:
                compute = torch.cuda.current_stream(self._device)
                for batch in batches:
                    compute.wait_event(batch.end)
                    for task in batch.tasks:
                        if task.own:
                            # Freed, it may not be filled again before the model has read it.
                            task.tensor.record_stream(compute)
        except Exception as exc:
            self._lose(exc)
            failed.update(task.copy_id for batch in batches for task in batch.tasks)
        return failed

    def poll(self) -> list[Verdict]:
        """Verdicts since the last call; never waits."""
        verdicts, self._verdicts = self._verdicts, []
        going: list[_Batch] = []
        for batch in self._in_flight:
            if self._is_over(batch):
                verdicts += [Verdict(task.copy_id, True) for task in batch.tasks]
                self._events.append(batch.end)
            else:
                going.append(batch)
        self._in_flight = going
        self._pending -= len(verdicts)
        return verdicts

    def shutdown(self) -> None:
        """Wait for what was submitted, and undo the page-locking."""
        if self._closed:
            return
        self._closed = True
        try:
            for stream in (self._saves, self._loads):
                stream.synchronize()
        except Exception as exc:
            # The registration goes with the process; without a proof it stays until then.
            self._lose(exc)
            return
        self.pinning.release()
        self._keep = None

    # ------------------------------------------------------------------- internals
    def _submit(self, batch: Sequence[CopyJob], save: bool) -> _Batch | None:
        """Submit what makes sense of a batch; None if nothing is under way."""
        self._pending += len(batch)
        if not batch:
            return None
        with self._on_device:
            tasks = [task for job in batch if (task := self._prepare(job, save)) is not None]
            if not tasks:
                return None
            stream = self.stream(save)
            try:
                end = self._events.pop() if self._events else _event()
                self._queue(tasks, save, stream)
                end.record(stream)
            except Exception:
                logger.exception("%d copies could not be submitted", len(tasks))
                self._give_up(tasks, stream)
                return None
        submitted = _Batch(tasks, end)
        self._in_flight.append(submitted)
        return submitted

    def _queue(self, tasks: list[_Task], save: bool, stream: torch.cuda.Stream) -> None:
        """Put a batch's copies on a stream, behind whatever they must not overtake."""
        if save or not all(task.own for task in tasks):
            # A wait refers to the record before it, so one event serves all gates.
            self._gate.record(torch.cuda.current_stream(self._device))
            stream.wait_event(self._gate)
        if not save:
            for task in tasks:
                if not task.own:
                    task.tensor.record_stream(stream)
        pinned = [piece for task in tasks for piece in task.pinned]
        if pinned:
            self.method.submit(pinned, save, stream)
        loose = [piece for task in tasks for piece in task.loose]
        if loose:
            self._plain.submit(loose, save, stream)

    def _give_up(self, tasks: list[_Task], stream: torch.cuda.Stream) -> None:
        """A submission failed: what was queued of it must end before it is reported."""
        try:
            stream.synchronize()
        except Exception as exc:
            # Keeps the tensors: a copy may still be using them.
            self._in_flight.append(_Batch(tasks, self._gate))
            self._lose(exc)
            return
        self._verdicts += [Verdict(task.copy_id, False) for task in tasks]

    def _is_over(self, batch: _Batch) -> bool:
        """Whether a batch has ended; False as well when that can no longer be known."""
        if self._lost:
            return False
        try:
            return bool(batch.end.query())  # type: ignore[no-untyped-call]
        except Exception as exc:
            self._lose(exc)
            return False

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            self._lost = True
            logger.critical(
                "CUDA device %s is lost (%s); %d copies stay unreported and hold their blocks "
                "until this process ends",
                self._device,
                error,
                self._pending,
            )

    def _prepare(self, job: CopyJob, save: bool) -> _Task | None:
        """Check a job and lay it out; None, and a verdict, if it cannot be done."""
        try:
            if self._closed or self._lost:
                raise RuntimeError("the engine was shut down, or its device is lost")
            own = not save and self._made.pop(id(job.tensor), None) is job.tensor
            tensor = job.tensor
            if save and not tensor.is_contiguous():
                tensor = tensor.detach().contiguous()  # on the compute stream: before the gate
            self._check(job, tensor)
            return self._lay_out(job, tensor, own)
        except Exception:
            logger.exception("copy %d was not started", job.copy_id)
            self._verdicts.append(Verdict(job.copy_id, False))
            return None

    def _check(self, job: CopyJob, tensor: torch.Tensor) -> None:
        if tensor.device != self._device:
            raise ValueError(f"tensor on {tensor.device}: this engine copies for {self._device}")
        if not tensor.is_contiguous():
            raise ValueError("the destination of a load must be contiguous")
        if tensor.nbytes != job.nbytes:
            raise ValueError(
                f"tensor of {tensor.nbytes} bytes ({tuple(tensor.shape)}, {tensor.dtype}), but "
                f"its blocks were assigned for {job.nbytes}"
            )

    def _lay_out(self, job: CopyJob, tensor: torch.Tensor, own: bool) -> _Task:
        pinned: list[Piece] = []
        loose: list[Piece] = []
        base, device = self._base, tensor.data_ptr()
        spans = byte_spans(job.extents, job.nbytes, self._num_blocks, self._block_size)
        if self.pinning.whole:  # the usual case, in the time that an engine step waits
            for offset, nbytes in spans:
                pinned.append(Piece(base + offset, device, nbytes, tensor))
                device += nbytes
            return _Task(job.copy_id, tensor, own, pinned, loose)
        for offset, nbytes in spans:
            for span in self.pinning.cut(offset, nbytes):
                pieces = pinned if span.pinned else loose
                pieces.append(Piece(base + span.offset, device, span.nbytes, tensor))
                device += span.nbytes
        return _Task(job.copy_id, tensor, own, pinned, loose)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
