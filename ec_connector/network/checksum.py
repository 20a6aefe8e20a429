# SPDX-License-Identifier: Apache-2.0
"""Checksums of what lies in the region, made a piece at a time (EC-8.11).

XXH3 does some gigabytes a second on one core, so an encoding of a hundred megabytes takes
ten milliseconds and more: too long for a process that others wait for, which therefore makes
at most ``PIECE`` of it in one turn.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ec_protocol.errors import LocalProtocolError
from ec_protocol.p2p.wire import Pieces
from ec_protocol.terms import XXH3_128

#: Bytes that are looked at in one turn: about a tenth of a millisecond.
PIECE: Final = 1 << 20


class Digest:
    """The checksum of one encoding.

    Args:
        memory: The region; bytes.
        pieces: ``(byte offset, bytes)`` in the order of the encoding's bytes.

    Raises:
        LocalProtocolError: A piece is not in the region.
    """

    def __init__(self, memory: memoryview, pieces: Pieces) -> None:
        for offset, nbytes in pieces:
            if offset < 0 or nbytes < 0 or offset + nbytes > len(memory):
                raise LocalProtocolError(
                    f"checksum: [{offset}, {offset + nbytes}) is outside the region of "
                    f"{len(memory)} bytes"
                )
        self._memory = memory
        self._left = list(reversed(pieces))
        # Only here: without integrity nobody needs the library.
        self._state: Any = importlib.import_module("xxhash").xxh3_128(seed=0)

    def step(self, budget: int = PIECE) -> bool:
        """Look at some more bytes; whether those were the last."""
        while self._left and budget > 0:
            offset, nbytes = self._left.pop()
            now = min(nbytes, budget)
            self._state.update(self._memory[offset : offset + now])
            budget -= now
            if now < nbytes:
                self._left.append((offset + now, nbytes - now))
        return not self._left

    @property
    def text(self) -> str:
        """As an ack gives it."""
        return f"{XXH3_128}:{self._state.hexdigest()}"
