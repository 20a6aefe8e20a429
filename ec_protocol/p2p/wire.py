# SPDX-License-Identifier: Apache-2.0
"""The messages of the control plane and their strict decoding (EC-8).

The only core module that imports ``msgspec``; it is imported only behind the
peer-to-peer gate. Messages are msgpack maps with a ``type`` tag; fields at their
default are left out; unknown fields are ignored, which is how new facts travel
past old peers. Every bound below is checked while decoding, before anything else
sees the message; a violation is a ``RemoteProtocolError`` and the frame is
dropped and counted.

Frames: a consumer's DEALER sends ``[b"", payload]``; a producer's ROUTER
receives ``[identity, b"", payload]`` and answers in the same shape. The decode
functions take what follows the identity.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from ec_protocol.errors import RemoteProtocolError
from ec_protocol.items import MAX_HASH_CHARS
from ec_protocol.tier.extents import Extents

#: Versions of the wire that a producer serves.
VERSIONS: Final = (1, 2)
#: What a consumer asks with, and what it falls back to once on NACK_VERSION.
PREFERRED_VERSION: Final = 2
FALLBACK_VERSION: Final = 1

MAX_SESSION_CHARS: Final = 256
MAX_METADATA_BYTES: Final = 1 << 20
MAX_EXTENTS: Final = 4096
MAX_BLOCK_INDICES: Final = 1 << 20
MAX_REQUEST_BYTES: Final = 16 << 10
#: Old producers describe every block of their region in every ack.
MAX_ACK_BYTES: Final = 128 << 20
MAX_U63: Final = (1 << 63) - 1

_Hash = Annotated[str, Meta(min_length=1, max_length=MAX_HASH_CHARS)]
_Session = Annotated[str, Meta(max_length=MAX_SESSION_CHARS)]
_Short = Annotated[str, Meta(max_length=128)]
_Natural = Annotated[int, Meta(ge=0, le=MAX_U63)]


class XferStatus(enum.IntEnum):
    """The producer's answer to an XferReq. Numbers as on the wire."""

    OK = 0
    NACK_MISSING = 1
    NACK_INCOMPAT = 2
    NACK_VERSION = 3
    NACK_INTERNAL = 4
    NACK_NOT_READY = 5


#: The only answers after which the same encoding is asked for again (EC-8.5).
RETRYABLE_NACKS: Final = frozenset({XferStatus.NACK_NOT_READY})


class XferReq(msgspec.Struct, tag="req", omit_defaults=True, frozen=True):
    """Consumer to producer: pin ``mm_hash`` for this attempt and say where it is.

    Attributes:
        mm_hash: The encoding's name.
        compatibility_hash: ``compatibility_hash()`` of the consumer.
        session_id: Names consumer *and attempt*; echoed, and part of the notice.
        connector_version: 0 when left out: a peer that speaks only one version
            leaves its own out.
        attempt_id: The attempt; present exactly when the peer reads extents.
        incarnation: The consumer process's own number.
        encoder_hash: What else decides the consumer's encodings; see ``Terms``.
        checksum: Name of the checksum that it demands.
    """

    mm_hash: _Hash
    compatibility_hash: _Short
    session_id: _Session = ""
    connector_version: _Natural = 0
    attempt_id: _Natural | None = None
    incarnation: _Short = ""
    encoder_hash: _Short = ""
    checksum: _Short = ""


class XferAck(msgspec.Struct, tag="ack", omit_defaults=True, frozen=True):
    """Producer to consumer: where the bytes are, or why not.

    Attributes:
        mm_hash: Echoed.
        status: An ``XferStatus`` number; unknown ones count as refusals.
        session_id: Echoed.
        src_block_indices: Old form: indices into ``mem_descriptor``.
        agent_metadata: NIXL metadata of the producer's agent.
        mem_descriptor: Old form: msgpack list of (address, bytes, device id), one
            per block of the region.
        attempt_id: Echoed.
        lease_s: How long the grant is kept, seconds since the ack was made.
        incarnation: The producer process's own number.
        base_addr: New form: address of block 0.
        block_size: New form: bytes of a block.
        extents: New form: [start, count] in blocks, in the order of the bytes.
        nbytes: New form: bytes of the encoding.
        encoder_hash: New form: what else decides the producer's encodings; see ``Terms``.
        checksum: New form: of the encoding's bytes, behind its name and a colon (EC-8.11).
    """

    mm_hash: _Hash
    status: Annotated[int, Meta(ge=0, le=255)]
    session_id: _Session = ""
    src_block_indices: Annotated[list[_Natural], Meta(max_length=MAX_BLOCK_INDICES)] = []
    agent_metadata: Annotated[bytes, Meta(max_length=MAX_METADATA_BYTES)] = b""
    mem_descriptor: bytes = b""
    attempt_id: _Natural | None = None
    lease_s: Annotated[float, Meta(ge=0, le=86400)] | None = None
    incarnation: _Short = ""
    base_addr: _Natural = 0
    block_size: _Natural = 0
    extents: Annotated[list[tuple[_Natural, _Natural]], Meta(max_length=MAX_EXTENTS)] = []
    nbytes: _Natural = 0
    encoder_hash: _Short = ""
    checksum: _Short = ""


