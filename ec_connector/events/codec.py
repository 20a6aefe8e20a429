# SPDX-License-Identifier: Apache-2.0
"""Event messages as they travel (EC-13.1): a topic, a number, and a msgpack map.

Unknown fields are ignored and unknown kinds of events passed on, so that either side
may be newer.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from ec_protocol.errors import RemoteProtocolError

#: Longest payload that a subscriber looks at.
MAX_PAYLOAD_BYTES: Final = 16 << 20
#: Instead of a number: nothing more is sent again.
END_OF_REPLAY: Final = b"\xff" * 8

_NUMBER: Final = struct.Struct(">Q")


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event.

    Attributes:
        event: ``stored``, ``evicted``, ``lost``, ``quarantined``, ``retired`` or
            ``recovered`` of one encoding; ``dropped``: ``count`` events are missing
            here; ``stopped``: the process ends, and all its encodings with it.
        mm_hash: The encoding.
        nbytes: Its bytes.
        shape: Rows × width, if known.
        count: Of ``dropped``.
    """

    event: str
    mm_hash: str = ""
    nbytes: int = 0
    shape: list[int] | None = None
    count: int = 0


class EventBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="EcEvents"):
    """One message.

    Attributes:
        version: Of this format.
        ts: When it was sent, seconds since 1970.
        engine_id: The server's ``engine_id``.
        incarnation: The process; another one after every start, with numbers from 0.
        host: Where consumers read from it; None if they cannot.
        port: Likewise.
        events: In the order in which they happened; none in a sign of life.
    """

    version: int = 1
    ts: float = 0.0
    engine_id: str = ""
    incarnation: str = ""
    host: str | None = None
    port: int | None = None
    events: list[Event] = []


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(EventBatch)


def encode(batch: EventBatch) -> bytes:
    """The payload of a message."""
    return _encoder.encode(batch)


def decode(payload: bytes) -> EventBatch:
    """The message of a payload.

    Raises:
        RemoteProtocolError: It is none.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"events: {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES}")
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"events: {exc}", clause="EC-13.1") from None


def pack_number(number: int) -> bytes:
    """A message's number as its frame."""
    return _NUMBER.pack(number)


def unpack_number(frame: bytes) -> int:
    """The number in a frame.

    Raises:
        RemoteProtocolError: It is not 8 bytes long.
    """
    if len(frame) != _NUMBER.size:
        raise RemoteProtocolError(f"events: a number of {len(frame)} bytes", clause="EC-13.1")
    number: int = _NUMBER.unpack(frame)[0]
    return number
