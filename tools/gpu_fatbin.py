# SPDX-License-Identifier: Apache-2.0
"""Device code in a shared object that one kind of GPU never runs is overwritten with zeros.

The library keeps its size and its symbols, and then compresses to a tenth. A fat binary is
a header (magic ``0xBA55ED50``, version u16, size of the header u16, size of the entries u64)
and entries: kind u16 (1: PTX, 2: ELF), version u16, size of its header u32, size u64, and at
byte 28 the architecture u32.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_MAGIC: Final = struct.pack("<I", 0xBA55ED50)
_HEADER: Final = struct.Struct("<4sHHQ")
_ENTRY: Final = struct.Struct("<HHIQ12xI")
_KINDS: Final = {1: "PTX", 2: "ELF"}


@dataclass(frozen=True, slots=True)
class Code:
    """One piece of device code: where its bytes are, what they are and for which GPUs."""

    start: int
    end: int
    kind: str
    architecture: int


def fat_binaries(data: bytes | bytearray) -> Iterator[list[Code]]:
    """The code in each fat binary of a library, in the order of the file.

    Raises:
        ValueError: Something begins as a fat binary does and goes on as none does.
    """
    at = 0
    while (at := data.find(_MAGIC, at)) >= 0:
        _, version, header, size = _HEADER.unpack_from(data, at)
        end = at + header + size
        if version != 1 or header != _HEADER.size or end > len(data):
            at += len(_MAGIC)  # a constant in the host's code
            continue
        found, entry = [], at + header
        while entry < end:
            kind, _, ahead, size, architecture = _ENTRY.unpack_from(data, entry)
            start = entry + ahead
            if kind not in _KINDS or ahead < _ENTRY.size or start + size > end:
                raise ValueError(f"byte {entry}: no entry of a fat binary")
            found.append(Code(start, start + size, _KINDS[kind], architecture))
            entry = start + size
        yield found
        at = end


def prune(data: bytearray, architecture: int, without: Sequence[bytes] = ()) -> Counter[str]:
    """Zero what a GPU does not run.

    Args:
        data: The whole library; changed in place.
        architecture: Of the GPU: 90 for compute capability 9.0. PTX for it goes too where
            the same binary has compiled code for it.
        without: Compiled code in which one of these occurs goes too: kernels for types that
            nobody uses.

    Returns:
        Bytes by what was done: ``kept ELF 90``, ``zeroed PTX 80``.

    Raises:
        ValueError: See ``fat_binaries``; or nothing is left for the GPU.
    """
    counts: Counter[str] = Counter()
    for codes in list(fat_binaries(data)):
        compiled = any(c.kind == "ELF" and c.architecture == architecture for c in codes)
        for code in codes:
            keep = code.architecture == architecture and not (compiled and code.kind == "PTX")
            if keep and any(data.find(word, code.start, code.end) >= 0 for word in without):
                keep = False
            if not keep:
                data[code.start : code.end] = bytes(code.end - code.start)
            did = "kept" if keep else "zeroed"
            counts[f"{did} {code.kind} {code.architecture}"] += code.end - code.start
    if not any(what.startswith("kept") for what in counts):
        raise ValueError(f"no code for architecture {architecture} in this library")
    return counts
