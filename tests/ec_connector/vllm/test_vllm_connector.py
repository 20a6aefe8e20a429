# SPDX-License-Identifier: Apache-2.0
"""The shell, hook by hook in the host's order, over real delegates and a real region."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ec_connector.region.errors import RegionIdentityError, RegionLostError
from ec_connector.region.shared import SharedRegion
from ec_protocol.errors import LocalProtocolError
from tests.needs import needs
from tests.world import vllm as fake_vllm
from tests.world.vllm import Role, request

needs("prometheus_client")


@dataclass
class Host:
    """One engine: a scheduler, its workers, their encoder caches."""

    scheduler: Any
    workers: list[Any]
    caches: list[dict[str, torch.Tensor]] = field(default_factory=list)

    @property
    def region(self) -> str:
        return str(self.scheduler._scheduler.region.path)

    def step(self, *requests: Any) -> list[str]:
        """One engine step; returns what was encoded in it."""
        scheduler = self.scheduler
        encode: list[str] = []
        for asked in requests:
            if not scheduler.ensure_cache_available(asked, 0):
                continue
            new, load = [], []
            for index, feature in enumerate(asked.mm_features):
                if feature.identifier not in self.caches[0]:
                    there = scheduler.has_cache_item(feature.identifier)
                    (load if there else new).append(index)
            for index in (*new, *load):
                scheduler.update_state_after_alloc(asked, index)
            encode += [asked.mm_features[index].identifier for index in new]
        metadata = scheduler.build_connector_meta(None)
        said = None
        for worker, cache in zip(self.workers, self.caches, strict=True):
            worker.bind_connector_metadata(metadata)
            worker.start_save_caches(encoder_cache=cache)
            worker.start_load_caches(cache)
            for mm_hash in encode:
                cache[mm_hash] = encoded(mm_hash)
                worker.save_caches(encoder_cache=cache, mm_hash=mm_hash)
            assert worker.get_finished(set()) == (None, None)
            assert worker.get_ec_connector_stats() is None
            report = worker.build_connector_worker_meta()
            worker.clear_connector_metadata()
            said = report if said is None else said.aggregate(report) if report else said
        if said is not None:
            output = SimpleNamespace(ec_connector_worker_meta=said)
            scheduler.update_connector_output(output)
        return encode

    def settle(self) -> None:
        while self.scheduler.has_pending_push_work():
            self.step()

    def close(self) -> None:
        for part in (self.scheduler, *self.workers):
            part.shutdown()


def encoded(mm_hash: str, rows: int = 4) -> torch.Tensor:
    return torch.full((rows, 16), float(sum(mm_hash.encode())))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    connector, ranks = fake_vllm.install(monkeypatch)
    return SimpleNamespace(connector=connector, ranks=ranks)


@pytest.fixture
def host(vllm: SimpleNamespace) -> Iterator[Host]:
    made = make_host(vllm)
    yield made
    made.close()


def make_host(vllm: SimpleNamespace, tp: int = 1) -> Host:
    config = fake_vllm.config(tp=tp)
    workers = []
    for rank in range(tp):
        vllm.ranks.tp, vllm.ranks.tp_size = rank, tp
        workers.append(vllm.connector(config, Role.WORKER))
        workers[-1].start_worker_services()
    return Host(vllm.connector(config, Role.SCHEDULER), workers, [{} for _ in range(tp)])


def test_encode_forget_load(host: Host) -> None:
    asked = request("r1", "a", "b")
    assert host.step(asked) == ["a", "b"]
    host.settle()
    host.scheduler.update_state_after_free(asked, 0)
    assert host.scheduler.request_finished(asked) == (False, None)
    host.caches[0].clear()
    assert host.step(request("r2", "b", "a")) == []
    assert {name: t.tolist() for name, t in host.caches[0].items()} == {
        name: encoded(name).tolist() for name in "ab"
    }


def test_one_rank_writes_all_load_and_report(vllm: SimpleNamespace) -> None:
    host = make_host(vllm, tp=2)
    try:
        host.step(request("r1", "a"))
        host.settle()
        for cache in host.caches:
            cache.clear()
        assert host.step(request("r2", "a")) == []
        assert all(torch.equal(cache["a"], encoded("a")) for cache in host.caches)
        host.settle()
        stats = host.scheduler._scheduler.delegate.stats()
        assert (stats["saves_landed"], stats["loads_landed"]) == (1, 1)
        assert "stray_reports" not in stats
    finally:
        host.close()


def test_lost_media_fails_its_request_alone(host: Host) -> None:
    lost = request("lost", "z", media=False)
    assert host.step(lost, request("fine", "a")) == ["a"]
    assert host.scheduler.take_unavailable_requests() == {"lost"}
    host.scheduler.request_finished(lost)


def test_a_lost_request_that_is_asked_about_a_step_ahead_counts_once(host: Host) -> None:
    lost = request("lost", "z", media=False)
    host.step(lost)
    host.step(lost)
    assert host.scheduler._scheduler.delegate.stats()["unavailable"] == 1
    assert host.scheduler.take_unavailable_requests() == {"lost"}
    host.scheduler.request_finished(lost)
    assert host.scheduler.take_unavailable_requests() == set()


def test_requests_are_forgotten(host: Host) -> None:
    asked = request("r1", "a")
    host.step(asked)
    assert len(host.scheduler._scheduler.items) == 1
    host.scheduler.request_finished(asked)
    assert len(host.scheduler._scheduler.items) == 0


def test_statistics_add_up_and_are_published(vllm: SimpleNamespace, host: Host) -> None:
    host.step(request("r1", "a"))
    host.settle()
    first = host.scheduler.get_ec_connector_stats()
    host.step(request("r2", "b"))
    host.settle()
    second = host.scheduler.get_ec_connector_stats()
    assert host.scheduler.get_ec_connector_stats() is None, "nothing new"
    arrived = vllm.connector.build_ec_connector_stats(dict(first.data))
    both = arrived.aggregate(second)
    assert both.data["counters"]["vllm:ec_items/miss"] == 2
    assert both.data["counters"]["vllm:ec_copies/save_landed"] == 2
    assert not both.is_empty()
    assert both.reduce()["items miss"] == 2
    both.reset()
    assert both.is_empty()


def test_prometheus_metrics_of_each_engine(vllm: SimpleNamespace) -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

    registry = CollectorRegistry()

    def within(kind: Any) -> Any:
        return lambda **options: kind(registry=registry, **options)

    types = {kind: within(kind) for kind in (Counter, Gauge, Histogram)}
    prom = vllm.connector.build_prom_metrics(None, types, ["engine"], {0: ["0"], 1: ["1"]})
    prom.observe({"counters": {"vllm:ec_items/hit": 3}}, 1)
    assert 'vllm:ec_items_total{engine="1",result="hit"} 3.0' in generate_latest(registry).decode()


def test_shutdown_leaves_no_file_and_may_be_repeated(vllm: SimpleNamespace) -> None:
    host = make_host(vllm)
    path = host.region
    assert os.path.exists(path)
    host.close()
    host.close()
    assert not os.path.exists(path)
    assert not host.scheduler.has_pending_push_work()


def test_v2_model_runner_is_required(vllm: SimpleNamespace) -> None:
    config = fake_vllm.config(use_v2_model_runner=False)
    with pytest.raises(ValueError, match=r"V2 model runner only.*VLLM_USE_V2_MODEL_RUNNER=1"):
        vllm.connector(config, Role.WORKER)


def test_later_pipeline_stages_hold_no_region(vllm: SimpleNamespace) -> None:
    vllm.ranks.first_stage = False
    worker = vllm.connector(fake_vllm.config(), Role.WORKER)
    assert worker._worker is None
    assert worker.build_connector_worker_meta() is None
    assert worker.get_finished({"r"}) == (None, None)
    worker.start_load_caches({})
    worker.shutdown()


def test_ranks_must_be_those_that_the_scheduler_expects(vllm: SimpleNamespace) -> None:
    vllm.ranks.tp_size = 2
    with pytest.raises(LocalProtocolError, match="2 ranks load, but the scheduler expects 1"):
        vllm.connector(fake_vllm.config(), Role.WORKER)


def test_unknown_role(vllm: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="expected SCHEDULER or WORKER"):
        vllm.connector(fake_vllm.config(), "worker")


def test_hooks_of_the_other_half(host: Host) -> None:
    with pytest.raises(LocalProtocolError, match="without a scheduler half"):
        host.workers[0].has_cache_item("a")
    with pytest.raises(LocalProtocolError, match="metadata of NoneType"):
        host.workers[0].start_load_caches({})
    host.scheduler.start_save_caches()
    host.scheduler.save_caches({}, "a")


def test_reports_of_another_connector_are_left_alone(host: Host) -> None:
    from ec_connector.engine.messages import WorkerReport
    from ec_connector.vllm.metadata import ECWorkerMetadata

    host.scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=object()))
    ours = ECWorkerMetadata(WorkerReport())
    with pytest.raises(TypeError, match="cannot aggregate object"):
        ours.aggregate(object())


@pytest.mark.clause("EC-10.7")
def test_a_worker_with_another_region_refuses_the_step(vllm: SimpleNamespace, host: Host) -> None:
    host.step(request("r1", "a"))
    host.settle()
    host.caches[0].clear()
    half = host.workers[0]._worker
    other = fake_vllm.config(instance_id="elsewhere")
    stray = vllm.connector(other, Role.WORKER)._worker
    half.delegate.region, mine = stray.region, half.delegate.region
    with pytest.raises(RegionIdentityError, match=r"elsewhere.*is about region") as caught:
        host.step(request("r2", "a"))
    assert mine.identity.hex() in str(caught.value)
    assert host.caches[0] == {}
    half.delegate.region = mine
    stray.shutdown()


@pytest.mark.clause("EC-10.7")
def test_a_late_worker_of_a_start_whose_region_lost_its_name_is_an_error(
    vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = fake_vllm.config()
    worker, scheduler = (vllm.connector(config, role) for role in (Role.WORKER, Role.SCHEDULER))
    path = worker._worker.region.path
    worker.shutdown()  # it made the file, and takes the name along
    impatient = functools.partial(SharedRegion.open, timeout_s=0.2)
    monkeypatch.setattr(SharedRegion, "open", impatient)
    with pytest.raises(RegionLostError, match="its name is gone"):
        vllm.connector(config, Role.WORKER)
    assert not os.path.exists(path)
    scheduler.shutdown()


@pytest.mark.clause("EC-10.7")
def test_the_region_of_a_step_survives_the_way_to_the_workers(host: Host) -> None:
    sent = host.scheduler.build_connector_meta(None)
    region = host.workers[0]._worker.region
    assert len(region.identity) == 16
    assert sent.step.region == region.identity
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(sent, protocol)).step == sent.step


def test_nothing_is_announced_without_peer_to_peer(host: Host) -> None:
    asked = request("r", "a")
    host.step(asked)
    assert host.scheduler.request_finished(asked) == (False, None)
