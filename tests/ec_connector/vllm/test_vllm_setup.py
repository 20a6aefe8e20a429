# SPDX-License-Identifier: Apache-2.0
"""What is read from vLLM's configuration; stand-ins take the place of its classes."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies.cpu import CpuCopyEngine
from ec_connector.vllm.setup import read_setup, warn_of_strangers
from ec_protocol.errors import ConfigError
from tests.needs import needs


def config(**changed: Any) -> Any:
    """A ``VllmConfig`` as far as it is read; ``changed`` by the part's first word."""
    ec = {
        "ec_role": "ec_both",
        "ec_connector_extra_config": {"ec_cpu_bytes": 1 << 16, "ec_region_guard": False},
        "engine_id": "engine-1",
        "mm_encoder_output_widths": {},
    }
    parallel = {
        "data_parallel_index": 0,
        "tensor_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "nnodes_within_dp": 1,
        "distributed_executor_backend": "uni",
    }
    hf_config = changed.pop("hf_config", SimpleNamespace())
    dtype = changed.pop("dtype", torch.bfloat16)
    device = changed.pop("device", "cpu")
    instance_id = changed.pop("instance_id", f"test-{os.getpid()}")
    for name, value in changed.items():
        target = ec if name in ec else parallel
        assert name in target
        target[name] = value
    return SimpleNamespace(
        ec_transfer_config=SimpleNamespace(**ec),
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(
            dtype=dtype,
            model="tiny",
            hf_config=hf_config,
            get_inputs_embeds_size=lambda: 128,
            multimodal_config=SimpleNamespace(mm_processor_cache_gb=4),
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        device_config=SimpleNamespace(device_type=device),
        instance_id=instance_id,
    )


def deepstack(layers: int = 3, width: int = 128) -> Any:
    tower = SimpleNamespace(deepstack_visual_indexes=list(range(layers)), out_hidden_size=width)
    return SimpleNamespace(vision_config=tower)


def test_block_is_one_row_of_the_encoder_output():
    setup = read_setup(config(), "0.32.0")
    assert setup.block_size_bytes == 128 * 2
    assert setup.config.num_blocks(setup.block_size_bytes) == (1 << 16) // 256
    assert read_setup(config(dtype=torch.float32), "0.32.0").block_size_bytes == 128 * 4
    assert setup.facts.dtype == "bfloat16"


@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: SimpleNamespace(thinker_config=c)])
def test_block_of_a_deepstack_model_is_wider(wrap):
    setup = read_setup(config(hf_config=wrap(deepstack(3))), "0.32.0")
    assert setup.block_size_bytes == 128 * (1 + 3) * 2
    assert [setup.widths.of(m) for m in ("image", "video", "audio")] == [512, 512, 128]


def test_vision_configuration_may_be_a_mapping():
    tower = {"deepstack_visual_indexes": [5, 11], "out_hidden_size": 64}
    assert read_setup(config(hf_config={"vision_config": tower}), "0").widths.of("image") == 192


def test_measured_widths_go_first_but_do_not_move_the_block():
    measured = {"image": 640, "audio": 96}
    setup = read_setup(config(mm_encoder_output_widths=measured), "0.32.0")
    assert [setup.widths.of(m) for m in ("image", "audio", "video")] == [640, 96, 128]
    assert setup.block_size_bytes == 128 * 2, "workers make the region before anything is measured"


def test_processes_of_one_start_agree_and_other_starts_differ():
    first = read_setup(config(), "0.32.0")
    assert read_setup(config(), "0.32.0").nonce == first.nonce
    assert len(first.nonce) == 16
    assert read_setup(config(engine_id="engine-2"), "0.32.0").nonce != first.nonce
    assert read_setup(config(instance_id="other"), "0.32.0").nonce != first.nonce


def test_rank_of_data_parallelism_names_region_and_port(monkeypatch):
    monkeypatch.setenv("VLLM_EC_SIDE_CHANNEL_PORT", "5700")
    needs("nixl")
    extra = {"ec_cpu_bytes": 1 << 16, "ec_enable_nixl": "true"}
    setup = read_setup(config(data_parallel_index=3, ec_connector_extra_config=extra), "0.32.0")
    assert setup.dp_rank == 3
    assert setup.config.side_channel == ("localhost", 5703)


