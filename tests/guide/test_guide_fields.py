# SPDX-License-Identifier: Apache-2.0
"""The guide's fields of ``--ec-transfer-config``, and what it says of the class itself."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.needs import needs

needs("prometheus_client")

from ec_connector.vllm import plugin
from ec_connector.vllm.setup import read_setup
from tests.world import vllm as fake_vllm
from tests.world.vllm import Role


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Any:
    made, _ = fake_vllm.install(monkeypatch)
    return made


def with_extra(**extra: Any) -> Any:
    config = fake_vllm.config()
    config.ec_transfer_config.ec_connector_extra_config = extra
    return config


# ------------------------------------------------------------------------------- fields
def test_ec_connector_module_path_is_a_module_that_has_the_class(connector):
    """What vLLM does with ``ec_connector`` and ``ec_connector_module_path``."""
    module = importlib.import_module("ec_connector.vllm")
    assert getattr(module, "ECConnector") is connector  # noqa: B009 - the host has a string


def test_ec_connector_may_be_eccpuconnector_or_ours():
    assert (plugin.NAME, plugin.BUILTIN_NAME) == ("ECConnector", "ECCPUConnector")
    assert plugin.REPLACE_VARIABLE == "EC_CONNECTOR_REPLACE_BUILTIN"


@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer", "ec_both"])
def test_ec_role_reaches_both_halves(connector, role):
    config = fake_vllm.config(role)
    worker, scheduler = connector(config, Role.WORKER), connector(config, Role.SCHEDULER)
    try:
        assert f"ec_{scheduler._scheduler.delegate.node.role}" == role
        assert f"ec_{worker._worker.delegate.config.role}" == role
    finally:
        scheduler.shutdown()
        worker.shutdown()


@pytest.mark.parametrize("extra", [{}, None])
def test_ec_connector_extra_config_default_lacks_the_one_required_key(connector, extra):
    config = fake_vllm.config()
    config.ec_transfer_config.ec_connector_extra_config = extra
    with pytest.raises(ValueError, match=r"ec_cpu_bytes=.*no default"):
        connector(config, Role.SCHEDULER)


def test_engine_id_names_this_server(connector):
    config = fake_vllm.config()
    config.ec_transfer_config.engine_id = "0b0c4a52-6c57-4d5e-9c43-5d0d6bb8a2f1"
    setup = read_setup(config, "0.32.0")
    assert setup.engine_id == "0b0c4a52-6c57-4d5e-9c43-5d0d6bb8a2f1"


# ----------------------------------------------------------------------------- the text
def test_v2_model_runner_is_required_or_a_value_error(connector):
    for role in (Role.WORKER, Role.SCHEDULER):
        with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=1"):
            connector(fake_vllm.config(use_v2_model_runner=False), role)


def test_block_size_bytes_is_hidden_dim_times_element_size(connector):
    setup = read_setup(fake_vllm.config(), "0.32.0")
    assert setup.block_size_bytes == 16 * 4


def test_hidden_dim_of_deepstack_is_out_hidden_size_times_one_more_than_its_layers(connector):
    config = fake_vllm.config()
    config.model_config.hf_config = SimpleNamespace(
        vision_config=SimpleNamespace(out_hidden_size=16, deepstack_visual_indexes=[8, 16, 24])
    )
    assert read_setup(config, "0.32.0").block_size_bytes == 16 * (1 + 3) * 4


def test_no_key_but_the_known_ones(connector):
    with pytest.raises(ValueError, match="did you mean 'ec_cpu_bytes'"):
        connector(with_extra(ec_cpu_byte=1 << 20), Role.SCHEDULER)


def test_an_encoder_only_instance_on_a_cpu_gets_the_encoder_only_runner(connector, monkeypatch):
    """``ec_producer`` alone makes vLLM say ``is_mm_encoder_only``; the rest is ours."""
    used: list[bool] = []
    module = importlib.import_module("ec_connector.vllm.encoder_only")
    monkeypatch.setattr(module, "use_encoder_only_runner", lambda: used.append(True))
    for only in (True, False):
        config = fake_vllm.config("ec_producer", is_mm_encoder_only=only)
        connector(config, Role.WORKER).shutdown()
        assert used == [True]


def test_one_object_holds_one_half(connector):
    config = fake_vllm.config()
    worker, scheduler = connector(config, Role.WORKER), connector(config, Role.SCHEDULER)
    assert (worker._scheduler, scheduler._worker) == (None, None)
    assert worker._worker is not None
    assert scheduler._scheduler is not None
    scheduler.shutdown()
    worker.shutdown()


def test_get_finished_says_none_none(connector):
    config = fake_vllm.config()
    scheduler, worker = connector(config, Role.SCHEDULER), connector(config, Role.WORKER)
    worker.bind_connector_metadata(scheduler.build_connector_meta(None))
    worker.start_save_caches()
    assert worker.get_finished({"r"}) == (None, None)
    scheduler.shutdown()
    worker.shutdown()