_encoder: Final = msgspec.msgpack.Encoder()
# Of a union msgspec demands the tag; of a single struct it lets the tag be left out.
_decoder: Final = msgspec.msgpack.Decoder(XferReq | XferAck)
_descriptor_decoder: Final = msgspec.msgpack.Decoder(list[tuple[_Natural, _Natural, _Natural]])


def encode(message: XferReq | XferAck) -> bytes:
    """The payload of a message, in the shortest form of its map."""
    data = _encoder.encode(message)
    # By the fields that there may be the encoder takes the head of a long map.
    if data[0] == 0xDE and data[1] == 0 and data[2] < 16:
        return bytes((0x80 | data[2],)) + data[3:]
    return data


_Message = TypeVar("_Message", XferReq, XferAck)


def _decode(frames: Sequence[bytes], kind: type[_Message], limit: int) -> _Message:
    what = kind.__name__
    if len(frames) != 2 or frames[0] != b"":
        raise RemoteProtocolError(
            f"{what}: expected [empty, payload], got {len(frames)} frames", clause="EC-8.1"
        )
    if len(frames[1]) > limit:
        raise RemoteProtocolError(
            f"{what}: {len(frames[1])} bytes, at most {limit} are allowed", clause="EC-8.1"
        )
    try:
        message = _decoder.decode(frames[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"{what}: {exc}", clause="EC-8.1") from exc
    if not isinstance(message, kind):
        other = message.__struct_config__.tag
        raise RemoteProtocolError(f"{what}: the type is {other!r}", clause="EC-8.1")
    return message


def decode_request(frames: Sequence[bytes]) -> XferReq:
    """Decode ``[b"", payload]`` as an XferReq.

    Raises:
        RemoteProtocolError: Not exactly that, or out of bounds.
    """
    return _decode(frames, XferReq, MAX_REQUEST_BYTES)


def decode_ack(frames: Sequence[bytes]) -> XferAck:
    """Decode ``[b"", payload]`` as an XferAck.

    Raises:
        RemoteProtocolError: Not exactly that, or out of bounds.
    """
    ack = _decode(frames, XferAck, MAX_ACK_BYTES)
    if ack.lease_s is not None and not math.isfinite(ack.lease_s):
        raise RemoteProtocolError(f"XferAck: lease_s={ack.lease_s}: not finite", clause="EC-8.1")
    return ack


def notice(session_id: str, mm_hash: str) -> bytes:
    """The completion notice of an attempt; surrogates are rejected by decoding before."""
    return f"{session_id}:{mm_hash}".encode()


def mem_descriptor(base_addr: int, num_blocks: int, block_size: int) -> bytes:
    """The old form's description of a whole region: grows with the region."""
    return _encoder.encode([(base_addr + i * block_size, block_size, 0) for i in range(num_blocks)])


def keep_named_rows(ack: XferAck) -> XferAck:
    """Reduce an old-form ack to the rows of ``mem_descriptor`` that it names.

    The description of a whole region takes long to decode, so it is done
    before anything else. An ack whose rows cannot be had is returned without a
    description, and ``source_pieces`` refuses it.
    """
    if ack.extents or not ack.mem_descriptor:
        return ack
    try:
        table = _descriptor_decoder.decode(ack.mem_descriptor)
        rows = [table[index] for index in ack.src_block_indices]
    except (msgspec.MsgspecError, RecursionError, IndexError):
        return msgspec.structs.replace(ack, mem_descriptor=b"")
    return msgspec.structs.replace(
        ack, src_block_indices=list(range(len(rows))), mem_descriptor=_encoder.encode(rows)
    )


Pieces = tuple[tuple[int, int], ...]


def source_pieces(ack: XferAck, nbytes: int, block_size: int) -> tuple[Pieces, int]:
    """Where the bytes of an OK ack are, in either form, checked against the request.

    Args:
        ack: The ack.
        nbytes: Bytes of the encoding that we asked for.
        block_size: Our block size; the compatibility hash made it the peer's too.

    Returns:
        ``(address, bytes)`` pieces that add up to ``nbytes``, neighbours merged,
        and the NIXL device id.

    Raises:
        RemoteProtocolError: Wrong counts, sizes, indices or overlaps: nothing of
            the ack is used.
    """
    count = -(-nbytes // block_size)
    device = 0
    runs: list[tuple[int, int]]
    if ack.extents:
        if ack.block_size != block_size:
            raise _unusable(f"block_size {ack.block_size}, ours is {block_size}")
        if ack.nbytes != nbytes:
            raise _unusable(f"nbytes {ack.nbytes}, we asked for {nbytes}")
        runs = [
            (ack.base_addr + start * block_size, blocks * block_size)
            for start, blocks in ack.extents
        ]
        if any(size <= 0 for _, size in runs):
            raise _unusable("an empty extent")
    else:
        if len(ack.src_block_indices) != count:
            raise _unusable(f"{len(ack.src_block_indices)} blocks, {nbytes} bytes take {count}")
        try:
            table = _descriptor_decoder.decode(ack.mem_descriptor)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise _unusable(f"mem_descriptor: {exc}") from exc
        runs = []
        for index in ack.src_block_indices:
            if index >= len(table):
                raise _unusable(f"block index {index}, the region has {len(table)} blocks")
            addr, size, dev = table[index]
            if size != block_size:
                raise _unusable(f"a block of {size} bytes, ours have {block_size}")
            if runs and dev != device:
                raise _unusable("blocks on more than one device")
            device = dev
            runs.append((addr, size))
    if sum(size for _, size in runs) != count * block_size:
        raise _unusable(f"{sum(size for _, size in runs)} bytes, {count * block_size} expected")
    _check_disjoint(runs)
    pieces = _merge(runs)
    # The tail of the last block is not part of the encoding.
    last_addr, last_size = pieces[-1]
    pieces[-1] = (last_addr, last_size - (count * block_size - nbytes))
    return tuple(pieces), device


def _unusable(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"XferAck: {what}", clause="EC-8.3")


def _check_disjoint(runs: list[tuple[int, int]]) -> None:
    end = 0
    for addr, size in sorted(runs):
        if addr <= 0 or addr < end:
            raise _unusable("overlapping or null source blocks")
        end = addr + size
        if end > MAX_U63:
            raise _unusable("source blocks beyond the address space")


def _merge(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for addr, size in runs:
        if merged and merged[-1][0] + merged[-1][1] == addr:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((addr, size))
    return merged


def local_pieces(extents: Extents, nbytes: int, block_size: int) -> Pieces:
    """``(byte offset, bytes)`` pieces of an entry in its own region."""
    pieces = []
    for start, count in extents:
        size = min(count * block_size, nbytes)
        if size > 0:
            pieces.append((start * block_size, size))
        nbytes -= size
    return tuple(pieces)


def pair_pieces(left: Pieces, right: Pieces) -> tuple[Pieces, Pieces]:
    """Cut two descriptions of equally many bytes at each other's borders.

    Returns:
        Both, with equally many pieces of pairwise equal size: at most
        ``len(left) + len(right) - 1`` of them.
    """
    a, b = list(left), list(right)
    out_a: list[tuple[int, int]] = []
    out_b: list[tuple[int, int]] = []
    i = j = used_a = used_b = 0
    while i < len(a) and j < len(b):
        size = min(a[i][1] - used_a, b[j][1] - used_b)
        out_a.append((a[i][0] + used_a, size))
        out_b.append((b[j][0] + used_b, size))
        used_a += size
        used_b += size
        if used_a == a[i][1]:
            i, used_a = i + 1, 0
        if used_b == b[j][1]:
            j, used_b = j + 1, 0
    return tuple(out_a), tuple(out_b)


def compatibility_hash(vllm_version: str, model: str, dtype: str, block_size_bytes: int) -> str:
    """SHA-256, hex, over the four facts that decide whether bytes mean the same (EC-8.4)."""
    facts = json.dumps([vllm_version, model, dtype, block_size_bytes], separators=(",", ":"))
    return hashlib.sha256(facts.encode()).hexdigest()