def test_every_rank_of_the_mp_executor_reports():
    ranks = {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2}
    setup = read_setup(config(distributed_executor_backend="mp", **ranks), "0.32.0")
    assert setup.load_ranks == 4
    assert read_setup(config(), "0.32.0").load_ranks == 1


def test_executor_that_hides_ranks_is_refused():
    with pytest.raises(ConfigError, match="distributed_executor_backend='ray' with 2"):
        read_setup(config(distributed_executor_backend="ray", tensor_parallel_size=2), "0.32.0")


@pytest.mark.clause("EC-12.3")
@pytest.mark.parametrize("extra", [{}, None, {"ec_cpu_bytes": 0}])
def test_region_size_is_required(extra):
    with pytest.raises(ValueError, match=r"ec_cpu_bytes=.*no default"):
        read_setup(config(ec_connector_extra_config=extra), "0.32.0")


def test_dtype_must_be_known():
    with pytest.raises(ConfigError, match="dtype='auto'"):
        read_setup(config(dtype="auto"), "0.32.0")


def test_region_is_made_once_and_joined():
    setup = read_setup(config(), "0.32.0")
    with setup.open_region() as made, setup.open_region() as joined:
        assert made.created
        assert not joined.created
        assert os.path.basename(made.path) == f"vllm_ec_test-{os.getpid()}_dp0.mmap"
        engine = setup.make_engine(made)
        assert isinstance(engine, CpuCopyEngine)
        engine.shutdown()


def test_platform_without_copy_engine_is_refused():
    setup = read_setup(config(device="tpu"), "0.32.0")
    with setup.open_region() as region, pytest.raises(ConfigError, match="device type 'tpu'"):
        setup.make_engine(region)


def test_package_imports_nothing_of_vllm():
    code = "import sys, ec_connector.vllm; print([m for m in sys.modules if m == 'vllm'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_unknown_name_of_the_package():
    import ec_connector.vllm

    with pytest.raises(AttributeError, match="ECConector"):
        _ = ec_connector.vllm.ECConector


def test_every_data_parallel_rank_writes_a_trace_of_its_own(monkeypatch):
    monkeypatch.delenv("EC_CONNECTOR_TRACE_FILE", raising=False)
    extra = {"ec_cpu_bytes": 1 << 16, "ec_trace_file": "/t/a.ndjson"}

    def path(rank: int, **extra: Any) -> str | None:
        extra = {"ec_cpu_bytes": 1 << 16, **extra}
        made = config(data_parallel_index=rank, ec_connector_extra_config=extra)
        return read_setup(made, "0.32.0").config.trace_file

    assert path(0, **extra) == "/t/a.ndjson"
    assert path(1, **extra) == "/t/a.dp1.ndjson"
    assert path(0) is None


def test_the_variable_names_the_trace_where_the_configuration_does_not(monkeypatch):
    monkeypatch.setenv("EC_CONNECTOR_TRACE_FILE", "/t/b.ndjson")
    assert read_setup(config(), "0.32.0").config.trace_file == "/t/b.ndjson"
    said = {"ec_cpu_bytes": 1 << 16, "ec_trace_file": "/t/a.ndjson"}
    made = read_setup(config(ec_connector_extra_config=said), "0.32.0")
    assert made.config.trace_file == "/t/a.ndjson"


def test_encoder_decoder_models_are_refused():
    made = config()
    made.model_config.is_encoder_decoder = True
    with pytest.raises(ConfigError, match="model='tiny' is an encoder-decoder model"):
        read_setup(made, "0.32.0")


# ------------------------------------------------------------- widths that are configured
def widths(said: Any, **changed: Any) -> Any:
    extra = {"ec_cpu_bytes": 1 << 16, "ec_region_guard": False, "ec_encoder_widths": said}
    return read_setup(config(ec_connector_extra_config=extra, **changed), "0.32.0").widths


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (640, (640, 640, 640)),
        ("640", (640, 640, 640)),
        ({"image": 640}, (640, 128, 128)),
        ({"image": 640, "*": 96}, (640, 96, 96)),
        ("image=640, audio=96", (640, 128, 96)),
        ("image=640,*=96", (640, 96, 96)),
    ],
)
def test_ec_encoder_widths_of_a_pure_consumer(said, found):
    made = widths(said, ec_role="ec_consumer")
    assert tuple(made.of(modality) for modality in ("image", "video", "audio")) == found


