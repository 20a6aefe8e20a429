# SPDX-License-Identifier: Apache-2.0
"""Requests without media, and encodings that the host keeps in its own encoder cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ec_protocol.items import Item
from tests.world.delegate import Engine, item


@dataclass
class Request:
    request_id: str
    items: list[Item]
    ec_transfer_params: Any = None
    num_preemptions: int = field(default=0)


def reference(name: str, **kw: Any) -> Request:
    """A request that names an encoding and brings nothing to make it from."""
    return Request(f"ref-{name}", [item(name, has_media=False, **kw)])


@pytest.mark.clause("EC-5.9")
@pytest.mark.parametrize("p2p", [False, True])
def test_reference_to_nothing_fails_alone(p2p: bool) -> None:
    engine = Engine(p2p=p2p)
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.ensure_cache_available(Request("other", [item("b")]), 0)
    assert engine.scheduler.take_unavailable_requests() == {"ref-a"}
    assert engine.scheduler.stats()["unavailable"] == 1


def test_reference_is_served_by_the_local_tier() -> None:
    engine = Engine()
    engine.save("a")
    request = reference("a")
    assert engine.scheduler.ensure_cache_available(request, 0)
    (load,) = engine.step(request).loads
    assert load.mm_hash == "a"
    assert engine.scheduler.take_unavailable_requests() == set()


def test_reference_waits_for_a_save_under_way() -> None:
    engine = Engine()
    step = engine.step(Request("r", [item("a")]))
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.take_unavailable_requests() == set()
    engine.report(step)
    assert engine.scheduler.ensure_cache_available(reference("a"), 0)


@pytest.mark.clause("EC-5.9")
@pytest.mark.parametrize("p2p", [False, True])
def test_reference_waits_for_saves_within_its_budget(p2p: bool) -> None:
    engine = Engine(p2p=p2p)
    engine.step(Request("r", [item("a")]))
    budget = engine.node.timing.fetch_budget_s
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    engine.now += budget - 0.1
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.take_unavailable_requests() == set()
    engine.now += 0.1
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.take_unavailable_requests() == {"ref-a"}
    # Another request of the same name has a budget of its own.
    engine.scheduler.request_finished(reference("a"))
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.take_unavailable_requests() == set()


def test_reference_fails_when_the_save_it_waited_for_does_not_land() -> None:
    engine = Engine()
    step = engine.step(Request("r", [item("a")]))
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    engine.report(step, landed=False)
    assert not engine.scheduler.ensure_cache_available(reference("a"), 0)
    assert engine.scheduler.take_unavailable_requests() == {"ref-a"}


def evict_all(engine: Engine) -> None:
    engine.report(engine.step(Request("big", [item("big", rows=engine.blocks)])))
    assert engine.tier.get("a") is None


def test_running_request_does_not_ask_again_for_what_the_host_holds() -> None:
    """Chunked prefill stops inside the placeholder; meanwhile the tier evicts the entry."""
    engine = Engine()
    engine.save("a")
    request = reference("a", end=100)
    engine.report(engine.step(request))
    evict_all(engine)
    assert engine.scheduler.ensure_cache_available(request, 50)
    assert engine.scheduler.take_unavailable_requests() == set()


def test_host_gives_an_item_up_by_freeing_it() -> None:
    engine = Engine()
    engine.save("a")
    request = reference("a", end=100)
    engine.report(engine.step(request))
    evict_all(engine)
    engine.scheduler.update_state_after_free(request, 0)
    assert engine.scheduler.ensure_cache_available(request, 100), "it has been computed"
    assert not engine.scheduler.ensure_cache_available(request, 50)


def test_preempted_request_asks_anew() -> None:
    engine = Engine()
    engine.save("a")
    request = reference("a", end=100)
    engine.report(engine.step(request))
    evict_all(engine)
    request.num_preemptions += 1
    assert not engine.scheduler.ensure_cache_available(request, 0)
    assert engine.scheduler.take_unavailable_requests() == {request.request_id}


def test_finished_requests_leave_nothing_behind() -> None:
    engine = Engine(p2p=True)
    engine.save("a")
    request = reference("a")
    engine.report(engine.step(request))
    assert not engine.scheduler.ensure_cache_available(reference("z"), 0)
    for done in (request, reference("z"), Request("save-a", [item("a")])):
        engine.scheduler.request_finished(done)
    assert engine.scheduler._requests == {}
    assert engine.scheduler._unavailable == set()


def test_item_without_rows_needs_nothing() -> None:
    engine = Engine()
    assert engine.scheduler.ensure_cache_available(Request("r", [item("a", rows=0)]), 0)
    request = Request("s", [item("a", rows=0, has_media=False)])
    assert engine.scheduler.ensure_cache_available(request, 0)


@pytest.mark.clause("EC-11.1")
def test_announcement_names_every_occurrence() -> None:
    engine = Engine("ec_producer", p2p=True)
    items = [item("a"), item("b"), item("a")]
    engine.report(engine.step(Request("r", items)))
    _, params = engine.scheduler.request_finished(Request("r", items))
    assert params is not None
    assert {name: said["item_indices"] for name, said in params.items()} == {"a": [0, 2], "b": [1]}


@pytest.mark.clause("EC-11.4")
def test_name_used_for_other_content_is_encoded_again() -> None:
    """A client's own name for two pictures of different sizes."""
    engine = Engine()
    engine.save("mine", rows=2)
    other = Request("other", [item("mine", rows=3)])
    assert engine.scheduler.ensure_cache_available(other, 0)
    assert not engine.scheduler.has_cache_item("mine")
    engine.scheduler.update_state_after_alloc(other, 0)
    step = engine.scheduler.build_connector_meta()
    assert (step.loads, step.saves) == ((), ()), "the first one keeps the name"
    (load,) = engine.step(Request("same", [item("mine", rows=2)])).loads
    assert load.shape[0] == 2


@pytest.mark.clause("EC-11.4")
def test_reference_to_other_content_fails_alone() -> None:
    engine = Engine(p2p=True)
    engine.save("mine", rows=2)
    assert not engine.scheduler.ensure_cache_available(reference("mine", rows=3), 0)
    assert engine.scheduler.take_unavailable_requests() == {"ref-mine"}


@pytest.mark.clause("EC-11.1")
def test_other_content_is_not_announced() -> None:
    engine = Engine("ec_producer", p2p=True)
    engine.save("mine", rows=2)
    _, params = engine.scheduler.request_finished(Request("other", [item("mine", rows=3)]))
    assert params == {"mine": {"item_indices": [0], "metadata": {}}}


@pytest.mark.clause("EC-2.8")
def test_what_lies_in_the_tier_under_a_name_is_not_for_who_cannot_rely_on_it() -> None:
    """One request brings the hash and saves it; another's host may have counted it."""
    name = "8f43" * 16
    engine = Engine()
    engine.save(name)
    brings = Request("brings", [item(name)])
    counts = Request("counts", [item(name, named_by_content=False)])
    assert engine.scheduler.ensure_cache_available(counts, 0)
    step = engine.step(counts)
    assert (step.saves, step.loads) == ((), ())
    assert engine.scheduler.stats()["not_named_by_content"] == 1
    assert engine.scheduler.ensure_cache_available(brings, 0)
    (load,) = engine.step(brings).loads
    assert load.mm_hash == name
