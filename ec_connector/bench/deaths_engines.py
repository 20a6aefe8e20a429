# SPDX-License-Identifier: Apache-2.0
"""The two engine processes of the bench ``deaths``; see there.

Each takes engine steps without a pause that is worth the name: scheduler hooks in the
host's order, and a rank that copies at once. The producer saves one new encoding after the
other, far more than its region holds; the consumer wants them, compares each that it is
given with what its name stands for, and says how each request ended.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final

from ec_connector.bench import peers
from ec_connector.clock import boottime
from ec_connector.engine.messages import CopyReport, WorkerReport
from ec_protocol.items import Item, make_item
from ec_protocol.tier.entry import Entry

BLOCKS: Final = 256
#: Blocks of the largest encoding.
_MOST: Final = 6
#: Requests that wait at once.
_WAITING: Final = 8
#: Announcements that are kept; the oldest may be evicted by the time they are used.
_ANNOUNCED: Final = 64
#: A step of either engine takes this long beside its hooks.
_STEP_S: Final = 2e-3
#: An engine may be late by so much until it is said that a request was not answered in time.
_LATE_S: Final = 2.0
#: How often the rig is told how things are.
_SAY_S: Final = 0.02
#: Of which hooks the longest is kept: wall time, and processor time of the thread; and of
#: those that have started a parent.
LONGEST: Final = ("wall", "cpu", "start_wall", "start_cpu")
#: How long the last grants, loans and restarts may take, beside a lease.
_END_S: Final = 60.0


def content(name: str, nbytes: int) -> bytes:
    """What an encoding's name stands for."""
    return hashlib.shake_128(name.encode()).digest(nbytes)


@dataclass(slots=True)
class Request:
    """One request for one encoding."""

    request_id: str
    items: list[Item]
    ec_transfer_params: dict[str, Any] | None = None
    asked_at: float = field(default_factory=boottime)