def test_ec_encoder_widths_decide_the_block_on_both_sides():
    """What a producer measures comes too late for the region; the key does not."""
    said = {"image": 640, "audio": 96}
    consumer = widths(said, ec_role="ec_consumer")
    producer = widths(said, ec_role="ec_producer", mm_encoder_output_widths=said)
    assert consumer.block == producer.block == 640
    assert widths({"*": 64, "audio": 96}).block == 96, "the model's own widths are not used"


def test_ec_encoder_widths_that_contradict_what_was_measured_are_named():
    with pytest.raises(
        ConfigError, match=r"ec_encoder_widths=.*'image' have 640.*not 512"
    ) as error:
        widths({"image": 512}, mm_encoder_output_widths={"image": 640, "audio": 96})
    assert '{"image": 640, "audio": 96}' in str(error.value)
    with pytest.raises(ConfigError, match="ec_encoder_widths"):
        widths(512, mm_encoder_output_widths={"image": 640})


def test_a_producer_whose_consumers_cannot_know_the_width_says_so(caplog):
    read_setup(config(mm_encoder_output_widths={"image": 640, "audio": 128}), "0.32.0")
    (record,) = caplog.records
    assert "640" in record.getMessage()
    assert "ec_encoder_widths" in record.getMessage()
    caplog.clear()
    widths({"image": 640}, mm_encoder_output_widths={"image": 640, "audio": 128})
    assert not caplog.records


@pytest.mark.parametrize("problem", ["raises", 0, -1, None])
def test_a_width_that_cannot_be_derived_names_the_key(problem):
    def ask() -> Any:
        if problem == "raises":
            raise AttributeError("hidden_size")
        return problem

    broken = config()
    broken.model_config.get_inputs_embeds_size = ask
    with pytest.raises(ConfigError, match="set ec_encoder_widths"):
        read_setup(broken, "0.32.0")
    broken.ec_transfer_config.ec_connector_extra_config["ec_encoder_widths"] = 3584
    assert read_setup(broken, "0.32.0").widths.of("image") == 3584


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize(
    "said",
    [
        *(0, -1, 1 << 21, 1.5, True, None, "wide", "image=", "image=1,image=2", [640]),
        *({}, {"image": 0}, {"image": "x"}, {1: 640}, {"": 1}),
    ],
)
def test_wrong_ec_encoder_widths_are_named(said):
    with pytest.raises(ConfigError, match="ec_encoder_widths="):
        widths(said)


# ------------------------------------------------------------------------ several hosts
def test_pp_over_several_hosts_is_fine_and_loads_on_the_first_stage_only():
    parallel = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "nnodes_within_dp": 2,
        "distributed_executor_backend": "mp",
    }
    assert read_setup(config(**parallel), "0.32.0").load_ranks == 2


@pytest.mark.parametrize(("tp", "pcp"), [(4, 1), (1, 4), (2, 2)])
def test_ranks_on_several_hosts_are_refused_since_they_share_no_memory(tp, pcp):
    parallel = {
        "tensor_parallel_size": tp,
        "prefill_context_parallel_size": pcp,
        "nnodes_within_dp": 2,
        "distributed_executor_backend": "mp",
    }
    with pytest.raises(ConfigError, match="nnodes=2: 4 tensor- and context-parallel ranks"):
        read_setup(config(**parallel), "0.32.0")


@pytest.mark.parametrize("backend", ["ray", "external_launcher", "uni", None, object])
def test_pp_needs_the_mp_executor_too(backend):
    parallel = {"pipeline_parallel_size": 2, "distributed_executor_backend": backend}
    with pytest.raises(ConfigError, match="only the mp executor"):
        read_setup(config(**parallel), "0.32.0")


@pytest.mark.clause("EC-15.8")
@pytest.mark.parametrize(
    ("extra", "role", "warned"),
    [
        ({"ec_enable_nixl": True}, "ec_both", True),
        ({"ec_enable_nixl": True}, "ec_consumer", True),
        ({"ec_enable_nixl": True}, "ec_producer", False),
        ({}, "ec_both", False),
        ({"ec_enable_nixl": True, "ec_key_file": "a", "ec_peer_keys": "b"}, "ec_both", False),
    ],
)
def test_a_server_whose_peers_do_not_authenticate_says_what_vllm_does_by_itself(
    extra: dict[str, Any], role: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    needs("nixl", "zmq")
    warn_of_strangers(ECConfig.parse({"ec_cpu_bytes": 1, **extra}, role))
    assert ("vLLM's own encoder cache" in caplog.text) is warned
