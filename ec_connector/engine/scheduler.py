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

All hooks run on the engine thread and hold the tier's lock for short, bounded
sections without I/O. With peer-to-peer on, the pump thread takes the same lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ec_connector.engine.items import Item
from ec_connector.engine.messages import LoadOp, SaveOp, StepMetadata, WorkerReport
from ec_connector.engine.params import AllowedPeers, can_be_asked_for, parse_remote
from ec_protocol.errors import LocalProtocolError
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import Copy, CopyTable
from ec_protocol.tier.deferral import Deferrals
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.holds import HoldTable

if TYPE_CHECKING:
    from ec_connector.network.p2p import P2P
    from ec_protocol.p2p.consumer import ConsumerReads

logger = logging.getLogger(__name__)

Role = Literal["ec_producer", "ec_consumer", "ec_both"]


class ECScheduler:
    """Scheduler delegate of one engine instance and data-parallel rank.

    Args:
        tier: Entries and blocks of the region.
        role: What the instance does: ``ec_producer`` saves, ``ec_consumer`` loads,
            ``ec_both`` does both.
        items: Returns the items of a request, in the order of their indices.
        element_size: Bytes per element of encoder outputs.
        dtype: Torch dtype name of encoder outputs.
        world_size: Ranks that load.
        timing: Timers.
        lock: The tier's lock.
        holds: Holds on announced and fetched entries.
        p2p: The peer-to-peer half, or None without the gate.
        allowed_peers: Hosts that a request may name; None allows every one.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tier: EncodingTier,
        *,
        role: Role,
        items: Callable[[Any], list[Item]],
        element_size: int,
        dtype: str,
        world_size: int = 1,
        timing: Timing | None = None,
        lock: threading.Lock | None = None,
        holds: HoldTable | None = None,
        p2p: P2P | None = None,
        allowed_peers: AllowedPeers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier = tier
        self.role = role
        self.saves = role in ("ec_producer", "ec_both")
        self.loads = role in ("ec_consumer", "ec_both")
        self.items = items
        self.element_size = element_size
        self.dtype = dtype
        self.timing = timing or Timing()
        self.lock = lock or threading.Lock()
        # Not "or": a table that holds nothing yet has the length 0.
        self.holds = HoldTable(tier) if holds is None else holds
        self.copies = CopyTable(tier, world_size)
        self.p2p = p2p
        self.allowed_peers = allowed_peers
        self.clock = clock
        self.counters: Counter[str] = Counter()
        self._step_id = 0
        self._promised: set[str] = set()
        self._planned: list[Copy] = []
        self._planned_loads: set[str] = set()
        self._unavailable: set[str] = set()
        # Items of the request that was last asked about, by name.
        self._asked: dict[str, list[Item]] = {}
        # Request id -> (its preemptions so far, hashes in the host's encoder cache).
        self._host_has: dict[str, tuple[int, set[str]]] = {}
        # Requests that wait for a save, without peer-to-peer; else the consumer counts.
        self._deferrals = Deferrals()

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
        if not self.loads:
            return True
        items = self.items(request)
        self._asked = {}
        for item in items:
            self._asked.setdefault(item.mm_hash, []).append(item)
        params = getattr(request, "ec_transfer_params", None)
        if all(item.has_media for item in items) and (self._consumer is None or not params):
            return True
        got = self._items_of_host(request)
        now = self.clock()
        ready = available = True
        with self.lock:
            needed = [
                item
                for item in items
                if item.nbytes
                and item.mm_hash not in got
                and not 0 < item.end <= num_computed_tokens
            ]
            for item in needed:
                state = self._ask(item, params, request.request_id, now)
                if state == "pending":
                    ready = False
                elif state == "failed" and not item.has_media:
                    available = False
        if self.p2p is not None:
            self.p2p.wake()
        # Nothing to encode from: this request fails, no other (EC-5.9). Until the host has
        # been told so it must not run the encoder on nothing. It may ask again before, when
        # it plans a step ahead.
        if not available and request.request_id not in self._unavailable:
            self._unavailable.add(request.request_id)
            self.counters["unavailable"] += 1
        return ready and available

    @property
    def _consumer(self) -> ConsumerReads | None:
        return None if self.p2p is None else self.p2p.consumer

    def _ask(
        self, item: Item, params: object, request_id: str, now: float
    ) -> Literal["ready", "pending", "failed"]:
        """How the encoding of an item is to be had; starts a fetch if one is wanted.

        ``failed``: only by encoding the media. Under the lock.
        """
        if not item.named_by_content:
            return "failed"
        consumer = self._consumer
        if consumer is None or not consumer.fetching(item.mm_hash):
            entry = self.tier.get(item.mm_hash)
            if entry is not None:
                if self._contradicts(item.mm_hash):
                    return "failed"
                if entry.servable:
                    return "ready"
                if item.has_media:
                    # A save of our own is about to make it so, or nothing ever will.
                    return "failed"
                waits = self.copies.save_of(item.mm_hash) is not None
                waits = waits and self._within_budget(request_id, item.mm_hash, now)
                return "pending" if waits else "failed"
        if consumer is None:
            return "failed"
        capacity = self.tier.num_blocks * self.tier.block_size_bytes
        ref = parse_remote(
            params, item.mm_hash, item.shape, self.element_size, capacity, self.allowed_peers
        )
        if isinstance(ref, str):
            self.counters[f"params_{ref}"] += 1
            return "failed"
        if self.p2p is None or not self.p2p.healthy:
            self.counters["fetches_without_pump"] += 1
            return "failed"
        return consumer.fetch(
            item.mm_hash, (ref.host, ref.port), item.nbytes, item.shape, request_id, now
        )

    def _within_budget(self, request_id: str, mm_hash: str, now: float) -> bool:
        """Whether the request may wait on for a save of this instance (EC-5.9)."""
        if self._consumer is not None:
            return self._consumer.within_budget(request_id, mm_hash, now)
        return self._deferrals.within(request_id, mm_hash, now, self.timing.fetch_budget_s)

    def _misfit(self, item: Item) -> bool:
        """Whether the tier holds something else under the item's name.

        Names may come from clients. Loaded into a request that expects other rows it
        would stop the engine. Under a name that does not follow from the content
        anything may lie (EC-2.8).
        """
        if not item.named_by_content:
            return True
        entry = self.tier.get(item.mm_hash)
        if entry is None:
            return False
        return entry.nbytes != item.nbytes or entry.shape not in (None, item.shape)

    def _contradicts(self, mm_hash: str) -> bool:
        """Whether any item of that name is a misfit, of the request last asked about."""
        return any(self._misfit(item) for item in self._asked.get(mm_hash, ()))

    def _items_of_host(self, request: Any) -> set[str]:
        """Encodings that the host keeps in its own encoder cache for the request.

        It keeps them until it says otherwise, or until it preempts the request and
        starts it anew.
        """
        preemptions = getattr(request, "num_preemptions", 0)
        known = self._host_has.get(request.request_id)
        if known is None or known[0] != preemptions:
            known = self._host_has[request.request_id] = (preemptions, set())
        return known[1]

    def has_cache_item(self, mm_hash: str) -> bool:
        """Whether a load of ``mm_hash`` can be had; True is a promise for this step.

        Asked on behalf of the request for which ``ensure_cache_available`` was called
        last.
        """
        if not self.loads:
            return False
        with self.lock:
            # Looked at here and not before: the pump may have put it there just now.
            if not self._contradicts(mm_hash) and self.tier.reserve(mm_hash):
                self._promised.add(mm_hash)
                return True
            return False

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """Item ``index`` of the request is part of the step: plan its load or its save."""
        item = self.items(request)[index]
        if self.loads:
            self._items_of_host(request).add(item.mm_hash)
        with self.lock:
            # The promise may have been another request's, which means something else.
            if item.mm_hash in self._promised and not self._misfit(item):
                if item.mm_hash not in self._planned_loads:
                    self._planned_loads.add(item.mm_hash)
                    self._planned.append(self.copies.plan_load(item.mm_hash))
                    self.counters["hits"] += 1
                self._deferrals.served(request.request_id, item.mm_hash)
                if self.p2p is not None and self.p2p.consumer is not None:
                    self.p2p.consumer.consumed(request.request_id, item.mm_hash)
                return
            self.counters["misses"] += 1
            if not self.saves or item.nbytes <= 0:
                return
            if not item.named_by_content:
                self.counters["not_named_by_content"] += 1
                return
            copy = self.copies.plan_save(item.mm_hash, item.nbytes, item.shape)
            if copy is not None:
                self._planned.append(copy)
            elif self.tier.get(item.mm_hash) is None:
                self.counters["saves_without_room"] += 1

    def update_state_after_free(self, request: Any, index: int) -> None:
        """The host may drop item ``index`` from its own encoder cache; the tier keeps it."""
        known = self._host_has.get(request.request_id)
        if known is not None:
            known[1].discard(self.items(request)[index].mm_hash)

    def build_connector_meta(self, scheduler_output: Any = None) -> StepMetadata:
        """What the workers copy in this step; ends the step's promises (EC-3.4)."""
        saves: list[SaveOp] = []
        loads: list[LoadOp] = []
        with self.lock:
            for copy in self._planned:
                self.copies.submit(copy)
                entry = copy.entry
                if copy.kind == "save":
                    saves.append(SaveOp(copy.copy_id, entry.mm_hash, entry.extents, entry.nbytes))
                else:
                    shape = entry.shape or (entry.nbytes // self.element_size,)
                    loads.append(
                        LoadOp(
                            copy.copy_id,
                            entry.mm_hash,
                            entry.extents,
                            entry.nbytes,
                            shape,
                            self.dtype,
                        )
                    )
            self.tier.end_step()
            now = self.clock()
            self.holds.tick(now)
            if self.p2p is not None:
                self.p2p.tick_without_pump(now)
        if self.p2p is not None:
            self.p2p.wake()  # the step's evictions are to be told
        self._planned.clear()
        self._planned_loads.clear()
        self._promised.clear()
        self._step_id += 1
        return StepMetadata(self._step_id, tuple(saves), tuple(loads))

    def update_connector_output(self, report: WorkerReport | None) -> None:
        """The ranks' reports; they may come steps later and in any order (EC-4.4)."""
        if report is None:
            return
        with self.lock:
            for item in report.entries:
                try:
                    copy = self.copies.report(item.copy_id, item.rank, item.landed)
                except LocalProtocolError as exc:
                    # Nothing was changed, so the blocks stay held: safe, and visible.
                    self.counters["stray_reports"] += 1
                    logger.error("stray copy report: %s", exc)
                    continue
                if copy.kind == "save" and copy.state == "landed":
                    self.holds.landed(copy.entry)
        if self.p2p is not None:
            self.p2p.wake()

    # ------------------------------------------------------------- request hooks
    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """The request is over, in whatever way: announce its encodings, forget it.

        Returns:
            ``(False, params)``: nothing delays the host, and on a producer with
            peer-to-peer on the ``ec_transfer_params`` of the answer: per mm_hash
            the positions of its items, and metadata and address together or empty
            metadata (EC-11.1).
        """
        self._unavailable.discard(request.request_id)
        self._host_has.pop(request.request_id, None)
        self._deferrals.forget(request.request_id)
        p2p = self.p2p
        if p2p is None:
            return False, None
        now = self.clock()
        announced: dict[str, dict[str, Any]] = {}
        with self.lock:
            if p2p.consumer is not None:
                p2p.consumer.leave(request.request_id, now)
            if p2p.producer is not None:
                for index, item in enumerate(self.items(request)):
                    if not item.named_by_content:
                        continue
                    if item.mm_hash not in announced:
                        announced[item.mm_hash] = {
                            "item_indices": [],
                            **self._announce(item, p2p, now),
                        }
                    announced[item.mm_hash]["item_indices"].append(index)
        p2p.wake()
        return False, announced or None

    def _announce(self, item: Item, p2p: P2P, now: float) -> dict[str, Any]:
        entry = self.tier.get(item.mm_hash)
        being_saved = self.copies.save_of(item.mm_hash) is not None
        servable = entry is not None and (entry.servable or being_saved)
        # A name may be a client's own; no request on the wire can hold a longer one.
        servable = servable and can_be_asked_for(item.mm_hash)
        if entry is None or not servable or self._misfit(item) or p2p.address is None:
            self.counters["announced_without_address"] += 1
            return {"metadata": {}}
        self.holds.hold(("announced", item.mm_hash), entry, now + self.timing.announce_hold_s)
        host, port = p2p.address
        self.counters["announced"] += 1
        return {
            "metadata": dict(item.metadata),
            "peer_host": host,
            "peer_port": port,
            "size_bytes": entry.nbytes,
            "shape": list(entry.shape or item.shape),
        }

    def take_unavailable_requests(self) -> set[str]:
        """Requests that cannot be served: encoding lost, media gone. Each is told once."""
        taken, self._unavailable = self._unavailable, set()
        return taken

    def has_pending_push_work(self) -> bool:
        """Whether the engine must go on stepping although no request wants it.

        True only while a copy's report is outstanding, since reports travel with
        steps. Fetches and grants are the pump's business and need no step.
        """
        return len(self.copies) > 0

    def stats(self) -> dict[str, int]:
        """Counters of this delegate and of the tier; any thread."""
        with self.lock:
            result = dict(self.counters)
            result.update(
                {
                    "evictions": self.tier.evictions,
                    "free_blocks": self.tier.free_blocks,
                    "retired_blocks": self.tier.retired_blocks,
                    "quarantined_blocks": self.tier.quarantined_blocks,
                    **{f"{kind}s_landed": n for kind, n in self.copies.landed.items()},
                    **{f"{kind}s_skipped": n for kind, n in self.copies.skipped.items()},
                }
            )
        return result

    def shutdown(self) -> None:
        """Stop the pump, if any. The region is closed by whoever opened it."""
        if self.p2p is not None:
            self.p2p.shutdown()
