# SPDX-License-Identifier: Apache-2.0
"""``ec_allowed_peers``: hosts that a request may send us to."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.config.peers import AllowedPeers
from ec_connector.config.settings import ECConfig
from ec_protocol.announcements import PeerRules
from ec_protocol.errors import ConfigError
from tests.world.engine import engine
from tests.world.host import request
from tests.world.peers import Remote, announcement


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.2.0.1", False),
        ("encoder-0", True),
        ("ENCODER-0", True),
        ("encoder-1", False),
        ("fd00::1", True),
        ("[fd00::1]", True),
        ("fd01::1", False),
        ("192.0.2.7", True),
        ("localhost", False),
        ("10.1.2.3.evil.example", False),
    ],
)
def test_allowed_peers(host: str, allowed: bool) -> None:
    rules = AllowedPeers(["10.1.0.0/16", "encoder-0", "fd00::/64", "192.0.2.7"])
    assert rules.allows(host) is allowed


def test_without_rules_every_peer_is_allowed() -> None:
    assert AllowedPeers().allows("anything")


@pytest.mark.parametrize("value", ["10.1.0.0/16, encoder-0", ["10.1.0.0/16", "encoder-0"]])
def test_allowed_peers_may_be_typed_in_these_ways(value: Any) -> None:
    config = ECConfig.parse({"ec_cpu_bytes": 1, "ec_allowed_peers": value}, "ec_consumer")
    assert config.allowed_peers == ("10.1.0.0/16", "encoder-0")


@pytest.mark.parametrize("value", [5, {"a": 1}, [1], ["a b"], ["10.1.0.0/99"], ["10.1.0.1/16"]])
def test_a_wrong_ec_allowed_peers_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="ec_allowed_peers="):
        ECConfig.parse({"ec_cpu_bytes": 1, "ec_allowed_peers": value}, "ec_consumer")


def test_a_foreign_host_is_never_asked_and_the_request_encodes_or_fails_alone() -> None:
    with engine(role="ec_consumer", p2p=Remote()) as e:
        e.node._rules = PeerRules(allowed=AllowedPeers(["10.0.0.0/8"]).allows)
        with_media = request("r1", ("a", 3), params=announcement("a", 3))
        without = request("r2", ("b", 3), params=announcement("b", 3), has_media=False)
        inside = request(
            "r3", ("c", 3), params=announcement("c", 3, peer_host="10.0.0.9"), has_media=False
        )
        e.run(with_media, without, inside)
        assert [r.finished for r in (with_media, without, inside)] == ["length", "failed", "length"]
        assert e.p2p.asked == ["c"]
        assert e.encoded == ["a"]
