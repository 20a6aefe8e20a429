# SPDX-License-Identifier: Apache-2.0
"""The tier: room, eviction order, holders, reservations, quarantine and its own checker."""

from __future__ import annotations

import pytest

from ec_protocol.errors import IllegalEvent, LocalProtocolError
from ec_protocol.tier.encodings import EXTRA_EVICTIONS, EncodingTier
from ec_protocol.tier.entry import Entry

BLOCK = 16


def make(blocks: int = 8) -> EncodingTier:
    return EncodingTier(blocks, BLOCK)


def _alloc(tier: EncodingTier, mm_hash: str, blocks: int = 1) -> Entry:
    entry = tier.alloc(mm_hash, blocks * BLOCK)
    assert entry is not None
    return entry


def land(tier: EncodingTier, mm_hash: str, blocks: int = 1) -> Entry:
    entry = _alloc(tier, mm_hash, blocks)
    tier.begin_write(entry, ("save", entry.entry_id))
    tier.write_landed(entry, ("save", entry.entry_id))
    return entry


def lost(tier: EncodingTier, mm_hash: str, blocks: int = 1) -> Entry:
    entry = _alloc(tier, mm_hash, blocks)
    tier.begin_write(entry, ("read", entry.entry_id))
    tier.write_lost(entry, ("read", entry.entry_id))
    return entry


def names(tier: EncodingTier) -> set[str]:
    return {entry.mm_hash for entry in tier.entries()}


