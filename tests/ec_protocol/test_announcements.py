# SPDX-License-Identifier: Apache-2.0
"""`ec_transfer_params` from outside: of any shape, never an exception (EC-11.4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol import Node
from ec_protocol.announcements import Source, announcement, read_source
from ec_protocol.items import make_item
from tests import ROOT

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
    assert isinstance(parse({"h": GOOD}, capacity=96), Source)


@pytest.mark.parametrize("port", [1, 65535])
def test_the_first_and_the_last_port_are_ports(port: int) -> None:
    assert parse({"h": {**GOOD, "peer_port": port}}) == Source("encoder-0", port)


@pytest.mark.parametrize("size", [0, 1])
def test_a_size_that_is_none_is_told_from_one_that_contradicts(size: int) -> None:
    reason = "bad_size_bytes" if size == 0 else "size_contradicts_request"
    assert parse({"h": {**GOOD, "size_bytes": size}}) == reason


def test_half_an_address_is_a_wrong_one_and_none_is_none() -> None:
    assert parse({"h": {**GOOD, "peer_host": None}}) == "bad_peer_host"
    assert parse({"h": {**GOOD, "peer_port": None}}) == "bad_peer_port"


def test_a_host_is_asked_about_and_its_answer_counts() -> None:
    asked: list[str] = []
    assert parse({"h": GOOD}, allowed=lambda host: asked.append(host) is not None) == (
        "foreign_peer_host"
    )
    assert asked == ["encoder-0"]


@pytest.mark.parametrize("shape", [{3: 1, 16: 1}, [3.0, 16.0], [3, True]])
def test_a_shape_is_a_list_of_whole_numbers(shape: Any) -> None:
    assert parse({"h": {**GOOD, "shape": shape}}) == "shape_contradicts_request"


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
        parse({"h": params}, allowed=lambda host: host.startswith("10.")), str | Source
    )


def test_what_is_announced_is_read_again_as_it_was_meant() -> None:
    node = Node(blocks=8, block_bytes=32)
    wanted = make_item("h", *SHAPE, ELEMENT, metadata={"grid": [1, 3]})
    entry = node.tier.alloc("h", wanted.nbytes)
    assert entry is not None
    said = announcement(wanted, entry, ("encoder-0", 5601))
    assert said == {**GOOD, "metadata": {"grid": [1, 3]}}
    assert read_source({"h": said}, wanted, CAPACITY) == Source("encoder-0", 5601)
    entry.shape = (1, 48)
    assert announcement(wanted, entry, ("encoder-0", 5601))["shape"] == [1, 48]


SAID = json.loads((ROOT / "tests/e2e/orchestrators.json").read_text())["announcements"]


@pytest.mark.parametrize("case", SAID, ids=[case["name"] for case in SAID])
def test_what_other_orchestrators_send_is_understood(case: dict[str, Any]) -> None:
    params = json.loads(json.dumps(case["of"]).replace("$HASH", "h"))
    found = read_source(params, make_item("h", 16, 128, 4), 1 << 20)
    assert found == (case["says"] or Source("10.0.0.1", 5501))
