# SPDX-License-Identifier: Apache-2.0
"""One engine: the host's scheduler, its ranks, and whatever is between them.

The test moves everything: ``schedule`` builds a step (``depth`` 2: before the output
of the step before has come), ``work`` lets a rank's process take its next step,
``device`` lets its device do something, ``complete`` brings a finished step's output
back. ``drain`` does all of it until the engine is idle and checks that nothing is left.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies.base import CopyEngine
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.messages import WorkerReport
from ec_connector.engine.scheduler import ECScheduler
from ec_connector.engine.worker import ECWorker
from ec_connector.region.shared import SharedRegion
from ec_protocol.announcements import PeerRules
from ec_protocol.engine import Engine as Core
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable
from ec_protocol.trace import Trace
from tests.leftovers import SHM, prefix
from tests.recording import played, recorded
from tests.world.core import BELIEVED
from tests.world.device import GARBAGE, Device, DeviceEngine, Op
from tests.world.host import BLOCK, DTYPE, ELEMENT, WIDTH, Host, Request, Step, expected, same

Kind = Literal["device", "cpu"]
FACTS = ModelFacts("0", "harness", "bfloat16", ELEMENT)
#: Steps in which a simulated engine must have become idle.
MANY_STEPS = 5000


@dataclass(eq=False)
class Output:
    """What one rank returns for one step, once ``compute`` has run."""

    report: WorkerReport | None
    compute: Op | None


class Rank:
    """One worker process and its device."""

    def __init__(self, engine: Engine, number: int, world_size: int, kind: Kind) -> None:
        self.region = engine.open_region()
        self.device = Device(synchronous=kind == "cpu")
        self.engine: CopyEngine
        if kind == "cpu":
            self.engine = CpuCopyEngine(self.region)
        else:
            self.engine = DeviceEngine(self.region, self.device)
        self.worker = ECWorker(engine.config, self.region, self.engine, number, world_size)
        self.cache: dict[str, torch.Tensor] = {}
        self.inbox: deque[Step] = deque()
        self.outputs: deque[Output] = deque()
        self.encoded: list[str] = []
        self.skip_encoder = False

    def work(self) -> None:
        """Take the next step: the hooks in their order, and the model between them."""
        step = self.inbox.popleft()
        for mm_hash in step.evicted:
            self.cache.pop(mm_hash, None)
        worker, metadata = self.worker, step.metadata
        compute = None
        worker.start_save_caches(metadata, self.cache)
        worker.start_load_caches(self.cache, metadata)
        before = set(self.cache)
        if step.scheduled:
            if not self.skip_encoder:
                for request, index in step.encode:
                    if request.items[index].mm_hash not in self.cache:
                        self._encode(request, index)
            for mm_hash in [name for name in self.cache if name not in before]:
                worker.save_caches(self.cache, mm_hash, metadata)
        worker.get_finished(set())
        report = worker.build_connector_worker_meta()
        if step.scheduled:
            compute = self.device.compute(self._forward(step))
        self.outputs.append(Output(report, compute))

    def _encode(self, request: Request, index: int) -> None:
        item = request.items[index]
        result = torch.empty(item.shape, dtype=DTYPE)
        result.view(torch.uint8).fill_(GARBAGE)
        self.device.compute(lambda: _copy(result, expected(item.mm_hash, item.shape[0])))
        self.cache[item.mm_hash] = result
        self.encoded.append(item.mm_hash)

    def _forward(self, step: Step) -> Any:
        """The oracle: every encoding that the step's tokens look at is the right one."""
        if self.skip_encoder:
            return lambda: None
        looked_at: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for request_id, (begin, count, _, _) in step.scheduled.items():
            request = step.requests[request_id]
            for item, start in zip(request.items, request.starts, strict=True):
                if start < begin + count and item.end > begin:
                    assert item.mm_hash in self.cache, f"{request_id}: {item.mm_hash} is missing"
                    right = expected(item.mm_hash, item.shape[0])
                    looked_at.append((item.mm_hash, self.cache[item.mm_hash], right))

        def check() -> None:
            for mm_hash, seen, right in looked_at:
                assert same(seen, right), f"wrong picture: {mm_hash} in step {step.number}"

        return check

    def close(self) -> None:
        self.worker.shutdown()
        self.region.close(unlink=False)


