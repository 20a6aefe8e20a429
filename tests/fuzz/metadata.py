# SPDX-License-Identifier: Apache-2.0
"""Agent metadata as NIXL writes it, field by field."""

from __future__ import annotations

import struct

KEY = bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255])


def field(tag: str, payload: bytes) -> bytes:
    return tag.encode() + struct.pack("<Q", len(payload)) + payload + b"|"


def number(tag: str, value: int) -> bytes:
    return field(tag, struct.pack("<Q", value))


def memory(address: int = 4096, nbytes: int = 65536, device: int = 0, key: bytes = KEY) -> bytes:
    return field("", struct.pack("<QQQ", address, nbytes, device) + key)


def blob(
    *,
    name: bytes = b"peer",
    conns: tuple[tuple[bytes, bytes], ...] = ((b"UCX", b"\x20address"),),
    ranges: tuple[bytes, ...] = (memory(),),
    kind: int = 0,
) -> bytes:
    return (
        b"nixlSerDes|"
        + field("Agent", name)
        + number("Conns", len(conns))
        + b"".join(field("t", backend) + field("c", address) for backend, address in conns)
        + field("", b"MemSection")
        + number("nixlSecElms", 1)
        + field("bknd", b"UCX")
        + field("nixlDList", b"nixlSDList")
        + field("t", struct.pack("<I", kind))
        + number("n", len(ranges))
        + b"".join(ranges)
    )


def agent_metadata() -> list[bytes]:
    """Some that are sound."""
    ranges = (memory(), memory(1 << 40, 8, 3))
    return [blob(), blob(ranges=ranges), blob(conns=((b"UCX", b"\x20a"), (b"POSIX", b"b")))]
