# SPDX-License-Identifier: Apache-2.0
"""Strict reading of a peer's agent metadata, before the library sees a byte of it.

NIXL deserialises metadata without bounds of its own: a damaged length or count makes
it abort or read past the end. With NIXL 1.5.1 and UCX 1.2x, of blobs with a few
flipped bits about one in sixty killed the process (SIGSEGV or SIGABRT). Everything
outside the two parts that only UCX understands is therefore parsed here, and those two
are checked as far as their layout is fixed: a worker address begins with a version
nibble (UCX aborts on an unknown one; with it checked, sixty of sixty addresses of
random bytes were refused cleanly), and a packed remote key with a device map and a
memory type (UCX indexes a table with it).

What is left: a peer that *forges* the inner UCX address with care can still crash the
process that reads from it, as with any user of UCX. Only authenticating peers closes
that; an accident does not get here.

The layout is the same in NIXL 1.3 to 1.5: ``nixlSerDes|`` and then fields of tag,
64-bit length, payload and ``|``. ``NixlReader`` parses its own agent's metadata first:
if a future NIXL writes another layout, the check is switched off with a warning instead
of refusing every peer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from ec_connector.network.data.base import MAX_AGENT_NAME_BYTES, BadAgentMetadata
from ec_protocol.p2p.wire import MAX_METADATA_BYTES

DRAM: Final = 0

_MAGIC: Final = b"nixlSerDes|"
_U64: Final = struct.Struct("<Q")
_RANGE: Final = struct.Struct("<QQQ")
_MAX_BACKENDS: Final = 16
_MAX_RANGES: Final = 4096
_MAX_BACKEND_NAME: Final = 64
#: Low nibble of a worker address's first byte: UCX knows versions 0 and 1.
_UCX_MAX_VERSION: Final = 1
#: A packed remote key: device map (8 bytes), memory type, then per-device keys.
_UCX_KEY_HEADER: Final = 9
_UCX_MAX_MEM_TYPE: Final = 15


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """One registered piece of a peer's memory.

    Attributes:
        backend: NIXL backend that registered it.
        kind: NIXL memory type; 0 is DRAM.
        address: Its first byte.
        nbytes: Its length.
        device_id: NIXL device id.
    """

    backend: str
    kind: int
    address: int
    nbytes: int
    device_id: int


@dataclass(frozen=True, slots=True)
class AgentMetadata:
    """What the metadata says, as far as it is ours to know.

    Attributes:
        name: The agent's name; unique per agent, in NIXL's view.
        backends: Backends that the agent can be reached through.
        ranges: Memory that may be read.
    """

    name: str
    backends: tuple[str, ...]
    ranges: tuple[MemoryRange, ...]

    def check_covers(self, address: int, nbytes: int, device_id: int) -> None:
        """Refuse a READ of memory that the agent did not offer.

        Raises:
            BadAgentMetadata: No single range holds all of it.
        """
        for item in self.ranges:
            inside = item.address <= address and address + nbytes <= item.address + item.nbytes
            if inside and item.kind == DRAM and item.device_id == device_id:
                return
        raise BadAgentMetadata(
            f"agent {self.name!r} has not registered [{address:#x}, {address + nbytes:#x}) "
            f"of device {device_id}"
        )


def parse_agent_metadata(blob: bytes) -> AgentMetadata:
    """Parse and check agent metadata.

    Args:
        blob: As it came in an ack.

    Raises:
        BadAgentMetadata: It is not exactly one well-formed description of an agent.
    """
    if len(blob) > MAX_METADATA_BYTES:
        raise BadAgentMetadata(f"{len(blob)} bytes, at most {MAX_METADATA_BYTES} are allowed")
    cursor = _Cursor(blob)
    name = _text(cursor.field(b"Agent", MAX_AGENT_NAME_BYTES), "agent name")
    backends = []
    for _ in range(cursor.count(b"Conns", _MAX_BACKENDS)):
        backend = _text(cursor.field(b"t", _MAX_BACKEND_NAME), "backend name")
        address = cursor.field(b"c", MAX_METADATA_BYTES)
        if backend == "UCX" and address[0] & 0x0F > _UCX_MAX_VERSION:
            raise BadAgentMetadata(f"UCX address of unknown version {address[0] & 0x0F}")
        backends.append(backend)
    if not backends or len(set(backends)) != len(backends):
        raise BadAgentMetadata(f"backends {backends}: none, or one twice")
    if cursor.field(b"", 16) != b"MemSection":
        raise BadAgentMetadata("no MemSection where one belongs")
    ranges: list[MemoryRange] = []
    for _ in range(cursor.count(b"nixlSecElms", _MAX_BACKENDS)):
        ranges += _section(cursor)
    cursor.finish()
    if not ranges:
        raise BadAgentMetadata("no registered memory")
    return AgentMetadata(name, tuple(backends), tuple(ranges))


def _section(cursor: _Cursor) -> list[MemoryRange]:
    backend = _text(cursor.field(b"bknd", _MAX_BACKEND_NAME), "backend name")
    if cursor.field(b"nixlDList", 16) != b"nixlSDList":
        raise BadAgentMetadata("a memory section of another kind than expected")
    kind = int.from_bytes(cursor.exactly(b"t", 4), "little")
    found = []
    for _ in range(cursor.count(b"n", _MAX_RANGES)):
        entry = cursor.field(b"", MAX_METADATA_BYTES)
        if len(entry) < _RANGE.size:
            raise BadAgentMetadata(f"a memory range of {len(entry)} bytes")
        address, nbytes, device_id = _RANGE.unpack_from(entry)
        if not nbytes or address + nbytes > 1 << 64:
            raise BadAgentMetadata(f"a memory range of {nbytes} bytes at {address:#x}")
        key = entry[_RANGE.size :]
        if backend == "UCX" and (
            len(key) < _UCX_KEY_HEADER or key[_UCX_KEY_HEADER - 1] > _UCX_MAX_MEM_TYPE
        ):
            raise BadAgentMetadata("a malformed UCX remote key")
        found.append(MemoryRange(backend, kind, address, nbytes, device_id))
    return found


def _text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as exc:
        raise BadAgentMetadata(f"{what}: {exc}") from None
    if not text.isprintable():
        raise BadAgentMetadata(f"{what} {text!r}: unprintable characters")
    return text


class _Cursor:
    """Reads fields one after the other and never past the end."""

    def __init__(self, blob: bytes) -> None:
        if not blob.startswith(_MAGIC):
            raise BadAgentMetadata("not NIXL agent metadata")
        self._blob = blob
        self._at = len(_MAGIC)

    def field(self, tag: bytes, limit: int) -> bytes:
        """The payload, 1 to ``limit`` bytes, of the next field, which must be ``tag``."""
        start = self._at + len(tag) + _U64.size
        if self._blob[self._at : self._at + len(tag)] != tag or start > len(self._blob):
            raise BadAgentMetadata(f"field {tag.decode()!r} expected at byte {self._at}")
        (size,) = _U64.unpack_from(self._blob, start - _U64.size)
        end = start + size
        if not 0 < size <= limit or end >= len(self._blob) or self._blob[end : end + 1] != b"|":
            raise BadAgentMetadata(f"field {tag.decode()!r} at byte {self._at}: bad length {size}")
        self._at = end + 1
        return self._blob[start:end]

    def exactly(self, tag: bytes, size: int) -> bytes:
        """As ``field``, of exactly ``size`` bytes."""
        payload = self.field(tag, size)
        if len(payload) != size:
            raise BadAgentMetadata(f"field {tag.decode()!r}: {len(payload)} bytes, not {size}")
        return payload

    def count(self, tag: bytes, limit: int) -> int:
        """A 64-bit count of at most ``limit``."""
        (number,) = _U64.unpack(self.exactly(tag, _U64.size))
        if number > limit:
            raise BadAgentMetadata(f"field {tag.decode()!r}: {number}, at most {limit} are allowed")
        return int(number)

    def finish(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._blob):
            raise BadAgentMetadata(f"{len(self._blob) - self._at} bytes too many")
