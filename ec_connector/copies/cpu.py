# SPDX-License-Identifier: Apache-2.0
"""Copy engine for tensors in host memory: plain memcpy on a few threads.

Saves run while the model goes on computing. ``order_loads`` returns when every load
is done, since nothing else orders host memory.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import torch

from ec_connector.copies.base import CopyEngine, CopyJob, Verdict, byte_spans
from ec_connector.region.shared import SharedRegion

logger = logging.getLogger(__name__)

# ctypes lets go of the GIL around a C function, so copies run beside Python. Not
# torch's copy_: it spreads one copy over a team of threads that wait for each other,
# and on a host whose cores are busy it was measured a hundred times slower.
_libc = ctypes.CDLL(None)
_libc.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.memmove.restype = ctypes.c_void_p


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A checked job.

    Attributes:
        copy_id: Names the copy in its verdict.
        save: From the tensor into the region, or the other way.
        tensor: Contiguous, in host memory.
        spans: ``(byte offset in the region, bytes)`` in the order of the bytes.
    """

    copy_id: int
    save: bool
    tensor: torch.Tensor
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """A load that ``order_loads`` has to finish."""

    task: _Task
    future: Future[bool]


class CpuCopyEngine(CopyEngine):
    """Copies between CPU tensors and a region.

    Args:
        region: The region; it must stay open until ``shutdown`` has returned.
        threads: Copies that run at a time.
    """

    def __init__(self, region: SharedRegion, threads: int = 2) -> None:
        self._num_blocks: Final = region.num_blocks
        self._block_size: Final = region.block_size_bytes
        self._base: Final = region.address
        # Keeps the mapping, so that not even closing the region too early can turn a
        # copy under way into a crash.
        self._keep: memoryview | None = region.buffer[:1]
        self._pool: Final = ThreadPoolExecutor(threads, thread_name_prefix="ec-copy")
        self._done: Final[SimpleQueue[Verdict]] = SimpleQueue()
        self._saves: list[Future[bool]] = []
        self._loads: list[_Load] = []
        self._failed_loads: set[int] = set()
        self._pending = 0

    @property
    def device(self) -> torch.device:
        """Host memory."""
        return torch.device("cpu")

    @property
    def pending(self) -> int:
        """Jobs whose verdict ``poll`` has not returned yet."""
        return self._pending

    def submit_saves(self, batch: Sequence[CopyJob]) -> None:
        """Start copying tensors into the region.

        The bytes are read later, on another thread: a tensor must not be changed
        before its verdict. (The host writes an encoder output once.)
        """
        for job in batch:
            task = self._prepare(job, save=True)
            if task is not None and (future := self._start(task)) is not None:
                self._saves.append(future)

    def settle(self, timeout_s: float) -> None:
        """Wait for the saves so far: a host copy takes less than a step by far."""
        saves, self._saves = self._saves, []
        wait(saves, timeout_s)

    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        """Start copying out of the region into contiguous tensors."""
        for job in batch:
            task = self._prepare(job, save=False)
            if task is not None and (future := self._start(task)) is not None:
                self._loads.append(_Load(task, future))
            else:
                self._failed_loads.add(job.copy_id)

    def order_loads(self) -> set[int]:
        """Finish every load so far; returns those that failed.

        The caller would only wait, so it copies as well: the last load first, while
        the pool takes them from the front. So a single load seldom waits for another
        thread to wake up.
        """
        loads, self._loads = self._loads, []
        failed, self._failed_loads = self._failed_loads, set()
        for load in reversed(loads):
            ok = self._run(load.task) if load.future.cancel() else load.future.result()
            if not ok:
                failed.add(load.task.copy_id)
        return failed

    def poll(self) -> list[Verdict]:
        """Verdicts since the last call; never waits."""
        verdicts: list[Verdict] = []
        while True:
            try:
                verdicts.append(self._done.get_nowait())
            except Empty:
                self._pending -= len(verdicts)
                return verdicts

    def shutdown(self) -> None:
        """Finish what was submitted; nothing touches the region afterwards."""
        self._pool.shutdown(wait=True)
        self._keep = None

    # ------------------------------------------------------------------- internals
    def _prepare(self, job: CopyJob, save: bool) -> _Task | None:
        """Check a job and lay it out; None, and a verdict, if it makes no sense."""
        self._pending += 1
        try:
            # A save may be of any layout; contiguous() copies only when it must.
            tensor = job.tensor.detach().contiguous() if save else job.tensor.detach()
            return _Task(job.copy_id, save, tensor, self._check(job, tensor))
        except Exception:
            logger.exception("copy %d was not started", job.copy_id)
            self._done.put(Verdict(job.copy_id, False))
            return None

    def _start(self, task: _Task) -> Future[bool] | None:
        """Hand a task to the pool; None, and a verdict, if it refuses."""
        try:
            return self._pool.submit(self._run, task)
        except RuntimeError:  # no new thread can be had, or the pool was shut down
            logger.exception("copy %d was not started", task.copy_id)
            self._done.put(Verdict(task.copy_id, False))
            return None

    def _check(self, job: CopyJob, tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
        """Where in the region the job's bytes lie."""
        if tensor.device.type != "cpu":
            raise ValueError(f"tensor on {tensor.device}: this engine copies host memory")
        if not tensor.is_contiguous():
            raise ValueError("the destination of a load must be contiguous")
        if tensor.nbytes != job.nbytes:
            raise ValueError(
                f"tensor of {tensor.nbytes} bytes ({tuple(tensor.shape)}, {tensor.dtype}), but "
                f"its blocks were assigned for {job.nbytes}"
            )
        return tuple(byte_spans(job.extents, job.nbytes, self._num_blocks, self._block_size))

    def _run(self, task: _Task) -> bool:
        """Copy, on any thread; returns the ``ok`` of the verdict."""
        ok = False
        at = task.tensor.data_ptr()
        try:
            for offset, count in task.spans:
                inside = self._base + offset
                target, source = (inside, at) if task.save else (at, inside)
                _libc.memmove(target, source, count)
                at += count
            ok = True
        except Exception:
            logger.exception("copy %d failed", task.copy_id)
        self._done.put(Verdict(task.copy_id, ok))
        return ok
