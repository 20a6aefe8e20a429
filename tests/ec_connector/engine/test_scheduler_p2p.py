# SPDX-License-Identifier: Apache-2.0
"""The scheduler delegate with peer-to-peer: fetching, falling back, announcing."""

from __future__ import annotations

from typing import Any

import pytest

from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PrepareRead, SendReq
from ec_protocol.tables.timing import Timing
from tests.ec_connector.engine.engine import BLOCK, WIDTH, Engine, FakeP2P, Request, item, states


# ------------------------------------------------------------------------- fetching
def remote(name: str, rows: int = 1, **changes: Any) -> dict[str, Any]:
    size = rows * BLOCK
    params = {"peer_host": "p", "peer_port": 5601, "size_bytes": size, "shape": [rows, WIDTH]}
    return {name: {**params, **changes}}


def fetch_ok(engine: Engine, name: str) -> None:
    """Play pump and producer: the fetch of ``name`` lands."""
    assert engine.p2p is not None
    assert engine.node.reads is not None
    consumer = engine.node.reads
    requests = [c.req for c in consumer.attempts.drain() if isinstance(c, SendReq)]
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
    (prepare,) = [c for c in consumer.attempts.drain() if isinstance(c, PrepareRead)]
    assert consumer.post_read(prepare.attempt_id, engine.now)
    consumer.read_done(prepare.attempt_id, engine.now)


def test_request_waits_for_its_fetch_and_loads_it() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a", 2)], remote("a", 2))
    assert not engine.step(request).loads
    assert engine.p2p is not None
    assert engine.p2p.wakes
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
    consumer = engine.node.reads  # type: ignore[union-attr]
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
    engine.node.reads.tick(engine.now)  # type: ignore[union-attr]
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
    assert engine.node.reads.attempts.drain() == []  # type: ignore[union-attr]
    assert states(engine) == {}


def test_megabyte_hash_is_refused() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    name = "x" * (1 << 20)
    request = Request("r1", [item(name)], remote(name))
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.node.counters["params_bad_mm_hash"] == 1


def test_leaving_ends_the_fetch() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    engine.scheduler.request_finished(request)
    assert states(engine) == {}
    assert engine.node.reads.idle  # type: ignore[union-attr]


# --------------------------------------------------------------------- announcements
@pytest.mark.clause("EC-11.1", "EC-11.2", "EC-11.3")
def test_announcements_are_whole_or_empty() -> None:
    engine = Engine("ec_producer", blocks=4, p2p=FakeP2P())
    engine.save("a", 2)
    saving = engine.step(Request("r2", [item("b", 1, metadata={"grid": [1, 2]})]))
    request = Request(
        "r3",
        [item("a", 2, metadata={"grid": [7]}), item("b", metadata={"grid": [1, 2]}), item("z")],
    )
    delay, params = engine.scheduler.request_finished(request)
    assert delay is False
    assert params is not None
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
    assert stats["saves_landed"] == 1
    assert stats["free_blocks"] == 6
    assert stats["misses"] == 1
    engine.scheduler.shutdown()
    assert engine.p2p is not None
    assert engine.p2p.stopped


@pytest.mark.clause("EC-5.9")
def test_without_a_running_pump_requests_encode_and_timers_go_on() -> None:
    engine = Engine("ec_consumer", p2p=FakeP2P())
    early = Request("r0", [item("b")], remote("b"))
    assert not engine.scheduler.ensure_cache_available(early, 0)
    assert engine.p2p is not None
    # What a pump does that has to give up; from here on nobody carries out commands.
    engine.p2p.healthy = False
    engine.node.stop_reading(engine.now)
    assert engine.scheduler.ensure_cache_available(early, 0)
    entry = engine.tier.alloc("x", BLOCK)
    assert entry is not None
    engine.node.holds.hold(("announced", "x"), entry, engine.now + 1)
    engine.now += 1
    request = Request("r1", [item("a")], remote("a"))
    engine.step(request)
    assert engine.node.counters["fetches_without_pump"] == 2
    assert engine.node.commands() == [], "nobody would carry them out"
    assert engine.node.next_deadline() is None, "timers run out with the engine's steps"


@pytest.mark.clause("EC-3.5")
def test_an_announced_encoding_is_held_in_the_table_that_the_pump_lets_run_out() -> None:
    """One table for all holds: an idle engine makes no step that could end them."""
    engine = Engine("ec_both", p2p=FakeP2P())
    assert engine.p2p is not None
    assert engine.node.reads is not None
    assert engine.node.holds is engine.node.reads.holds


def test_a_fetch_that_lands_between_two_hooks_promises_nothing_to_who_means_something_else() -> (
    None
):
    """The pump lands another request's encoding after this one was asked about."""
    engine = Engine(p2p=FakeP2P())
    wanted = Request("r", [item("a", 3)])
    assert engine.scheduler.ensure_cache_available(wanted, 0)
    entry = engine.tier.alloc("a", 2 * BLOCK, (2, 8))
    assert entry is not None
    engine.tier.begin_write(entry, ("read", 1))
    engine.tier.write_landed(entry, ("read", 1))
    assert not engine.scheduler.has_cache_item("a"), "two rows, where three are expected"
    engine.scheduler.update_state_after_alloc(wanted, 0)
    metadata = engine.scheduler.build_connector_meta()
    assert (metadata.loads, metadata.saves) == ((), ())
