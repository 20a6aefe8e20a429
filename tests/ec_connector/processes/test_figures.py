# SPDX-License-Identifier: Apache-2.0
"""What operators see of data processes that may say anything."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ec_connector.processes import figures as figures_module
from ec_connector.processes.figures import COUNTERS, GAUGES, Figures


def test_totals_are_sums_over_those_that_are_and_those_that_were() -> None:
    figures = Figures()
    figures.update(1, "reader", {"reads": {"reads_done": 2}, "active_reads": 1})
    figures.update(2, "reader", {"reads": {"reads_done": 3}, "active_reads": 4})
    assert figures.totals("reads") == {"reads_done": 5}
    assert figures.gauge("active_reads") == 5
    figures.gone(1, "reader", {"reads": {"reads_done": 4}})
    assert figures.totals("reads") == {"reads_done": 7}
    assert figures.gauge("active_reads") == 4
    assert figures.exits == {"reader": 1}
    figures.update(3, "reader", {"reads": {"reads_done": 1}})
    assert figures.totals("reads") == {"reads_done": 8}
    for part in ("stats", "grants"):
        assert not figures.totals(part)


def test_totals_never_fall() -> None:
    figures = Figures()
    seen = 0
    for said in (5, 3, -1, None, "9", 7.5, True, 6, {}, [], math.nan, 1 << 80):
        figures.update(1, "server", {"grants": {"granted": said}})
        assert figures.totals("grants")["granted"] >= seen
        seen = figures.totals("grants")["granted"]
    assert seen == 1 << 62
    figures.gone(1, "server", {"grants": {"granted": 0}})
    assert figures.totals("grants")["granted"] == seen


def test_a_page_that_could_not_be_read_changes_nothing() -> None:
    figures = Figures()
    figures.update(1, "server", {"grants": {"granted": 2}, "open_grants": 2})
    figures.update(1, "server", {})
    assert figures.gauge("open_grants") == 2
    figures.gone(1, "server", {})
    assert figures.totals("grants") == {"granted": 2}
    assert figures.gauge("open_grants") == 0
    figures.gone(9, "server", {})  # who never had one
    assert figures.exits == {"server": 2}


@pytest.mark.parametrize("part", COUNTERS)
@pytest.mark.parametrize("said", [None, 1, "x", [1], {1: 1}, {b"a": 1}, {(): 1}, {"": 1}])
def test_what_are_no_counters_is_left_out(part: str, said: Any) -> None:
    figures = Figures()
    figures.update(1, "server", {part: said})
    assert not figures.totals(part)


def test_names_that_are_no_labels_of_ours_are_left_out() -> None:
    figures = Figures()
    names = ["A", "a b", "a\n", "é", "a" * 65, "x" * 10_000, "9a", "_a", 'a"} 1']
    figures.update(1, "server", {"stats": dict.fromkeys(names, 1)})
    assert not figures.totals("stats")
    figures.update(1, "server", {"stats": {"a" * 64: 1, "a_9": 2}})
    assert figures.totals("stats") == {"a" * 64: 1, "a_9": 2}


def test_names_are_bounded_over_all_processes_that_ever_were() -> None:
    most = figures_module._MAX_NAMES
    figures = Figures()
    for process in range(5):
        page = {"stats": {f"p{process}_{n}": 1 for n in range(most + 50)}}
        figures.update(process, "server", page)
        assert len(figures._now[process]["stats"]) == most
        figures.gone(process, "server", page)
        figures.update(process, "server", {"stats": {"p0_1": 1}})
        figures.gone(process, "server", {})
    assert len(figures.totals("stats")) == most
    assert figures.totals("stats")["p0_1"] == 6, "what is known is counted on"
    assert not figures._now
    assert not figures._gauges
    assert not figures._noted


@pytest.mark.parametrize("said", [None, -5, "7", 2.5, [], {}])
def test_amounts_that_are_none_count_as_nothing(said: Any) -> None:
    figures = Figures()
    for name in GAUGES:
        figures.update(1, "reader", {name: said, "peers": 3})
        assert figures.gauge(name) == (3 if name == "peers" else 0)


# ------------------------------------------------------------------------- latencies
def page(noted: Any, *values: Any) -> dict[str, Any]:
    return {"ack": list(values), "noted": {"ack": noted}}


def test_each_latency_is_told_once() -> None:
    figures = Figures()
    figures.update(1, "reader", page(2, 0.1, 0.2))
    figures.update(1, "reader", page(2, 0.1, 0.2))
    figures.update(1, "reader", page(3, 0.1, 0.2, 0.3))
    assert figures.take_samples("ack") == [0.1, 0.2, 0.3]
    assert figures.take_samples("ack") == []
    figures.update(2, "reader", page(1, 0.9))
    assert figures.take_samples("ack") == [0.9], "another process counts for itself"
    assert figures.take_samples("read") == []


def test_of_more_latencies_than_a_page_has_the_latest_count() -> None:
    figures = Figures()
    figures.update(1, "reader", page(1000, 0.1, 0.2))
    assert figures.take_samples("ack") == [0.1, 0.2]


@pytest.mark.parametrize(
    "hostile",
    [
        page(3, math.nan, math.inf, -1.0, 1e6),
        page(3, "x", None, 1),
        page("many", 0.1),
        page(-3, 0.1),
        page(0, 0.1),
        {"ack": 0.1, "noted": {"ack": 3}},
        {"ack": [0.1], "noted": 3},
        {"ack": [0.1]},
    ],
)
def test_what_are_no_latencies_is_left_out(hostile: dict[str, Any]) -> None:
    figures = Figures()
    figures.update(1, "reader", hostile)
    assert figures.take_samples("ack") == []


def test_latencies_that_nobody_takes_are_bounded() -> None:
    figures = Figures()
    for number in range(1, 60):
        figures.update(1, "reader", page(200 * number, *[float(number)] * 200))
    kept = figures.take_samples("ack")
    assert len(kept) == figures_module._MAX_SAMPLES
    assert kept[-1] == 59.0