class Engine:
    """See the module.

    Args:
        role: ``ec_both``, ``ec_producer`` or ``ec_consumer``.
        blocks: Blocks of the region.
        world_size: Tensor-parallel ranks.
        kind: ``device``: simulated and slow; ``cpu``: the real engine for host memory.
        depth: Steps that may be in flight: 2 schedules asynchronously.
        tokens, encoder_rows, cache_rows: See ``Host``.
        p2p: Its data processes: a ``Remote``, or ``RealPeers``.
        rules: Whom it reads from, and whether they are believed.
    """

    def __init__(
        self,
        *,
        role: Literal["ec_both", "ec_producer", "ec_consumer"] = "ec_both",
        blocks: int = 16,
        world_size: int = 1,
        kind: Kind = "device",
        depth: int = 1,
        tokens: int = 64,
        encoder_rows: int = 64,
        cache_rows: int = 64,
        p2p: Any = None,
        rules: PeerRules = BELIEVED,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix(), dir=SHM)
        self.blocks = blocks
        self.config = ECConfig.parse({"ec_cpu_bytes": blocks * BLOCK}, role)
        self.now = 1000.0
        # Peers in processes of their own need a clock that runs; `now` moves it further.
        self.clock: Callable[[], float] = lambda: self.now
        self.region = self.open_region()
        self.is_real = getattr(p2p, "is_real", False)
        if p2p is not None:
            p2p.prepare(self)
        self.node = Core(
            blocks=blocks,
            block_bytes=BLOCK,
            role=self.config.role,
            ranks=world_size,
            timing=self.config.timing,
            rules=rules,
            trace=self.trace(),
        )
        data = p2p.attach(self) if p2p is not None else None
        self.p2p = p2p
        self.scheduler = ECScheduler(
            self.node,
            items=lambda request: request.items,
            element_size=ELEMENT,
            dtype="bfloat16",
            data=data,
            region=self.region.identity,
            clock=self.clock,
        )
        self.host = Host(
            self.scheduler, tokens=tokens, encoder_rows=encoder_rows, cache_rows=cache_rows
        )
        self.depth = depth
        self.kind: Kind = kind
        self.ranks = [Rank(self, number, world_size, kind) for number in range(world_size)]
        self.flight: deque[Step] = deque()

    @property
    def tier(self) -> EncodingTier:
        return self.node.tier

    @property
    def holds(self) -> HoldTable:
        return self.node.holds

    def trace(self) -> Trace | None:
        """Where the engine's actions are recorded."""
        return (recorded if self.is_real else played)("engine", lambda: self.clock())

    def open_region(self) -> SharedRegion:
        return SharedRegion.open(
            "harness", 0, self.blocks, BLOCK, directory=self._folder.name, guard=False
        )

    # ------------------------------------------------------------------- one at a time
    def schedule(self, preempt: Request | None = None) -> bool:
        """Build the next step and send it to the ranks, if the host would."""
        if len(self.flight) >= self.depth or not self.host.wants_step:
            return False
        step = self.host.schedule(preempt)
        self.flight.append(step)
        for rank in self.ranks:
            rank.inbox.append(step)
        return True

    def work(self, number: int = 0) -> bool:
        """Let a rank's process take its next step, if it has one."""
        rank = self.ranks[number]
        if not rank.inbox:
            return False
        rank.work()
        return True

    def device(self, number: int = 0, choice: int = 0) -> bool:
        """Let a rank's device run one of the operations that can run."""
        device = self.ranks[number].device
        runnable = device.runnable()
        if not runnable:
            return False
        device.run(runnable[choice % len(runnable)])
        return True

    def complete(self) -> bool:
        """Bring the oldest step's output back, if every rank has computed it."""
        outputs = [rank.outputs[0] if rank.outputs else None for rank in self.ranks]
        if not self.flight or not all(
            out is not None and (out.compute is None or out.compute.done) for out in outputs
        ):
            return False
        total: WorkerReport | None = None
        for rank in self.ranks:
            report = rank.outputs.popleft().report
            if report is not None:
                total = report if total is None else total.aggregate(report)
        self.host.update(self.flight.popleft(), total)
        return True

    def reset_encoder_cache(self) -> None:
        """Forget everything in the workers' encoder caches; only while nothing runs."""
        self.host.reset_encoder_cache()
        for rank in self.ranks:
            rank.cache.clear()

    # ------------------------------------------------------------------------- many
    def step(self, preempt: Request | None = None) -> bool:
        """One step from end to end, with everything that the devices have to do."""
        scheduled = self.schedule(preempt)
        self.settle()
        return scheduled

    def step_and_play(self) -> None:
        """One step, and what its peers do meanwhile."""
        self.step()
        if self.p2p is not None:
            self.p2p.play(self)

    def settle(self) -> None:
        """Everything that is under way ends."""
        while self.flight:
            for number, rank in enumerate(self.ranks):
                while self.work(number):
                    pass
                rank.device.run_all()
            self.complete()

    def run(self, *requests: Request) -> None:
        """Add requests, and step until the engine is idle."""
        for request in requests:
            self.host.add(request)
        self.drain()

    def drain(self) -> None:
        """Step until the engine is idle, and check that nothing is left behind."""
        deadline, steps = time.monotonic() + 30, 0
        while self.host.wants_step or self.flight:
            steps += 1
            # Only what goes by the kernel's clock is waited for by that.
            late = time.monotonic() >= deadline if self.is_real else steps > MANY_STEPS
            assert not late, f"not idle: {self.leftovers()}"
            self.step_and_play()
        # Holds on announced encodings end with their time.
        if self.is_real:  # its data processes go by the kernel's clock
            self.holds.tick(self.clock() + 1e4)
        else:
            self.now += 1e4
        self.host.to_announce = 1
        self.step()
        if self.p2p is not None:
            self.p2p.settle(self)
        self.check_idle()

    def check_idle(self) -> None:
        """Engine idle: no copies, no pins, all blocks free or ready and right."""
        left = self.leftovers()
        assert not left, f"left in an idle engine: {left}"
        self.tier.check()
        for entry in self.tier.entries():
            rows = entry.nbytes // BLOCK
            got = torch.cat(
                [self.region.tensor[s * BLOCK : (s + n) * BLOCK] for s, n in entry.extents]
            )
            assert same(got.view(DTYPE).view(rows, WIDTH), expected(entry.mm_hash, rows)), entry

    def leftovers(self) -> list[str]:
        """What should not be there in an idle engine."""
        found = [f"copy {copy.copy_id} of {copy.entry}" for copy in self.node.copies]
        found += [repr(entry) for entry in self.tier.entries() if entry.state != "ready"]
        found += [
            f"rank {n} owes reports" for n, r in enumerate(self.ranks) if r.worker.has_pending
        ]
        found += ["holds"] * len(self.holds)
        if stray := self.scheduler.counters["stray_reports"]:
            found.append(f"{stray} reports of copies that were over")
        if forgotten := len(self.scheduler._requests):
            found.append(f"{forgotten} forgotten requests")
        if self.tier.retired_blocks:
            found.append(f"{self.tier.retired_blocks} retired blocks")
        return found

    @property
    def encoded(self) -> list[str]:
        """What rank 0 has encoded so far, in order."""
        return self.ranks[0].encoded

    def close(self) -> None:
        self.scheduler.shutdown()
        for rank in self.ranks:
            rank.close()
        self.region.close(unlink=True)
        self._folder.cleanup()


def _copy(destination: torch.Tensor, source: torch.Tensor) -> None:
    destination.view(torch.uint8).copy_(source.view(torch.uint8))


@contextmanager
def engine(**settings: Any) -> Iterator[Engine]:
    """An engine that is closed at the end."""
    made = Engine(**settings)
    try:
        yield made
    finally:
        made.close()
