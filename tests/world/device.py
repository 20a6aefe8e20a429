# SPDX-License-Identifier: Apache-2.0
"""A simulated device: work is queued, and happens when the test says.

Like the streams of a GPU: an operation runs some time after the host queued it, after
the operations that it waits for, and in any order with the others. A copy is two
operations, its beginning and its end. What it has not copied by its end is wrong, and
so is what somebody else writes in between; a save leaves garbage until its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from ec_connector.copies.base import CopyEngine, CopyJob, Verdict, byte_spans
from ec_connector.region.shared import SharedRegion

GARBAGE = 0xEE


class Op:
    """One operation: what it does, and which must have run before."""

    _ids = itertools.count(1)

    def __init__(self, kind: str, run: Callable[[], None], after: Iterable[Op]) -> None:
        self.number = next(self._ids)
        self.kind = kind
        self.run = run
        self.after = [op for op in after if not op.done]
        self.done = False


class Device:
    """Everything that one rank's device has to do.

    Args:
        synchronous: Run each operation as soon as it is queued, as a CPU does.
    """

    def __init__(self, *, synchronous: bool = False) -> None:
        self.synchronous = synchronous
        self.queued: list[Op] = []
        self.last_compute: Op | None = None
        self._loads_to_wait_for: list[Op] = []

    def queue(self, kind: str, run: Callable[[], None], after: Iterable[Op] = ()) -> Op:
        op = Op(kind, run, after)
        self.queued.append(op)
        if self.synchronous:
            self.run_all()
        return op

    def compute(self, run: Callable[[], None]) -> Op:
        """Queue work on the compute stream: in order, behind the loads it was told of."""
        after = [*self._loads_to_wait_for]
        self._loads_to_wait_for = []
        if self.last_compute is not None:
            after.append(self.last_compute)
        self.last_compute = self.queue("compute", run, after)
        return self.last_compute

    def wait_for_loads(self, ops: Iterable[Op]) -> None:
        """The next work on the compute stream runs after these."""
        self._loads_to_wait_for += ops

    def runnable(self) -> list[Op]:
        return [op for op in self.queued if all(before.done for before in op.after)]

    def run(self, op: Op) -> None:
        assert all(before.done for before in op.after)
        self.queued.remove(op)
        op.run()
        op.done = True

    def run_all(self) -> None:
        while ready := self.runnable():
            for op in ready:
                self.run(op)


class DeviceEngine(CopyEngine):
    """A copy engine whose copies end when the device is told to go on."""

    def __init__(self, region: SharedRegion, device: Device) -> None:
        self.region = region
        self.sim = device
        self._loads: list[Op] = []
        self._verdicts: list[Verdict] = []
        self._pending = 0
        self._closed = False

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def pending(self) -> int:
        return self._pending

    def submit_saves(self, batch: Sequence[CopyJob]) -> None:
        for job in batch:
            self._start(job, save=True)

    def submit_loads(self, batch: Sequence[CopyJob]) -> None:
        for job in batch:
            self._loads.append(self._start(job, save=False))

    def order_loads(self) -> set[int]:
        self.sim.wait_for_loads(self._loads)
        self._loads = []
        return set()

    def poll(self) -> list[Verdict]:
        verdicts, self._verdicts = self._verdicts, []
        self._pending -= len(verdicts)
        return verdicts

    def shutdown(self) -> None:
        self.sim.run_all()
        self._closed = True

    def _start(self, job: CopyJob, *, save: bool) -> Op:
        assert not self._closed
        spans = byte_spans(
            job.extents, job.nbytes, self.region.num_blocks, self.region.block_size_bytes
        )
        blocks = [self.region.tensor[start : start + size] for start, size in spans]
        mine = job.tensor.reshape(-1).view(torch.uint8)
        assert mine.numel() == job.nbytes
        pieces = list(zip(blocks, mine.split([size for _, size in spans]), strict=True))
        self._pending += 1

        def begin() -> None:
            for block, piece in pieces:
                if save:
                    block.fill_(GARBAGE)
                else:
                    piece[: piece.numel() // 2].copy_(block[: piece.numel() // 2])

        def end() -> None:
            for block, piece in pieces:
                if save:
                    block.copy_(piece)
                else:
                    piece[piece.numel() // 2 :].copy_(block[piece.numel() // 2 :])
            self._verdicts.append(Verdict(job.copy_id, ok=True))

        kind = "save" if save else "load"
        produced = [self.sim.last_compute] if save and self.sim.last_compute else []
        first = self.sim.queue(f"begin_{kind}", begin, produced)
        return self.sim.queue(f"end_{kind}", end, [first])
