# SPDX-License-Identifier: Apache-2.0
"""The adapter ``ours``: scheduler and worker delegates and data processes as in vLLM.

Only sockets, NIXL, the device, the clock and the processes themselves are the kit's. The
operations are those of ``ec_verify.kit.adapter``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from ec_connector.engine.messages import CopyReport, StepMetadata, WorkerReport
from ec_connector.engine.scheduler import ECScheduler
from ec_connector.network.data.base import ReadEvent
from ec_protocol.announcements import PeerRules
from ec_protocol.engine import Engine
from ec_protocol.items import Item
from ec_protocol.processes import Kind
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Trace
from ec_verify.adapters.ours.data_processes import KitProcesses
from ec_verify.adapters.ours.host import HostSide
from ec_verify.adapters.ours.instance import make_spec
from ec_verify.kit.adapter import Json, Result, Unsupported
from ec_verify.kit.on_node import BASE, TERMS, InMemory

if TYPE_CHECKING:
    from ec_verify.adapters.ours.workers import KitWorker


@dataclass(eq=False)
class HostRequest:
    """A request as the delegate sees it."""

    request_id: str
    items: list[Item]
    ec_transfer_params: Json
    num_preemptions: int = 0


class Ours(HostSide, InMemory):
    """One engine instance."""

    _starts = 0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.memory = bytearray()
        self.scheduler: ECScheduler
        self.data_processes: KitProcesses | None = None
        self.metadata: StepMetadata | None = None
        self._requests: dict[str, HostRequest] = {}
        self._workers: dict[int, KitWorker] = {}
        self._prepare_s = 0.0

    def make_node(self, **settings: Any) -> Engine:
        """The protocol's state; variants make another one."""
        return Engine(**settings, trace=self.make_trace("engine"))

    def make_trace(self, process: str) -> Trace | None:
        """Where a process of the instance records; variants have traces."""
        return None

    # ----------------------------------------------------------------- life cycle
    def start(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.start``."""
        self.now = now
        timing = Timing(**settings["timers"])
        blocks, block_bytes = settings["blocks"], settings["block_size_bytes"]
        self.memory = bytearray(b"\xcc" * (blocks * block_bytes))
        self.ranks = settings["ranks"]
        # Like a real process: another number at every start.
        Ours._starts += 1
        incarnation = f"ours{os.getpid():x}x{Ours._starts:x}"
        self.node = self.make_node(
            blocks=blocks,
            block_bytes=block_bytes,
            role=settings["role"],
            ranks=self.ranks,
            timing=timing,
            hold_share=settings["quotas"].get("holds", 0.5),
            rules=PeerRules(shared=settings["authenticated"]),
        )
        if settings["p2p"]:
            self.data_processes = KitProcesses(
                self.node,
                make_spec(settings, incarnation, asdict(timing)),
                emit=self.emit,
                clock=lambda: self.now,
                delay=self._delay,
                base_addr=BASE,
                trace=self.make_trace,
                memory=memoryview(self.memory),
            )
            self.data_processes.run()
        self.scheduler = ECScheduler(
            self.node,
            items=lambda request: request.items,
            element_size=settings["element_size"],
            dtype=settings["compat"]["dtype"].removeprefix("torch."),
            data=cast(Any, self.data_processes),
            clock=lambda: self.now,
        )
        self.element_size = settings["element_size"]
        return {
            "base_addr": BASE,
            "agent": self._agent(),
            "timers": {},
            "terms": [*TERMS, "checksum"],
            "events": bool(settings["events"] and settings["p2p"]),
            "processes": self.data_processes is not None,
        }

    def tick(self, *, now: float) -> Result:
        """See ``Adapter.tick``."""
        self._at(now)
        return {}

    def stop(self, *, now: float) -> Result:
        """See ``Adapter.stop``."""
        self._at(now)
        self.scheduler.shutdown()
        return {}

    def kill(self, *, now: float, kind: str, read: Json) -> Result:
        """See ``Adapter.kill``."""
        self._at(now)
        self._data().kill(cast(Kind, kind), read)
        self._turn()
        return {"agent": self._agent()}

    # --------------------------------------------------------------------- engine
    def available(self, *, now: float, request: Result) -> Result:
        """See ``Adapter.available``."""
        self._at(now)
        ready = self.scheduler.ensure_cache_available(self._request(request), 0)
        self._turn()
        return {"ready": ready}

    def has(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.has``."""
        self._at(now)
        mm_hash = self._request(request).items[item].mm_hash
        return {"has": self.scheduler.has_cache_item(mm_hash)}

    def alloc(self, *, now: float, request: Result, item: int) -> Result:
        """See ``Adapter.alloc``."""
        self._at(now)
        host = self._request(request)
        self.scheduler.update_state_after_alloc(host, item)
        # The kit's host keeps nothing: what it has computed it asks for again.
        self.scheduler.update_state_after_free(host, item)
        self._turn()
        return {}

    def build(self, *, now: float) -> Result:
        """See ``Adapter.build``."""
        self._at(now)
        metadata = self.metadata = self.scheduler.build_connector_meta()
        copies = [
            {
                "copy": op.copy_id,
                "kind": kind,
                "hash": op.mm_hash,
                "spans": self.spans(op.extents, op.nbytes),
                "ranks": ranks,
            }
            for kind, ops, ranks in (
                ("save", metadata.saves, [0]),
                ("load", metadata.loads, list(range(self.ranks))),
            )
            for op in ops
        ]
        self._turn()
        return {"copies": copies}

    def report(self, *, now: float, copy: Json, rank: int, landed: bool) -> Result:
        """See ``Adapter.report``."""
        self._at(now)
        before = self.scheduler.counters["stray_reports"]
        self.scheduler.update_connector_output(WorkerReport((CopyReport(copy, rank, landed),)))
        self._turn()
        return {"accepted": self.scheduler.counters["stray_reports"] == before}

    def finish(self, *, now: float, request: Result, aborted: bool) -> Result:
        """See ``Adapter.finish``."""
        self._at(now)
        _, params = self.scheduler.request_finished(self._request(request))
        self._requests.pop(request["id"], None)
        self._turn()
        return {"params": params}

    def failed(self, *, now: float) -> Result:
        """See ``Adapter.failed``."""
        return {"requests": sorted(self.scheduler.take_unavailable_requests())}

    def pending(self, *, now: float) -> Result:
        """See ``Adapter.pending``."""
        return {"pending": self.scheduler.has_pending_push_work()}

    # -------------------------------------------------------------------- workers
    def work(self, *, now: float, rank: int, held: list[str], encoded: list[str]) -> Result:
        """See ``Adapter.work``."""
        self._at(now)
        if self.metadata is None:
            raise Unsupported("work before the first step")
        sizes = {
            item.mm_hash: item.nbytes
            for request in self._requests.values()
            for item in request.items
        }
        there, produced = ({name: sizes[name] for name in names} for names in (held, encoded))
        started, reports = self._worker(rank).step(self.metadata, there, produced)
        return {"started": started, "reports": reports}

    def copied(self, *, now: float, rank: int, copy: Json, ok: bool) -> Result:
        """See ``Adapter.copied``."""
        self._at(now)
        return {"reports": self._worker(rank).ended(copy, ok)}

    def _worker(self, rank: int) -> KitWorker:
        # The delegate needs torch, which most cases can do without.
        from ec_verify.adapters.ours.workers import KitWorker

        if rank not in self._workers:
            self._workers[rank] = KitWorker(rank, self.ranks)
        return self._workers[rank]

    # -------------------------------------------------------------------- control
    def request(self, *, now: float, identity: str, frames: list[str]) -> Result:
        """See ``Adapter.request``."""
        self._data().request(bytes.fromhex(identity), [bytes.fromhex(f) for f in frames])
        self._at(now)
        return {}

    def answer(self, *, now: float, peer: list[Json], frames: list[str]) -> Result:
        """See ``Adapter.answer``."""
        self._data().answer((peer[0], peer[1]), [bytes.fromhex(f) for f in frames])
        self._at(now)
        return {}

    def peer(self, *, now: float, peer: list[Json], up: bool) -> Result:
        """See ``Adapter.peer``."""
        self.now = now
        self._data().connection((peer[0], peer[1]), "heard" if up else "lost")
        return self.tick(now=now)

    def silent(self, *, now: float, peer: list[Json]) -> Result:
        """See ``Adapter.silent``."""
        self.now = now
        self._data().connection((peer[0], peer[1]), "silent")
        return self.tick(now=now)

    # ----------------------------------------------------------------------- data
    def notice(self, *, now: float, notice: str) -> Result:
        """See ``Adapter.notice``."""
        self._data().notice(bytes.fromhex(notice))
        self._at(now)
        return {}

    def data(self, *, now: float, read: Json, event: str) -> Result:
        """See ``Adapter.data``."""
        data = self._data()
        if event == "done":
            data.read_event(read, ReadEvent(0, "done", ""))
        elif event == "error":
            data.read_event(read, ReadEvent(0, "error", "the kit says so"))
        elif event == "endpoint_closed":
            data.endpoint_closed(read)
        else:
            raise Unsupported(f"data {event}: NIXL confirms no aborts")
        self._at(now)
        return {}

    def prepare_takes(self, *, now: float, seconds: float) -> Result:
        """See ``Adapter.prepare_takes``."""
        self._at(now)
        self._prepare_s = seconds
        return {}

    # ------------------------------------------------------------------- internals
    def _at(self, now: float) -> None:
        """Set the clock and let what is due happen."""
        self.now = now
        self._turn()

    def _turn(self) -> None:
        if self.data_processes is not None:
            self.data_processes.run()

    def _delay(self) -> None:
        self.now += self._prepare_s

    def _agent(self) -> str:
        return "" if self.data_processes is None else self.data_processes.agent.hex()

    def _data(self) -> KitProcesses:
        if self.data_processes is None:
            raise Unsupported("peer-to-peer reads are off")
        return self.data_processes

    def _request(self, raw: Result) -> HostRequest:
        known = self._requests.get(raw["id"])
        if known is None:
            known = HostRequest(raw["id"], self.items(raw), raw["params"])
            self._requests[raw["id"]] = known
        return known


def make() -> Ours:
    """A fresh process of this project."""
    return Ours()
