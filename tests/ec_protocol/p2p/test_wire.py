# SPDX-License-Identifier: Apache-2.0
"""Messages: golden vectors both ways, peers of other ages, every bound, ack size."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.tables.files import spec_dir
from tests import ROOT

WIRE = spec_dir() / "wire"
TOOL = ROOT / "tools" / "make_wire_vectors.py"
VECTORS = [json.loads(path.read_text()) for path in sorted(WIRE.glob("*.json"))]
IDS = [vector["name"] for vector in VECTORS]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_wire_vectors", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fields_of(vector: dict[str, Any]) -> dict[str, Any]:
    return {
        key: bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
        for key, value in vector["fields"].items()
    }


def as_lists(value: Any) -> Any:
    """Tuples and lists are one thing on the wire."""
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def of_kind(message: str) -> list[Any]:
    return [pytest.param(v, id=v["name"]) for v in VECTORS if v["message"] == message]


# ---------------------------------------------------------------- golden vectors
def test_the_files_are_what_the_generator_writes() -> None:
    assert {p.name: p.read_text() for p in WIRE.glob("*.json")} == generator().files()


def test_the_generator_checks_and_writes_a_folder(tmp_path: Path) -> None:
    tool = generator()
    assert tool.main(["--check", str(tmp_path)]) == 1
    (tmp_path / "obsolete.json").write_text("{}")
    assert tool.main([str(tmp_path)]) == 0
    assert tool.main(["--check", str(tmp_path)]) == 0
    assert not (tmp_path / "obsolete.json").exists()


def test_the_vectors_are_complete() -> None:
    assert all(set(v) == {"name", "message", "version", "fields", "hex"} for v in VECTORS)
    kinds = {(v["message"], v["version"]) for v in VECTORS}
    messages = ("XferReq", "XferAck", "notice", "mem_descriptor", "compatibility_hash")
    assert kinds == {(message, version) for message in messages for version in (1, 2)}
    for version in (1, 2):
        acks = [v for v in VECTORS if (v["message"], v["version"]) == ("XferAck", version)]
        assert {v["fields"]["status"] for v in acks} == {int(s) for s in XferStatus}


@pytest.mark.clause("EC-8.1", "EC-8.2")
@pytest.mark.parametrize("vector", of_kind("XferReq"))
def test_request_vectors_both_ways(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), fields_of(vector)
    decoded = wire.decode_request([b"", data])
    defaults = {
        "session_id": "",
        "connector_version": 0,
        "attempt_id": None,
        "incarnation": "",
        "encoder_hash": "",
        "checksum": "",
    }
    assert msgspec.structs.asdict(decoded) == {**defaults, **fields}
    assert wire.encode(XferReq(**fields)) == data
    assert wire.encode(decoded) == data


@pytest.mark.clause("EC-8.1", "EC-8.7")
@pytest.mark.parametrize("vector", of_kind("XferAck"))
def test_ack_vectors_both_ways(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), fields_of(vector)
    decoded = wire.decode_ack([b"", data])
    shown = {k: as_lists(v) for k, v in msgspec.structs.asdict(decoded).items()}
    assert shown == {**ACK_DEFAULTS, **fields}
    assert wire.encode(XferAck(**fields)) == data
    assert wire.encode(decoded) == data


ACK_DEFAULTS: dict[str, Any] = {
    "session_id": "",
    "src_block_indices": [],
    "agent_metadata": b"",
    "mem_descriptor": b"",
    "attempt_id": None,
    "lease_s": None,
    "incarnation": "",
    "base_addr": 0,
    "block_size": 0,
    "extents": [],
    "nbytes": 0,
    "encoder_hash": "",
    "checksum": "",
}


@pytest.mark.clause("EC-8.6")
@pytest.mark.parametrize("vector", of_kind("notice"))
def test_notice_vectors(vector: dict[str, Any]) -> None:
    assert wire.notice(**vector["fields"]) == bytes.fromhex(vector["hex"])


@pytest.mark.parametrize("vector", of_kind("mem_descriptor"))
def test_descriptor_vectors(vector: dict[str, Any]) -> None:
    assert wire.mem_descriptor(**vector["fields"]) == bytes.fromhex(vector["hex"])


@pytest.mark.clause("EC-8.4")
@pytest.mark.parametrize("vector", of_kind("compatibility_hash"))
def test_compatibility_hash_vectors(vector: dict[str, Any]) -> None:
    assert wire.compatibility_hash(**vector["fields"]) == vector["hex"]


@pytest.mark.clause("EC-8.4")
def test_each_of_the_four_facts_changes_the_hash() -> None:
    facts: list[Any] = ["0.32.0", "model", "bfloat16", 16384]
    hashes = {wire.compatibility_hash(*facts)}
    for i, other in enumerate(("0.33.0", "model2", "float16", 8192)):
        changed = [*facts]
        changed[i] = other
        hashes.add(wire.compatibility_hash(*changed))
    # Two strings that run together are still two strings.
    hashes.add(wire.compatibility_hash("0.32.0model", "", "bfloat16", 16384))
    assert len(hashes) == 6
    assert all(len(h) == 64 for h in hashes)


# ------------------------------------------------------- peers of other ages
class OldReq(msgspec.Struct, tag="req", omit_defaults=True):
    """What a peer knows that has never heard of attempts, and speaks version 1."""

    mm_hash: str
    compatibility_hash: str
    session_id: str = ""
    connector_version: int = 1


class OldAck(msgspec.Struct, tag="ack", omit_defaults=True):
    """An ack of a producer that knows neither attempts nor extents nor leases."""

    mm_hash: str
    status: int
    session_id: str = ""
    src_block_indices: list[int] = []
    agent_metadata: bytes = b""
    mem_descriptor: bytes = b""


class NewerReq(msgspec.Struct, tag="req", omit_defaults=True):
    """A peer with a fact that this version does not know."""

    mm_hash: str
    compatibility_hash: str
    session_id: str = ""
    connector_version: int = 2
    compression: dict[str, list[int]] = {}


def test_old_structs_make_the_same_bytes_as_the_old_vectors() -> None:
    by_name = {v["name"]: v for v in VECTORS}
    for name, kind in (("req-v1-old", OldReq), ("ack-v1-ok-old", OldAck)):
        vector = by_name[name]
        assert msgspec.msgpack.encode(kind(**fields_of(vector))).hex() == vector["hex"]


@pytest.mark.clause("EC-8.1")
def test_old_peers_read_our_messages_and_ignore_what_is_new() -> None:
    request = XferReq("h", "c", "s.1", 2, attempt_id=1, incarnation="i")
    old = msgspec.msgpack.decode(wire.encode(request), type=OldReq)
    assert old == OldReq("h", "c", "s.1", 2)
    ack = XferAck("h", 5, "s.1", attempt_id=1, incarnation="i")
    assert msgspec.msgpack.decode(wire.encode(ack), type=OldAck) == OldAck("h", 5, "s.1")


@pytest.mark.clause("EC-8.1")
def test_unknown_fields_are_ignored() -> None:
    data = msgspec.msgpack.encode(NewerReq("h", "c", "s", 2, {"zstd": [1, 2]}))
    assert wire.decode_request([b"", data]) == XferReq("h", "c", "s")
    data = msgspec.msgpack.encode(NewerReq("h", "c", "s", 9, {"zstd": [1, 2]}))
    assert wire.decode_request([b"", data]) == XferReq("h", "c", "s", 9)


def test_a_version_1_peer_leaves_its_version_out() -> None:
    assert b"connector_version" not in msgspec.msgpack.encode(OldReq("h", "c", "s"))
    decoded = wire.decode_request([b"", msgspec.msgpack.encode(OldReq("h", "c", "s"))])
    assert decoded.connector_version == 0


@pytest.mark.clause("EC-8.5")
def test_only_not_ready_is_retryable() -> None:
    assert {XferStatus.NACK_NOT_READY} == wire.RETRYABLE_NACKS
    assert {s.name: int(s) for s in XferStatus} == {
        "OK": 0,
        "NACK_MISSING": 1,
        "NACK_INCOMPAT": 2,
        "NACK_VERSION": 3,
        "NACK_INTERNAL": 4,
        "NACK_NOT_READY": 5,
    }


# ------------------------------------------------------------------------ bounds
REQ: dict[str, Any] = {"type": "req", "mm_hash": "h", "compatibility_hash": "c"}
ACK: dict[str, Any] = {"type": "ack", "mm_hash": "h", "status": 0}
BIG = 1 << 63


def accepted(kind: str, **fields: Any) -> bool:
    base, decode = (REQ, wire.decode_request) if kind == "req" else (ACK, wire.decode_ack)
    payload = msgspec.msgpack.encode({**base, **fields})
    try:
        decode([b"", payload])
    except RemoteProtocolError as exc:
        error = exc
    else:
        return True
    assert error.clause == "EC-8.1"
    assert str(error).startswith("XferReq: " if kind == "req" else "XferAck: ")
    return False


AT_AND_BEYOND = [
    ("req", "mm_hash", "x" * 512, "x" * 513),
    ("req", "mm_hash", "x", ""),
    ("req", "compatibility_hash", "x" * 128, "x" * 129),
    ("req", "session_id", "x" * 256, "x" * 257),
    ("req", "incarnation", "x" * 128, "x" * 129),
    ("req", "connector_version", BIG - 1, BIG),
    ("req", "connector_version", 0, -1),
    ("req", "attempt_id", BIG - 1, BIG),
    ("req", "attempt_id", None, -1),
    ("ack", "mm_hash", "x" * 512, "x" * 513),
    ("ack", "mm_hash", "x", ""),
    ("ack", "status", 255, 256),
    ("ack", "status", 0, -1),
    ("ack", "session_id", "x" * 256, "x" * 257),
    ("ack", "src_block_indices", [BIG - 1], [BIG]),
    ("ack", "src_block_indices", [0], [-1]),
    ("ack", "src_block_indices", [0] * (1 << 20), [0] * ((1 << 20) + 1)),
    ("ack", "agent_metadata", bytes(1 << 20), bytes((1 << 20) + 1)),
    ("ack", "attempt_id", 0, -1),
    ("ack", "lease_s", 86400, 86400.5),
    ("ack", "lease_s", 0, -0.5),
    ("ack", "lease_s", 30, float("nan")),
    ("ack", "lease_s", 1e-300, float("inf")),
    ("ack", "lease_s", None, float("-inf")),
    ("ack", "incarnation", "x" * 128, "x" * 129),
    ("req", "encoder_hash", "x" * 128, "x" * 129),
    ("ack", "encoder_hash", "x" * 128, "x" * 129),
    ("req", "checksum", "x" * 128, "x" * 129),
    ("ack", "checksum", "x" * 128, "x" * 129),
    ("ack", "base_addr", BIG - 1, BIG),
    ("ack", "base_addr", 0, -1),
    ("ack", "block_size", BIG - 1, BIG),
    ("ack", "extents", [[0, 1]] * 4096, [[0, 1]] * 4097),
    ("ack", "extents", [[BIG - 1, BIG - 1]], [[0, BIG]]),
    ("ack", "extents", [[0, 1]], [[0, -1]]),
    ("ack", "extents", [], [[0]]),
    ("ack", "extents", [[0, 0]], [[0, 0, 0]]),
    ("ack", "nbytes", BIG - 1, BIG),
]


@pytest.mark.clause("EC-8.8")
@pytest.mark.parametrize(("kind", "field", "at", "beyond"), AT_AND_BEYOND)
def test_bounds(kind: str, field: str, at: Any, beyond: Any) -> None:
    assert accepted(kind, **{field: at})
    assert not accepted(kind, **{field: beyond})


WRONG_TYPES: list[Any] = [None, True, 1.5, "x", b"x", [], {}, [[]], -1, 1 << 64 - 1, [None]]


@pytest.mark.clause("EC-8.8")
@pytest.mark.parametrize(
    ("kind", "field", "good"),
    [
        *(("req", name, (str,)) for name in ("mm_hash", "compatibility_hash", "session_id")),
        *(("ack", name, (str,)) for name in ("mm_hash", "session_id", "incarnation")),
        *(("ack", name, (int,)) for name in ("status", "base_addr", "block_size", "nbytes")),
        *(("ack", name, (bytes,)) for name in ("agent_metadata", "mem_descriptor")),
        ("ack", "attempt_id", (int, type(None))),
        ("ack", "lease_s", (int, float, type(None))),
        ("req", "connector_version", (int,)),
        ("req", "type", ()),
        ("ack", "type", ()),
    ],
)
def test_wrong_types(kind: str, field: str, good: tuple[type, ...]) -> None:
    for value in WRONG_TYPES:
        if type(value) not in good:
            assert not accepted(kind, **{field: value}), f"{field}={value!r}"


@pytest.mark.clause("EC-8.1")
@pytest.mark.parametrize(
    ("kind", "missing"), [*(("req", name) for name in REQ), *(("ack", name) for name in ACK)]
)
def test_a_required_field_is_missing(kind: str, missing: str) -> None:
    base, decode = (REQ, wire.decode_request) if kind == "req" else (ACK, wire.decode_ack)
    payload = msgspec.msgpack.encode({k: v for k, v in base.items() if k != missing})
    with pytest.raises(RemoteProtocolError, match=f"Xfer{kind.capitalize()}: .*`{missing}`"):
        decode([b"", payload])


@pytest.mark.clause("EC-8.1")
@pytest.mark.parametrize(
    "frames",
    [[], [b""], [b"payload"], [b"", b"", b""], [b"x", b""], [b"identity", b"", b"payload"]],
)
def test_frames_have_one_shape(frames: list[bytes]) -> None:
    for decode in (wire.decode_request, wire.decode_ack):
        with pytest.raises(RemoteProtocolError, match=r"expected \[empty, payload\]"):
            decode(frames)


@pytest.mark.clause("EC-8.8")
def test_the_length_of_a_message_is_looked_at_first() -> None:
    with pytest.raises(RemoteProtocolError, match="16385 bytes, at most 16384"):
        wire.decode_request([b"", bytes(16385)])
    with pytest.raises(RemoteProtocolError, match="at most 134217728"):
        wire.decode_ack([b"", bytes((128 << 20) + 1)])


def test_a_request_is_no_ack() -> None:
    with pytest.raises(RemoteProtocolError, match="XferAck: the type is 'req'"):
        wire.decode_ack([b"", msgspec.msgpack.encode(REQ)])
    with pytest.raises(RemoteProtocolError, match="XferReq: the type is 'ack'"):
        wire.decode_request([b"", msgspec.msgpack.encode(ACK)])


# ---------------------------------------------------------------------- ack size
@pytest.mark.clause("EC-8.7")
@pytest.mark.parametrize("region", [1 << 30, 64 << 30])
def test_an_ack_is_small_whatever_the_size_of_the_region(region: int) -> None:
    """Two extents at the far end, the longest names, the largest address.

    The old form takes 1,835,013 bytes for the table of the 1 GiB region alone (the
    next test), and 64 times as much for the other.
    """
    block, metadata = 8192, bytes(451)
    blocks = region // block
    ack = XferAck(
        mm_hash="f" * 64,
        status=0,
        session_id=f"{'s' * 36}.{(1 << 63) - 1}",
        agent_metadata=metadata,
        attempt_id=(1 << 63) - 1,
        lease_s=30.0,
        incarnation="i" * 36,
        base_addr=0x7FFF_0000_0000,
        block_size=block,
        extents=[(blocks - 400, 400), (blocks - 2000, 600)],
        nbytes=1000 * block,
    )
    assert len(wire.encode(ack)) - len(metadata) < 1024


def test_the_old_form_grows_with_the_region_but_can_still_be_read() -> None:
    table = wire.mem_descriptor(0x7FFF_0000_0000, (1 << 30) // 8192, 8192)
    assert len(table) == 1_835_013
    assert 64 * len(table) < wire.MAX_ACK_BYTES
