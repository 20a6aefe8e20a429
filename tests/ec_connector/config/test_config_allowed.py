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


@pytest.mark.clause("EC-15.6")
@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.5", False),
        ("0.0.0.0", False),
        ("::", False),
        ("169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("encoder-0", False),
        ("localhost.evil.example", False),
        # What a resolver might take for 127.0.0.1, and an address parser does not.
        *((host, False) for host in ("127.1", "0x7f000001", "2130706433", "127.0.0.1.")),
        ("0177.0.0.1", False),
    ],
)
def test_by_default_a_request_leads_to_this_host_and_no_other(host: str, allowed: bool) -> None:
    config = ECConfig.parse({"ec_cpu_bytes": 1}, "ec_consumer")
    assert AllowedPeers(config.allowed_peers).allows(host) is allowed
    assert AllowedPeers().allows(host) is allowed


@pytest.mark.clause("EC-15.6")
def test_without_rules_no_peer_is_allowed_and_with_a_star_every_one() -> None:
    for host in ("anything", "127.0.0.1", "10.0.0.5"):
        assert not AllowedPeers([]).allows(host)
        assert AllowedPeers(["*"]).allows(host)
    assert AllowedPeers(["*"]).meant("anything", ["127.0.0.1", "10.0.0.5"]) == (
        "127.0.0.1",
        "10.0.0.5",
    )


@pytest.mark.clause("EC-15.6")
@pytest.mark.parametrize(
    ("rules", "host", "meant", "allowed"),
    [
        # The operator names a host: it may be anywhere.
        (["encoder-0"], "encoder-0", ["10.0.0.5", "fd00::5"], ["10.0.0.5", "fd00::5"]),
        (["encoder-0"], "ENCODER-0", ["10.0.0.5"], ["10.0.0.5"]),
        # But the name leads neither to us nor onto the wire beside us.
        (["encoder-0"], "encoder-0", ["127.0.0.1", "10.0.0.5"], ["10.0.0.5"]),
        (["encoder-0"], "encoder-0", ["::1", "::ffff:127.0.0.1", "127.8.8.8"], []),
        (["encoder-0"], "encoder-0", ["169.254.169.254", "fe80::1"], []),
        (["encoder-0"], "encoder-0", ["0.0.0.0", "::", "224.0.0.1", "ff02::1"], []),
        (["encoder-0"], "encoder-0", ["no address"], []),
        (["encoder-0", "127.0.0.0/8"], "encoder-0", ["127.0.1.1"], ["127.0.1.1"]),
        (["encoder-0", "169.254.0.0/16"], "encoder-0", ["169.254.1.1"], ["169.254.1.1"]),
        # What the name means now is not what was allowed before it was looked up.
        (["10.0.0.0/8"], "encoder-0", ["10.0.0.5"], []),
        (["10.0.0.0/8"], "10.0.0.5", ["10.0.0.5"], ["10.0.0.5"]),
        (["10.0.0.0/8"], "10.0.0.5", ["192.0.2.1"], []),
        # This host's own name means this host.
        (["localhost"], "localhost", ["::1", "127.0.0.1"], ["::1", "127.0.0.1"]),
        (["localhost"], "localhost", ["10.0.0.5", "169.254.1.1"], []),
    ],
)
def test_what_a_host_means_is_judged_again(
    rules: list[str], host: str, meant: list[str], allowed: list[str]
) -> None:
    assert AllowedPeers(rules).meant(host, meant) == tuple(allowed)


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
        e.node._rules = PeerRules(AllowedPeers(["10.0.0.0/8"]).allows, shared=True)
        with_media = request("r1", ("a", 3), params=announcement("a", 3))
        without = request("r2", ("b", 3), params=announcement("b", 3), has_media=False)
        inside = request(
            "r3", ("c", 3), params=announcement("c", 3, peer_host="10.0.0.9"), has_media=False
        )
        e.run(with_media, without, inside)
        assert [r.finished for r in (with_media, without, inside)] == ["length", "failed", "length"]
        assert e.p2p.asked == ["c"]
        assert e.encoded == ["a"]
