# SPDX-License-Identifier: Apache-2.0
"""The scheduler delegate, hook by hook, with the copies' reports played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ec_connector.items import Item, make_item
from ec_connector.messages import CopyReport, StepMetadata, WorkerReport
from ec_connector.scheduler import ECScheduler
from ec_protocol import wire
from ec_protocol.commands import PrepareRead, SendReq
from ec_protocol.consumer import ConsumerReads
from ec_protocol.holds import HoldTable
from ec_protocol.producer import ProducerGrants
from ec_protocol.tier import EncodingTier
from ec_protocol.timing import Timing

WIDTH, ELEMENT = 8, 2
BLOCK = WIDTH * ELEMENT
COMPAT = wire.compatibility_hash("test", "model", "bfloat16", BLOCK)


@dataclass
class Request:
    request_id: str
    items: list[Item]
    ec_transfer_params: Any = None


def item(name: str, rows: int = 1, **kw: Any) -> Item:
    return make_item(name, rows, WIDTH, ELEMENT, **kw)


@dataclass
class FakeP2P:
    """The peer-to-peer half without a pump: the test plays the pump."""

    consumer: ConsumerReads | None = None
    producer: ProducerGrants | None = None
    address: tuple[str, int] | None = ("peer.example", 5601)
    wakes: int = 0
    stopped: bool = False
    healthy: bool = True
    ticked_without_pump: int = 0

    def tick_without_pump(self, now: float) -> None:
        self.ticked_without_pump += not self.healthy

    def wake(self) -> None:
        self.wakes += 1

    def shutdown(self) -> None:
        self.stopped = True


@dataclass
class Engine:
    """One scheduler with its clock."""

    role: str = "ec_both"
    blocks: int = 8
    world_size: int = 1
    p2p: FakeP2P | None = None
    now: float = 100.0
    tier: EncodingTier = field(init=False)
    scheduler: ECScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.tier = EncodingTier(self.blocks, BLOCK)
        holds = HoldTable(self.tier)
        if self.p2p is not None:
            timing = Timing()
            if self.role != "ec_producer":
                self.p2p.consumer = ConsumerReads(
                    self.tier, holds=holds, timing=timing, compat_hash=COMPAT, session="c"
                )
            if self.role != "ec_consumer":
                self.p2p.producer = ProducerGrants(
                    self.tier,
                    timing=timing,
                    compat_hash=COMPAT,
                    incarnation="p",
                    base_addr=4096,
                    agent_metadata=b"agent",
                )
        self.scheduler = ECScheduler(
            self.tier,
            role=self.role,  # type: ignore[arg-type]
            items=lambda request: request.items,
            element_size=ELEMENT,
            dtype="bfloat16",
            world_size=self.world_size,
            holds=holds,
            p2p=self.p2p,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def step(self, *requests: Request) -> StepMetadata:
        """One engine step that schedules every item of every admitted request."""
        scheduler = self.scheduler
        admitted = [r for r in requests if scheduler.ensure_cache_available(r, 0)]
        for request in admitted:
            for wanted in request.items:
                scheduler.has_cache_item(wanted.mm_hash)
        for request in admitted:
            for index in range(len(request.items)):
                scheduler.update_state_after_alloc(request, index)
        return scheduler.build_connector_meta()

    def report(self, metadata: StepMetadata, landed: bool = True) -> None:
        """All ranks finish everything that the step named."""
        entries = [CopyReport(op.copy_id, 0, landed) for op in metadata.saves]
        entries += [
            CopyReport(op.copy_id, rank, landed)
            for op in metadata.loads
            for rank in range(self.world_size)
        ]
        self.scheduler.update_connector_output(WorkerReport(tuple(entries)))

    def save(self, name: str, rows: int = 1) -> None:
        self.report(self.step(Request(f"save-{name}", [item(name, rows)])))


def states(engine: Engine) -> dict[str, str]:
    return {entry.mm_hash: entry.state for entry in engine.tier.entries()}


def test_saved_then_loaded() -> None:
    engine = Engine()
    first = engine.step(Request("r1", [item("a", 2)]))
    assert [(op.mm_hash, op.nbytes) for op in first.saves] == [("a", 2 * BLOCK)]
    assert not first.loads and engine.scheduler.has_pending_push_work()
    assert states(engine) == {"a": "saving"}
    engine.report(first)
    assert states(engine) == {"a": "ready"} and not engine.scheduler.has_pending_push_work()

    second = engine.step(Request("r2", [item("a", 2)]))
    assert not second.saves
    (load,) = second.loads
    assert (load.mm_hash, load.shape, load.dtype) == ("a", (2, WIDTH), "bfloat16")
    assert load.extents == first.saves[0].extents
    assert states(engine) == {"a": "pinned"}
    engine.report(second)
    assert states(engine) == {"a": "ready"}
    assert second.step_id == first.step_id + 1


@pytest.mark.clause("EC-3.1")
def test_not_cached_while_being_saved() -> None:
    engine = Engine()
    step = engine.step(Request("r1", [item("a")]))
    assert not engine.scheduler.has_cache_item("a")
    engine.report(step)
    assert engine.scheduler.has_cache_item("a")


@pytest.mark.clause("EC-3.2", "EC-3.3")
def test_f6_a_promise_survives_other_allocations_of_the_step() -> None:
    engine = Engine(blocks=2)
    engine.save("a", 2)
    scheduler = engine.scheduler
    old, new = Request("old", [item("a", 2)]), Request("new", [item("b", 1)])
    assert scheduler.has_cache_item("a")
    assert not scheduler.has_cache_item("b")
    scheduler.update_state_after_alloc(new, 0)  # would have evicted a
    scheduler.update_state_after_alloc(old, 0)
    metadata = scheduler.build_connector_meta()
    assert [op.mm_hash for op in metadata.loads] == ["a"] and not metadata.saves
    assert scheduler.counters["saves_without_room"] == 1


@pytest.mark.clause("EC-3.4")
def test_unused_promises_end_with_the_step() -> None:
    engine = Engine(blocks=2)
    engine.save("a", 2)
    assert engine.scheduler.has_cache_item("a")
    assert states(engine) == {"a": "pinned"}
    engine.scheduler.build_connector_meta()
    assert states(engine) == {"a": "ready"}
    engine.save("b", 2)
    assert states(engine) == {"b": "ready"}


def test_one_load_for_many_requests_of_one_step() -> None:
    engine = Engine()
    engine.save("a")
    metadata = engine.step(Request("r1", [item("a"), item("a")]), Request("r2", [item("a")]))
    assert len(metadata.loads) == 1


def test_one_save_for_many_requests_of_one_step() -> None:
    engine = Engine()
    metadata = engine.step(Request("r1", [item("a")]), Request("r2", [item("a")]))
    assert len(metadata.saves) == 1


@pytest.mark.clause("EC-4.3")
def test_f7_encoder_that_never_ran_leaves_nothing() -> None:
    engine = Engine()
    metadata = engine.step(Request("r1", [item("a")]))
    engine.report(metadata, landed=False)
    assert states(engine) == {} and engine.tier.free_blocks == 8
    assert not engine.scheduler.has_pending_push_work()


def test_asynchronous_steps_report_in_any_order() -> None:
    engine = Engine()
    engine.save("a")
    first = engine.step(Request("r1", [item("b")]), Request("r2", [item("a")]))
    second = engine.step(Request("r3", [item("c")]), Request("r4", [item("a")]))
    assert len(first.loads) == len(second.loads) == 1
    engine.report(second)
    assert states(engine) == {"a": "pinned", "b": "saving", "c": "ready"}
    engine.report(first)
    assert states(engine) == {"a": "ready", "b": "ready", "c": "ready"}


@pytest.mark.clause("EC-4.2")
def test_late_rank_keeps_the_entry() -> None:
    engine = Engine(world_size=2)
    engine.save("a")
    (load,) = engine.step(Request("r1", [item("a")])).loads
    engine.scheduler.update_connector_output(WorkerReport((CopyReport(load.copy_id, 1, True),)))
    assert states(engine) == {"a": "pinned"}
    engine.scheduler.update_connector_output(WorkerReport((CopyReport(load.copy_id, 0, True),)))
    assert states(engine) == {"a": "ready"}


@pytest.mark.clause("EC-4.4")
def test_stray_reports_change_nothing_and_are_counted() -> None:
    engine = Engine(world_size=2)
    engine.save("a")
    (load,) = engine.step(Request("r1", [item("a")])).loads
    once = CopyReport(load.copy_id, 1, True)
    engine.scheduler.update_connector_output(
        WorkerReport((once, once, CopyReport(load.copy_id, 7, True), CopyReport(999, 0, True)))
    )
    assert engine.scheduler.counters["stray_reports"] == 3
    assert states(engine) == {"a": "pinned"}


@pytest.mark.parametrize(
    ("role", "saves", "loads"),
    [("ec_producer", True, False), ("ec_consumer", False, True), ("ec_both", True, True)],
)
def test_roles(role: str, saves: bool, loads: bool) -> None:
    engine = Engine(role)
    assert bool(engine.step(Request("r1", [item("a")])).saves) is saves
    engine = Engine(role)
    engine.scheduler.saves = True
    engine.save("a")
    assert engine.scheduler.has_cache_item("a") is loads


def test_without_peer_to_peer_nothing_is_deferred_or_announced() -> None:
    engine = Engine()
    request = Request("r1", [item("a")], {"a": {"peer_host": "h", "peer_port": 1}})
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.scheduler.request_finished(request) == (False, None)
    assert engine.scheduler.take_unavailable_requests() == set()


# ------------------------------------------------------------------------- fetching
def remote(name: str, rows: int = 1, **changes: Any) -> dict[str, Any]:
    size = rows * BLOCK
    params = {"peer_host": "p", "peer_port": 5601, "size_bytes": size, "shape": [rows, WIDTH]}
    return {name: {**params, **changes}}


def fetch_ok(engine: Engine, name: str) -> None:
    """Play pump and producer: the fetch of ``name`` lands."""
    assert engine.p2p is not None and engine.p2p.consumer is not None
    consumer = engine.p2p.consumer
    requests = [c.req for c in consumer.drain() if isinstance(c, SendReq)]
    (request,) = [r for r in requests if r.mm_hash == name]
    entry = engine.tier.get(name)
    assert entry is not None
    ack = wire.XferAck(
        mm_hash=name,
        status=0,
        session_id=request.session_id,
        agent_metadata=b"agent",
        lease_s=30.0,
        base_addr=4096,
        block_size=BLOCK,
        extents=[(0, entry.num_blocks)],
        nbytes=entry.nbytes,
    )
    consumer.on_ack(("p", 5601), ack, engine.now)
    (prepare,) = [c for c in consumer.drain() if isinstance(c, PrepareRead)]
    assert consumer.post_read(prepare.attempt_id, engine.now)
    consumer.read_done(prepare.attempt_id, engine.now)


def test_request_waits_for_its_fetch_and_loads_it() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a", 2)], remote("a", 2))
    assert not engine.step(request).loads
    assert engine.p2p is not None and engine.p2p.wakes
    assert not engine.step(request).loads
    fetch_ok(engine, "a")
    assert states(engine) == {"a": "pinned"}, "held for the request that waits"
    metadata = engine.step(request)
    assert [op.mm_hash for op in metadata.loads] == ["a"]
    engine.report(metadata)
    assert states(engine) == {"a": "ready"}


@pytest.mark.clause("EC-5.9")
def test_failed_fetch_falls_back_to_the_encoder() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    consumer = engine.p2p.consumer  # type: ignore[union-attr]
    engine.now += 2.0
    consumer.tick(engine.now)
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert not engine.scheduler.has_cache_item("a")
    assert engine.scheduler.take_unavailable_requests() == set(), "the media is still there"
    assert engine.tier.free_blocks == 8


@pytest.mark.clause("EC-5.9")
def test_request_without_media_fails_alone_when_its_encoding_is_lost() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    lost = Request("lost", [item("a", has_media=False)], remote("a"))
    fine = Request("fine", [item("b")], remote("b"))
    assert not engine.scheduler.ensure_cache_available(lost, 0)
    assert not engine.scheduler.ensure_cache_available(fine, 0)
    engine.now += 2.0
    engine.p2p.consumer.tick(engine.now)  # type: ignore[union-attr]
    # The host must not run its encoder on nothing before it is told.
    assert not engine.scheduler.ensure_cache_available(lost, 0)
    assert engine.scheduler.ensure_cache_available(fine, 0)
    assert engine.scheduler.take_unavailable_requests() == {"lost"}
    assert engine.scheduler.take_unavailable_requests() == set()


def test_computed_items_are_not_fetched() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a", end=10)], remote("a"))
    assert engine.scheduler.ensure_cache_available(request, 10)
    assert not engine.scheduler.ensure_cache_available(request, 9)


@pytest.mark.clause("EC-11.4")
@pytest.mark.parametrize(
    "params",
    [
        7,
        [],
        "x",
        {"a": None},
        {"a": []},
        {"a": {}},
        remote("a", peer_host=7),
        remote("a", peer_host="x" * 300),
        remote("a", peer_host="a b"),
        remote("a", peer_port="5601"),
        remote("a", peer_port=0),
        remote("a", peer_port=True),
        remote("a", peer_port=1 << 70),
        remote("a", size_bytes=-1),
        remote("a", size_bytes=1 << 80),
        remote("a", size_bytes=BLOCK + 1),
        remote("a", size_bytes=1.0),
        remote("a", shape=[2, WIDTH]),
        remote("a", shape="12"),
        remote("a", shape=[None]),
    ],
)
def test_hostile_parameters_only_cost_the_request_its_fetch(params: Any) -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a")], params)
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.p2p.consumer.drain() == []  # type: ignore[union-attr]
    assert states(engine) == {}


def test_megabyte_hash_is_refused() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    name = "x" * (1 << 20)
    request = Request("r1", [item(name)], remote(name))
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.scheduler.counters["params_bad_mm_hash"] == 1


def test_leaving_ends_the_fetch() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    engine.scheduler.request_finished(request)
    assert states(engine) == {}
    assert engine.p2p.consumer.idle  # type: ignore[union-attr]


# --------------------------------------------------------------------- announcements
@pytest.mark.clause("EC-11.1", "EC-11.2", "EC-11.3")
def test_announcements_are_whole_or_empty() -> None:
    engine = Engine("ec_producer", blocks=4, p2p=FakeP2P())
    engine.save("a", 2)
    saving = engine.step(Request("r2", [item("b", 1, metadata={"grid": [1, 2]})]))
    request = Request(
        "r3", [item("a", 2, metadata={"grid": [7]}), item("b", metadata={"grid": [1, 2]}), item("z")]
    )
    delay, params = engine.scheduler.request_finished(request)
    assert delay is False and params is not None
    assert params["a"] == {
        "item_indices": [0],
        "metadata": {"grid": [7]},
        "peer_host": "peer.example",
        "peer_port": 5601,
        "size_bytes": 2 * BLOCK,
        "shape": [2, WIDTH],
    }
    assert params["b"]["peer_port"] == 5601, "its save is under way"
    assert params["z"] == {"item_indices": [2], "metadata": {}}
    assert states(engine) == {"a": "pinned", "b": "saving"}
    engine.report(saving)
    engine.now += Timing().announce_hold_s
    engine.scheduler.build_connector_meta()
    assert states(engine) == {"a": "ready", "b": "ready"}, "the holds are bounded"


def test_announced_save_is_held_from_the_moment_it_lands() -> None:
    engine = Engine("ec_producer", blocks=4, p2p=FakeP2P())
    step = engine.step(Request("r1", [item("a", 2)]))
    engine.scheduler.request_finished(Request("r1", [item("a", 2)]))
    engine.report(step)
    assert states(engine) == {"a": "pinned"}


def test_stats_and_shutdown() -> None:
    engine = Engine(p2p=FakeP2P())
    engine.save("a", 2)
    stats = engine.scheduler.stats()
    assert stats["saves_landed"] == 1 and stats["free_blocks"] == 6 and stats["misses"] == 1
    engine.scheduler.shutdown()
    assert engine.p2p is not None and engine.p2p.stopped


@pytest.mark.clause("EC-5.9")
def test_without_a_running_pump_requests_encode_and_timers_go_on() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P(healthy=False))
    request = Request("r1", [item("a")], remote("a"))
    engine.step(request)
    assert engine.scheduler.counters["fetches_without_pump"] == 1
    assert engine.p2p is not None
    assert engine.p2p.consumer is not None
    assert engine.p2p.consumer.drain() == []
    assert engine.p2p.ticked_without_pump == 1
