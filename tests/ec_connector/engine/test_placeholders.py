# SPDX-License-Identifier: Apache-2.0
"""Requests that name an encoding and say wrongly how large its placeholder is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_connector.engine.placeholders import Placeholders
from tests.world.delegate import Engine, Request, item

GRID = {"image_grid_thw": [1, 8, 8]}


def reference(name: str, grid: Any, request: str = "ref", params: Any = None, **kw: Any) -> Request:
    fields = {} if grid is None else {"image_grid_thw": grid}
    return Request(request, [item(name, has_media=False, metadata=fields, **kw)], params)


def asked(engine: Engine, request: Request) -> bool:
    """Whether it may be scheduled; if not, it must be failed, and nobody else."""
    may = engine.scheduler.ensure_cache_available(request, 0)
    taken = engine.scheduler.take_unavailable_requests()
    assert taken == (set() if may else {request.request_id})
    return may


def knowing() -> Engine:
    """An engine that has processed a picture ``a`` of 8 × 8 patches, and has it."""
    engine = Engine()
    engine.report(engine.step(Request("first", [item("a", metadata=GRID)])))
    assert engine.tier.get("a") is not None
    return engine


@pytest.mark.clause("EC-11.5")
@pytest.mark.parametrize(
    "grid", [[1, 4, 16], [1, 16, 4], [1, 64, 1], [2, 8, 4], [1, 8], [1, 8, 8, 1], [], "x", None]
)
def test_another_grid_of_as_many_rows_fails_that_request_alone(grid: Any) -> None:
    """The encoding would be right and every position in the prompt wrong."""
    engine = knowing()
    assert asked(engine, reference("a", grid)) == (grid is None)
    assert engine.scheduler.stats()["references_refused"] == (grid is not None)
    assert asked(engine, reference("a", [1, 8, 8], "right"))
    other = {"image_grid_thw": [1, 4, 16]}
    assert asked(engine, Request("media", [item("a", metadata=other)])), "it is encoded here"
    mixed = [item("b", has_media=False), item("a", metadata=other)]
    engine.save("b")
    assert asked(engine, Request("both", mixed))


@pytest.mark.clause("EC-11.5")
def test_so_does_another_number_of_rows_whether_the_tier_has_it_or_not() -> None:
    engine = knowing()
    assert not asked(engine, reference("a", [1, 8, 8], rows=2))
    engine.report(engine.step(Request("big", [item("big", rows=engine.blocks)])))
    assert engine.tier.get("a") is None
    assert not asked(engine, reference("a", [1, 4, 16], "later"))
    assert engine.scheduler.stats()["references_refused"] == 2


@pytest.mark.clause("EC-11.5")
@pytest.mark.parametrize("number", [-1, -8, float("nan"), float("inf"), float("-inf"), 10**400])
def test_numbers_that_no_grid_has_never_reach_the_host(number: float) -> None:
    """Negative sizes end vLLM's engine."""
    engine = Engine(p2p=True)
    engine.save("unknown")
    assert not asked(engine, reference("unknown", [1, number, 8]))


@pytest.mark.clause("EC-11.5")
def test_what_the_host_remembers_from_a_wrong_reference_is_not_served_to_the_next() -> None:
    """vLLM keeps the sizes of a reference for later requests that bring the picture."""
    engine = knowing()
    assert not asked(engine, reference("a", [1, 4, 4], "wrong", rows=4))
    later = reference("a", [1, 4, 4], "a picture, as the host sees it by now")
    assert not asked(engine, later)


@pytest.mark.clause("EC-11.5")
@pytest.mark.parametrize(
    ("announced", "agrees"),
    [
        ({"image_grid_thw": [1, 8, 8]}, True),
        ({"image_grid_thw": [[1, 8, 8]]}, True),
        ({"image_grid_thw": [1.0, 8.0000000001, 8]}, True),
        ({"video_grid_thw": [1, 4, 16]}, True),
        ({}, True),
        (None, True),
        ("x", True),
        ({"image_grid_thw": [1, 4, 16]}, False),
        ({"image_grid_thw": [1, 8]}, False),
        ({"image_grid_thw": None}, False),
        ({"image_grid_thw": [1, 8, True]}, False),
        ({"image_grid_thw": [1, 8, 10**400]}, False),
    ],
)
def test_what_was_announced_is_compared_too(announced: Any, agrees: bool) -> None:
    engine = Engine(p2p=True)
    engine.save("a")  # without sizes: it came from a peer
    params = {"a": {"metadata": announced}}
    assert asked(engine, reference("a", [1, 8, 8], params=params)) == agrees


DEEP: Any = [1]
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.clause("EC-11.4")
@pytest.mark.parametrize(
    "value",
    [DEEP, [1] * 10_000_000, [[1] * 4000] * 4000, [[[[[]] * 4000] * 4000] * 4000] * 4000],
    ids=["deep", "long", "both", "empty"],
)
def test_no_announcement_costs_much_or_ends_the_engine(value: Any) -> None:
    engine = Engine(p2p=True)
    engine.save("a")
    params = {"a": {"metadata": {"image_grid_thw": value}}}
    assert not asked(engine, reference("a", [1, 8, 8], params=params))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("agm"), inner),
)


@given(params=JSON | st.dictionaries(st.just("a"), st.dictionaries(st.just("metadata"), JSON)))
def test_no_parameters_raise(params: Any) -> None:
    known = Placeholders()
    known.refuses(item("a", has_media=False, metadata={"g": [1, 2]}), params)


def test_references_and_counted_names_teach_nothing_and_memory_is_bounded() -> None:
    known = Placeholders(limit=2)
    known.learn(item("a", has_media=False, metadata={"g": [9]}))
    known.learn(item("renderer0-mm-1-image-0", metadata={"g": [9]}))
    assert len(known) == 0
    for name in "abc":
        known.learn(item(name, metadata={"g": [1]}))
    assert len(known) == 2
    wrong = {name: item(name, has_media=False, metadata={"g": [2]}) for name in "abc"}
    assert [known.refuses(wrong[name], None) for name in "abc"] == [False, True, True]


def test_a_request_is_judged_once() -> None:
    """Not in every step of a long answer."""
    engine = knowing()
    request = reference("a", [1, 8, 8])
    assert asked(engine, request)
    request.items[0] = reference("a", [1, 4, 16]).items[0]
    assert asked(engine, request)


def test_the_log_says_what_contradicts_what_and_does_not_grow(caplog: Any) -> None:
    engine = knowing()
    for number in range(9):
        asked(engine, reference("a", [1, 4, 16], f"{number}"))
    lines = [r.getMessage() for r in caplog.records if "without media is failed" in r.getMessage()]
    assert [line.partition("no. ")[2][0] for line in lines] == ["1", "2", "4", "8"]
    assert json.dumps([1.0, 4.0, 16.0]) in lines[0]
    assert json.dumps([1.0, 8.0, 8.0]) in lines[0]


def test_a_long_list_is_not_even_copied() -> None:
    class Long(list[int]):
        def __reversed__(self) -> Any:
            raise AssertionError("copied")

    reference_of = item("a", has_media=False, metadata={"g": [1]})
    assert Placeholders().refuses(reference_of, {"a": {"metadata": {"g": Long([1] * 5000)}}})
