# SPDX-License-Identifier: Apache-2.0
"""The scheduler delegate with peer-to-peer: fetching, falling back, announcing."""

from __future__ import annotations

from typing import Any

import pytest

from ec_protocol.p2p import words
from ec_protocol.tables.timing import Timing
from tests.world.core import BLOCK, WIDTH, states
from tests.world.delegate import Engine, Request, item


# ------------------------------------------------------------------------- fetching
def remote(name: str, rows: int = 1, **changes: Any) -> dict[str, Any]:
    size = rows * BLOCK
    params = {"peer_host": "p", "peer_port": 5601, "size_bytes": size, "shape": [rows, WIDTH]}
    return {name: {**params, **changes}}


def lent(engine: Engine) -> list[words.Lend]:
    """What the reader was told to fetch since the last call."""
    return [said for said in engine.data.reader.take() if isinstance(said, words.Lend)]


def ended(engine: Engine, word: str, name: str) -> None:
    """Play the reader: this is how the fetch of ``name`` ends."""
    (loan,) = [said.loan for said in lent(engine) if said.mm_hash == name]
    engine.data.reader.coming.append(words.Words([(word, loan)]))


def test_request_waits_for_its_fetch_and_loads_it() -> None:
    engine = Engine("ec_consumer", p2p=True)
    request = Request("r1", [item("a", 2)], remote("a", 2))
    assert not engine.step(request).loads
    assert not engine.step(request).loads
    ended(engine, "landed", "a")
    engine.scheduler.build_connector_meta()
    assert states(engine) == {"a": "pinned"}, "held for the request that waits"
    metadata = engine.step(request)
    assert [op.mm_hash for op in metadata.loads] == ["a"]
    engine.report(metadata)
    assert states(engine) == {"a": "ready"}


@pytest.mark.clause("EC-5.9")
def test_failed_fetch_falls_back_to_the_encoder() -> None:
    engine = Engine("ec_consumer", p2p=True)
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    ended(engine, "failed", "a")
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert not engine.scheduler.has_cache_item("a")
    assert engine.scheduler.take_unavailable_requests() == set(), "the media is still there"
    assert engine.tier.free_blocks == 8


@pytest.mark.clause("EC-5.9")
def test_request_without_media_fails_alone_when_its_encoding_is_lost() -> None:
    engine = Engine("ec_consumer", p2p=True)
    lost = Request("lost", [item("a", has_media=False)], remote("a"))
    fine = Request("fine", [item("b")], remote("b"))
    assert not engine.scheduler.ensure_cache_available(lost, 0)
    assert not engine.scheduler.ensure_cache_available(fine, 0)
    for lend in lent(engine):
        engine.data.reader.coming.append(words.Words([("failed", lend.loan)]))
    # The host must not run its encoder on nothing before it is told.
    assert not engine.scheduler.ensure_cache_available(lost, 0)
    assert engine.scheduler.ensure_cache_available(fine, 0)
    assert engine.scheduler.take_unavailable_requests() == {"lost"}
    assert engine.scheduler.take_unavailable_requests() == set()


def test_computed_items_are_not_fetched() -> None:
    engine = Engine("ec_consumer", p2p=True)
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
    engine = Engine("ec_consumer", p2p=True)
    request = Request("r1", [item("a")], params)
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert lent(engine) == []
    assert states(engine) == {}


def test_megabyte_hash_is_refused() -> None:
    engine = Engine("ec_consumer", p2p=True)
    name = "x" * (1 << 20)
    request = Request("r1", [item(name)], remote(name))
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.node.counters["params_bad_mm_hash"] == 1


@pytest.mark.clause("EC-14.7")
def test_leaving_ends_the_fetch_when_its_reader_says_so() -> None:
    engine = Engine("ec_consumer", p2p=True)
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    (lend,) = lent(engine)
    engine.scheduler.request_finished(request)
    assert engine.data.reader.take() == [words.TakeBack(lend.loan)]
    assert states(engine) == {"a": "saving"}, "a READ may be under way"
    engine.data.reader.coming.append(words.Words([("failed", lend.loan)]))
    engine.scheduler.build_connector_meta()
    assert states(engine) == {}
    assert engine.tier.free_blocks == engine.tier.num_blocks


