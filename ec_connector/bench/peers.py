# SPDX-License-Identifier: Apache-2.0
"""A producer in a process of its own, for the benchmarks of acks and READs.

Its *engine thread* takes steps of a given length: it sleeps, as if a GPU were at work,
or computes in Python without ever leaving it, which holds the interpreter's lock. Two
producers serve beside it. Ours answers from its server process. The baseline is what one
would write by hand first: the engine thread looks at its socket once per step.

Where asked for, the process also has a plain NIXL agent over the same memory. A thread
that does nothing else progresses it without a pause while its event is set: the
best case for a READ.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Literal

import zmq

import ec_protocol as core
from ec_connector.clock import boottime
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.network.data import NixlServer
from ec_connector.region.shared import SharedRegion
from ec_protocol.items import Item, make_item
from ec_protocol.names import stranger_name
from ec_protocol.p2p import wire
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.extents import Extents

BLOCK = 16384
FACTS = ModelFacts("bench", "bench", "bfloat16", 2)
COMPAT = wire.compatibility_hash("bench", "bench", "torch.bfloat16", BLOCK)
#: Settings of a node that gives checksums, and demands them.
CHECKED: Mapping[str, Any] = {"ec_integrity": "checksum"}
Engine = Literal["idle", "sleeps", "computes"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What the producer process tells its parent.

    Attributes:
        address: Of our producer's control socket.
        baseline: Port of the socket that the engine thread answers.
        names: Encodings that both serve.
        nbytes: Bytes of each.
        agent_metadata: Of the plain agent; empty without one.
        places: Address of each encoding; it has one extent there.
    """

    address: tuple[str, int]
    baseline: int
    names: list[str]
    nbytes: int
    agent_metadata: bytes
    places: list[int]


