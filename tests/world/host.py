# SPDX-License-Identifier: Apache-2.0
"""The host's scheduler, as far as the connector can tell it from a real one.

Order of the hooks, encoder cache, chunked prefill, preemption and asynchronous
scheduling follow vLLM 0.32 (described, not copied): per step the running requests
come first, then the waiting ones; for each ``ensure_cache_available``, then its items
in the order of the prompt with ``has_cache_item``, then the allocation, items to
encode before items to load. A request's tokens count as computed when they are
scheduled, which is before they are.

``request`` makes its requests, ``expected`` what the encoder makes of their media.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from ec_connector.engine.messages import StepMetadata, WorkerReport
from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.items import Item, make_item

WIDTH, ELEMENT = 16, 2
BLOCK = WIDTH * ELEMENT  # one row of bfloat16
DTYPE = torch.bfloat16


@cache
def expected(mm_hash: str, rows: int) -> torch.Tensor:
    """The encoding that the name stands for: different for every name, at every offset.

    Returns:
        ``(rows, WIDTH)`` of bfloat16. Compare with ``same``: some bits are NaN.
    """
    raw = hashlib.shake_128(mm_hash.encode(errors="surrogatepass")).digest(rows * BLOCK)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(DTYPE).view(rows, WIDTH)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


@dataclass(eq=False)
class Request:
    """One request as the host's scheduler sees it.

    Attributes:
        request_id: Unique.
        items: Its media, each as long as it has rows.
        starts: Where in the prompt each begins.
        prompt_len: Tokens of the prompt.
        output_len: Tokens to generate.
        ec_transfer_params: What a producer announced, if anything.
    """

    request_id: str
    items: list[Item]
    starts: list[int]
    prompt_len: int
    output_len: int
    ec_transfer_params: Any = None
    num_computed: int = 0
    num_output: int = 0
    placeholders: int = 0
    num_preemptions: int = 0
    finished: str = ""
    # Items that the host's encoder cache keeps for this request.
    cached: set[int] = field(default_factory=set)
    announced: dict[str, Any] | None = None


def request(
    request_id: str,
    *pieces: int | tuple[str, int],
    output_len: int = 1,
    params: Any = None,
    has_media: bool = True,
) -> Request:
    """A request whose prompt is made of text (a number of tokens) and media (name, rows)."""
    items: list[Item] = []
    starts: list[int] = []
    position = 0
    for piece in _with_text(pieces):
        if isinstance(piece, int):
            position += piece
            continue
        name, rows = piece
        starts.append(position)
        position += rows
        items.append(
            make_item(
                name,
                rows,
                WIDTH,
                ELEMENT,
                end=position,
                has_media=has_media,
                metadata={"rows": [rows]},
            )
        )
    return Request(request_id, items, starts, position, output_len, params)


def _with_text(pieces: Sequence[int | tuple[str, int]]) -> list[int | tuple[str, int]]:
    # A prompt ends with text, so that there is a token to sample from.
    return [*pieces, 1]


class EncoderCache:
    """The host's bookkeeping of what the workers' encoder caches hold.

    Args:
        size: Rows that fit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        self.free = self.freeable = self.size
        self.users: dict[str, set[str]] = {}
        self.rows: dict[str, int] = {}
        self.unused: OrderedDict[str, int] = OrderedDict()
        self.evicted: dict[str, int] = {}

    def reuse(self, request: Request, index: int) -> bool:
        """Whether the item is there; the request then uses it."""
        item = request.items[index]
        users = self.users.get(item.mm_hash)
        if users is None:
            return False
        if not users:
            self.freeable -= self.unused.pop(item.mm_hash)
        users.add(request.request_id)
        request.cached.add(index)
        return True

    def make_room(self, rows: int) -> bool:
        """Whether there is room; evicts what nobody uses, oldest first."""
        if rows > self.freeable:
            return False
        while rows > self.free:
            mm_hash, size = self.unused.popitem(last=False)
            del self.users[mm_hash], self.rows[mm_hash]
            self.evicted[mm_hash] = size
            self.free += size
        return True

    def allocate(self, request: Request, index: int) -> None:
        item = request.items[index]
        assert item.mm_hash not in self.users
        self.users[item.mm_hash] = {request.request_id}
        self.rows[item.mm_hash] = item.shape[0]
        request.cached.add(index)
        self.free -= item.shape[0]
        self.freeable -= item.shape[0]
        assert self.free >= 0

    def release(self, request: Request, index: int) -> None:
        """The request needs the item no longer; it stays until room is needed."""
        item = request.items[index]
        request.cached.discard(index)
        if any(request.items[other].mm_hash == item.mm_hash for other in request.cached):
            return
        users = self.users.get(item.mm_hash)
        if users and request.request_id in users:
            users.discard(request.request_id)
            if not users:
                self.unused[item.mm_hash] = item.shape[0]
                self.freeable += item.shape[0]


