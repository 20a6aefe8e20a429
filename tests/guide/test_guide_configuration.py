# SPDX-License-Identifier: Apache-2.0
"""The guide's configuration: every key, default and environment variable."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.config.settings import KEYS, ECConfig

GIB = 1 << 30


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ec_connector.config import settings as config

    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: object())


def parse(role: str = "ec_both", environ: dict[str, str] | None = None, **extra: Any) -> ECConfig:
    return ECConfig.parse({"ec_cpu_bytes": GIB, **extra}, role, environ=environ or {})


# ------------------------------------------------------------------------------ fields
@pytest.mark.parametrize(
    ("role", "loads"), [("ec_producer", False), ("ec_consumer", True), ("ec_both", True)]
)
def test_ec_role(role, loads):
    config = parse(role)
    assert (f"ec_{config.role}", config.consumes) == (role, loads)


def test_ec_role_is_required():
    with pytest.raises(ValueError, match=r"ec_role=None.*ec_producer, ec_consumer, ec_both"):
        ECConfig.parse({"ec_cpu_bytes": GIB}, None)


# -------------------------------------------------------------------------------- keys
def test_ec_enable_nixl_default_is_false():
    assert parse().enable_nixl is False
    assert KEYS["ec_enable_nixl"].default is False


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("value", ["true", "1", "yes", True, 1, "TRUE"])
def test_ec_enable_nixl_values_that_enable(value):
    assert parse(ec_enable_nixl=value).enable_nixl is True


@pytest.mark.parametrize("value", ["false", "0", "no", "on", "", False, None, 0, "y", "enabled"])
def test_ec_enable_nixl_everything_else_does_not(value):
    assert parse(ec_enable_nixl=value).enable_nixl is False


def test_consumer_ack_timeout_s_default_is_2():
    assert parse().timing.ack_timeout_s == 2.0


@pytest.mark.parametrize("value", [3.5, "3.5"])
def test_consumer_ack_timeout_s_may_be_a_number_or_a_string(value):
    assert parse(consumer_ack_timeout_s=value).timing.ack_timeout_s == 3.5


def test_ec_cpu_bytes_has_no_default():
    assert KEYS["ec_cpu_bytes"].required
    assert parse(ec_cpu_bytes="1073741824").cpu_bytes == GIB


# ------------------------------------------------------------------------- environment
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("role", ["ec_producer", "ec_both"])
def test_vllm_ec_side_channel_defaults(role):
    assert parse(role, ec_enable_nixl=True).side_channel == ("localhost", 5601)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("role", ["ec_producer", "ec_both"])
def test_vllm_ec_side_channel_host_and_port(role):
    environ = {"VLLM_EC_SIDE_CHANNEL_HOST": "10.0.0.7", "VLLM_EC_SIDE_CHANNEL_PORT": "5700"}
    assert parse(role, environ, ec_enable_nixl=True).side_channel == ("10.0.0.7", 5700)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("role", "gate"), [("ec_consumer", True), ("ec_both", False), ("ec_producer", False)]
)
def test_vllm_ec_side_channel_is_read_by_producers_with_nixl_only(role, gate):
    environ = {"VLLM_EC_SIDE_CHANNEL_PORT": "not a port"}
    assert parse(role, environ, ec_enable_nixl=gate).side_channel is None


@pytest.mark.usefixtures("installed")
def test_vllm_ec_side_channel_port_moves_with_the_dp_rank():
    config = ECConfig.parse(
        {"ec_cpu_bytes": GIB, "ec_enable_nixl": True},
        "ec_producer",
        dp_rank=3,
        environ={"VLLM_EC_SIDE_CHANNEL_PORT": "5700"},
    )
    assert config.side_channel == ("localhost", 5703)


# ---------------------------------------------------------------- limitations lifted
def test_backends_are_not_hard_coded():
    assert parse().nixl_backends == ("UCX",)
    assert parse(ec_nixl_backends=["Mooncake", "UCX"]).nixl_backends == ("Mooncake", "UCX")
