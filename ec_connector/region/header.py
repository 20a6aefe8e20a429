# SPDX-License-Identifier: Apache-2.0
"""The trailer page by which a region file is known.

It lies *behind* the blocks, so that block 0 is at offset 0 of the file. All of it
is written before the file has a name, and a checksum covers it; only the state
word at the very end changes later.

    offset  bytes  field
    0       16     magic
    16      4      layout version
    20      4      CRC-32 of bytes 24 to 4092
    24      8      block_size_bytes
    32      8      num_blocks
    40      4      dp_rank
    44      4      pid of the creator (for messages only)
    48      16     nonce: one start of one instance
    64      16     identity: drawn at random for this file alone
    80      36     boot id (for messages only)
    116     2      length of the instance id
    118     128    instance id, ASCII
    4092    4      state word: 1 live, 2 draining

Integers are little-endian.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from ec_connector.region.errors import RegionArgumentError

MAGIC: Final = b"\x89vllm-ec-region\n"
LAYOUT_VERSION: Final = 2
TRAILER_BYTES: Final = 4096
NONCE_BYTES: Final = 16
IDENTITY_BYTES: Final = 16
MAX_ID_LENGTH: Final = 128

STATE_LIVE: Final = 1
STATE_DRAINING: Final = 2

_FIXED: Final = struct.Struct("<16sII")
_FIELDS: Final = struct.Struct("<QQII16s16s36sH128s")
_STATE: Final = struct.Struct("<I")
_STATE_AT: Final = TRAILER_BYTES - _STATE.size

# Names travel into paths: no separator, no control character, no surprise.
_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]+")


def region_name(instance_id: str, dp_rank: int) -> str:
    """The file name of a region.

    Raises:
        RegionArgumentError: The id or the rank cannot be part of a name.
    """
    if not isinstance(instance_id, str) or not _ID_PATTERN.fullmatch(instance_id):
        raise RegionArgumentError(
            "vllm_ec_*",
            f"instance_id={instance_id!r}: use one or more of the characters A-Z a-z 0-9 . _ -",
        )
    if len(instance_id) > MAX_ID_LENGTH:
        raise RegionArgumentError(
            "vllm_ec_*",
            f"instance_id has {len(instance_id)} characters: use at most {MAX_ID_LENGTH}",
        )
    if isinstance(dp_rank, bool) or not isinstance(dp_rank, int) or not 0 <= dp_rank < 2**31:
        raise RegionArgumentError(
            "vllm_ec_*", f"dp_rank={dp_rank!r}: expected an integer from 0 to 2147483647"
        )
    return f"vllm_ec_{instance_id}_dp{dp_rank}.mmap"


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """What the trailer says; also what a process asks for.

    Attributes:
        instance_id: Id of the engine instance.
        dp_rank: Its data-parallel rank.
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.
        nonce: ``NONCE_BYTES`` bytes that tell two starts of one id apart.
        identity: ``IDENTITY_BYTES`` bytes that tell two files apart, also those of one
            start (EC-10.7).
        creator_pid: Process that made the file, in its own pid namespace.
        boot_id: Boot of the kernel under which it was made.
    """

    instance_id: str
    dp_rank: int
    num_blocks: int
    block_size_bytes: int
    nonce: bytes
    identity: bytes
    creator_pid: int
    boot_id: str

    @property
    def data_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_size_bytes

    @property
    def trailer_at(self) -> int:
        """File offset of the trailer: the blocks, rounded up to a page."""
        return -(-self.data_bytes // TRAILER_BYTES) * TRAILER_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.trailer_at + TRAILER_BYTES

    @property
    def geometry(self) -> tuple[int, int]:
        """``(num_blocks, block_size_bytes)``."""
        return self.num_blocks, self.block_size_bytes

    def pack(self) -> bytes:
        """The trailer page, in state live."""
        page = bytearray(TRAILER_BYTES)
        ascii_id = self.instance_id.encode("ascii")
        _FIELDS.pack_into(
            page,
            _FIXED.size,
            self.block_size_bytes,
            self.num_blocks,
            self.dp_rank,
            self.creator_pid,
            self.nonce,
            self.identity,
            self.boot_id.encode("ascii"),
            len(ascii_id),
            ascii_id,
        )
        crc = zlib.crc32(page[_FIXED.size : _STATE_AT])
        _FIXED.pack_into(page, 0, MAGIC, LAYOUT_VERSION, crc)
        _STATE.pack_into(page, _STATE_AT, STATE_LIVE)
        return bytes(page)


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """A region of ours, written by a release with another layout version."""

    version: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """Not a region of ours; ``reason`` says what it is instead."""

    reason: str


def identify(fd: int) -> RegionHeader | OtherLayout | Foreign:
    """Tell what an open file is, by its type, owner, size and trailer.

    Args:
        fd: Any readable descriptor; its offset is not moved.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return Foreign(f"a {_kind(info.st_mode)}, not a regular file")
    if info.st_uid != os.geteuid() and os.geteuid() != 0:
        return Foreign(f"a file of another user (uid {info.st_uid})")
    if info.st_size < 2 * TRAILER_BYTES:
        return Foreign(f"a file of {info.st_size} bytes, too short for a region")
    page = os.pread(fd, TRAILER_BYTES, info.st_size - TRAILER_BYTES)
    if len(page) != TRAILER_BYTES or not page.startswith(MAGIC):
        return Foreign(f"a file of {info.st_size} bytes without a region trailer at its end")
    _, version, crc = _FIXED.unpack_from(page)
    if version != LAYOUT_VERSION:
        return OtherLayout(version)
    if crc != zlib.crc32(page[_FIXED.size : _STATE_AT]):
        return Foreign("a file whose region trailer is damaged")
    (block_size, num_blocks, dp_rank, pid, nonce, identity, boot_id, id_length, raw_id) = (
        _FIELDS.unpack_from(page, _FIXED.size)
    )
    header = RegionHeader(
        instance_id=raw_id[:id_length].decode("ascii", "replace"),
        dp_rank=dp_rank,
        num_blocks=num_blocks,
        block_size_bytes=block_size,
        nonce=nonce,
        identity=identity,
        creator_pid=pid,
        boot_id=boot_id.decode("ascii", "replace"),
    )
    if header.file_bytes != info.st_size:
        return Foreign(
            f"a region trailer for {header.file_bytes} bytes at the end of {info.st_size} bytes"
        )
    return header


def read_state(fd: int, header: RegionHeader) -> int:
    """The state word, ``STATE_LIVE`` or ``STATE_DRAINING``."""
    raw = os.pread(fd, _STATE.size, header.trailer_at + _STATE_AT)
    return int(_STATE.unpack(raw)[0]) if len(raw) == _STATE.size else 0


def write_draining(fd: int, header: RegionHeader) -> None:
    """Let every process that opens the file see that its instance shuts down."""
    os.pwrite(fd, _STATE.pack(STATE_DRAINING), header.trailer_at + _STATE_AT)


def boot_id() -> str:
    """The kernel's boot id, or zeros where it is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()[:36]
    except OSError:
        return "00000000-0000-0000-0000-000000000000"


def _kind(mode: int) -> str:
    names = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISFIFO, "FIFO"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "character device"),
        (stat.S_ISBLK, "block device"),
    )
    return next((name for test, name in names if test(mode)), "special file")