@dataclass(eq=False)
class Step:
    """What the workers get for one step.

    Attributes:
        scheduled: Per request: first token, number of tokens, preemptions so far,
            whether a token is sampled.
        encode: Items to encode, per request.
        evicted: Hashes to drop from the workers' encoder caches. Of ``encode`` a worker does
            not run what its cache still has.
        metadata: The connector's.
    """

    number: int
    requests: dict[str, Request] = field(default_factory=dict)
    scheduled: dict[str, tuple[int, int, int, bool]] = field(default_factory=dict)
    encode: list[tuple[Request, int]] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    metadata: StepMetadata = field(default_factory=lambda: StepMetadata(0))


class Host:
    """Scheduler side of one engine.

    Args:
        delegate: The connector's scheduler delegate.
        tokens: Tokens that one step may compute (chunked prefill).
        encoder_rows: Rows that one step may encode.
        cache_rows: Rows of the workers' encoder caches.
    """

    def __init__(
        self, delegate: ECScheduler, *, tokens: int, encoder_rows: int, cache_rows: int
    ) -> None:
        self.delegate = delegate
        self.tokens = tokens
        self.encoder_rows = encoder_rows
        self.cache = EncoderCache(cache_rows)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self.failed: list[Request] = []
        self.mismatched: set[str] = set()
        self.to_announce = 0
        self.steps = 0

    # ------------------------------------------------------------------- requests
    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """The client went away; the request may be part of steps in flight."""
        if not request.finished:
            self._finish(request, "aborted")

    def preempt(self, request: Request) -> None:
        """Give up what was computed; the request starts anew before all others."""
        self.running.remove(request)
        self._forget_items(request)
        request.num_computed = request.placeholders = 0
        request.num_preemptions += 1
        self.waiting.insert(0, request)

    def reset_encoder_cache(self) -> None:
        """Only while nothing runs, as the host does it."""
        assert not self.running
        self.cache.reset()

    @property
    def wants_step(self) -> bool:
        """Whether the engine goes on stepping."""
        return bool(
            self.waiting
            or self.running
            or self.to_announce
            or self.delegate.has_pending_push_work()
        )

    def _finish(self, request: Request, how: str) -> None:
        request.finished = how
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        _, request.announced = self.delegate.request_finished(request)
        self._forget_items(request)
        self.to_announce += 1
        (self.failed if how == "failed" else self.finished).append(request)

    def _forget_items(self, request: Request) -> None:
        for index in sorted(request.cached):
            self.cache.release(request, index)
        request.cached.clear()

    # ----------------------------------------------------------------------- steps
    def schedule(self, preempt: Request | None = None) -> Step:
        """Build the next step.

        Args:
            preempt: Found to be without KV blocks in the middle of the step: after its
                items were asked for, before they are allocated.
        """
        self.steps += 1
        step = Step(self.steps)
        # Workers learn of the requests that have finished, even in an empty step.
        self.to_announce = 0
        tokens, rows = self.tokens, self.encoder_rows
        for request in list(self.running) + list(self.waiting):
            if request not in self.running and request not in self.waiting:
                continue
            was_waiting = request in self.waiting
            computed = request.num_computed - request.placeholders
            if request.items and not self.delegate.ensure_cache_available(request, computed):
                continue
            done = request.num_output + request.placeholders
            if done >= request.output_len and not request.num_computed < request.prompt_len:
                continue
            known = request.prompt_len + done
            count = min(known - request.num_computed, tokens)
            encode, load, same, count, rows_left = self._items(request, count, rows)
            if count <= 0:
                continue
            if request is preempt:
                if not was_waiting:
                    self.preempt(request)
                continue
            rows = rows_left
            if was_waiting:
                self.waiting.remove(request)
                self.running.append(request)
            for index in encode:
                self.cache.allocate(request, index)
                self.delegate.update_state_after_alloc(request, index)
                step.encode.append((request, index))
            for index in load:
                self.cache.allocate(request, index)
                self.delegate.update_state_after_alloc(request, index)
            for index in same:
                assert self.cache.reuse(request, index)
            tokens -= count
            samples = request.num_computed + count >= known
            step.requests[request.request_id] = request
            step.scheduled[request.request_id] = (
                request.num_computed,
                count,
                request.num_preemptions,
                samples,
            )
            request.num_computed += count
            request.placeholders += samples
        # What was evicted and allocated again in this pass stays where it is, unless a client
        # gave its name to something else.
        rows = self.cache.rows
        step.evicted = [name for name, size in self.cache.evicted.items() if rows.get(name) != size]
        self.cache.evicted = {}
        step.metadata = self.delegate.build_connector_meta(None)
        return step

    def _items(
        self, request: Request, count: int, rows: int
    ) -> tuple[list[int], list[int], list[int], int, int]:
        """Items to encode, to load and already on their way; tokens; rows left."""
        encode: list[int] = []
        load: list[int] = []
        again: list[int] = []
        names: dict[str, int] = {}
        wanted = 0
        begin = request.num_computed
        for index, (item, start) in enumerate(zip(request.items, request.starts, strict=True)):
            if start >= begin + count:
                break
            if item.end <= begin:
                continue
            size = item.shape[0]
            known = names.get(item.mm_hash, self.cache.rows.get(item.mm_hash, size))
            if known != size and index not in request.cached:
                # One name for two things: names may be the clients' own.
                self.mismatched.add(request.request_id)
                return [], [], [], 0, rows
            if item.mm_hash in names:
                again.append(index)
                continue
            if index in request.cached or self.cache.reuse(request, index):
                continue
            if size > rows or not self.cache.make_room(size + wanted):
                count = max(0, start - begin)
                break
            names[item.mm_hash] = size
            wanted += size
            if self.delegate.has_cache_item(item.mm_hash):
                load.append(index)
            else:
                encode.append(index)
                rows -= size
        return encode, load, again, count, rows

    def update(self, step: Step, report: WorkerReport | None) -> None:
        """The step's output has come."""
        for request_id, (_, _, preemptions, sampled) in step.scheduled.items():
            request = step.requests[request_id]
            if request.finished or request.num_preemptions != preemptions:
                continue
            if sampled:
                request.placeholders -= 1
                request.num_output += 1
            for index in sorted(request.cached):
                if request.items[index].end <= request.num_computed - request.placeholders:
                    self.cache.release(request, index)
                    self.delegate.update_state_after_free(request, index)
            if request.num_output >= request.output_len:
                self._finish(request, "length")
        failing = self.delegate.take_unavailable_requests() | self.mismatched
        self.mismatched.clear()
        for request_id in failing:
            for request in self.waiting + self.running:
                if request.request_id == request_id:
                    self._finish(request, "failed")
        if report is not None:
            self.delegate.update_connector_output(report)
