# SPDX-License-Identifier: Apache-2.0
"""F9: whatever a peer sends is a message within bounds or a ``RemoteProtocolError``.

Golden vectors are damaged, and msgpack of every kind is made up. Nothing may raise
anything else, and nothing may be decoded that breaks a bound.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq
from ec_protocol.tables.files import spec_dir
from tests.fuzz.bounds import U63, check_ack, check_request
from tests.world.core import BLOCK, COMPAT, PRODUCER, World

pytestmark = [pytest.mark.clause("EC-8.1"), pytest.mark.clause("EC-8.8")]

GOLDEN = [
    bytes.fromhex(vector["hex"])
    for path in sorted((spec_dir() / "wire").glob("*.json"))
    for vector in [json.loads(path.read_text())]
    if vector["message"] in ("XferReq", "XferAck")
]

DECODERS: list[tuple[Callable[[list[bytes]], Any], Callable[[Any], None]]] = [
    (wire.decode_request, check_request),
    (wire.decode_ack, check_ack),
]


def survives(payload: bytes) -> bool:
    """Decode as both; whether either accepted it."""
    accepted = False
    for decode, check in DECODERS:
        try:
            message = decode([b"", payload])
        except RemoteProtocolError:
            continue
        check(message)
        accepted = True
        # What was decoded can be said again, and means the same.
        assert decode([b"", wire.encode(message)]) == message
    return accepted


@given(st.sampled_from(GOLDEN), st.data())
def test_damaged_golden_vectors(golden: bytes, data: st.DataObject) -> None:
    damaged = bytearray(golden)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(damaged) - 1)))
        match data.draw(st.sampled_from(["flip", "set", "cut", "insert", "drop", "repeat"])):
            case "flip" if damaged:
                damaged[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set" if damaged:
                damaged[at] = data.draw(st.sampled_from([0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xDF, 0xFF]))
            case "cut":
                del damaged[at:]
            case "insert":
                damaged[at:at] = data.draw(st.binary(max_size=8))
            case "drop":
                del damaged[at : at + data.draw(st.integers(1, 8))]
            case "repeat":
                damaged[at:at] = damaged[at : at + 8]
    survives(bytes(damaged))


@given(st.binary(max_size=200))
def test_random_bytes(payload: bytes) -> None:
    survives(payload)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from([0, 1, U63, U63 + 1, (1 << 64) - 1, -1, math.nan, math.inf, 1e308, -0.0]),
)
KEYS = st.sampled_from(
    [
        *(field.name for field in msgspec.structs.fields(XferAck)),
        *(field.name for field in msgspec.structs.fields(XferReq)),
        "type",
        "unknown",
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=10), st.sampled_from(["req", "ack", None]))
def test_maps_with_the_right_names_and_any_values(fields: dict[str, Any], tag: str | None) -> None:
    message = {"mm_hash": "h", "compatibility_hash": "c", "status": 0, **fields}
    survives(msgspec.msgpack.encode({"type": tag, **message} if tag else message))


@given(TREES)
def test_any_msgpack(tree: Any) -> None:
    survives(msgspec.msgpack.encode(tree))


def field(kind: str, name: str, raw: bytes) -> bytes:
    """A sound message with one more field, whose value is given as raw msgpack."""
    base = {"type": kind, "mm_hash": "h", "compatibility_hash": "c", "status": 0}
    packed = msgspec.msgpack.encode(base)
    return bytes([packed[0] + 1]) + packed[1:] + msgspec.msgpack.encode(name) + raw


BOMBS = {
    "array of 2^32-1": b"\xdd\xff\xff\xff\xff",
    "map of 2^32-1": b"\xdf\xff\xff\xff\xff",
    "text of 2^32-1": b"\xdb\xff\xff\xff\xff",
    "bytes of 2^32-1": b"\xc6\xff\xff\xff\xff",
    "extension of 2^32-1": b"\xc9\xff\xff\xff\xff\x01",
    "arrays 100,000 deep": b"\x91" * 100_000,
    "maps 100,000 deep": b"\x81\xa0" * 100_000,
    "the code that msgpack never uses": b"\xc1",
    "text that is not UTF-8": b"\xa4\xff\xfe\x80\x80",
    "a surrogate": b"\xa3\xed\xa0\x80",
    "an overlong slash": b"\xa2\xc0\xaf",
    "NaN": b"\xcb" + struct.pack(">d", math.nan),
    "infinity as 32 bits": b"\xca" + struct.pack(">f", math.inf),
    "an integer of 64 bits": b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    "the most negative integer": b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("kind", ["req", "ack"])
def test_bombs_in_every_field(kind: str, name: str) -> None:
    raw = BOMBS[name]
    known = msgspec.structs.fields(XferReq if kind == "req" else XferAck)
    for at in ("type", "mm_hash", *(f.name for f in known)):
        survives(field(kind, at, raw))
        survives(field(kind, at, b"\x91" + raw))
    survives(field(kind, "an unknown field", raw))
    survives(field(kind, "an unknown field", b"\x91" + raw))
    survives(b"\x81" + raw + b"\x01")


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_in_a_descriptor(name: str) -> None:
    for descriptor in (BOMBS[name], b"\x91" + BOMBS[name], b"\x91\x93" + BOMBS[name]):
        ack = XferAck("h", 0, src_block_indices=[0], mem_descriptor=descriptor)
        with pytest.raises(RemoteProtocolError):
            wire.source_pieces(ack, BLOCK, BLOCK)


#: Three encodings of 100 bytes are fetched, by attempts 1 to 3.
NAMES = ["picture-1", "picture-2", "picture-3"]
SOUND = st.builds(
    lambda n, **fields: XferAck(NAMES[n - 1], session_id=f"c1.{n}", **fields),
    n=st.integers(1, 3),
    status=st.sampled_from([0, 0, 0, 0, 1, 3, 5]),
    agent_metadata=st.just(b"agent"),
    lease_s=st.sampled_from([None, 30.0, 0.0]),
    incarnation=st.sampled_from(["", "i1", "i2", "i3"]),
    base_addr=st.just(1 << 32),
    block_size=st.just(BLOCK),
    extents=st.sampled_from([[(5, 2)], [(5, 1), (0, 1)], [(1, 1), (0, 1)]]),
    nbytes=st.just(100),
)
ODD = st.builds(
    XferAck,
    mm_hash=st.sampled_from([*NAMES, "other"]),
    status=st.integers(0, 255),
    session_id=st.sampled_from(["c1.1", "c1.2", "c1.01", "c1.", ".1", "c1.-1", "c2.1", "c1.١", ""])
    | st.text(max_size=10),
    src_block_indices=st.lists(st.integers(0, U63) | st.integers(0, 4), max_size=5),
    agent_metadata=st.sampled_from([b"", b"agent"]),
    mem_descriptor=st.binary(max_size=8)
    | st.lists(
        st.tuples(st.integers(0, 1 << 40), st.just(BLOCK), st.integers(0, 1)), max_size=4
    ).map(msgspec.msgpack.encode),
    attempt_id=st.none() | st.integers(0, 2),
    lease_s=st.none() | st.floats(0, 86400),
    incarnation=st.sampled_from(["", "i1", "i2", "i3"]),
    base_addr=st.integers(0, U63) | st.just(1 << 32),
    block_size=st.sampled_from([0, BLOCK, BLOCK + 1, U63]),
    extents=st.lists(
        st.tuples(st.integers(0, 8) | st.integers(0, U63), st.integers(0, 4) | st.integers(0, U63)),
        max_size=4,
    ),
    nbytes=st.sampled_from([0, 100, U63]),
)


def sound(n: int, incarnation: str) -> XferAck:
    return XferAck(
        NAMES[n - 1],
        0,
        f"c1.{n}",
        agent_metadata=b"agent",
        incarnation=incarnation,
        base_addr=1 << 32,
        block_size=BLOCK,
        extents=[(5, 2)],
        nbytes=100,
    )


@given(st.lists(SOUND | ODD, max_size=8))
@example([sound(n, f"i{n}") for n in (1, 2, 3)])
def test_no_sequence_of_acks_makes_a_consumer_raise(acks: list[XferAck]) -> None:
    """Nor post a READ that reaches outside its own blocks."""
    world = World(blocks=8)
    for name in NAMES:
        assert world.fetch(name, 100) == "pending"
    for ack in acks:
        world.reads.on_ack(PRODUCER, wire.decode_ack([b"", wire.encode(ack)]), world.now)
        world.carry_out()
        world.check()
    for attempt_id, command in list(world.prepared.items()):
        entry = world.tier.get(NAMES[(attempt_id - 1) % 3])
        if not world.post(attempt_id) or entry is None:
            continue
        assert sum(size for _, size in command.local) == 100
        assert [size for _, size in command.local] == [size for _, size in command.remote]
        allowed = wire.local_pieces(entry.extents, 100, BLOCK)
        for offset, size in command.local:
            assert any(o <= offset and offset + size <= o + n for o, n in allowed)
        assert (entry.state, entry.writer) == ("saving", ("read", attempt_id))
    world.check()
    for _ in range(3):
        world.tick(world.timing.fetch_budget_s)
    world.tick(world.timing.quarantine_s)
    assert world.reads.idle
    world.check()


@given(
    st.lists(
        st.builds(
            XferReq,
            mm_hash=st.sampled_from(["ready", "saving", "missing"])
            | st.text(min_size=1, max_size=9),
            compatibility_hash=st.sampled_from([COMPAT, "", "x"]),
            session_id=st.sampled_from(["s.1", "s.2", "", "a:b", "é"]),
            connector_version=st.sampled_from([0, 1, 2, 3, U63]),
            attempt_id=st.none() | st.integers(0, 2),
        ),
        max_size=8,
    ),
    st.lists(st.binary(max_size=12) | st.sampled_from([b"s.1:ready", b":", b""]), max_size=4),
)
def test_no_sequence_of_requests_and_notices_makes_a_producer_raise(
    requests: list[XferReq], notices: list[bytes]
) -> None:
    world = World()
    producer = world.producer
    producer.save("ready", 100)
    entry = producer.tier.alloc("saving", 100)
    assert entry is not None
    producer.tier.begin_write(entry, ("save", 99))
    for request in requests:
        decoded = wire.decode_request([b"", wire.encode(request)])
        ack = producer.grants.on_request(b"peer", decoded, world.now)
        check_ack(wire.decode_ack([b"", wire.encode(ack)]))
        assert (ack.mm_hash, ack.session_id) == (request.mm_hash, request.session_id)
        assert ack.status != wire.XferStatus.OK or ack.mm_hash == "ready"
        producer.check()
    for notice in notices:
        producer.grants.on_notice(notice, world.now)
        producer.check()
    world.tick(world.timing.lease_s)
    assert producer.grants.open_grants == 0
    assert not any(e.holders for e in producer.tier.entries())
