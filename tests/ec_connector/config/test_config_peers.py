# SPDX-License-Identifier: Apache-2.0
"""Configuration of what others are told: the announced address, and events."""

from __future__ import annotations

from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.config.settings import ECConfig, EventSettings
from ec_protocol.errors import ConfigError
from tests.world.instance import BLOCK, Node


def parse(role: str = "ec_both", rank: int = 0, host: str = "10.0.0.5", **extra: Any) -> ECConfig:
    settings = {"ec_cpu_bytes": 1 << 20, "ec_enable_nixl": True, **extra}
    return ECConfig.parse(settings, role, dp_rank=rank, environ={"VLLM_EC_SIDE_CHANNEL_HOST": host})


# ------------------------------------------------------------------------ the address
def test_ec_advertised_host_and_port_have_no_default() -> None:
    assert parse().advertised == (None, None)


def test_ec_advertised_port_moves_with_the_dp_rank() -> None:
    made = parse(rank=2, ec_advertised_host="encoder-0.example", ec_advertised_port="30000")
    assert made.advertised == ("encoder-0.example", 30002)
    assert made.side_channel == ("10.0.0.5", 5603)


def test_an_ipv6_address_is_announced_without_brackets() -> None:
    assert parse(ec_advertised_host="[fd00::5]").advertised[0] == "fd00::5"


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "*"])
@pytest.mark.parametrize("role", ["ec_producer", "ec_both"])
def test_a_wildcard_cannot_be_announced(bound: str, role: str) -> None:
    with pytest.raises(ConfigError, match=r"VLLM_EC_SIDE_CHANNEL_HOST='.*set ec_advertised_host"):
        parse(role, host=bound)
    assert parse(role, host=bound, ec_advertised_host="10.0.0.5").side_channel == (bound, 5601)
    assert parse("ec_consumer", host=bound).side_channel is None


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize("value", ["", "*", "0.0.0.0", "::", "a b", "a/b", 5, None, "x" * 300])
def test_a_wrong_ec_advertised_host_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="ec_advertised_host="):
        parse(ec_advertised_host=value)


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize("value", [0, -1, 65536, "http", None, True, 1.5])
def test_a_wrong_ec_advertised_port_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="ec_advertised_port="):
        parse(ec_advertised_port=value)


def test_an_ec_advertised_port_beyond_the_last_is_named() -> None:
    with pytest.raises(ConfigError, match="ec_advertised_port=65535: with dp_rank 1"):
        parse(rank=1, ec_advertised_port=65535)


@pytest.mark.e2e
def test_what_is_announced_is_the_advertised_address_and_not_the_bound_one() -> None:
    """A producer that binds everything, and a consumer that reaches it by its name."""
    extra = {"ec_advertised_host": "127.0.0.1", "ec_insecure_control": True}
    with Node("ec_producer", 8, bind=("*", 0), extra=extra) as node:
        host, port = node.address
        assert host == "127.0.0.1"
        assert port > 0
        with Node("ec_consumer", 8) as consumer:
            node.save("a", b"a" * BLOCK)
            assert consumer.fetch("a", node.address, BLOCK) == "ready"


@pytest.mark.e2e
def test_an_advertised_port_is_announced_although_another_is_bound() -> None:
    extra = {"ec_advertised_host": "encoder.example", "ec_advertised_port": 30000}
    with Node("ec_producer", 8, extra=extra) as node:
        assert node.address == ("encoder.example", 30000)
        with Node("ec_consumer", 8) as consumer:
            node.save("a", b"a" * BLOCK)
            bound = node.data._spec.bind
            assert bound is not None
            assert bound[1] not in (0, 30000)
            assert consumer.fetch("a", bound, BLOCK) == "ready"


# -------------------------------------------------------------------------- the events
def test_events_are_off_by_default() -> None:
    assert parse().events is None


def test_ec_events_defaults() -> None:
    assert parse(ec_events_endpoint="tcp://*:5650").events == EventSettings(
        endpoint="tcp://*:5650", replay_endpoint=None, topic="ec", buffer=10_000, queue=100_000
    )


@pytest.mark.parametrize(
    ("endpoint", "of_rank_3"),
    [
        ("tcp://*:5650", "tcp://*:5653"),
        ("tcp://10.0.0.5:5650", "tcp://10.0.0.5:5653"),
        ("tcp://[::1]:5650", "tcp://[::1]:5653"),
        ("ipc:///run/ec", "ipc:///run/ec_dp3"),
    ],
)
def test_ec_events_endpoints_move_with_the_dp_rank(endpoint: str, of_rank_3: str) -> None:
    for rank, wanted in ((0, endpoint), (3, of_rank_3)):
        made = parse(
            rank=rank, ec_events_endpoint=endpoint, ec_events_replay_endpoint="tcp://*:7000"
        ).events
        assert made.endpoint == wanted
        assert made.replay_endpoint == f"tcp://*:{7000 + rank}"


def test_an_ec_events_port_beyond_the_last_is_named() -> None:
    with pytest.raises(ConfigError, match="ec_events_endpoint=65535: with dp_rank 1"):
        parse(rank=1, ec_events_endpoint="tcp://*:65535")


@pytest.mark.clause("EC-12.1")
@pytest.mark.parametrize("key", ["ec_events_endpoint", "ec_events_replay_endpoint"])
@pytest.mark.parametrize(
    "value",
    [
        *("", "tcp://", "tcp://*", "tcp://*:0", "tcp://*:x", "tcp://*:70000", "tcp://a b:1"),
        *("udp://*:1", "ipc://", "inproc://x", 5650, None, True, "ipc://" + "p" * 200, "ipc://\0"),
    ],
)
def test_a_wrong_events_endpoint_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key}="):
        parse(**{"ec_events_endpoint": "tcp://*:5650", key: value})


@pytest.mark.parametrize("key", ["ec_events_buffer", "ec_events_queue"])
@pytest.mark.parametrize("value", [0, -1, "many", None, True, 1 << 25])
def test_a_wrong_bound_of_events_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key}="):
        parse(ec_events_endpoint="tcp://*:5650", **{key: value})


@pytest.mark.parametrize("value", [None, 5, "x" * 300])
def test_a_wrong_ec_events_topic_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="ec_events_topic="):
        parse(ec_events_topic=value)


@pytest.mark.clause("EC-12.2")
def test_events_without_the_gate_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"ec_events_endpoint=.*set ec_enable_nixl to true"):
        parse(ec_enable_nixl=False, ec_events_endpoint="tcp://*:5650")


def test_a_replay_endpoint_alone_or_twice_the_same_is_named() -> None:
    with pytest.raises(ConfigError, match="nothing to send again without ec_events_endpoint"):
        parse(ec_events_replay_endpoint="tcp://*:5650")
    with pytest.raises(ConfigError, match="is ec_events_endpoint too"):
        parse(ec_events_endpoint="tcp://*:5650", ec_events_replay_endpoint="tcp://*:5650")
