# SPDX-License-Identifier: Apache-2.0
"""Baselines: what one would write by hand, to have something honest to compare with.

Written for these benchmarks; not the code of any other connector. They do the work
that the measured code does, in the plain way, and nothing slow on purpose.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field

from ec_protocol.tier.encodings import EXTRA_EVICTIONS, PREFERRED_EXTENTS, EncodingTier
from ec_protocol.tier.entry import Entry


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

    def has(self, name: str) -> bool:
        """Whether the entry is there."""
        return name in self.entries

    def usable(self, name: str) -> bool:
        """Whether its bytes are."""
        return self.entries[name].ready

    def layout(self, name: str) -> list[tuple[int, int]]:
        """Runs of neighbouring blocks: first block and number of blocks."""
        runs: list[tuple[int, int]] = []
        for block in self.entries[name].blocks:
            if runs and sum(runs[-1]) == block:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((block, 1))
        return runs


@dataclass(slots=True)
class IdealCache:
    """An upper bound: every entry lies in one piece, and no block is ever in the way.

    It only counts blocks, which no real allocator can do.
    """

    num_blocks: int
    entries: OrderedDict[str, CachedEntry] = field(default_factory=OrderedDict)
    sizes: dict[str, int] = field(default_factory=dict)
    ready: OrderedDict[str, None] = field(default_factory=OrderedDict)
    used: int = 0

    def has(self, name: str) -> bool:
        """Whether the entry is there."""
        return name in self.entries

    def usable(self, name: str) -> bool:
        """Whether its bytes are."""
        return self.entries[name].ready

    def alloc(self, name: str, count: int) -> bool:
        """Count ``count`` blocks; the entry that landed first goes first."""
        idle = sum(self.sizes[n] for n in self.ready if not self.entries[n].pins)
        if self.num_blocks - self.used + idle < count:
            return False
        while self.num_blocks - self.used < count:
            victim = next(n for n in self.ready if not self.entries[n].pins)
            del self.ready[victim], self.entries[victim]
            self.used -= self.sizes.pop(victim)
        self.entries[name] = CachedEntry([])
        self.sizes[name] = count
        self.used += count
        return True

    def mark_ready(self, name: str) -> None:
        """The bytes are there."""
        self.entries[name].ready = True
        self.ready[name] = None

    def pin(self, name: str) -> None:
        """Somebody depends on the bytes."""
        self.entries[name].pins += 1

    def unpin(self, name: str) -> None:
        """Somebody no longer does."""
        self.entries[name].pins -= 1

    def layout(self, name: str) -> list[tuple[int, int]]:
        """One piece."""
        return [(0, self.sizes[name])]


class TierCache:
    """This project's tier behind the same few calls.

    Args:
        num_blocks: Blocks of the region.
        preferred_extents: See ``EncodingTier``.
        extra_evictions: See ``EncodingTier``.
    """

    def __init__(
        self,
        num_blocks: int,
        preferred_extents: int = PREFERRED_EXTENTS,
        extra_evictions: int = EXTRA_EVICTIONS,
    ) -> None:
        self.tier = EncodingTier(
            num_blocks,
            1,
            preferred_extents=preferred_extents,
            extra_evictions=extra_evictions,
        )
        self._uses: dict[str, list[int]] = {}
        self._numbers = itertools.count(1)

    def has(self, name: str) -> bool:
        """Whether the entry is there."""
        return self.tier.get(name) is not None

    def usable(self, name: str) -> bool:
        """Whether its bytes are."""
        return self._entry(name).servable

    def alloc(self, name: str, count: int) -> bool:
        """Room for ``count`` blocks; a save begins."""
        entry = self.tier.alloc(name, count)
        if entry is None:
            return False
        self.tier.begin_write(entry, ("save", 0))
        return True

    def mark_ready(self, name: str) -> None:
        """The save landed."""
        self.tier.write_landed(self._entry(name), ("save", 0))

    def pin(self, name: str) -> None:
        """A load begins."""
        number = next(self._numbers)
        self._uses.setdefault(name, []).append(number)
        self.tier.pin(self._entry(name), ("load", number))

    def unpin(self, name: str) -> None:
        """One of its loads ends."""
        self.tier.unpin(self._entry(name), ("load", self._uses[name].pop()))

    def layout(self, name: str) -> list[tuple[int, int]]:
        """Its extents."""
        return list(self._entry(name).extents)

    def _entry(self, name: str) -> Entry:
        entry = self.tier.get(name)
        if entry is None:
            raise KeyError(name)
        return entry
