# SPDX-License-Identifier: Apache-2.0
"""From an ack to pieces: every byte exactly once, in order, or the ack is refused."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import Pieces, XferAck
from ec_protocol.tier.extents import Extents

pytestmark = pytest.mark.clause("EC-8.3")

BLOCK = 16
BASE = 1 << 20
REGION = 40


def every_byte(pieces: Pieces) -> list[int]:
    """The addresses of the bytes, in the order of the encoding."""
    return [start + i for start, size in pieces for i in range(size)]


def bytes_of(blocks: list[int], nbytes: int, base: int = 0) -> list[int]:
    return [base + b * BLOCK + i for b in blocks for i in range(BLOCK)][:nbytes]


def as_extents(blocks: list[int]) -> Extents:
    extents: list[tuple[int, int]] = []
    for block in blocks:
        if extents and sum(extents[-1]) == block:
            extents[-1] = (extents[-1][0], extents[-1][1] + 1)
        else:
            extents.append((block, 1))
    return tuple(extents)


def new_ack(blocks: list[int], nbytes: int, **changes: Any) -> XferAck:
    fields: dict[str, Any] = {
        "base_addr": BASE,
        "block_size": BLOCK,
        "extents": list(as_extents(blocks)),
        "nbytes": nbytes,
        **changes,
    }
    return XferAck("h", 0, **fields)


def old_ack(blocks: list[int], **changes: Any) -> XferAck:
    table = wire.mem_descriptor(BASE, REGION, BLOCK)
    return XferAck("h", 0, **{"src_block_indices": blocks, "mem_descriptor": table, **changes})


#: Blocks of one entry in any order, and how many bytes of the last one are used.
BLOCKS = st.lists(st.integers(0, REGION - 1), unique=True, min_size=1, max_size=12)
LAST = st.integers(1, BLOCK)


@given(BLOCKS, LAST)
def test_both_forms_cover_each_byte_once_in_order(blocks: list[int], last: int) -> None:
    nbytes = (len(blocks) - 1) * BLOCK + last
    want = bytes_of(blocks, nbytes, BASE)
    for ack in (new_ack(blocks, nbytes), old_ack(blocks)):
        pieces, device = wire.source_pieces(ack, nbytes, BLOCK)
        assert every_byte(pieces) == want
        assert device == 0
        assert all(size > 0 for _, size in pieces)
        # Neighbours are one piece: no two pieces could be merged.
        assert all(a + n != b for (a, n), (b, _) in itertools.pairwise(pieces))


@given(BLOCKS, LAST)
def test_local_pieces_cover_each_byte_once_in_order(blocks: list[int], last: int) -> None:
    nbytes = (len(blocks) - 1) * BLOCK + last
    pieces = wire.local_pieces(as_extents(blocks), nbytes, BLOCK)
    assert every_byte(pieces) == bytes_of(blocks, nbytes)
    assert all(size > 0 for _, size in pieces)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_pairing_cuts_at_both_borders_and_moves_no_byte(left: list[int], right: list[int]) -> None:
    difference = sum(left) - sum(right)
    (right if difference > 0 else left).extend([abs(difference)] if difference else [])

    def placed(sizes: list[int], start: int) -> Pieces:
        """Pieces far from each other, the later ones below the earlier."""
        return tuple((start - 1000 * i, size) for i, size in enumerate(sizes))

    a, b = placed(left, 1_000_000), placed(right, 2_000_000)
    out_a, out_b = wire.pair_pieces(a, b)
    assert [n for _, n in out_a] == [n for _, n in out_b]
    assert every_byte(out_a) == every_byte(a)
    assert every_byte(out_b) == every_byte(b)
    assert all(n > 0 for _, n in out_a)
    assert len(out_a) <= len(a) + len(b) - 1


def test_entries_of_two_extents_make_three_descriptors_at_most() -> None:
    local = wire.local_pieces(((10, 3), (0, 2)), 5 * BLOCK - 1, BLOCK)
    remote, _ = wire.source_pieces(new_ack([5, 6, 1, 2, 3], 5 * BLOCK - 1), 5 * BLOCK - 1, BLOCK)
    paired = wire.pair_pieces(local, remote)
    assert [n for _, n in paired[0]] == [2 * BLOCK, BLOCK, 2 * BLOCK - 1]


REFUSED = {
    "another block size": new_ack([0, 1], 30, block_size=BLOCK * 2),
    "no block size": new_ack([0, 1], 30, block_size=0),
    "another number of bytes": new_ack([0, 1], 31),
    "no number of bytes": new_ack([0, 1], 0),
    "one block too few": new_ack([0], 30),
    "one block too many": new_ack([0, 1, 2], 30),
    "an empty extent": new_ack([], 30, extents=[(0, 2), (5, 0)]),
    "only empty extents": new_ack([], 30, extents=[(0, 0)]),
    "an extent twice": new_ack([], 30, extents=[(0, 1), (0, 1)]),
    "overlapping extents": new_ack([], 64, extents=[(0, 3), (2, 1)]),
    "address null": new_ack([0, 1], 30, base_addr=0),
    "beyond the address space": new_ack([0, 1], 30, base_addr=(1 << 63) - BLOCK),
    "a start beyond the address space": new_ack([], 30, extents=[((1 << 63) - 1, 2)]),
    "a count beyond the address space": new_ack([], 30, extents=[(0, (1 << 63) - 1)]),
    "nothing at all": XferAck("h", 0),
    "old: one block too few": old_ack([0]),
    "old: one block too many": old_ack([0, 1, 2]),
    "old: a block twice": old_ack([3, 3]),
    "old: an index just out of range": old_ack([0, REGION]),
    "old: an index far out of range": old_ack([0, (1 << 63) - 1]),
    "old: no descriptor": old_ack([0, 1], mem_descriptor=b""),
    "old: a damaged descriptor": old_ack([0, 1], mem_descriptor=b"\x92\x93\x01"),
    "old: another block size": old_ack(
        [0, 1], mem_descriptor=wire.mem_descriptor(BASE, REGION, BLOCK + 1)
    ),
    "old: blocks that overlap": old_ack(
        [0, 1], mem_descriptor=msgspec.msgpack.encode([(BASE, BLOCK, 0), (BASE + 1, BLOCK, 0)])
    ),
    "old: two devices": old_ack(
        [0, 1], mem_descriptor=msgspec.msgpack.encode([(BASE, BLOCK, 0), (BASE * 2, BLOCK, 1)])
    ),
    "old: negative address": old_ack(
        [0, 1], mem_descriptor=msgspec.msgpack.encode([(BASE, BLOCK, 0), (-BASE, BLOCK, 0)])
    ),
    "old: address null": old_ack(
        [0, 1], mem_descriptor=msgspec.msgpack.encode([(BASE, BLOCK, 0), (0, BLOCK, 0)])
    ),
    "old: rows of two": old_ack([0, 1], mem_descriptor=msgspec.msgpack.encode([(BASE, BLOCK)] * 2)),
    "both forms, the new one wrong": old_ack([0, 1], extents=[(0, 2)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_ack_that_contradicts_the_request_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.source_pieces(REFUSED[name], 30, BLOCK)
    assert caught.value.clause == "EC-8.3"


def test_the_device_of_an_old_ack_is_kept() -> None:
    table = msgspec.msgpack.encode([(BASE, BLOCK, 3), (BASE + BLOCK, BLOCK, 3)])
    pieces, device = wire.source_pieces(old_ack([1, 0], mem_descriptor=table), 30, BLOCK)
    assert (pieces, device) == (((BASE + BLOCK, BLOCK), (BASE, 14)), 3)


def test_the_smallest_and_the_exact_encoding() -> None:
    assert wire.source_pieces(new_ack([2], 1), 1, BLOCK)[0] == ((BASE + 2 * BLOCK, 1),)
    assert wire.source_pieces(new_ack([2], BLOCK), BLOCK, BLOCK)[0] == ((BASE + 2 * BLOCK, BLOCK),)


def test_an_old_region_need_not_be_one_piece() -> None:
    table = msgspec.msgpack.encode([(BASE * (i + 1), BLOCK, 0) for i in range(3)])
    pieces, _ = wire.source_pieces(old_ack([2, 0], mem_descriptor=table), 32, BLOCK)
    assert pieces == ((BASE * 3, BLOCK), (BASE, BLOCK))


@pytest.mark.clause("EC-8.3")
def test_an_old_ack_is_reduced_to_the_rows_it_names() -> None:
    table = wire.mem_descriptor(4096, 1000, 16)
    ack = wire.XferAck(
        mm_hash="a",
        status=0,
        src_block_indices=[7, 8, 999],
        mem_descriptor=table,
        agent_metadata=b"x",
    )
    small = wire.keep_named_rows(ack)
    assert len(small.mem_descriptor) < 40
    assert wire.source_pieces(small, 48, 16) == wire.source_pieces(ack, 48, 16)


@pytest.mark.clause("EC-8.3")
@pytest.mark.parametrize(
    ("indices", "table"),
    [
        ([1000], wire.mem_descriptor(4096, 1000, 16)),
        ([0], b"\xc1"),
        ([0], b"\x91" * 4000),
        ([0], b"\x91\x93\x01\x02\xff"),
    ],
)
def test_an_old_ack_whose_rows_cannot_be_had_is_refused(indices: list[int], table: bytes) -> None:
    ack = wire.XferAck(mm_hash="a", status=0, src_block_indices=indices, mem_descriptor=table)
    small = wire.keep_named_rows(ack)
    with pytest.raises(RemoteProtocolError):
        wire.source_pieces(small, 16, 16)


def test_other_acks_are_kept_as_they_are() -> None:
    nack = wire.XferAck(mm_hash="a", status=1)
    ours = wire.XferAck(mm_hash="a", status=0, extents=[(0, 1)], mem_descriptor=b"x")
    assert wire.keep_named_rows(nack) is nack
    assert wire.keep_named_rows(ours) is ours
