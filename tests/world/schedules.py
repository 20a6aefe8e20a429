# SPDX-License-Identifier: Apache-2.0
"""Random schedules over producers, consumers, a hostile network and unabortable DMA.

After every step every invariant of every node is checked against ghost content
(see ``ghosts``). At the end of each schedule the network turns kind and the clock
runs on: everything must settle, and no block may be lost.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Trace
from tests import recording
from tests.world.ghosts import BLOCK, Dma, Node, World, Writing, blocks_of

TIMING = Timing()
#: Encodings and their sizes in blocks; the last one ends inside a block.
ENCODINGS = {"a": 1, "b": 2, "c": 3}
HASHES = st.sampled_from(sorted(ENCODINGS))
WAITERS = st.sampled_from(["r1", "r2", "r3"])
PRODUCERS = st.sampled_from(["P1", "P2"])
CONSUMERS = st.sampled_from(["C1", "C2"])
PICK = st.integers(min_value=0, max_value=1 << 16)
#: Moments around which things go wrong: timers, their sums, and small steps.
DELAYS = st.sampled_from(
    [0.01, 0.02, 0.03, 0.1, 0.25, 0.5, 1.0, 1.9, 2.0, 2.1, 7.0, 19.9, 20.1, 29.6, 30.1, 60.1]
)


class ConnectorMachine(RuleBasedStateMachine):
    """Two producers, two consumers; one consumer also encodes by itself."""

    @initialize(
        old=st.booleans(),
        rates=st.tuples(*[st.sampled_from([0.995, 1.0, 1.005])] * 4),
        blocks=st.integers(min_value=3, max_value=5),
        preload=st.sets(HASHES),
    )
    def build(self, old: bool, rates: tuple[float, ...], blocks: int, preload: set[str]) -> None:
        self.start(old, rates, blocks, preload)

    def start(self, old: bool, rates: tuple[float, ...], blocks: int, preload: set[str]) -> None:
        """Build the world; producers begin with ``preload``, as far as it fits."""
        names = ["P1", "P2", "C1", "C2"]
        self.blocks = blocks
        self.world = World(
            {name: self.node(name, rate) for name, rate in zip(names, rates, strict=True)},
            old_producers=old,
        )
        self.promised: dict[str, set[str]] = {name: set() for name in names}
        for name in ("P1", "P2"):
            for mm_hash in preload:
                self.produce(name, mm_hash)

    def node(self, name: str, rate: float, incarnation: int = 1) -> Node:
        """A process that has just started."""
        return Node(
            name,
            self.blocks,
            timing=TIMING,
            rate=rate,
            world_size=2,
            incarnation=incarnation,
            trace=self.trace(f"{name}-{incarnation}", rate),
        )

    def trace(self, node: str, rate: float) -> Trace | None:
        """Where a process records its actions: all of a schedule in one file, of some of them."""
        if not hasattr(self, "sink"):
            sink = recording.chosen()
            self.sink = recording.checkable(sink) if sink is not None else None
        if self.sink is None:
            return None
        return Trace(node, lambda: self.world.time * rate, self.sink)

    # ------------------------------------------------------------ saves and loads
    @rule(name=st.sampled_from(["P1", "P2", "C1"]), mm_hash=HASHES)
    def plan_save(self, name: str, mm_hash: str) -> None:
        node = self.world.nodes[name]
        copy = node.copies.plan_save(mm_hash, nbytes(mm_hash))
        if copy is not None:
            node.planned.append(copy)

    def produce(self, name: str, mm_hash: str) -> None:
        """A save that goes well from beginning to end."""
        node = self.world.nodes[name]
        copy = node.copies.plan_save(mm_hash, nbytes(mm_hash))
        if copy is None:
            return
        node.copies.submit(copy)
        for index, block in enumerate(blocks_of(copy.entry)):
            node.content[block] = (mm_hash, index)
        node.copies.report(copy.copy_id, 0, True)
        node.holds.landed(copy.entry)

    @rule(name=CONSUMERS, pick=PICK)
    def has_cache_item(self, name: str, pick: int) -> None:
        node = self.world.nodes[name]
        known = sorted({e.mm_hash for e in node.tier.entries()})
        mm_hash = choose(known or sorted(ENCODINGS), pick)
        if node.tier.reserve(mm_hash):
            self.promised[name].add(mm_hash)

    @rule(name=CONSUMERS, pick=PICK)
    def plan_load(self, name: str, pick: int) -> None:
        """PromiseKept: whatever happened since the promise, the load must be possible."""
        node = self.world.nodes[name]
        if self.promised[name]:
            mm_hash = choose(sorted(self.promised[name]), pick)
            node.planned.append(node.copies.plan_load(mm_hash))

    def build_meta(self, name: str) -> None:
        node = self.world.nodes[name]
        for copy in node.planned:
            node.copies.submit(copy)
            if copy.kind == "save":
                node.writing.append(Writing(copy, blocks_of(copy.entry)))
        node.planned.clear()
        self.promised[name].clear()
        node.tier.end_step()

    @rule(name=st.sampled_from(["P1", "P2", "C1"]), pick=PICK)
    def encoder_writes(self, name: str, pick: int) -> None:
        node = self.world.nodes[name]
        going = [w for w in node.writing if w.done < len(w.blocks)]
        if going:
            writing = choose(going, pick)
            node.content[writing.blocks[writing.done]] = (writing.copy.entry.mm_hash, writing.done)
            writing.done += 1

    @rule(name=st.sampled_from(["P1", "P2", "C1"]), pick=PICK)
    def report_save(self, name: str, pick: int) -> None:
        """A rank reports: finished writes as landed, unfinished ones as ended without."""
        node = self.world.nodes[name]
        if node.writing:
            writing = choose(node.writing, pick)
            node.writing.remove(writing)
            landed = writing.done == len(writing.blocks)
            copy = node.copies.report(writing.copy.copy_id, 0, landed)
            if landed:
                node.holds.landed(copy.entry)

    @rule(name=CONSUMERS, pick=PICK, landed=st.booleans())
    def report_load(self, name: str, pick: int, landed: bool) -> None:
        node = self.world.nodes[name]
        loads = [c for c in node.copies if c.kind == "load" and c.state == "in_flight"]
        if loads:
            copy = choose(loads, pick)
            node.copies.report(copy.copy_id, choose(sorted(copy.waiting), pick), landed)

    @rule(name=PRODUCERS, mm_hash=HASHES)
    def announce(self, name: str, mm_hash: str) -> None:
        node = self.world.nodes[name]
        entry = node.tier.get(mm_hash)
        if entry is not None:
            deadline = self.world.now(node) + TIMING.announce_hold_s
            node.holds.hold(("announced", mm_hash), entry, deadline)

    # -------------------------------------------------------------------- fetches
    def ensure_cache_available(self, name: str, mm_hash: str, producer: int, waiter: str) -> None:
        node = self.world.nodes[name]
        entry = node.tier.get(mm_hash)
        if entry is None or node.waiters.fetching(mm_hash):
            now = self.world.now(node)
            node.waiters.fetch(mm_hash, ("sim", producer), nbytes(mm_hash), None, waiter, now)

    def request_finished(self, name: str, waiter: str) -> None:
        node = self.world.nodes[name]
        node.waiters.leave(waiter, self.world.now(node))

    def carry_out(self, name: str, count: int) -> None:
        for _ in range(count):
            self.world.run_command(self.world.nodes[name])

    def fetch_until(self, name: str, pick: int, producer: int, waiter: str, stage: int) -> None:
        """A fetch that goes well up to a point; what follows is up to other rules.

        Stages: 0 asked, 1 granted, 2 ack seen, 3 posted, 4 finished, 5 seen finished.
        """
        world = self.world
        offered = sorted(e.mm_hash for e in world.nodes[f"P{producer}"].tier.entries())
        mm_hash = choose(offered or sorted(ENCODINGS), pick)
        self.produce(f"P{producer}", mm_hash)
        self.ensure_cache_available(name, mm_hash, producer, waiter)
        if stage >= 1:
            for _ in range(4):
                world.run_command(world.nodes[name])
            self.deliver_to(f"P{producer}")
        if stage >= 2:
            self.deliver_to(name)
        if stage >= 3:
            for _ in range(4):
                world.run_command(world.nodes[name])
        if stage >= 4:
            for dma in world.dmas:
                while dma.node.name == name and dma.active and dma.step():
                    pass
        if stage >= 5:
            for dma in [d for d in world.dmas if d.node.name == name and d.finished]:
                world.see_done(dma)

    def deliver_to(self, target: str) -> None:
        for message in [w for w in self.world.wires if w[1] == target]:
            self.world.deliver(self.world.wires.index(message))

    @precondition(lambda self: self.world.wires)
    @rule(pick=PICK, how=st.sampled_from(["deliver", "deliver", "duplicate", "lose"]))
    def message(self, pick: int, how: str) -> None:
        index = pick % len(self.world.wires)
        if how == "lose":
            self.world.wires.pop(index)
        else:
            self.world.deliver(index, keep=how == "duplicate" and len(self.world.wires) < 8)

    @precondition(lambda self: self.world.notices)
    @rule(pick=PICK, how=st.sampled_from(["deliver", "deliver", "duplicate", "lose"]))
    def notice(self, pick: int, how: str) -> None:
        index = pick % len(self.world.notices)
        if how == "lose":
            self.world.notices.pop(index)
        else:
            keep = how == "duplicate" and len(self.world.notices) < 8
            self.world.deliver_notice(index, keep=keep)

    @precondition(lambda self: self.world.dmas)
    @rule(pick=PICK, how=st.sampled_from(["step", "run", "poll", "poll", "error", "close"]))
    def dma(self, pick: int, how: str) -> None:
        """A READ moves, is polled, reports an error (and may go on), or loses its endpoint."""
        dma = choose(self.world.dmas, pick)
        if how == "error":
            dma.node.consumer.read_error(dma.attempt_id, self.world.now(dma.node))
        elif how == "close":
            if not is_reading(dma):
                self.world.close_endpoint(dma)
        elif how == "poll":
            if dma.finished:
                self.world.see_done(dma)
        else:
            moved = dma.active and dma.step()
            while how == "run" and moved:
                moved = dma.active and dma.step()

    # ------------------------------------------------------------ time and failure
    def tick(self, name: str) -> None:
        self.world.tick(self.world.nodes[name])

    def end_leases(self, producer: int) -> None:
        """So much time that the producer's leases end; consumers notice nothing."""
        self.world.time += TIMING.lease_s * 1.01
        self.world.tick(self.world.nodes[f"P{producer}"])

    def reuse_blocks(self, name: str, first: int) -> None:
        """New encodings push out whatever may be evicted."""
        order = sorted(ENCODINGS)
        for mm_hash in order[first:] + order[:first]:
            self.produce(name, mm_hash)

    def advance(self, seconds: float) -> None:
        """Time passes and nobody does anything: a long engine step, a GC pause."""
        self.world.time += seconds

    def peer_event(self, name: str, producer: int, kind: str) -> None:
        """Heartbeats come or stop; or the producer is killed and starts again.

        After a restart on the same address the READs of the old process hang.
        """
        node = self.world.nodes[name]
        now = self.world.now(node)
        if kind == "heard":
            node.consumer.attempts.peers.heard_from(("sim", producer))
        elif kind == "lost":
            node.consumer.peer_lost(("sim", producer), now)
        else:
            old = self.world.nodes[f"P{producer}"]
            old.alive = False
            self.promised[old.name].clear()
            self.world.nodes[old.name] = self.node(old.name, old.rate, old.incarnation + 1)

    build_meta_rule = rule(name=st.sampled_from(["P1", "P2", "C1", "C2"]))(build_meta)

    produce_rule = rule(name=st.sampled_from(["P1", "P2", "C1"]), mm_hash=HASHES)(produce)

    ensure_rule = rule(name=CONSUMERS, mm_hash=HASHES, producer=st.integers(1, 2), waiter=WAITERS)(
        ensure_cache_available
    )

    fetch_rule = rule(
        name=CONSUMERS,
        pick=PICK,
        producer=st.integers(1, 2),
        waiter=WAITERS,
        stage=st.integers(0, 5),
    )(fetch_until)

    reuse_rule = rule(name=st.sampled_from(["P1", "P2", "C1"]), first=st.integers(0, 2))(
        reuse_blocks
    )

    advance_rule = rule(seconds=DELAYS)(advance)

    tick_rule = rule(name=st.sampled_from(["P1", "P2", "C1", "C2"]))(tick)

    carry_out_rule = rule(name=CONSUMERS, count=st.integers(1, 4))(carry_out)

    request_finished_rule = rule(name=CONSUMERS, waiter=WAITERS)(request_finished)

    peer_event_rule = rule(
        name=CONSUMERS,
        producer=st.integers(1, 2),
        kind=st.sampled_from(["heard", "heard", "lost", "restart"]),
    )(peer_event)

    lease_passes = rule(producer=st.integers(1, 2))(end_leases)

    # ------------------------------------------------------------------ the checks
    @invariant()
    def invariants(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.settle()

    def settle(self) -> None:
        """Everything ends once the network is kind and time goes by (Progress)."""
        world = self.world
        for node in world.nodes.values():
            for waiter in ("r1", "r2", "r3"):
                node.waiters.leave(waiter, world.now(node))
            name = node.name
            self.build_meta(name)
            for writing in list(node.writing):
                node.copies.report(writing.copy.copy_id, 0, False)
            node.writing.clear()
            for copy in list(node.copies):
                for rank in sorted(copy.waiting):
                    node.copies.report(copy.copy_id, rank, True)
        for _ in range(40):
            world.time += 5.0
            for node in world.nodes.values():
                world.tick(node)
                for _ in range(50):
                    world.run_command(node)
            while world.wires:
                world.deliver(0)
            while world.notices:
                world.deliver_notice(0)
            world.check()
        for dma in list(world.dmas):
            world.close_endpoint(dma)
        world.check()
        for node in world.nodes.values():
            assert node.consumer.idle, "Progress: attempts or fetches left"
            assert node.producer.open_grants == 0, "Progress: grants left"
            assert len(node.holds) == 0, "Progress: holds left"
            assert node.tier.retired_blocks == 0, "Progress: a proof must reclaim"
            states = {entry.state for entry in node.tier.entries()}
            assert states <= {"ready"}, f"Progress: entries in {states}"
            for peer in node.consumer.attempts.peers.all():
                assert not peer.attempts


def nbytes(mm_hash: str) -> int:
    blocks = ENCODINGS[mm_hash]
    return blocks * BLOCK - (3 if mm_hash == "c" else 0)


def choose(items, pick):
    return items[pick % len(items)]


def is_reading(dma: Dma) -> bool:
    attempt = dma.node.consumer.attempts._attempts.get(dma.attempt_id)
    return attempt is not None and attempt.state == "reading"
