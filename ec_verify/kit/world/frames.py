# SPDX-License-Identifier: Apache-2.0
"""The kit's own reading and writing of messages.

On purpose not ``ec_protocol.p2p.wire``: the kit must not share that module's mistakes.
Plain maps in and out, so that a case can leave out, add or spoil any field.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

STATUSES: Final = {
    "OK": 0,
    "NACK_MISSING": 1,
    "NACK_INCOMPAT": 2,
    "NACK_VERSION": 3,
    "NACK_INTERNAL": 4,
    "NACK_NOT_READY": 5,
}
STATUS_NAMES: Final = {number: name for name, number in STATUSES.items()}
#: Fields of the extended form (EC-8.7): who has sent one of them knows them all.
OPTIONAL: Final = frozenset(
    {
        "attempt_id",
        "lease_s",
        "incarnation",
        "base_addr",
        "block_size",
        "extents",
        "nbytes",
        "encoder_hash",
        "checksum",
    }
)


class FrameError(Exception):
    """A frame that is no message; the implementation must not have sent it."""


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as a msgpack map."""
    return msgspec.msgpack.encode(message)


def decode(frames: list[str]) -> dict[str, Any]:
    """The map in ``["", payload]`` (hex).

    Raises:
        FrameError: Anything else.
    """
    if len(frames) != 2 or frames[0] != "":
        raise FrameError(f"expected [empty, payload], got {len(frames)} frames")
    try:
        message = msgspec.msgpack.decode(bytes.fromhex(frames[1]))
    except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
        raise FrameError(f"not msgpack: {exc}") from exc
    if not isinstance(message, dict) or message.get("type") not in ("req", "ack"):
        raise FrameError(f"no message: {message!r:.200}")
    return message


def extended(raw: list[str]) -> bool:
    """Whether it is a message with a field of the extended form."""
    try:
        return not OPTIONAL.isdisjoint(decode(raw))
    except FrameError:
        return False


def descriptor(base: int, blocks: int, block_size: int) -> bytes:
    """The old form's description of a region."""
    return msgspec.msgpack.encode([[base + i * block_size, block_size, 0] for i in range(blocks)])


def pieces(ack: Mapping[str, Any], block_size: int) -> list[tuple[int, int]]:
    """``(address, bytes)`` of the whole blocks that an OK ack names, in either form.

    Raises:
        FrameError: They cannot be had.
    """
    try:
        if ack.get("extents"):
            base = ack["base_addr"]
            size = ack["block_size"]
            return [(base + start * size, count * size) for start, count in ack["extents"]]
        table = msgspec.msgpack.decode(ack["mem_descriptor"])
        return [(table[i][0], table[i][1]) for i in ack["src_block_indices"]]
    except (KeyError, IndexError, TypeError, ValueError, msgspec.MsgspecError) as exc:
        raise FrameError(f"an OK ack without usable blocks: {exc}") from exc


def compat_hash(facts: Mapping[str, Any]) -> str:
    """EC-8.4, written down once more."""
    row = [facts[k] for k in ("vllm_version", "model", "dtype", "block_size_bytes")]
    return hashlib.sha256(json.dumps(row, separators=(",", ":")).encode()).hexdigest()


def damaged(payload: bytes, seed: int, rounds: int) -> Iterator[bytes]:
    """The payload with bytes changed, left out, put in, repeated or cut off, many times."""
    dice = random.Random(seed)
    for _ in range(rounds):
        data = bytearray(payload)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            at = dice.randrange(len(data))
            match dice.randrange(6):
                case 0:
                    data[at] ^= 1 << dice.randrange(8)
                case 1:
                    data[at] = dice.choice((0x00, 0x7F, 0x80, 0xC1, 0xD9, 0xDB, 0xDF, 0xFF))
                case 2 if len(data) > 1:
                    del data[at]
                case 3:
                    data.insert(at, dice.randrange(256))
                case 4:
                    data[at:at] = data[at : at + dice.randrange(1, 16)]
                case _ if len(data) > 1:
                    del data[max(1, at) :]
        yield bytes(data)


def notice(session: str, mm_hash: str) -> bytes:
    """EC-8.6."""
    return f"{session}:{mm_hash}".encode()


def content(mm_hash: str, nbytes: int) -> bytes:
    """The encoding that a name stands for: different for every name, at every offset."""
    return hashlib.shake_128(mm_hash.encode()).digest(nbytes)
