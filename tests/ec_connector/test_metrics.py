# SPDX-License-Identifier: Apache-2.0
"""Statistics from an instance's totals to Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from ec_connector import metrics
from ec_connector.metrics import (
    FAMILIES,
    MAX_SAMPLES,
    PromRecorder,
    StatsSource,
    aggregate,
    is_empty,
    metrics_reference,
    reduce,
)
from tests.needs import needs
from tests.world.engine import Engine, engine
from tests.world.host import request
from tests.world.peers import Remote, announcement


def source_of(e: Engine) -> StatsSource:
    data = None if e.p2p is None else e.p2p.data
    return StatsSource(SimpleNamespace(scheduler=e.scheduler, node=e.node, data=data))


def told(e: Engine, page: dict[str, Any], process: int = 1) -> None:
    """A data process has this on its status page."""
    e.p2p.data.figures.update(process, "reader", page)


def test_each_event_is_told_once():
    with engine(blocks=8) as e:
        source = source_of(e)
        assert source.take() is None
        e.run(request("r1", ("a", 3)))
        first = source.take()
        assert first is not None
        assert first["counters"] == {"vllm:ec_items/miss": 1, "vllm:ec_copies/save_landed": 1}
        assert first["gauges"]["vllm:ec_blocks/evictable"] == 3
        assert source.take() is None
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3)))
        second = source.take()
        assert second is not None
        assert second["counters"] == {"vllm:ec_items/hit": 1, "vllm:ec_copies/load_landed": 1}


def test_blocks_by_state_add_up():
    with engine(blocks=8) as e:
        source = source_of(e)
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.host.add(request("r2", ("a", 3), ("b", 2)))
        e.schedule()  # a is pinned, b is being written
        stats = source.take()
        assert stats is not None
        gauges = dict(stats["gauges"])
        assert gauges.pop("vllm:ec_blocks_all") == 8
        states = {
            k.partition("/")[2]: n for k, n in gauges.items() if k.startswith("vllm:ec_blocks/")
        }
        assert states == {"free": 3, "evictable": 0, "held": 5, "quarantined": 0, "retired": 0}
        e.drain()


def test_consumer_events_bytes_and_latencies():
    with engine(role="ec_consumer", p2p=Remote()) as e:
        source = source_of(e)
        page = {
            "stats": {"malformed_frames": 1},
            "reads": {"bytes_read": 96, "reads_done": 1},
            "active_reads": 2,
            "ack": [0.002],
            "read": [0.01],
            "noted": {"ack": 1, "read": 1},
        }
        told(e, page)
        e.run(request("r1", ("a", 3), params=announcement("a", 3)))
        e.run(request("r2", ("b", 2), params={"b": "nonsense"}))
        stats = source.take()
        assert stats is not None
        counters = stats["counters"]
        assert counters["vllm:ec_bytes_read"] == 96
        assert counters["vllm:ec_consumer_events/fetches"] == 1
        assert counters["vllm:ec_consumer_events/landed"] == 1
        assert counters["vllm:ec_params_refused/not_a_mapping"] >= 1
        assert counters["vllm:ec_process_events/malformed_frames"] == 1
        assert stats["gauges"]["vllm:ec_active_reads"] == 2
        assert stats["samples"] == {
            "vllm:ec_ack_seconds": [0.002],
            "vllm:ec_read_seconds": [0.01],
        }
        told(e, {**page, "ack": [0.002, 0.5], "noted": {"ack": 2, "read": 1}})
        again = source.take()
        assert again is not None
        assert again["samples"] == {"vllm:ec_ack_seconds": [0.5]}
        # It travels between processes.
        assert json.loads(json.dumps(stats)) == stats


def test_producer_events_grants_and_exits():
    with engine(role="ec_both", p2p=Remote()) as e:
        source = source_of(e)
        told(e, {"grants": {"granted": 3}, "open_grants": 1}, process=5)
        e.p2p.data.link.offers.counters["slots_granted"] += 2
        e.p2p.data.figures.gone(5, "server", {"grants": {"granted": 4}})
        stats = source.take()
        assert stats is not None
        assert stats["counters"]["vllm:ec_producer_events/granted"] == 4
        assert stats["counters"]["vllm:ec_producer_events/slots_granted"] == 2
        assert stats["counters"]["vllm:ec_process_events/server_exits"] == 1
        assert stats["gauges"]["vllm:ec_open_grants"] == 0


def test_events_for_subscribers_are_told_apart_from_what_data_processes_met():
    with engine(role="ec_consumer", p2p=Remote()) as e:
        source = source_of(e)
        page = {"tier_events_published": 5, "tier_events_dropped": 2, "tier_events_resent": 3}
        told(e, {"stats": {**page, "replays_refused": 1}})
        taken = source.take()
        assert taken is not None
        counters = taken["counters"]
        assert {k: n for k, n in counters.items() if k.startswith("vllm:ec_tier_events")} == {
            "vllm:ec_tier_events/published": 5,
            "vllm:ec_tier_events/dropped": 2,
            "vllm:ec_tier_events/resent": 3,
        }
        assert counters["vllm:ec_process_events/replays_refused"] == 1


def test_every_counter_has_a_family():
    with engine(role="ec_consumer", p2p=Remote()) as e:
        source = source_of(e)
        e.run(request("r1", ("a", 3), params=announcement("a", 3)))
        e.scheduler.counters["something_new"] += 1
        stats = source.take()
        assert stats is not None
        for key in (*stats["counters"], *stats["gauges"]):
            name, _, label = key.partition("/")
            assert bool(label) == bool(FAMILIES[name].label), key
        assert stats["counters"]["vllm:ec_events/something_new"] == 1


def test_aggregate_adds_counts_and_takes_the_later_amounts():
    first = {"counters": {"x": 1}, "gauges": {"g": 5}, "samples": {"s": [1.0] * MAX_SAMPLES}}
    later = {"counters": {"x": 2, "y": 1}, "gauges": {"g": 4}, "samples": {"s": [2.0]}}
    both = aggregate(first, later)
    assert both["counters"] == {"x": 3, "y": 1}
    assert both["gauges"] == {"g": 4}
    assert len(both["samples"]["s"]) == MAX_SAMPLES
    assert both["samples"]["s"][-1] == 2.0
    assert first["counters"] == {"x": 1}, "neither is changed"
    assert aggregate({}, later) == aggregate(later, {}) == later


def test_reduce_is_a_log_line():
    stats = {
        "counters": {"vllm:ec_items/hit": 3},
        "gauges": {"vllm:ec_blocks/free": 7},
        "samples": {"vllm:ec_ack_seconds": [n / 1000 for n in range(1, 101)]},
    }
    assert reduce(stats) == {
        "items hit": 3,
        "blocks free": 7,
        "ack_seconds p50": 0.051,
        "ack_seconds p99": 0.1,
    }
    assert is_empty({})
    assert is_empty({"gauges": {"g": 1}})
    assert not is_empty(stats)


def test_prometheus_page():
    needs("prometheus_client")
    import prometheus_client as client

    registry = client.CollectorRegistry()

    def made_in(kind: Any) -> Any:
        return lambda **arguments: kind(**arguments, registry=registry)

    recorder = PromRecorder(
        made_in(client.Counter), made_in(client.Gauge), made_in(client.Histogram), ["engine"]
    )
    stats = {
        "counters": {"vllm:ec_items/hit": 3, "vllm:ec_evictions": 2, "of_a_newer_version": 1},
        "gauges": {"vllm:ec_blocks/free": 7, "vllm:ec_blocks_all": 9, "vllm:ec_blocks": 1},
        "samples": {"vllm:ec_ack_seconds": [0.003, 0.3]},
    }
    recorder.observe(stats, [0])
    recorder.observe(stats, [0])
    recorder.observe({}, [1])
    page = client.generate_latest(registry).decode()
    assert 'vllm:ec_items_total{engine="0",result="hit"} 6.0' in page
    assert 'vllm:ec_evictions_total{engine="0"} 4.0' in page
    assert 'vllm:ec_blocks{engine="0",state="free"} 7.0' in page
    assert 'vllm:ec_ack_seconds_bucket{engine="0",le="0.005"} 2.0' in page
    assert "newer" not in page


def test_importing_the_module_needs_no_prometheus_client():
    code = "import sys, ec_connector.metrics; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_reference_names_every_metric():
    text = metrics_reference()
    for family in FAMILIES.values():
        assert family.name in text
        assert re.fullmatch(r"vllm:ec_[a-z_]+", family.name)
        assert family.help.endswith(".")
    assert {key.partition("/")[0] for key in metrics._SCHEDULER.values()} <= set(FAMILIES)
