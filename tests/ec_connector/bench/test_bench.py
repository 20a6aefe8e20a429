# SPDX-License-Identifier: Apache-2.0
"""`ec-connector bench`: its output, its baselines, and what holds on any machine."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_connector.bench import core
from ec_connector.bench.baselines import BlockListCache, IdealCache, TierCache
from ec_connector.bench.churn import churned
from ec_connector.bench.main import ALONE, BENCHES
from ec_connector.bench.rows import Row
from ec_connector.bench.tier import _block_list, cost, quality
from ec_connector.bench.traffic import MODELS, Cache, Vision, make_trace, replay
from ec_connector.cli import app
from tests.needs import needs

SMALL = Vision(side=32, row_bytes=16, max_tokens=1280)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every benchmark replaced by one row."""
    for name, (module, _) in BENCHES.items():
        made = types.ModuleType(module)
        made.run = lambda quick, name=name: [Row(name, "case", 1.0, 4.0, "us")]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"ec_connector.bench.{module}", made)


@pytest.mark.usefixtures("fake")
def test_json_follows_the_contract() -> None:
    needs("nixl")
    result = CliRunner().invoke(app, ["bench", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert set(document) == {"machine", "rows"}
    assert [row["bench"] for row in document["rows"]] == [n for n in BENCHES if n not in ALONE]
    assert document["rows"][0] == {
        "bench": "copy",
        "case": "case",
        "ours": 1.0,
        "baseline": 4.0,
        "unit": "us",
        "ratio": 0.25,
    }


@pytest.mark.usefixtures("fake")
def test_benchmarks_are_chosen_by_name() -> None:
    result = CliRunner().invoke(app, ["bench", "tier", "copy", "tier", "--json"])
    assert [row["bench"] for row in json.loads(result.stdout)["rows"]] == ["tier", "copy"]
    result = CliRunner().invoke(app, ["bench", "tier"])
    assert result.exit_code == 0
    assert "0.25" in result.stdout


@pytest.mark.usefixtures("fake")
def test_an_unknown_benchmark_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "tears"])
    assert result.exit_code == 1
    assert f"choose from {', '.join(BENCHES)}, all" in result.output.replace("\n", " ")
    result = CliRunner().invoke(app, ["bench", "tears", "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert set(document) == {"machine", "rows", "error"}
    assert document["rows"] == []


@pytest.mark.usefixtures("fake")
def test_plots(tmp_path: Path) -> None:
    needs("matplotlib")
    result = CliRunner().invoke(app, ["bench", "tier", "copy", "--plot", str(tmp_path / "p")])
    assert result.exit_code == 0, result.output
    for name in ("tier", "copy"):
        assert (tmp_path / "p" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("fake")
def test_plots_say_what_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(app, ["bench", "tier", "--plot", str(tmp_path)])
    assert result.exit_code == 1
    assert "ec-connector[bench]" in result.output


def test_more_is_better_for_rates_and_less_for_times() -> None:
    assert Row("b", "c", 2.0, 1.0, "GB/s").better
    assert not Row("b", "c", 2.0, 1.0, "us").better
    assert Row("b", "c", 1.0, 2.0, "us").better


# ------------------------------------------- targets that hold on any machine: ratios
def test_the_dispatcher_costs_a_tenth_of_a_trigger_at_most() -> None:
    assert core.dispatch(5).ratio <= 0.1


def test_the_tier_beats_block_lists_and_is_flat_in_blocks() -> None:
    # What else runs on the machine may spoil a measurement, not three in a row.
    for _ in range(3):
        rows = [cost(blocks, [("lists", _block_list)], 12)[0] for blocks in (256, 880, 4096)]
        beats = all(row.ratio < 1 for row in rows)
        flat = rows[-1].ours < 3 * rows[0].ours  # 16 times the blocks
        if beats and flat:
            return
    pytest.fail(f"{[(row.case, row.ours, row.baseline) for row in rows]}")


@pytest.mark.clause("EC-8.7")
def test_an_ack_is_small_whatever_the_region() -> None:
    small, large = core.ack(1), core.ack(64)
    assert large.ours < 1024
    assert large.ours - small.ours < 32


# ---------------------------------------------------------------------------- traffic
def test_pictures_become_tokens_as_in_the_qwen_family() -> None:
    model = MODELS["qwen2.5-vl-7b"]
    assert model.tokens(28, 28) == 1
    assert model.tokens(1024, 768) == 37 * 27
    assert SMALL.tokens(4096, 4096) <= 1280


def test_a_trace_follows_from_its_seed() -> None:
    first = make_trace(5, SMALL, steps=50)
    assert first == make_trace(5, SMALL, steps=50)
    assert first != make_trace(6, SMALL, steps=50)


def test_popular_pictures_come_back() -> None:
    outcome = replay(IdealCache(1 << 30), make_trace(1, SMALL, steps=1000, pictures=500))
    assert 0.3 < outcome.hit_rate < 1.0
    assert outcome.refused == 0


@pytest.mark.parametrize("kind", [BlockListCache, IdealCache, TierCache])
def test_a_replay_leaves_a_sound_cache(kind: type[Cache]) -> None:
    blocks = 20_000
    cache = kind(blocks)  # type: ignore[call-arg]
    outcome = replay(cache, make_trace(2, SMALL, steps=400))
    owned: set[int] = set()
    total = 0
    for extents in outcome.kept.values():
        total += sum(count for _, count in extents)
        if kind is not IdealCache:
            for start, count in extents:
                owned.update(range(start, start + count))
    assert total <= blocks
    assert kind is IdealCache or len(owned) == total
    if isinstance(cache, TierCache):
        cache.tier.check()


@pytest.mark.clause("EC-2.7")
def test_entries_lie_in_few_extents_and_cost_few_hits() -> None:
    rows = quality(steps=500)
    pieces = [row for row in rows if row.case.startswith("extents")]
    within = [row for row in rows if row.case.startswith("entries in at most two")]
    hits = [row for row in rows if "beside ideal" in row.case]
    assert all(row.ours < 1.5 < row.baseline for row in pieces)
    assert all(row.ours > 0.9 for row in within)
    assert all(row.ratio > 0.97 for row in hits)


def test_both_caches_hold_the_encodings_that_are_copied() -> None:
    encodings = churned(256 << 20, 300)
    assert encodings
    for encoding in encodings:
        counts = [sum(count for _, count in place) for place in (encoding.ours, encoding.runs)]
        assert counts[0] == counts[1]