class Engine:
    """Scheduler hooks in the host's order, a rank, and the rig's pipe.

    Args:
        role: ``ec_producer`` or ``ec_consumer``.
        settings: Of the connector.
        rig: Pipe to the rig.
    """

    def __init__(self, role: str, settings: dict[str, Any], rig: Connection) -> None:
        # What is logged of all the deaths costs what it costs elsewhere, and is not shown.
        logging.basicConfig(filename=os.devnull, level=logging.INFO)
        self._rig = rig
        began = time.perf_counter()
        self.node = peers.Node(role, BLOCKS, items=lambda r: r.items, settings=settings)
        self.start_s = time.perf_counter() - began
        self.scheduler = self.node.instance.scheduler
        self._serves = role == "ec_producer"
        self._longest = dict.fromkeys(LONGEST, 0.0)
        self._hooks = 0
        self._said_at = 0.0
        self._events: list[tuple[float, float, str]] = []
        self.phase = "run"
        self.rig_is_there = True

    # ------------------------------------------------------------------------ hooks
    def hook(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call one, and keep how long the longest took and for how long it computed.

        Those that have started another parent count apart: to start a process takes its time.
        """
        parent = self.node.data.pids("parent")
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return call(*args)
        finally:
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            if parent == self.node.data.pids("parent"):
                took = {"wall": wall, "cpu": cpu}
            else:
                took = {"start_wall": wall, "start_cpu": cpu}
            self._hooks += 1
            for what, seconds in took.items():
                self._longest[what] = max(self._longest[what], seconds)

    def step(self, copy: Callable[[Any], bool] = lambda operation: True) -> None:
        """The end of a step: what it copies, and the report of that.

        Args:
            copy: Does one copy; whether it landed.
        """
        metadata = self.hook(self.scheduler.build_connector_meta)
        done = [CopyReport(op.copy_id, 0, copy(op)) for op in (*metadata.saves, *metadata.loads)]
        self.hook(self.scheduler.update_connector_output, WorkerReport(tuple(done)))
        self._say()
        time.sleep(_STEP_S)

    def where(self, operation: Any) -> list[memoryview]:
        """The region's bytes of a copy."""
        return [self.node.region.view(extent) for extent in operation.extents]

    # -------------------------------------------------------------------------- rig
    def answered(self, request: Request, outcome: str) -> None:
        """How a request ended: ``landed``, ``fell back``, ``wrong bytes`` or ``late``."""
        now = boottime()
        late = now - request.asked_at > self._budget_s + _LATE_S
        self._events.append((request.asked_at, now, "late" if late else outcome))

    @property
    def _budget_s(self) -> float:
        return self.node.instance.node.timing.fetch_budget_s

    def overdue(self, request: Request) -> bool:
        """Whether it has been deferred for longer than it may."""
        return boottime() - request.asked_at > self._budget_s + _LATE_S

    def _say(self) -> None:
        try:
            while self._rig.poll(0):
                self.phase = self._rig.recv()
            now = time.monotonic()
            if now >= self._said_at + _SAY_S:
                self._said_at = now
                data = self.node.data
                pids = {kind: data.pids(kind) for kind in ("server", "reader", "parent")}
                self._rig.send(("state", pids, self._events))
                self._events = []
        except (EOFError, OSError):
            self.rig_is_there = False

    # ----------------------------------------------------------------------- the end
    def last_words(self, descriptors: int) -> dict[str, Any]:
        """Wait until nothing is under way any more, and say what is left then."""
        node, tier = self.node.instance.node, self.node.instance.node.tier
        deadline = time.monotonic() + node.timing.lease_s + _END_S
        loans = self.node.data.link.loans
        while not self._whole() or (loans is not None and len(loans)):
            self.step()
            if time.monotonic() > deadline or not self.rig_is_there:
                break
        tier.check()
        return {
            "loans": 0 if loans is None else len(loans),
            "quarantined": tier.quarantined_blocks,
            "retired": tier.retired_blocks,
            "whole": self._whole(),
            "lost_blocks": BLOCKS - self._all_blocks(deadline),
            "descriptors": len(os.listdir("/proc/self/fd")) - descriptors,
            "longest": self._longest,
            "hooks": self._hooks,
            "exits": dict(self.node.data.read_figures().exits),
            "counters": dict(sum((c.counters for c in (node, loans) if c is not None), Counter())),
            "start_s": self.start_s,
        }

    def _whole(self) -> bool:
        servers, readers = (len(self.node.data.pids(kind)) for kind in ("server", "reader"))
        return servers == 1 if self._serves else readers == 2

    def _all_blocks(self, deadline: float) -> int:
        """How many blocks there are to be had, when everything may be evicted."""
        tier = self.node.instance.node.tier
        had: list[Entry] = []
        while len(had) < BLOCKS and time.monotonic() < deadline:
            entry = tier.alloc(f"all-{len(had)}", peers.BLOCK)
            if entry is None:
                self.step()
            else:
                had.append(entry)
        for entry in had:
            tier.cancel(entry)
        tier.check()
        return len(had)

    def run(self, turn: Callable[[], None]) -> None:
        """Take steps until the rig ends it, then say what is left, and end.

        Args:
            turn: One step of the work.
        """
        try:
            region = os.path.basename(self.node.region.path)
            self._rig.send(("ready", self.node.data.address, region))
            self.step()
            # Else the longest hook would be a collection of torch's objects; hosts do the same.
            gc.freeze()
            descriptors = len(os.listdir("/proc/self/fd"))
            while self.phase != "end" and self.rig_is_there:
                turn()
            if self.rig_is_there:
                self._rig.send(("end", self.last_words(descriptors), self._events))
        finally:
            self.node.close()


def produce(rig: Connection, consumer: Connection, settings: dict[str, Any], seed: int) -> None:
    """A producer's process."""
    engine = Engine("ec_producer", settings, rig)
    scheduler, dice = engine.scheduler, Random(seed)
    numbers = iter(range(1 << 60))

    def copy(operation: Any) -> bool:
        data = memoryview(content(operation.mm_hash, operation.nbytes))
        for view in engine.where(operation):
            view[: len(data[: len(view)])] = data[: len(view)]
            data = data[len(view) :]
        return True

    def turn() -> None:
        if engine.phase != "run":
            engine.step()
            return
        number = next(numbers)
        nbytes = dice.randint(1, _MOST * peers.BLOCK)
        name = f"{seed}-{number}"
        request = Request(f"p{number}", [make_item(name, 1, nbytes, 1)])
        if engine.hook(scheduler.ensure_cache_available, request, 0):
            engine.hook(scheduler.has_cache_item, name)
            engine.hook(scheduler.update_state_after_alloc, request, 0)
        engine.step(copy)
        _, params = engine.hook(scheduler.request_finished, request)
        if params:
            # Whoever does not take it now never gets it.
            try:
                if consumer.poll(0):
                    consumer.recv()
                    consumer.send((name, nbytes, params))
            except (EOFError, OSError):
                engine.rig_is_there = False

    engine.run(turn)


class Asking:
    """What a consumer's engine asks for, and what it is given.

    Args:
        engine: The engine.
        seed: Of what is asked for.

    Attributes:
        announced: What may be asked for.
        waiting: Requests that are not answered.
    """

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self.announced: deque[tuple[str, int, dict[str, Any]]] = deque(maxlen=_ANNOUNCED)
        self.waiting: list[Request] = []
        self._engine = engine
        self._dice = Random(seed)
        self._count = 0
        self._wrong: set[str] = set()

    def turn(self) -> None:
        """One engine step."""
        engine, scheduler = self._engine, self._engine.scheduler
        while engine.phase == "run" and self.announced and len(self.waiting) < _WAITING:
            self.waiting.append(self._next())
        scheduled, deferred = [], []
        for request in self.waiting:
            if engine.hook(scheduler.ensure_cache_available, request, 0):
                has = engine.hook(scheduler.has_cache_item, request.items[0].mm_hash)
                engine.hook(scheduler.update_state_after_alloc, request, 0)
                scheduled.append((request, has))
            elif engine.overdue(request):
                scheduled.append((request, False))
            else:
                deferred.append(request)
        self.waiting = deferred
        engine.step(self._compare)
        for request, has in scheduled:
            bad = request.items[0].mm_hash in self._wrong
            engine.answered(request, "wrong bytes" if bad else "landed" if has else "fell back")
            engine.hook(scheduler.request_finished, request)

    def _next(self) -> Request:
        """Sometimes an old one, which may be gone or held by a lease only."""
        take = self.announced.pop if self._dice.random() < 0.8 else self.announced.popleft
        name, nbytes, params = take()
        self._count += 1
        return Request(f"c{self._count}", [make_item(name, 1, nbytes, 1)], params)

    def _compare(self, operation: Any) -> bool:
        got = b"".join(bytes(view) for view in self._engine.where(operation))[: operation.nbytes]
        if got != content(operation.mm_hash, operation.nbytes):
            self._wrong.add(operation.mm_hash)
        return True


def consume(rig: Connection, producer: Connection, settings: dict[str, Any], seed: int) -> None:
    """A consumer's process."""
    engine = Engine("ec_consumer", settings, rig)
    asking = Asking(engine, seed)
    # What asks for the next announcements: so many may be under way.
    for _ in range(_WAITING):
        producer.send(None)

    def turn() -> None:
        try:
            while producer.poll(0):
                asking.announced.append(producer.recv())
                producer.send(None)
        except (EOFError, OSError):
            engine.rig_is_there = False  # the producer is gone, and soon the rig
        asking.turn()

    engine.run(turn)
