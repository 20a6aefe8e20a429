# SPDX-License-Identifier: Apache-2.0
"""Page-locking a region for one CUDA process, in chunks.

Each process that copies registers the region for itself: the pages are shared, the
registration is not. CUDA refuses very long registrations, so the region goes in
chunks, and a chunk that is refused stays as it is: copies to and from it are then
staged by the driver, which is slow but correct.

A copy must not cross the border of a chunk: the driver takes an address for pinned or
pageable memory by the registration it begins in. ``Pinning.cut`` divides at borders.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

logger = logging.getLogger(__name__)

#: Longest piece that is registered at once.
CHUNK_BYTES: Final = 64 << 30
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the region.

    Attributes:
        start: Byte offset of its first byte.
        end: Byte offset behind its last byte.
        pinned: Whether CUDA holds it page-locked.
    """

    start: int
    end: int
    pinned: bool


class Span(NamedTuple):
    """Bytes of the region that one copy may move: all of one chunk.

    Attributes:
        offset: Byte offset in the region.
        nbytes: Length.
        pinned: Whether its chunk is page-locked.
    """

    offset: int
    nbytes: int
    pinned: bool


class Pinning:
    """What of a region is page-locked in this process.

    Args:
        address: Start of the region; page-aligned.
        nbytes: Its length.
        chunk_bytes: Longest registration; a multiple of the page size.

    Attributes:
        chunks: In ascending order, without gaps.
        whole: Whether all of the region is one page-locked chunk, so that no copy
            needs to be cut.
        seconds: How long registering took.
    """

    def __init__(self, address: int, nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        if chunk_bytes < _PAGE or chunk_bytes % _PAGE:
            raise ValueError(
                f"chunk_bytes={chunk_bytes}: expected a positive multiple of the page size {_PAGE}"
            )
        self._address: Final = address
        began = time.monotonic()
        self.chunks: list[Chunk] = [
            Chunk(start, end, register(address + start, end - start))
            for start in range(0, nbytes, chunk_bytes)
            for end in (min(nbytes, start + chunk_bytes),)
        ]
        self.seconds: Final = time.monotonic() - began
        self._chunk_bytes: Final = chunk_bytes
        self.whole = len(self.chunks) == 1 and self.chunks[0].pinned
        if self.pinned_bytes < nbytes:
            logger.warning(
                "%d of %d bytes of the region could not be page-locked: copies of them are "
                "slow. Raise the memory-lock limit (ulimit -l) or lower ec_cpu_bytes",
                nbytes - self.pinned_bytes,
                nbytes,
            )

    @property
    def pinned_bytes(self) -> int:
        """Bytes that are page-locked."""
        return sum(chunk.end - chunk.start for chunk in self.chunks if chunk.pinned)

    def cut(self, offset: int, nbytes: int) -> list[Span]:
        """Divide bytes of the region at the chunks' borders, in order."""
        chunk = self.chunks[offset // self._chunk_bytes]
        if offset + nbytes <= chunk.end:
            return [Span(offset, nbytes, chunk.pinned)]
        first = chunk.end - offset
        return [Span(offset, first, chunk.pinned), *self.cut(chunk.end, nbytes - first)]

    def release(self) -> None:
        """Undo the registrations; nothing may be copied any more. May be called twice."""
        chunks, self.chunks = self.chunks, []
        self.whole = False
        for chunk in chunks:
            if chunk.pinned:
                _unregister(self._address + chunk.start)


def register(address: int, nbytes: int) -> bool:
    """Page-lock memory; False if CUDA refuses. No error stays pending either way."""
    return _checked("cudaHostRegister", lambda: _cudart().cudaHostRegister(address, nbytes, 0))


def _unregister(address: int) -> bool:
    return _checked("cudaHostUnregister", lambda: _cudart().cudaHostUnregister(address))


def _checked(what: str, call: Callable[[], Any]) -> bool:
    try:
        code = int(call())
    except Exception as exc:
        logger.warning("%s: %s", what, exc)
        clear_error()
        return False
    if code:
        logger.warning("%s failed with CUDA error %d", what, code)
        # Otherwise the next kernel launch, which had no part in it, would report it.
        clear_error()
    return code == 0


def clear_error() -> int:
    """Take the error that is pending in torch's CUDA runtime; returns its code."""
    library = _runtime_library()
    return 0 if library is None else int(library.cudaGetLastError())


def _cudart() -> Any:
    # The one that torch uses, and whose pending error torch looks at.
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _runtime_library() -> Any:
    """The CUDA runtime that this process has loaded, or None."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "/libcudart" in path and ".so" in path:
            return ctypes.CDLL(path)
    return None
