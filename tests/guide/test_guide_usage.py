# SPDX-License-Identifier: Apache-2.0
"""The guide's "basic usage", statement by statement, for the local tier."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

from ec_connector.config import settings as config_module
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.messages import StepMetadata
from ec_connector.instance import SchedulerInstance
from ec_connector.region.shared import SharedRegion
from ec_protocol.errors import ConfigError
from tests import ROOT
from tests.recording import trace_setting
from tests.world.engine import engine
from tests.world.host import BLOCK, request


# ---------------------------------------------------------------------- prerequisites
def test_local_offload_needs_no_extra_packages():
    """A whole local instance in an interpreter that has neither nixl, zmq nor msgspec."""
    name = f"guide-{os.getpid()}-{secrets.token_hex(4)}"
    code = f"""
import sys
for missing in ("nixl", "zmq", "msgspec"):
    sys.modules[missing] = None
from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.region.shared import SharedRegion
from ec_connector.engine.worker import ECWorker
config = ECConfig.parse({{"ec_cpu_bytes": 4096}}, "ec_both")
region = SharedRegion.open({name!r}, 0, 4, 1024, guard=False)
facts = ModelFacts("v", "m", "bfloat16", 2)
instance = SchedulerInstance(config, facts, region, items=lambda request: [])
worker = ECWorker(config, region, CpuCopyEngine(region))
worker.start_save_caches(instance.scheduler.build_connector_meta())
worker.shutdown(); instance.shutdown(); region.close(unlink=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_nixl_missing_error_text(monkeypatch):
    monkeypatch.setattr(config_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError) as caught:
        ECConfig.parse({"ec_cpu_bytes": 1, "ec_enable_nixl": True}, "ec_both", environ={})
    assert str(caught.value) == (
        "ec_enable_nixl requires NIXL; install the nixl package or remove ec_enable_nixl from "
        "ec_connector_extra_config."
    )


# ------------------------------------------------------------------------ basic usage
def test_ec_both_offloads_and_reloads_in_the_same_process():
    with engine(role="ec_both") as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3)))
        stats = e.scheduler.stats()
        assert (stats["saves_landed"], stats["loads_landed"], e.encoded) == (1, 1, ["a"])


def test_ec_producer_only_offloads():
    with engine(role="ec_producer") as e:
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        assert not e.scheduler.has_cache_item("a")
        e.run(request("r2", ("a", 3)))
        assert e.scheduler.stats()["loads_landed"] == 0


def test_ec_consumer_only_restores():
    with engine(role="ec_consumer") as e:
        e.run(request("r1", ("a", 3)))
        assert list(e.tier.entries()) == []
        assert e.encoded == ["a"]


def test_region_file_name():
    name = f"guide-{os.getpid()}-{secrets.token_hex(4)}"
    with SharedRegion.open(name, 3, 4, 1024, guard=False) as region:
        assert region.path == f"/dev/shm/vllm_ec_{name}_dp3.mmap"
        assert os.path.exists(region.path)


def test_one_region_is_shared_by_every_rank():
    with engine(world_size=2) as e:
        paths = {rank.region.path for rank in e.ranks} | {e.region.path}
        assert len(paths) == 1
        e.run(request("r1", ("a", 3)))
        e.reset_encoder_cache()
        e.run(request("r2", ("a", 3)))  # both load what one has saved


def test_only_rank_0_writes_on_save():
    with engine(world_size=3) as e:
        e.host.add(request("r1", ("a", 3)))
        e.schedule()
        for number in range(3):
            e.work(number)
        saves = [sum(op.kind == "end_save" for op in rank.device.queued) for rank in e.ranks]
        assert saves == [1, 0, 0]
        e.drain()


def test_entries_are_keyed_by_mm_hash():
    with engine() as e:
        e.run(request("r1", ("a", 3), ("b", 2)), request("r2", ("a", 3)))
        assert sorted(entry.mm_hash for entry in e.tier.entries()) == ["a", "b"]


def test_eviction_is_fifo_among_ready_and_unpinned():
    with engine(blocks=6, cache_rows=6) as e:
        for name in "abc":
            e.run(request(f"r{name}", (name, 2)))
        e.reset_encoder_cache()
        e.run(request("load a", ("a", 2)))
        assert e.scheduler.stats()["loads_landed"] == 1
        e.run(request("rd", ("d", 2)))
        # First in, first out: that it was loaded since did not renew a.
        assert sorted(entry.mm_hash for entry in e.tier.entries()) == ["b", "c", "d"]


def test_eviction_spares_what_is_pinned():
    with engine(blocks=4, cache_rows=6, depth=2) as e:
        for name in "ab":
            e.run(request(f"r{name}", (name, 2)))
        e.reset_encoder_cache()
        e.host.add(request("load a", ("a", 2)))
        e.schedule()
        e.host.add(request("c", ("c", 2)))
        e.schedule()
        assert e.tier.get("a").state == "pinned"
        assert e.tier.get("b") is None
        e.drain()


def test_completion_is_reported_once_the_transfers_end_event_fires():
    with engine() as e:
        rank = e.ranks[0]
        e.host.add(request("r1", ("a", 3)))
        e.schedule()
        e.work()
        assert rank.worker.build_connector_worker_meta() is None
        assert e.tier.get("a").state == "saving"
        rank.device.run_all()
        report = rank.worker.build_connector_worker_meta()
        assert report is not None
        e.scheduler.update_connector_output(report)
        assert e.tier.get("a").state == "ready", "a saved entry is marked ready"

        e.settle()
        e.reset_encoder_cache()
        e.host.add(request("r2", ("a", 3)))
        e.schedule()
        e.settle()
        assert e.tier.get("a").state == "pinned", "no report has come with this step"
        e.step()
        assert e.tier.get("a").state == "ready", "a loaded entry is unpinned"
        e.drain()


def test_shutdown_unlinks_the_region():
    name = f"guide-{os.getpid()}-{secrets.token_hex(4)}"
    region = SharedRegion.open(name, 0, 4, 1024, guard=False)
    config = ECConfig.parse({"ec_cpu_bytes": 4096, **trace_setting("guide")}, "ec_both")
    facts = ModelFacts("v", "m", "bfloat16", 2)
    instance = SchedulerInstance(config, facts, region, items=lambda r: [])
    assert instance.scheduler.build_connector_meta() == StepMetadata(1, region=region.identity)
    instance.shutdown()
    region.close(unlink=True)
    assert not os.path.exists(region.path)


# --------------------------------------------------------------------- ec_cpu_bytes
def test_ec_cpu_bytes_is_required():
    with pytest.raises(ValueError, match="ec_cpu_bytes"):
        ECConfig.parse({}, "ec_both")
    with pytest.raises(ConfigError, match="ec_cpu_bytes"):
        ECConfig.parse({"ec_cpu_bytes": 0}, "ec_both")


def test_number_of_blocks_is_ec_cpu_bytes_by_block_size_rounded_down():
    config = ECConfig.parse({"ec_cpu_bytes": 10 * BLOCK + 7}, "ec_both")
    assert config.num_blocks(BLOCK) == 10