# ------------------------------------------------------------------ room and order
@pytest.mark.parametrize(("nbytes", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_an_entry_takes_whole_blocks(nbytes: int, blocks: int) -> None:
    tier = make()
    entry = tier.alloc("a", nbytes, (1, nbytes))
    assert (entry.num_blocks, entry.nbytes, entry.shape) == (blocks, nbytes, (1, nbytes))
    assert entry.state == "allocated"
    assert tier.free_blocks == 8 - blocks
    assert tier.get("a") is entry


def test_a_block_may_be_a_single_byte() -> None:
    entry = EncodingTier(4, 1).alloc("a", 3)
    assert entry.num_blocks == 3


@pytest.mark.clause("EC-2.5")
def test_ready_entries_go_in_the_order_in_which_they_landed() -> None:
    """Not in the order in which they were allocated."""
    tier = make(3)
    entries = [_alloc(tier, name) for name in "abc"]
    for i in (1, 0, 2):
        tier.begin_write(entries[i], ("save", i))
        tier.write_landed(entries[i], ("save", i))
    left = []
    for name in "xyz":
        before = names(tier)
        land(tier, name)
        left += sorted(before - names(tier))
    assert left == ["b", "a", "c"]
    assert tier.evictions == 3


@pytest.mark.clause("EC-2.5")
def test_holders_do_not_change_the_landing_order() -> None:
    tier = make(3)
    a, b, c = (land(tier, name) for name in "abc")
    tier.pin(a, ("load", 1))
    tier.pin(b, ("load", 2))
    # "a" and "b" are passed over while they are held ...
    land(tier, "d")
    assert names(tier) == {"a", "b", "d"}
    tier.unpin(b, ("load", 2))
    tier.unpin(a, ("load", 1))
    # ... and afterwards are still the oldest two, in their old order.
    land(tier, "e")
    assert names(tier) == {"b", "d", "e"}
    land(tier, "f")
    assert names(tier) == {"d", "e", "f"}
    assert c.state == "freed"
    tier.check()


def test_the_eviction_queue_holds_each_entry_once() -> None:
    """Pinning and unpinning for ever must not make it grow."""
    tier = make(4)
    entry = land(tier, "a")
    for i in range(1000):
        tier.pin(entry, ("load", i))
        tier.unpin(entry, ("load", i))
    assert len(tier._queue) == 1
    tier.check()


@pytest.mark.clause("EC-2.6")
@pytest.mark.parametrize("held", ["pinned", "saving", "allocated", "quarantined"])
def test_nothing_is_evicted_when_room_cannot_be_made(held: str) -> None:
    tier = make(8)
    land(tier, "old", 3)
    match held:
        case "pinned":
            tier.pin(land(tier, "busy", 4), ("grant", 1))
        case "saving":
            tier.begin_write(_alloc(tier, "busy", 4), ("save", 9))
        case "allocated":
            _alloc(tier, "busy", 4)
        case "quarantined":
            lost(tier, "busy", 4)
    assert tier.alloc("new", 5 * BLOCK) is None
    assert names(tier) == {"old", "busy"}
    assert (tier.evictions, tier.free_blocks, tier.evictable_blocks) == (0, 1, 3)
    assert tier.alloc("new", 4 * BLOCK) is not None
    assert names(tier) == {"busy", "new"}
    tier.check()


def test_more_than_the_region_never_fits() -> None:
    tier = make(4)
    land(tier, "a", 4)
    assert tier.alloc("b", 4 * BLOCK + 1) is None
    assert names(tier) == {"a"}


def checkered(pairs: int, ready_pairs: int) -> EncodingTier:
    """Single free blocks between single-block entries; the last of them are ready."""
    tier = make(2 * pairs)
    for i in range(pairs):
        _alloc(tier, f"gap-{i}")
        if i >= pairs - ready_pairs:
            land(tier, f"ready-{i}")
        else:
            _alloc(tier, f"wall-{i}")
    for i in range(pairs):
        gap = tier.get(f"gap-{i}")
        assert gap is not None
        tier.cancel(gap)
    return tier


@pytest.mark.clause("EC-2.7")
def test_a_few_more_entries_go_to_keep_an_entry_in_few_pieces() -> None:
    tier = checkered(8, ready_pairs=4)
    assert tier.free_blocks == 8
    entry = _alloc(tier, "new", 5)
    assert len(entry.extents) <= 2
    assert 1 <= tier.evictions <= EXTRA_EVICTIONS
    tier.check()


@pytest.mark.clause("EC-2.6")
def test_as_many_entries_go_as_the_room_takes() -> None:
    """Those that give way for the room itself are not counted as those for few pieces."""
    tier = make(16)
    for i in range(16):
        land(tier, f"ready-{i}")
    entry = _alloc(tier, "new", 16)
    assert (entry.extents, tier.evictions) == (((0, 16),), 16)
    tier.check()


@pytest.mark.clause("EC-2.7")
def test_many_pieces_are_better_than_no_room() -> None:
    """With nothing to evict, and with more to evict than the pieces are worth."""
    for ready in (0, 1):
        tier = checkered(8, ready_pairs=ready)
        entry = _alloc(tier, "new", 8)
        assert sum(count for _, count in entry.extents) == 8
        tier.check()
    tier = checkered(16, ready_pairs=8)
    assert tier.alloc("new", 16 * BLOCK) is not None
    assert tier.evictions <= EXTRA_EVICTIONS
    tier.check()


@pytest.mark.clause("EC-2.1")
def test_a_name_has_one_live_entry() -> None:
    tier = make()
    _alloc(tier, "a")
    with pytest.raises(LocalProtocolError, match="'a' is allocated already"):
        tier.alloc("a", BLOCK)
    assert tier.free_blocks == 7


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_encoding_has_bytes(nbytes: int) -> None:
    with pytest.raises(LocalProtocolError, match="must be positive"):
        make().alloc("a", nbytes)


@pytest.mark.parametrize("size", [0, -16])
def test_a_block_has_bytes(size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"block_size_bytes={size}"):
        EncodingTier(8, size)


def test_entry_ids_are_never_used_again() -> None:
    tier = make()
    first = _alloc(tier, "a")
    tier.cancel(first)
    second = _alloc(tier, "a")
    assert second.entry_id > first.entry_id
    with pytest.raises(IllegalEvent):
        tier.cancel(first)
    assert tier.get("a") is second


# ------------------------------------------------------------------ reservations
@pytest.mark.clause("EC-3.2", "EC-3.3")
def test_f6_what_was_promised_in_a_step_stays_in_that_step() -> None:
    """has_cache_item(A) is True, then B wants A's blocks: B must do without."""
    tier = make(4)
    land(tier, "A", 4)
    assert tier.reserve("A")
    assert tier.alloc("B", BLOCK) is None
    promised = tier.get("A")
    assert promised is not None
    tier.pin(promised, ("load", 1))
    tier.end_step()
    assert promised.state == "pinned"
    tier.unpin(promised, ("load", 1))
    assert tier.alloc("B", BLOCK) is not None
    tier.check()


@pytest.mark.clause("EC-3.4")
def test_reservations_end_with_the_step_used_or_not() -> None:
    tier = make(4)
    a, b = land(tier, "a"), land(tier, "b")
    assert tier.reserve("a")
    assert tier.reserve("a"), "asking twice is one promise"
    assert tier.reserve("b")
    assert len(a.holders) == len(b.holders) == 1
    tier.end_step()
    assert a.state == b.state == "ready"
    tier.end_step()
    assert tier.reserve("a"), "the next step may promise again"
    tier.end_step()
    tier.check()


@pytest.mark.clause("EC-3.1")
def test_only_servable_entries_are_promised() -> None:
    tier = make(8)
    assert not tier.reserve("missing")
    entry = _alloc(tier, "a")
    assert not tier.reserve("a")
    tier.begin_write(entry, ("save", 1))
    assert not tier.reserve("a")
    tier.write_lost(entry, ("save", 1))
    assert not tier.reserve("a")
    pinned = land(tier, "p")
    tier.pin(pinned, ("grant", 1))
    assert tier.reserve("p")
    tier.end_step()
    assert pinned.holders == {("grant", 1)}
    tier.check()


# ---------------------------------------------------------------------- holders
@pytest.mark.clause("EC-2.4")
def test_each_holder_counts_once_and_releases_once() -> None:
    tier = make(4)
    entry = land(tier, "a")
    tier.pin(entry, ("load", 1))
    tier.pin(entry, ("grant", 1))
    with pytest.raises(LocalProtocolError, match=r"holds .* already"):
        tier.pin(entry, ("load", 1))
    tier.unpin(entry, ("load", 1))
    assert entry.state == "pinned"
    with pytest.raises(LocalProtocolError, match="does not hold"):
        tier.unpin(entry, ("load", 1))
    with pytest.raises(LocalProtocolError, match="does not hold"):
        tier.unpin(entry, ("hold", 1))
    assert tier.evictable_blocks == 0
    tier.unpin(entry, ("grant", 1))
    assert (entry.state, tier.evictable_blocks) == ("ready", 1)
    tier.check()


def test_holds_are_holders_with_names_of_their_own() -> None:
    tier = make(4)
    entry = land(tier, "a")
    tier.hold(entry, ("hold", 1))
    assert entry.state == "pinned"
    tier.release_hold(entry, ("hold", 1))
    assert entry.state == "ready"


# ------------------------------------------------------- writers and quarantine
@pytest.mark.clause("EC-2.3")
@pytest.mark.parametrize("event", ["write_landed", "write_ended", "write_lost"])
def test_only_the_writer_ends_its_write(event: str) -> None:
    tier = make(4)
    entry = _alloc(tier, "a")
    tier.begin_write(entry, ("read", 7))
    for stranger in (("read", 8), ("save", 7)):
        with pytest.raises(LocalProtocolError, match=f"^{event}: .* is not the writer"):
            getattr(tier, event)(entry, stranger)
    assert (entry.state, entry.writer) == ("saving", ("read", 7))
    getattr(tier, event)(entry, ("read", 7))
    assert entry.state != "saving"
    tier.check()


def test_a_write_that_ended_is_tried_again_in_the_same_blocks() -> None:
    tier = make(4)
    entry = _alloc(tier, "a", 2)
    extents = entry.extents
    for attempt in (1, 2, 3):
        tier.begin_write(entry, ("read", attempt))
        tier.write_ended(entry, ("read", attempt))
        assert (entry.state, entry.extents, entry.writer) == ("allocated", extents, None)
    tier.begin_write(entry, ("read", 4))
    tier.write_landed(entry, ("read", 4))
    assert entry.extents == extents
    tier.check()


@pytest.mark.clause("EC-6.1")
def test_quarantined_blocks_serve_nobody() -> None:
    tier = make(4)
    entry = lost(tier, "a", 3)
    assert tier.get("a") is None
    assert (tier.quarantined_blocks, tier.free_blocks, tier.evictable_blocks) == (3, 1, 0)
    assert tier.alloc("b", 2 * BLOCK) is None
    with pytest.raises(IllegalEvent):
        tier.pin(entry, ("load", 1))
    again = _alloc(tier, "a")
    assert set(tier.entries()) == {entry, again}, "the name is free for another entry"
    tier.check()
    tier.dma_ended(entry)
    assert (tier.quarantined_blocks, tier.free_blocks, entry.writer) == (0, 3, None)
    assert tier.get("a") is again
    tier.check()


@pytest.mark.clause("EC-6.3")
def test_retired_blocks_come_back_only_with_a_proof() -> None:
    tier = make(4)
    entry = lost(tier, "a", 3)
    tier.retire(entry)
    assert (tier.retired_blocks, tier.quarantined_blocks, tier.free_blocks) == (3, 0, 1)
    assert tier.variables() == {"free": 1, "retired": 3, "total": 4}
    assert tier.alloc("b", 2 * BLOCK) is None
    tier.check()
    assert tier.reclaim(entry.entry_id) == 3
    assert (tier.retired_blocks, tier.free_blocks) == (0, 4)
    with pytest.raises(LocalProtocolError, match="has no retired blocks"):
        tier.reclaim(entry.entry_id)
    assert tier.free_blocks == 4
    tier.check()


def test_what_was_never_retired_cannot_be_reclaimed() -> None:
    tier = make(4)
    entry = lost(tier, "a")
    with pytest.raises(LocalProtocolError, match="has no retired blocks"):
        tier.reclaim(entry.entry_id)
    assert tier.quarantined_blocks == 1


@pytest.mark.clause("EC-2.7")
@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_so_many_entries_beyond_the_need_are_evicted_for_few_extents(extra: int) -> None:
    tier = EncodingTier(12, BLOCK, preferred_extents=1, extra_evictions=extra)
    entries = [_alloc(tier, f"e{i}") for i in range(12)]
    for i, entry in enumerate(entries):
        assert entry.extents == ((i, 1),)
        if i in (1, 3):
            continue
        tier.begin_write(entry, ("save", i))
        tier.write_landed(entry, ("save", i))
        if i % 2 == 0:
            # No two blocks that could be free are neighbours.
            tier.pin(entry, ("hold", i))
    for i in (1, 3):
        tier.drop_allocated(entries[i])
    made = _alloc(tier, "new", 2)
    assert len(made.extents) == 2
    assert tier.evictions == extra