class Node:
    """One scheduler instance on a region of its own.

    Args:
        role: ``ec_producer`` or ``ec_consumer``.
        blocks: Blocks of the region.
        items: The items of a request.
        settings: More of ``ec_connector_extra_config``.
    """

    def __init__(
        self,
        role: str,
        blocks: int,
        *,
        items: Callable[[Any], list[Item]] = lambda request: [],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        extra = {"ec_cpu_bytes": blocks * BLOCK, "ec_enable_nixl": True, **(settings or {})}
        config = ECConfig.parse(extra, role)
        if config.side_channel is not None:
            config = replace(config, side_channel=("127.0.0.1", 0))
        name = f"bench-{secrets.token_hex(6)}"
        self.region = SharedRegion.open(name, 0, blocks, BLOCK, create=True, guard=False)
        try:
            self.instance = SchedulerInstance(
                config, FACTS, self.region, items=items, engine_id=name
            )
        except BaseException:
            self.region.close(unlink=True)
            raise
        if self.instance.data is None:
            raise RuntimeError("peer-to-peer is off")
        self.data = self.instance.data
        self._samples: dict[str, list[float]] = {"ack": [], "read": []}

    def put(self, name: str, nbytes: int, fill: int) -> None:
        """An encoding that was saved."""
        tier = self.instance.node.tier
        entry = tier.alloc(name, nbytes)
        if entry is None:
            raise RuntimeError("the region is large enough")
        tier.begin_write(entry, ("save", 0))
        for start, count in entry.extents:
            self.region.tensor[start * BLOCK : (start + count) * BLOCK].fill_(fill)
        tier.write_landed(entry, ("save", 0))
        self.data.turn()

    def place(self, name: str) -> int:
        """Address of an encoding that lies in one extent."""
        entry = self.instance.node.tier.get(name)
        if entry is None or len(entry.extents) != 1:
            raise RuntimeError(f"{name} is not there in one extent")
        return self.region.address + entry.extents[0][0] * BLOCK

    def only_halves(self, entries: int, blocks: int) -> None:
        """Leave room for so many entries, each of which must lie in two extents.

        The region has ``entries`` × (``blocks`` + 2) blocks.
        """
        tier = self.instance.node.tier
        halves: list[Entry | None] = []
        for i in range(entries):
            for count in (blocks // 2, blocks - blocks // 2):
                halves.append(tier.alloc(f"half-{i}-{len(halves)}", count * BLOCK))
                tier.alloc(f"wall-{i}-{len(halves)}", BLOCK)
        for half in halves:
            if half is not None:
                tier.cancel(half)

    def fetch(self, name: str, peer: tuple[str, int], nbytes: int) -> tuple[float, Extents]:
        """Pull an encoding; seconds from asking to having it, and where it lies.

        Raises:
            RuntimeError: It failed.
        """
        node, data = self.instance.node, self.data
        self._take_samples()  # the engine keeps the last few hundred only
        item = make_item(name, 1, nbytes, 1)
        announced = {name: {"peer_host": peer[0], "peer_port": peer[1], "size_bytes": nbytes}}
        began = time.perf_counter()
        state = "pending"
        while state == "pending":
            data.turn()
            state = node.want(item, announced, "bench", boottime())
            # Without keys it is kept as that peer's word (EC-15.8).
            entry = node.tier.get(stranger_name(name, *peer))
            if state == "ready" and entry is not None:
                return time.perf_counter() - began, entry.extents
            data.turn()
            time.sleep(200e-6)  # a request asks once per step
        counters = data.read_figures().totals("reads")
        raise RuntimeError(f"fetching {name} {state}: {counters}")

    def forget(self) -> None:
        """The request that asked has ended; the next one asks anew."""
        self.instance.node.leave("bench", boottime())

    def samples(self, what: str, count: int) -> list[float]:
        """The first ``count`` latencies, ``ack`` or ``read``, of the readers.

        Raises:
            RuntimeError: There are not so many.
        """
        kept = self._samples[what]
        deadline = time.monotonic() + 5
        while len(kept) < count:
            self._take_samples()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(kept)} latencies of kind {what}, not {count}")
            time.sleep(0.01)
        return kept[:count]

    def _take_samples(self) -> None:
        figures = self.data.read_figures()
        for what, kept in self._samples.items():
            kept += figures.take_samples(what)

    def close(self) -> None:
        """End the data processes and remove the region."""
        self.instance.shutdown()
        self.region.close(unlink=True)


@contextmanager
def producer(
    engine: Engine, step_s: float, count: int, nbytes: int, plain: bool = False
) -> Iterator[tuple[Offer, Event]]:
    """A producer process that offers ``count`` encodings; it ends with the block.

    Yields:
        What it offers, and what makes the plain agent spin while it is set.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    busy = context.Event()
    process = context.Process(
        target=_produce,
        args=(theirs, engine, step_s, count, nbytes, busy if plain else None),
        daemon=True,
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(120):
            raise RuntimeError("the producer process did not start")
        offer: Offer = ours.recv()
        yield offer, busy
    finally:
        ours.close()
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()


def request(name: str, number: int) -> wire.XferReq:
    """What a consumer asks the baseline."""
    return wire.XferReq(
        mm_hash=name,
        compatibility_hash=COMPAT,
        session_id=f"bench.{number}",
        connector_version=wire.PREFERRED_VERSION,
        attempt_id=number,
    )


# ------------------------------------------------------------------- producer process
def _produce(
    pipe: Connection,
    engine: Engine,
    step_s: float,
    count: int,
    nbytes: int,
    plain: Event | None,
) -> None:
    blocks = -(-nbytes // BLOCK)
    # Checksums cost a producer nothing for those that do not ask.
    node = Node("ec_producer", count * blocks + 64, settings=CHECKED)
    names = [f"encoding-{i}" for i in range(count)]
    for i, name in enumerate(names):
        node.put(name, nbytes, i % 251)
    address = node.data.address
    if address is None:
        raise RuntimeError("the producer is not healthy")
    with _plain_agent(node, plain) as metadata:
        context: zmq.Context[Any] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        answer = _by_hand(names, nbytes)
        places = [node.place(name) for name in names]
        pipe.send(Offer(address[:2], port, names, nbytes, metadata, places))
        while not _parent_left(pipe):
            _step(engine, step_s)
            while socket.poll(0):
                frames = socket.recv_multipart()
                ack = answer(frames[0], wire.decode_request(frames[1:]))
                socket.send_multipart([frames[0], b"", wire.encode(ack)])
        context.destroy(linger=0)
    node.close()


def _parent_left(pipe: Connection) -> bool:
    try:
        return pipe.poll(0) and pipe.recv() is None
    except (EOFError, OSError):
        return True


def _step(engine: Engine, step_s: float) -> None:
    """One engine step."""
    if engine != "computes":
        time.sleep(step_s)
        return
    until = time.perf_counter() + step_s
    total = 0
    while time.perf_counter() < until:
        for i in range(1000):
            total += i * i


def _by_hand(names: list[str], nbytes: int) -> Callable[[bytes, wire.XferReq], wire.XferAck]:
    """A producer without a server: the same decisions on a tier of its own."""
    blocks = -(-nbytes // BLOCK)
    node = core.Node(
        blocks=len(names) * blocks,
        block_bytes=BLOCK,
        role="producer",
        peering=core.Peering(
            vllm_version=FACTS.vllm_version,
            model=FACTS.model,
            dtype=f"torch.{FACTS.dtype}",
            incarnation="i" * 16,
            base_addr=1 << 40,
            peer_quota=1 << 20,
        ),
    )
    node.offer(b"m" * 450)
    for name in names:
        entry = node.tier.alloc(name, nbytes)
        if entry is not None:
            node.tier.begin_write(entry, ("save", 0))
            node.tier.write_landed(entry, ("save", 0))

    def answer(identity: bytes, req: wire.XferReq) -> wire.XferAck:
        return node.request(identity, req, time.monotonic())

    return answer


@contextmanager
def _plain_agent(node: Node, busy: Event | None) -> Iterator[bytes]:
    """One more agent over the same memory, progressed without a pause while ``busy``."""
    if busy is None:
        yield b""
        return
    ready, stop = threading.Event(), threading.Event()
    made: list[bytes] = []

    def progress() -> None:
        name = f"plain-{secrets.token_hex(4)}"
        server = NixlServer(name, node.region.address, node.region.nbytes)
        made.append(server.agent_metadata)
        ready.set()
        while not stop.is_set():
            if busy.wait(0.1):
                for _ in range(100):
                    server.poll_notices()
        server.close()

    thread = threading.Thread(target=progress, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made[0]
    finally:
        stop.set()
        thread.join(5)
