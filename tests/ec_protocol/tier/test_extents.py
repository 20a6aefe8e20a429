# SPDX-License-Identifier: Apache-2.0
"""The extent allocator against a naive model that looks at every block."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tier.extents import Extent, ExtentAllocator, Extents

pytestmark = pytest.mark.clause("EC-2.1")


class Bitmap:
    """What the allocator should be like, with a flag for each block."""

    def __init__(self, num_blocks: int) -> None:
        self.free = [True] * num_blocks

    def holes(self) -> list[Extent]:
        found: list[Extent] = []
        for block, free in enumerate(self.free):
            if free and found and sum(found[-1]) == block:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            elif free:
                found.append((block, 1))
        return found

    def needed(self, count: int) -> int:
        """The least number of extents for ``count`` blocks, by trying the longest holes."""
        sizes = sorted((size for _, size in self.holes()), reverse=True)
        return next((n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= count), 0)

    def take(self, extents: Extents) -> None:
        for start, count in extents:
            for block in range(start, start + count):
                assert self.free[block], f"block {block} was handed out twice"
                self.free[block] = False

    def give(self, extents: Extents) -> None:
        for start, count in extents:
            for block in range(start, start + count):
                assert not self.free[block]
                self.free[block] = True


def agree(space: ExtentAllocator, bitmap: Bitmap) -> None:
    holes = bitmap.holes()
    assert list(space.free_extents()) == holes
    assert space.free_blocks == sum(bitmap.free)
    assert space._by_size == sorted((size, start) for start, size in holes)
    assert space._size_at == dict(holes)


@given(
    num_blocks=st.integers(1, 64),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("alloc"), st.integers(1, 24), st.sampled_from([None, 1, 2, 3])),
            st.tuples(st.just("free"), st.integers(0, 63), st.none()),
        ),
        max_size=60,
    ),
)
def test_any_sequence_agrees_with_the_bitmap(
    num_blocks: int, steps: list[tuple[str, int, int | None]]
) -> None:
    space, bitmap = ExtentAllocator(num_blocks), Bitmap(num_blocks)
    owned: list[Extents] = []
    for what, number, limit in steps:
        if what == "free":
            if owned:
                extents = owned.pop(number % len(owned))
                space.free(extents)
                bitmap.give(extents)
        else:
            needed = bitmap.needed(number)
            best = min((s for _, s in bitmap.holes() if s >= number), default=None)
            assert space.extents_needed(number) == needed
            got = space.alloc(number, limit)
            if needed == 0 or (limit is not None and needed > limit):
                assert got is None
            else:
                assert got is not None
                assert sum(count for _, count in got) == number
                assert len(got) == needed
                if best is not None:
                    # One hole is enough: the smallest such hole is used, from its front.
                    assert (got[0][0], best) in bitmap.holes()
                bitmap.take(got)
                owned.append(got)
        agree(space, bitmap)


def carved(num_blocks: int, *holes: Extent) -> ExtentAllocator:
    """An allocator in which exactly ``holes`` are free."""
    space = ExtentAllocator(num_blocks)
    assert space.alloc(num_blocks) == ((0, num_blocks),)
    space.free(holes)
    return space


@pytest.mark.clause("EC-2.7")
def test_the_best_fitting_hole_is_used() -> None:
    space = carved(100, (0, 10), (20, 4), (30, 6))
    assert space.alloc(4) == ((20, 4),)
    assert space.alloc(5) == ((30, 5),)
    assert space.alloc(1) == ((35, 1),)
    assert space.free_extents() == ((0, 10),)


@pytest.mark.clause("EC-2.7")
def test_a_hole_at_the_start_of_the_region_that_fits_exactly_is_used() -> None:
    """Alone, and as the last of several pieces."""
    assert carved(100, (0, 4), (20, 6)).alloc(4) == ((0, 4),)
    assert carved(100, (0, 2), (20, 6), (40, 3)).alloc(8) == ((20, 6), (0, 2))


def test_of_equal_holes_the_first_is_used() -> None:
    assert carved(100, (40, 5), (10, 5)).alloc(5) == ((10, 5),)


@pytest.mark.clause("EC-2.7")
def test_pieces_come_longest_first_and_the_last_one_fits_best() -> None:
    space = carved(100, (0, 10), (20, 9), (40, 3), (50, 2))
    assert space.alloc(12) == ((0, 10), (50, 2))
    assert space.free_extents() == ((20, 9), (40, 3))


def test_a_limit_of_extents_takes_nothing_when_it_cannot_be_kept() -> None:
    space = carved(100, (0, 4), (10, 4), (20, 4))
    assert space.alloc(9, max_extents=2) is None
    assert space.free_extents() == ((0, 4), (10, 4), (20, 4))
    assert space.alloc(9, max_extents=3) is not None


@pytest.mark.clause("EC-2.7")
@pytest.mark.parametrize(("count", "needed"), [(1, 1), (4, 1), (5, 2), (7, 2), (8, 3), (9, 3)])
def test_no_more_extents_than_it_takes(count: int, needed: int) -> None:
    """Also when the longest holes are taken to the last block."""
    space = carved(100, (0, 3), (10, 4), (20, 2))
    assert space.extents_needed(count) == needed
    assert space.alloc(count, max_extents=needed - 1) is None
    got = space.alloc(count, max_extents=needed)
    assert got is not None
    assert len(got) == needed


def test_too_many_blocks_take_nothing() -> None:
    space = carved(10, (0, 4))
    assert space.alloc(5) is None
    assert space.extents_needed(5) == 0
    assert space.free_blocks == 4


def test_everything_can_be_taken_and_given_back() -> None:
    space = ExtentAllocator(7)
    extents = space.alloc(7)
    assert extents == ((0, 7),)
    assert (space.free_blocks, space.free_extents()) == (0, ())
    assert space.alloc(1) is None
    space.free(extents)
    assert space.free_extents() == ((0, 7),)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)])
def test_neighbours_merge_whatever_the_order(order: tuple[int, ...]) -> None:
    space = carved(9)
    pieces = ((0, 3), (3, 3), (6, 3))
    for i in order:
        space.free((pieces[i],))
    assert space.free_extents() == ((0, 9),)


@pytest.mark.parametrize(
    "extent", [(-1, 2), (9, 2), (10, 1), (0, 11), (3, 0), (3, -1), (1 << 70, 1)]
)
def test_what_is_out_of_range_cannot_be_freed(extent: Extent) -> None:
    space = carved(10)
    with pytest.raises(LocalProtocolError, match="outside a region of 10 blocks"):
        space.free((extent,))
    assert space.free_blocks == 0


@pytest.mark.parametrize("extent", [(4, 2), (3, 2), (5, 2), (3, 4), (0, 10), (4, 1), (5, 1)])
def test_what_is_free_cannot_be_freed_again(extent: Extent) -> None:
    space = carved(10, (4, 2))
    with pytest.raises(LocalProtocolError, match="free already"):
        space.free((extent,))
    assert space.free_extents() == ((4, 2),)


def test_touching_a_free_extent_is_not_freeing_it_again() -> None:
    space = carved(10, (4, 2))
    space.free(((2, 2), (6, 2)))
    assert space.free_extents() == ((2, 6),)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_block_is_asked_for(count: int) -> None:
    with pytest.raises(LocalProtocolError, match="at least one is needed"):
        ExtentAllocator(4).alloc(count)


@pytest.mark.parametrize("num_blocks", [0, -5])
def test_a_region_has_at_least_one_block(num_blocks: int) -> None:
    with pytest.raises(LocalProtocolError, match="at least one block"):
        ExtentAllocator(num_blocks)


@pytest.mark.clause("EC-2.7")
def test_churn_leaves_entries_in_few_pieces() -> None:
    """Entries of mixed sizes come and go, oldest first, at nine tenths full."""
    rng = random.Random(7)
    space = ExtentAllocator(20_000)
    owned: list[Extents] = []
    pieces = []
    for _ in range(2000):
        count = rng.choice([220, 440, 880])
        while space.free_blocks < count + 2000:
            space.free(owned.pop(0))
        extents = space.alloc(count)
        assert extents is not None
        owned.append(extents)
        pieces.append(len(extents))
    assert sum(pieces) / len(pieces) < 1.2
    assert max(pieces) <= 3


def test_of_holes_that_were_filled_nothing_is_remembered() -> None:
    space = ExtentAllocator(8)
    for order in (1, -1):
        taken = [space.alloc(2) for _ in range(4)]
        assert space._size_at == {}
        for extents in taken[::order]:
            assert extents is not None
            space.free(extents)
        assert space._size_at == {0: 8}


@pytest.mark.parametrize("again", [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
def test_what_is_free_at_the_start_of_the_region_is_not_freed_again(again: tuple[int, int]) -> None:
    space = ExtentAllocator(8)
    assert space.alloc(8) == ((0, 8),)
    space.free(((0, 2),))
    with pytest.raises(LocalProtocolError, match="free already"):
        space.free((again,))
    assert (space.free_blocks, space.free_extents()) == (2, ((0, 2),))
