# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of the connector: decides, never copies, never waits.

The methods carry vLLM's hook names but know nothing of vLLM. In every engine step
the host calls, in this order::

    ensure_cache_available    may a request be scheduled, or does a fetch run?
    has_cache_item            a promise for this step (EC-3.2)
    update_state_after_alloc  the item will be encoded, or loaded as promised
    build_connector_meta      what the workers copy in this step
    update_connector_output   what they have finished
    request_finished          announce; forget the request

What follows from them is the ``Engine``'s to say; this class knows what the host keeps,
and puts the answers into the host's words. All hooks run on the engine thread, and no
other thread touches what they do. With peer-to-peer on they also look, for a microsecond,
whether a data process has said something (``processes.engine``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ec_connector.clock import boottime
from ec_connector.engine.messages import LoadOp, SaveOp, StepMetadata, WorkerReport
from ec_connector.engine.placeholders import Placeholders
from ec_protocol.engine import Engine
from ec_protocol.errors import LocalProtocolError
from ec_protocol.items import Item

if TYPE_CHECKING:
    from ec_connector.processes.engine import DataProcesses

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Seen:
    """What the host has of a request.

    Attributes:
        preemptions: So often the request was started anew.
        in_cache: Encodings that the host keeps for it in its own encoder cache. It does
            so until it says otherwise, or until it preempts the request.
        refused: Whether an item without media contradicts what is known (EC-11.5);
            None before that was looked at.
    """

    preemptions: int
    in_cache: set[str] = field(default_factory=set)
    refused: bool | None = None


class ECScheduler:
    """Scheduler delegate of one engine instance and data-parallel rank.

    Args:
        node: The protocol's state.
        items: Returns the items of a request, in the order of their indices.
        element_size: Bytes per element of encoder outputs.
        dtype: Torch dtype name of encoder outputs.
        region: Identity of the region that the engine's blocks are in.
        data: The data processes, or None without the gate.
        clock: Seconds of the common clock.
    """

    def __init__(
        self,
        node: Engine,
        *,
        items: Callable[[Any], list[Item]],
        element_size: int,
        dtype: str,
        region: bytes = b"",
        data: DataProcesses | None = None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.node = node
        self.items = items
        self.element_size = element_size
        self.dtype = dtype
        self.region = region
        self.data = data
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self._step_id = 0
        self._placeholders = Placeholders()
        self._requests: dict[str, _Seen] = {}
        # Requests that the host is to fail and has not been told of.
        self._unavailable: set[str] = set()
        # Items of the request that was last asked about, by name.
        self._asked: dict[str, list[Item]] = {}

    # ---------------------------------------------------------------- step hooks
    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Whether the request may be scheduled now, or a fetch for it is under way.

        Args:
            request: The host's request; ``request_id`` and, if present,
                ``ec_transfer_params`` are read, the latter as hostile (EC-11.4).
            num_computed_tokens: Prompt tokens computed; items before are not needed.

        Returns:
            False to defer the request to a later step; never for longer than
            ``fetch_budget_s`` per item (EC-5.9).
        """
        node = self.node
        if not node.loads:
            return True
        items = self.items(request)
        self._asked = {}
        for item in items:
            self._asked.setdefault(item.mm_hash, []).append(item)
        params = getattr(request, "ec_transfer_params", None)
        if all(item.has_media for item in items) and (node.waiters is None or not params):
            return True
        if self._contradicts(request, items, params):
            return False
        seen = self._seen(request)
        self._turn()  # what it waits for may have landed
        now = self.clock()
        ready = available = True
        for item in items:
            computed = 0 < item.end <= num_computed_tokens
            if not item.nbytes or computed or item.mm_hash in seen.in_cache:
                continue
            state = node.want(item, params, request.request_id, now)
            if state == "pending":
                ready = False
            elif state == "failed" and not item.has_media:
                available = False
        self._turn()  # what it wants is to be fetched
        # Nothing to encode from: this request fails, no other (EC-5.9). Until the host has
        # been told so it must not run the encoder on nothing. It may ask again before, when
        # it plans a step ahead.
        if not available:
            self._fail(request.request_id)
        return ready and available

    def _contradicts(self, request: Any, items: Iterable[Item], params: object) -> bool:
        """Whether a request without media describes other encodings (EC-11.5); fails it then.

        Looked at once and before anything is wanted: not in every step of a long answer.
        """
        seen = self._seen(request)
        if seen.refused is None:
            seen.refused = any(self._placeholders.refuses(item, params) for item in items)
            self.counters["references_refused"] += seen.refused
        if seen.refused:
            self._fail(request.request_id)
        return seen.refused

    def _fail(self, request_id: str) -> None:
        if request_id not in self._unavailable:
            self._unavailable.add(request_id)
            self.counters["unavailable"] += 1

    def _seen(self, request: Any) -> _Seen:
        """What is known of a request since it was last started."""
        preemptions = getattr(request, "num_preemptions", 0)
        seen = self._requests.get(request.request_id)
        if seen is None:
            seen = self._requests[request.request_id] = _Seen(preemptions)
        elif seen.preemptions != preemptions:
            seen.preemptions = preemptions
            seen.in_cache.clear()
        return seen

    def has_cache_item(self, mm_hash: str) -> bool:
        """Whether a load of ``mm_hash`` can be had; True is a promise for this step.

        Asked on behalf of the request for which ``ensure_cache_available`` was called
        last.
        """
        if not self.node.loads:
            return False
        return self.node.promise(mm_hash, self._asked.get(mm_hash, ()))

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Item ``index`` of the request is part of the step: plan its load or its save."""
        item = self.items(request)[index]
        if self.node.loads:
            self._placeholders.learn(item)
            self._seen(request).in_cache.add(item.mm_hash)
        self.node.plan(item, request.request_id)

    def update_state_after_free(self, request: Any, index: int) -> None:
        """The host may drop item ``index`` from its own encoder cache; the tier keeps it."""
        seen = self._requests.get(request.request_id)
        if seen is not None:
            seen.in_cache.discard(self.items(request)[index].mm_hash)

    def build_connector_meta(self, scheduler_output: Any = None) -> StepMetadata:
        """What the workers copy in this step; ends the step's promises (EC-3.4)."""
        saves: list[SaveOp] = []
        loads: list[LoadOp] = []
        for copy in self.node.build_step(self.clock()):
            entry = copy.entry
            what = (copy.copy_id, entry.mm_hash, entry.extents, entry.nbytes)
            if copy.kind == "save":
                saves.append(SaveOp(*what))
            else:
                shape = entry.shape or (entry.nbytes // self.element_size,)
                loads.append(LoadOp(*what, shape, self.dtype))
        self._turn()  # the step's evictions are to be told
        self._step_id += 1
        return StepMetadata(self._step_id, tuple(saves), tuple(loads), self.region)

    def update_connector_output(self, report: WorkerReport | None) -> None:
        """The ranks' reports; they may come steps later and in any order (EC-4.4)."""
        if report is None:
            return
        for item in report.entries:
            try:
                self.node.report(item.copy_id, item.rank, item.landed)
            except LocalProtocolError as exc:
                # Nothing was changed, so the blocks stay held: safe, and visible.
                self.counters["stray_reports"] += 1
                logger.error("stray copy report: %s", exc)
        self._turn()

    # ------------------------------------------------------------- request hooks
    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """The request is over, in whatever way: announce its encodings, forget it.

        Returns:
            ``(False, params)``: nothing delays the host, and on a producer with
            peer-to-peer on the ``ec_transfer_params`` of the answer.
        """
        self._requests.pop(request.request_id, None)
        self._unavailable.discard(request.request_id)
        items = self.items(request) if self.node.serves else []
        address = None if self.data is None else self.data.address
        now = self.clock()
        self.node.leave(request.request_id, now)
        announced = self.node.announce(items, address, now)
        self._turn()
        return False, announced or None

    def take_unavailable_requests(self) -> set[str]:
        """Requests that cannot be served: encoding lost, media gone. Each is told once."""
        taken, self._unavailable = self._unavailable, set()
        return taken

    def has_pending_push_work(self) -> bool:
        """Whether the engine must go on stepping although no request wants it.

        True only while a copy's report is outstanding, since reports travel with
        steps. Fetches and grants are the data processes' business and need no step.
        """
        return len(self.node.copies) > 0

    def stats(self) -> dict[str, int]:
        """Counters of this delegate and of the tier; engine thread."""
        node = self.node
        return {
            **self.counters,
            **node.counters,
            "evictions": node.tier.evictions,
            "free_blocks": node.tier.free_blocks,
            "retired_blocks": node.tier.retired_blocks,
            "quarantined_blocks": node.tier.quarantined_blocks,
            **{f"{kind}s_landed": n for kind, n in node.copies.landed.items()},
            **{f"{kind}s_skipped": n for kind, n in node.copies.skipped.items()},
        }

    def shutdown(self) -> None:
        """End the data processes, if any. The region is closed by whoever opened it."""
        if self.data is not None:
            self.data.shutdown()

    def _turn(self) -> None:
        if self.data is not None:
            self.data.turn()
