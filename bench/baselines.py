# SPDX-License-Identifier: Apache-2.0
"""Baselines: what one would write by hand, to have something honest to compare with.

Written for these benchmarks; not the code of any other connector. They do the work
that the measured code does, in the plain way, and nothing slow on purpose.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class CachedEntry:
    """One encoding: its block numbers in ascending order, and who holds it."""

    blocks: list[int]
    ready: bool = False
    pins: int = 0


@dataclass(slots=True)
class BlockListCache:
    """A cache that hands out single blocks from a LIFO free list.

    Each entry keeps a sorted list of its block numbers, so that neighbouring blocks
    can be copied as one run. When room is needed the oldest entry that is ready and
    not pinned goes first, found by walking the entries from the oldest on.
    """

    num_blocks: int
    entries: OrderedDict[str, CachedEntry] = field(default_factory=OrderedDict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """All blocks are free, the lowest on top."""
        self.free = list(range(self.num_blocks - 1, -1, -1))

    def alloc(self, name: str, count: int) -> bool:
        """Take ``count`` blocks, evicting if need be; False when that is impossible."""
        while len(self.free) < count:
            victim = next((n for n, e in self.entries.items() if e.ready and not e.pins), None)
            if victim is None:
                return False
            self.free.extend(self.entries.pop(victim).blocks)
        self.entries[name] = CachedEntry(sorted(self.free.pop() for _ in range(count)))
        return True

    def mark_ready(self, name: str) -> None:
        """The bytes are there."""
        self.entries[name].ready = True

    def pin(self, name: str) -> None:
        """Somebody depends on the bytes."""
        self.entries[name].pins += 1

    def unpin(self, name: str) -> None:
        """Somebody no longer does."""
        self.entries[name].pins -= 1

    def runs(self, name: str) -> int:
        """How many copies the entry takes: runs of neighbouring blocks."""
        blocks = self.entries[name].blocks
        return 1 + sum(b != a + 1 for a, b in itertools.pairwise(blocks))