@pytest.mark.clause("EC-14.4", "EC-5.9")
def test_a_reader_that_does_not_listen_costs_a_fall_back() -> None:
    engine = Engine("ec_consumer", p2p=True)
    engine.data.reader.full = True
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert states(engine) == {}


@pytest.mark.clause("EC-5.9")
def test_nobody_waits_longer_than_the_budget_for_a_reader_that_says_nothing() -> None:
    engine = Engine("ec_consumer", p2p=True)
    request = Request("r1", [item("a")], remote("a"))
    assert not engine.scheduler.ensure_cache_available(request, 0)
    engine.now += Timing().fetch_budget_s - 0.01
    assert not engine.scheduler.ensure_cache_available(request, 0)
    engine.now += 0.01
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert states(engine) == {"a": "saving"}, "lent until its reader has said more, or is gone"
    engine.data.link.exited(1, engine.now)
    assert states(engine) == {}


# --------------------------------------------------------------------- announcements
@pytest.mark.clause("EC-11.1", "EC-11.2", "EC-11.3")
def test_announcements_are_whole_or_empty() -> None:
    engine = Engine("ec_producer", blocks=4, p2p=True)
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
    engine = Engine("ec_producer", blocks=4, p2p=True)
    step = engine.step(Request("r1", [item("a", 2)]))
    engine.scheduler.request_finished(Request("r1", [item("a", 2)]))
    engine.report(step)
    assert states(engine) == {"a": "pinned"}


def test_stats_and_shutdown() -> None:
    engine = Engine(p2p=True)
    engine.save("a", 2)
    stats = engine.scheduler.stats()
    assert stats["saves_landed"] == 1
    assert stats["free_blocks"] == 6
    assert stats["misses"] == 1
    engine.scheduler.shutdown()
    assert engine.data.stopped


@pytest.mark.clause("EC-5.9", "EC-14.8")
def test_without_a_reader_requests_encode_and_holds_run_out() -> None:
    engine = Engine("ec_consumer", p2p=True)
    early = Request("r0", [item("b")], remote("b"))
    assert not engine.scheduler.ensure_cache_available(early, 0)
    engine.data.link.exited(1, engine.now)
    assert not engine.scheduler.ensure_cache_available(early, 0), "another reader may come"
    engine.now += engine.node.timing.stall_s
    engine.data.turn()
    assert engine.scheduler.ensure_cache_available(early, 0), "none came"
    entry = engine.tier.alloc("x", BLOCK)
    assert entry is not None
    engine.node.holds.hold(("announced", "x"), entry, engine.now + 1)
    engine.now += 1
    request = Request("r1", [item("a")], remote("a"))
    engine.step(request)
    loans = engine.data.link.loans
    assert loans is not None
    assert loans.counters["no_reader"] == 1, "the one that died was lent to"
    assert len(loans) == 0
    assert len(engine.node.holds) == 0, "with the engine's steps"


def test_a_fetch_that_lands_between_two_hooks_promises_nothing_to_who_means_something_else() -> (
    None
):
    """Another request's encoding lands after this one was asked about."""
    engine = Engine(p2p=True)
    other = Request("other", [item("a", 2)], remote("a", 2))
    assert not engine.scheduler.ensure_cache_available(other, 0)
    wanted = Request("r", [item("a", 3)])
    assert engine.scheduler.ensure_cache_available(wanted, 0)
    ended(engine, "landed", "a")
    engine.data.turn()
    assert states(engine) == {"a": "pinned"}
    assert not engine.scheduler.has_cache_item("a"), "two rows, where three are expected"
    engine.scheduler.update_state_after_alloc(wanted, 0)
    metadata = engine.scheduler.build_connector_meta()
    assert (metadata.loads, metadata.saves) == ((), ())
