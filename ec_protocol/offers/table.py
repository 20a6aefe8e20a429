# SPDX-License-Identifier: Apache-2.0
"""The table of offers and the ledger: two arrays in memory that two processes share.

The *table* says which entries there are. The engine alone writes it::

    header   64 bytes   "ECOFFER1", slots, bytes of a record, a key for hashing names
    hashes   8 bytes    per slot: hash of the name, 0 while the slot is closed
    records  2.5 KiB    per slot: state, length of the encoding, extents, name

The *ledger* says until when a grant needs an entry. The server alone writes it::

    header   64 bytes   "ECLEDGE1", slots
    ends     8 bytes    per slot: end of the latest lease, seconds of the common clock

A name is looked for in the ``PROBES`` slots from its hash on, so the table needs neither
an index nor messages, and a server that has just started knows everything. A slot is
read and written under its lock only (EC-14.2); the hashes, which are looked at without
one, are a hint. The lock is also what orders the memory of the two processes: a kernel
gives and takes it.

Everything here is arithmetic on a buffer; what the buffer and the locks are is the
caller's business. Names and their hashes: EC-14.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tier.extents import Extents

#: Slots from the hash of a name on in which it may stand.
PROBES: Final = 32
#: Longest name of an entry, in bytes of UTF-8: as many as a name on the wire can have.
MAX_NAME_BYTES: Final = 2048
#: Most extents of an entry that can be offered.
MAX_EXTENTS: Final = 60
#: Most slots of a table, whatever the region's size.
MAX_SLOTS: Final = 1 << 16

_HEADER: Final = struct.Struct("<8sII16s32x")
_RECORD: Final = struct.Struct("<BxHHxxQ")
RECORD_BYTES: Final = 2560
_TABLE: Final = b"ECOFFER1"
_LEDGER: Final = b"ECLEDGE1"

#: States as a record has them; a closed slot is all zeros.
_STATES: Final = ("closed", "coming", "open")


class SlotLocks(Protocol):
    """The locks of the slots, which the kernel takes from a process that ends (EC-14.3)."""

    def acquire(self, slot: int) -> bool:
        """Try to take the lock of a slot; never waits."""

    def release(self, slot: int) -> None:
        """Let it go."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a slot says.

    Attributes:
        state: State of the offer lifecycle.
        mm_hash: Name of the encoding.
        nbytes: Its length.
        extents: ``(start, count)`` in blocks.
    """

    state: str
    mm_hash: str
    nbytes: int
    extents: Extents

    @property
    def num_blocks(self) -> int:
        """Blocks that it takes."""
        return sum(count for _, count in self.extents)


def slots_for(num_blocks: int) -> int:
    """Slots of the table of a region: at most half of them are ever taken, if it is small."""
    return min(MAX_SLOTS, max(2 * PROBES, 1 << (2 * num_blocks - 1).bit_length()))


def table_bytes(slots: int) -> int:
    """Length of the table; a page of it takes memory once it is used."""
    return _HEADER.size + slots * (8 + RECORD_BYTES)


def ledger_bytes(slots: int) -> int:
    """Length of the ledger."""
    return _HEADER.size + slots * 8


def format_table(buffer: memoryview, slots: int, key: bytes) -> None:
    """Write the header of an empty table; the buffer is all zeros (engine)."""
    _HEADER.pack_into(buffer, 0, _TABLE, slots, RECORD_BYTES, key)


def format_ledger(buffer: memoryview, slots: int) -> None:
    """Write the header of an empty ledger; the buffer is all zeros (engine, once)."""
    _HEADER.pack_into(buffer, 0, _LEDGER, slots, 8, b"")


def _read_header(buffer: memoryview, magic: bytes, record: int, length: int) -> tuple[int, bytes]:
    if len(buffer) < _HEADER.size:
        raise LocalProtocolError(f"{len(buffer)} bytes: too short for a header", clause="EC-14.2")
    found, slots, size, key = _HEADER.unpack_from(buffer, 0)
    if found != magic or size != record or slots < PROBES:
        raise LocalProtocolError(
            f"header {found!r}, {slots} slots of {size} bytes: expected {magic!r}, {record} bytes; "
            "both processes must run the same version",
            clause="EC-14.2",
        )
    if len(buffer) < _HEADER.size + slots * length:
        raise LocalProtocolError(
            f"{len(buffer)} bytes: too short for {slots} slots", clause="EC-14.2"
        )
    return slots, key


class OfferTable:
    """The table over a buffer that ``format_table`` was called on.

    Args:
        buffer: Writable for the engine, read-only for a server.

    Raises:
        LocalProtocolError: The buffer has no table of this form.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.slots, self._key = _read_header(buffer, _TABLE, RECORD_BYTES, 8 + RECORD_BYTES)
        start, middle = _HEADER.size, _HEADER.size + 8 * self.slots
        self._hashes = buffer[start:middle].cast("Q")
        self._records = buffer[middle : middle + self.slots * RECORD_BYTES]

    def hash_of(self, mm_hash: str) -> int:
        """Where to look for a name; keyed, since names may be a client's own."""
        digest = blake2b(mm_hash.encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") or 1

    def places(self, wanted: int, of: int) -> Iterator[int]:
        """Slots near ``of`` whose hash is ``wanted``; 0 finds closed ones. Without a lock."""
        hashes, slots = self._hashes, self.slots
        first = of % slots
        for place in range(first, first + PROBES):
            slot = place % slots
            if hashes[slot] == wanted:
                yield slot

    def read(self, slot: int) -> Record | None:
        """What a slot says, under its lock; None when it says nothing that makes sense."""
        base = slot * RECORD_BYTES
        state, name_bytes, extents, nbytes = _RECORD.unpack_from(self._records, base)
        if not 0 < state < len(_STATES) or name_bytes > MAX_NAME_BYTES or extents > MAX_EXTENTS:
            return None
        at = base + _RECORD.size
        pairs = struct.unpack_from(f"<{2 * extents}I", self._records, at)
        at += 8 * extents
        try:
            name = bytes(self._records[at : at + name_bytes]).decode()
        except UnicodeDecodeError:
            return None
        return Record(
            _STATES[state], name, nbytes, tuple(zip(pairs[::2], pairs[1::2], strict=True))
        )

    def write(self, slot: int, state: str, mm_hash: str, nbytes: int, extents: Extents) -> None:
        """Fill a closed slot, under its lock (engine)."""
        name = mm_hash.encode()
        base = slot * RECORD_BYTES
        flat = [number for extent in extents for number in extent]
        at = base + _RECORD.size
        struct.pack_into(f"<{len(flat)}I{len(name)}s", self._records, at, *flat, name)
        head = (_STATES.index(state), len(name), len(extents), nbytes)
        _RECORD.pack_into(self._records, base, *head)
        self._hashes[slot] = self.hash_of(mm_hash)

    def set_state(self, slot: int, state: str) -> None:
        """Move a slot on, under its lock (engine)."""
        self._records[slot * RECORD_BYTES] = _STATES.index(state)
        if state == "closed":
            self._hashes[slot] = 0


class Ledger:
    """The ledger over a buffer that ``format_ledger`` was called on.

    Args:
        buffer: Writable for the server; the engine only reads.

    Raises:
        LocalProtocolError: The buffer has no ledger of this form.
    """

    def __init__(self, buffer: memoryview) -> None:
        self.slots, _ = _read_header(buffer, _LEDGER, 8, 8)
        start = _HEADER.size
        self._ends = buffer[start : start + 8 * self.slots].cast("d")

    def needed_until(self, slot: int) -> float:
        """End of the latest lease on a slot."""
        return self._ends[slot]

    def need(self, slot: int, until: float) -> None:
        """Write it (server)."""
        self._ends[slot] = until

    def outstanding(self, now: float, lease_s: float) -> dict[int, float]:
        """Slots whose lease has not ended, and its end, which no later one can be true."""
        latest = now + lease_s
        ends = enumerate(self._ends.tolist())
        return {slot: min(end, latest) for slot, end in ends if end > now}
