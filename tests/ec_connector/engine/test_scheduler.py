# SPDX-License-Identifier: Apache-2.0
"""The scheduler delegate, hook by hook, with the copies' reports played by the test."""

from __future__ import annotations

import pytest

from ec_connector.engine.messages import CopyReport, WorkerReport
from tests.world.core import BLOCK, WIDTH, states
from tests.world.delegate import Engine, Request, item


def test_saved_then_loaded() -> None:
    engine = Engine()
    first = engine.step(Request("r1", [item("a", 2)]))
    assert [(op.mm_hash, op.nbytes) for op in first.saves] == [("a", 2 * BLOCK)]
    assert not first.loads
    assert engine.scheduler.has_pending_push_work()
    assert states(engine) == {"a": "saving"}
    engine.report(first)
    assert states(engine) == {"a": "ready"}
    assert not engine.scheduler.has_pending_push_work()

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
    assert [op.mm_hash for op in metadata.loads] == ["a"]
    assert not metadata.saves
    assert scheduler.node.counters["saves_without_room"] == 1


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
    assert states(engine) == {}
    assert engine.tier.free_blocks == 8
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
    copies = engine.node.copies
    copy = copies.plan_save("b", BLOCK)
    assert copy is not None
    copies.submit(copy)
    copies.report(copy.copy_id, 0, landed=True)
    engine.scheduler.ensure_cache_available(Request("r2", [item("b")]), 0)
    assert engine.scheduler.has_cache_item("b") is loads


def test_without_peer_to_peer_nothing_is_deferred_or_announced() -> None:
    engine = Engine()
    request = Request("r1", [item("a")], {"a": {"peer_host": "h", "peer_port": 1}})
    assert engine.scheduler.ensure_cache_available(request, 0)
    assert engine.scheduler.request_finished(request) == (False, None)
    assert engine.scheduler.take_unavailable_requests() == set()
