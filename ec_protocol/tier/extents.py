# SPDX-License-Identifier: Apache-2.0
"""Allocator of block extents: few long runs per entry, cost flat in blocks.

An extent is ``(start, count)`` in blocks. Copy engines and NIXL are quickest
with one long run, so a request is served from the best-fitting hole, and only
when no hole is long enough from the largest holes, as few as possible. Freed
extents merge with their neighbours.

Not thread-safe.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from ec_protocol.errors import LocalProtocolError

Extent = tuple[int, int]
Extents = tuple[Extent, ...]


class ExtentAllocator:
    """Free extents of a region of ``num_blocks`` blocks.

    All operations cost O(log holes) plus a short memory move, independent of
    the number of blocks.
    """

    __slots__ = ("_by_size", "_size_at", "_starts", "free_blocks", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks <= 0:
            raise LocalProtocolError(f"num_blocks={num_blocks}: a region has at least one block")
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks
        self._starts: list[int] = [0]
        self._size_at: dict[int, int] = {0: num_blocks}
        self._by_size: list[tuple[int, int]] = [(num_blocks, 0)]

    def free_extents(self) -> Extents:
        """All free extents by start: for invariant checks and traces."""
        return tuple((start, self._size_at[start]) for start in self._starts)

    def extents_needed(self, count: int) -> int:
        """With how few extents ``count`` blocks can be had now; 0 when they cannot."""
        if count > self.free_blocks:
            return 0
        needed = 0
        for size, _ in reversed(self._by_size):
            if count <= 0:
                break
            count -= size
            needed += 1
        return needed

    def alloc(self, count: int, max_extents: int | None = None) -> Extents | None:
        """Take ``count`` blocks in at most ``max_extents`` extents (None = any number).

        Returns:
            The extents, longest first, or None when that is impossible; then
            nothing was taken.
        """
        if count <= 0:
            raise LocalProtocolError(f"alloc of {count} blocks: at least one is needed")
        needed = self.extents_needed(count)
        if needed == 0 or (max_extents is not None and needed > max_extents):
            return None
        extents: list[Extent] = []
        while count:
            # The last piece comes from the best-fitting hole, to spare the long ones.
            i = bisect_left(self._by_size, (count, 0))
            size, start = self._by_size[min(i, len(self._by_size) - 1)]
            part = min(size, count)
            self._take(size, start, part)
            extents.append((start, part))
            count -= part
        return tuple(extents)

    def free(self, extents: Extents) -> None:
        """Give extents back.

        Raises:
            LocalProtocolError: An extent is out of range or (partly) free
                already; extents before it in the tuple have been freed.
        """
        for start, count in extents:
            self._put(start, count)

    def _take(self, size: int, start: int, count: int) -> None:
        """Remove ``count`` blocks from the front of the hole at ``start``."""
        del self._by_size[bisect_left(self._by_size, (size, start))]
        i = bisect_left(self._starts, start)
        del self._size_at[start]
        if size == count:
            del self._starts[i]
        else:
            rest = start + count
            self._starts[i] = rest
            self._size_at[rest] = size - count
            insort(self._by_size, (size - count, rest))
        self.free_blocks -= count

    def _put(self, start: int, count: int) -> None:
        end = start + count
        if count <= 0 or start < 0 or end > self.num_blocks:
            raise LocalProtocolError(
                f"free of extent ({start}, {count}): outside a region of {self.num_blocks} blocks"
            )
        starts, size_at = self._starts, self._size_at
        i = bisect_left(starts, start)
        before = starts[i - 1] if i else None
        after = starts[i] if i < len(starts) else None
        if (before is not None and before + size_at[before] > start) or (
            after is not None and after < end
        ):
            raise LocalProtocolError(
                f"free of extent ({start}, {count}): some of it is free already"
            )
        self.free_blocks += count
        if after == end:
            size = size_at.pop(end)
            del self._by_size[bisect_left(self._by_size, (size, end))]
            del starts[i]
            count += size
        if before is not None and before + size_at[before] == start:
            size = size_at[before]
            del self._by_size[bisect_left(self._by_size, (size, before))]
            start = before
            count += size
        else:
            starts.insert(i, start)
        size_at[start] = count
        insort(self._by_size, (count, start))
