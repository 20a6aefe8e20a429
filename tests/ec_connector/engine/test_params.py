# SPDX-License-Identifier: Apache-2.0
"""`ec_transfer_params` from outside: of any shape, never an exception (EC-11.4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_connector.config.peers import AllowedPeers
from ec_connector.config.settings import ECConfig
from ec_protocol.announcements import Source, read_source
from ec_protocol.errors import ConfigError
from ec_protocol.items import make_item
from tests.harness.content import request
from tests.harness.engine import engine
from tests.harness.remote import Remote, announcement

SHAPE, ELEMENT, CAPACITY = (3, 16), 2, 4096
GOOD = {"peer_host": "encoder-0", "peer_port": 5601, "size_bytes": 96, "shape": [3, 16]}


def parse(
    params: object, mm_hash: str = "h", capacity: int = CAPACITY, **more: Any
) -> Source | str:
    return read_source(params, make_item(mm_hash, *SHAPE, ELEMENT), capacity, **more)


def test_a_good_reference() -> None:
    assert parse({"h": GOOD}) == Source("encoder-0", 5601)
    assert parse({"h": {**GOOD, "shape": None, "metadata": {}}}) == Source("encoder-0", 5601)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"peer_host": 5}, "bad_peer_host"),
        ({"peer_host": ""}, "bad_peer_host"),
        ({"peer_host": "a b"}, "bad_peer_host"),
        ({"peer_host": "x" * 300}, "bad_peer_host"),
        ({"peer_host": "../../etc"}, "bad_peer_host"),
        ({"peer_port": "5601"}, "bad_peer_port"),
        ({"peer_port": True}, "bad_peer_port"),
        ({"peer_port": 0}, "bad_peer_port"),
        ({"peer_port": 65536}, "bad_peer_port"),
        ({"peer_port": None}, "bad_peer_port"),
        ({"size_bytes": None}, "bad_size_bytes"),
        ({"size_bytes": -96}, "bad_size_bytes"),
        ({"size_bytes": 96.0}, "bad_size_bytes"),
        ({"size_bytes": 1 << 80}, "size_contradicts_request"),
        ({"size_bytes": 97}, "size_contradicts_request"),
        ({"shape": [16, 3]}, "shape_contradicts_request"),
        ({"shape": "3x16"}, "shape_contradicts_request"),
        ({"shape": [3, [16]]}, "shape_contradicts_request"),
        ({"peer_host": None, "peer_port": None}, "absent"),
    ],
)
def test_what_cannot_be_used_is_a_reason(change: dict[str, Any], reason: str) -> None:
    assert parse({"h": {**GOOD, **change}}) == reason


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (None, "absent"),
        ([], "absent"),
        ("h", "absent"),
        (5, "absent"),
        ({}, "absent"),
        ({"other": GOOD}, "absent"),
        ({"h": None}, "not_a_mapping"),
        ({"h": [GOOD]}, "not_a_mapping"),
    ],
)
def test_params_of_any_type(params: object, reason: str) -> None:
    assert parse(params) == reason


def test_names_that_are_too_long_or_empty_are_not_asked_for() -> None:
    for name in ("", "x" * 513, "x" * (1 << 20), "\ud800", "a\udfffb"):
        assert parse({name: GOOD}, name) == "bad_mm_hash"
    for name in ("../../etc/passwd", "a/b", "\0", "é" * 512):
        assert isinstance(parse({name: GOOD}, name), Source)


def test_an_ipv6_address_may_come_in_brackets() -> None:
    ref = parse({"h": {**GOOD, "peer_host": "[fd00::5]"}})
    assert isinstance(ref, Source)
    assert ref.host == "fd00::5"


def test_an_encoding_larger_than_the_region_is_not_asked_for() -> None:
    assert parse({"h": GOOD}, capacity=95) == "larger_than_region"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["h", "peer_host", "peer_port", "size_bytes", "shape"]),
            inner,
            max_size=5,
        )
    ),
)


@given(ANY)
def test_nothing_raises(params: object) -> None:
    assert isinstance(parse(params), str | Source)
    assert isinstance(
        parse({"h": params}, allowed=AllowedPeers(["10.0.0.0/8"]).allows), str | Source
    )


# ------------------------------------------------------------------------ allow-list
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
    ref = parse({"h": {**GOOD, "peer_host": host}}, allowed=rules.allows)
    assert ref == (Source(host.strip("[]"), 5601) if allowed else "foreign_peer_host")


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
        e.node._allowed = AllowedPeers(["10.0.0.0/8"]).allows
        with_media = request("r1", ("a", 3), params=announcement("a", 3))
        without = request("r2", ("b", 3), params=announcement("b", 3), has_media=False)
        inside = request(
            "r3", ("c", 3), params=announcement("c", 3, peer_host="10.0.0.9"), has_media=False
        )
        e.run(with_media, without, inside)
        assert [r.finished for r in (with_media, without, inside)] == ["length", "failed", "length"]
        assert e.p2p.asked == ["c"]
        assert e.encoded == ["a"]
