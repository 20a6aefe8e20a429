# SPDX-License-Identifier: Apache-2.0
"""What the processes of one instance say to each other: golden vectors, bounds, garbage."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.loans import _WORDS
from ec_protocol.p2p import words
from ec_protocol.tables.files import spec_dir
from tests import ROOT

pytestmark = pytest.mark.clause("EC-14.4")

FOLDER = spec_dir() / "wire" / "processes"
VECTORS = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
DIRECTIONS = (
    *("ToReader", "FromReader", "ToServer", "ToParent", "FromParent", "FromData", "ToData"),
)
UNIONS = {name: getattr(words, name) for name in DIRECTIONS}
EVERY = {kind.__name__: kind for union in UNIONS.values() for kind in get_args(union) or (union,)}


def each(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


def plain(message: Any) -> Any:
    """As another library would read it."""
    return msgspec.json.decode(msgspec.json.encode(message))


def test_the_files_are_what_the_generator_writes() -> None:
    path = ROOT / "tools" / "make_wire_vectors.py"
    spec = importlib.util.spec_from_file_location("make_wire_vectors", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert {p.name: p.read_text() for p in FOLDER.glob("*.json")} == tool.word_files()


def test_there_is_a_vector_of_every_message() -> None:
    assert {vector["message"] for vector in VECTORS} == set(EVERY)
    assert {vector["version"] for vector in VECTORS} == {words.VERSION}
    said = {w for v in VECTORS if v["message"] == "Words" for w, _ in v["fields"]["words"]}
    assert said == set(_WORDS)


@pytest.mark.parametrize("vector", each(VECTORS))
def test_vectors_both_ways(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    kind = EVERY[vector["message"]]
    message = words.decode(raw, kind)
    assert isinstance(message, kind)
    assert plain(message) == {"type": vector["message"], **vector["fields"]}
    assert words.encode(message) == raw
    assert msgspec.msgpack.decode(raw) == {"type": vector["message"], **vector["fields"]}


@pytest.mark.parametrize("vector", each(VECTORS))
@pytest.mark.parametrize("direction", UNIONS)
def test_each_is_heard_in_its_own_directions_only(vector: dict[str, Any], direction: str) -> None:
    union = UNIONS[direction]
    kinds = {kind.__name__ for kind in get_args(union) or (union,)}
    raw = bytes.fromhex(vector["hex"])
    if vector["message"] in kinds:
        assert type(words.decode(raw, union)).__name__ == vector["message"]
    else:
        with pytest.raises(RemoteProtocolError, match="between processes"):
            words.decode(raw, union)


def test_fields_of_another_version_are_ignored() -> None:
    raw = msgspec.msgpack.encode({"type": "Hello", "version": 9, "new": [1, {"a": 2}]})
    assert words.decode(raw, words.FromData) == words.Hello(9)


@pytest.mark.parametrize("vector", each([v for v in VECTORS if v["fields"]]))
def test_a_field_that_is_missing_or_of_another_type_is_refused(vector: dict[str, Any]) -> None:
    fields = {"type": vector["message"], **vector["fields"]}
    kind = EVERY[vector["message"]]
    optional = {f.name for f in msgspec.structs.fields(kind) if not f.required}
    for name in vector["fields"]:
        without = {key: value for key, value in fields.items() if key != name}
        if name in optional:
            words.decode(msgspec.msgpack.encode(without), kind)
        else:
            with pytest.raises(RemoteProtocolError):
                words.decode(msgspec.msgpack.encode(without), kind)
        for wrong in ({"x": 1}, b"bytes", [[[1]]]):
            with pytest.raises(RemoteProtocolError):
                words.decode(msgspec.msgpack.encode({**fields, name: wrong}), kind)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x80",
        b"\x91" * 60_000,
        b"\x81\xa4type" + b"\x91" * 60_000,
        b"\x82\xa4type\xa7Failing\xa5error\xa2\xff\xfe",
        b"\x82\xa4type\xa7Failing\xa5error\xdb\xff\xff\xff\xff",
        b"\x81\xa4type\xa3Nil",
        b"\x82\xa4type\xa4Stop\xa1x" + b"\x91" * 60_000,
    ],
)
def test_anything_else_is_refused_with_one_error(raw: bytes) -> None:
    for union in UNIONS.values():
        with pytest.raises(RemoteProtocolError) as caught:
            words.decode(raw, union)
        assert caught.value.clause == "EC-14.4"


@given(st.binary(max_size=200))
def test_noise_raises_one_error_at_most(raw: bytes) -> None:
    for union in UNIONS.values():
        with contextlib.suppress(RemoteProtocolError):
            words.decode(raw, union)


@given(st.sampled_from(VECTORS), st.integers(0, 1 << 32), st.integers(1, 4))
def test_broken_messages_raise_one_error_at_most(
    vector: dict[str, Any], seed: int, changes: int
) -> None:
    rng = random.Random(seed)
    raw = bytearray.fromhex(vector["hex"])
    for _ in range(changes):
        what = rng.randrange(3)
        at = rng.randrange(len(raw))
        if what == 0:
            raw[at] = rng.randrange(256)
        elif what == 1 and len(raw) > 1:
            del raw[at]
        else:
            raw.insert(at, rng.randrange(256))
    for union in UNIONS.values():
        with contextlib.suppress(RemoteProtocolError):
            words.decode(bytes(raw), union)


def test_the_longest_that_is_said_by_design_fits() -> None:
    """So many events of the longest names, and words of the largest loans."""
    from ec_connector.processes import link, reader

    event = ("quarantined", "\U0001f600" * 512, 1 << 62, [1 << 62] * 8)
    assert len(words.encode(words.Events([event] * link._EVENTS, 1 << 62))) <= words.MAX_BYTES
    assert len(words.encode(words.Words([("landed", 1 << 62)] * reader._WORDS))) <= words.MAX_BYTES
