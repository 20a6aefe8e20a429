# SPDX-License-Identifier: Apache-2.0
"""Copy engine for tensors in host memory: plain memcpy on a few threads.

Saves run while the model goes on computing. Loads run in parallel with each other
and ``order_loads`` waits for them, since nothing else orders host memory.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue
from typing import Final

import torch

from ec_connector.copy_engine import CopyEngine, CopyJob, Verdict, byte_spans
from ec_connector.region import SharedRegion

logger = logging.getLogger(__name__)

# ctypes lets go of the GIL around a C function, so copies really run in parallel
# with Python. memmove rather than memcpy: a wrong overlap must not corrupt more.
_libc = ctypes.CDLL(None)
_libc.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.memmove.restype = ctypes.c_void_p


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
        # A view keeps the mapping, so that not even closing the region too early
        # can turn a copy under way into a crash.
        self._keep: memoryview | None = region.buffer[:1]
        self._pool: Final = ThreadPoolExecutor(threads, thread_name_prefix="ec-copy")
        self._done: Final[SimpleQueue[Verdict]] = SimpleQueue()
        self._loads: dict[int, Future[bool]] = {}
        self._pending = 0
        self._stopped = False

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
            self._submit(job, save=True)

    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        """Start copying out of the region into contiguous tensors."""
        for job in batch:
            self._loads[job.copy_id] = self._submit(job, save=False)

    def order_loads(self) -> set[int]:
        """Wait until every load so far is over; returns those that failed."""
        loads, self._loads = self._loads, {}
        wait(loads.values())
        return {copy_id for copy_id, future in loads.items() if not future.result()}

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
        self._stopped = True
        self._pool.shutdown(wait=True)
        self._keep = None

    # ------------------------------------------------------------------- internals
    def _submit(self, job: CopyJob, save: bool) -> Future[bool]:
        """Start one job. Its future's result is the ``ok`` of its verdict."""
        self._pending += 1
        try:
            # A save may be of any layout; contiguous() copies only when it must.
            tensor = job.tensor.detach()
            tensor = tensor.contiguous() if save else tensor
            pairs = self._pairs(job, tensor, save)
            return self._pool.submit(self._run, job.copy_id, tensor, pairs)
        except Exception:
            # The pool refused, or the job makes no sense. Either way nothing of
            # it is under way, and it must be reported like any other.
            logger.exception("copy %d was not started", job.copy_id)
            self._done.put(Verdict(job.copy_id, False))
            failed: Future[bool] = Future()
            failed.set_result(False)
            return failed

    def _pairs(self, job: CopyJob, tensor: torch.Tensor, save: bool) -> list[tuple[int, int, int]]:
        """Check a job and lay it out as ``(destination, source, bytes)``."""
        if self._stopped:
            raise RuntimeError("the engine was shut down")
        if tensor.device.type != "cpu":
            raise ValueError(f"tensor on {tensor.device}: this engine copies host memory")
        if not tensor.is_contiguous():
            raise ValueError("the destination of a load must be contiguous")
        if tensor.nbytes != job.nbytes:
            raise ValueError(
                f"tensor of {tensor.nbytes} bytes ({tuple(tensor.shape)}, {tensor.dtype}), but "
                f"its blocks were assigned for {job.nbytes}"
            )
        address = tensor.data_ptr()
        pairs = []
        for offset, count in byte_spans(
            job.extents, job.nbytes, self._num_blocks, self._block_size
        ):
            inside, outside = self._base + offset, address
            pairs.append((inside, outside, count) if save else (outside, inside, count))
            address += count
        return pairs

    def _run(self, copy_id: int, tensor: torch.Tensor, pairs: list[tuple[int, int, int]]) -> bool:
        """Copy, on a pool thread. ``tensor`` is an argument to keep its memory alive."""
        ok = False
        try:
            for destination, source, count in pairs:
                _libc.memmove(destination, source, count)
            ok = True
        except Exception:
            logger.exception("copy %d failed", copy_id)
        self._done.put(Verdict(copy_id, ok))
        return ok
