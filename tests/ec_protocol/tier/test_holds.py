# SPDX-License-Identifier: Apache-2.0
"""Holds: bounded in time, bounded in blocks, and started by the write that lands."""

from __future__ import annotations

import math

import pytest

from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable
from tests.ec_protocol.tier.test_tier import BLOCK, land, lost, make

NOW = 1000.0


def table(blocks: int = 8, share: float = 0.5) -> tuple[EncodingTier, HoldTable]:
    tier = make(blocks)
    return tier, HoldTable(tier, share)


def saving(tier: EncodingTier, mm_hash: str, blocks: int = 1) -> Entry:
    entry = tier.alloc(mm_hash, blocks * BLOCK)
    assert entry is not None
    tier.begin_write(entry, ("save", 1))
    return entry


@pytest.mark.clause("EC-3.5", "EC-7.3")
def test_a_hold_ends_at_its_deadline_and_not_before() -> None:
    tier, holds = table()
    entry = land(tier, "a")
    assert holds.hold(("announced", "a"), entry, NOW + 10.0)
    assert (entry.state, len(holds), holds.held_blocks) == ("pinned", 1, 1)
    assert ("announced", "a") in holds
    assert holds.next_deadline() == NOW + 10.0
    holds.tick(math.nextafter(NOW + 10.0, 0.0))
    assert entry.state == "pinned"
    holds.tick(NOW + 10.0)
    assert (entry.state, len(holds), holds.held_blocks) == ("ready", 0, 0)
    assert holds.next_deadline() is None
    tier.check()


def test_the_same_hold_again_moves_the_deadline_but_never_back() -> None:
    tier, holds = table()
    entry = land(tier, "a")
    for deadline, expected in ((NOW, NOW), (NOW + 5, NOW + 5), (NOW + 1, NOW + 5)):
        assert holds.hold(("announced", "a"), entry, deadline)
        assert holds.next_deadline() == expected
    assert (len(entry.holders), holds.held_blocks) == (1, 1)


def test_holds_of_one_entry_are_independent() -> None:
    tier, holds = table()
    entry = land(tier, "a")
    for waiter in ("r1", "r2"):
        assert holds.hold(("fetched", "a", waiter), entry, NOW)
    holds.release(("fetched", "a", "r1"))
    assert entry.state == "pinned"
    holds.release(("fetched", "a", "r1"))
    assert entry.state == "pinned", "each hold releases once"
    holds.release(("fetched", "a", "r2"))
    assert entry.state == "ready"


def test_releasing_what_is_not_held_is_nothing() -> None:
    _, holds = table()
    holds.release(("announced", "a"))
    assert len(holds) == 0


def test_many_are_released_at_once_by_their_keys() -> None:
    tier, holds = table()
    entries = {name: land(tier, name) for name in "abc"}
    for name, entry in entries.items():
        holds.hold(("fetched", name, "r1" if name != "c" else "r2"), entry, NOW)
    holds.release_where(lambda key: key[2] == "r1")
    assert {name: entry.state for name, entry in entries.items()} == {
        "a": "ready",
        "b": "ready",
        "c": "pinned",
    }


@pytest.mark.clause("EC-11.3")
def test_a_hold_that_comes_before_the_bytes_starts_when_they_land() -> None:
    tier, holds = table()
    entry = saving(tier, "a")
    assert holds.hold(("announced", "a"), entry, NOW + 10)
    assert (len(holds), holds.held_blocks, entry.state) == (1, 0, "saving")
    tier.write_landed(entry, ("save", 1))
    holds.landed(entry)
    assert (entry.state, holds.held_blocks) == ("pinned", 1)
    holds.landed(entry)
    assert len(entry.holders) == 1
    holds.tick(NOW + 10)
    assert entry.state == "ready"


def test_a_hold_whose_bytes_never_come_ends_with_its_deadline() -> None:
    tier, holds = table()
    entry = saving(tier, "a")
    holds.hold(("announced", "a"), entry, NOW + 10)
    tier.write_ended(entry, ("save", 1))
    tier.cancel(entry)
    holds.tick(NOW + 10)
    assert len(holds) == 0
    tier.check()


@pytest.mark.parametrize("state", ["quarantined", "freed"])
def test_what_will_never_be_servable_is_not_held(state: str) -> None:
    tier, holds = table()
    if state == "quarantined":
        entry = lost(tier, "a")
    else:
        allocated = tier.alloc("a", BLOCK)
        assert allocated is not None
        entry = allocated
        tier.cancel(entry)
    assert not holds.hold(("announced", "a"), entry, NOW)
    assert len(holds) == 0


@pytest.mark.clause("EC-3.6")
def test_all_holds_together_keep_no_more_than_their_share() -> None:
    """The oldest hold gives way, so that holds never pin the tier solid."""
    tier, holds = table(blocks=8, share=0.5)
    entries = [land(tier, name, 2) for name in "abc"]
    for i, entry in enumerate(entries):
        assert holds.hold(("announced", entry.mm_hash), entry, NOW + 100 - i)
        assert holds.held_blocks <= holds.max_blocks == 4
    assert [entry.state for entry in entries] == ["ready", "pinned", "pinned"]
    assert (holds.displaced, ("announced", "a") in holds) == (1, False)
    tier.check()


@pytest.mark.clause("EC-3.6")
def test_an_entry_larger_than_the_share_is_not_held() -> None:
    tier, holds = table(blocks=8, share=0.5)
    small, large = land(tier, "s", 2), land(tier, "l", 5)
    assert holds.hold(("announced", "s"), small, NOW)
    assert not holds.hold(("announced", "l"), large, NOW)
    assert (small.state, large.state, holds.displaced) == ("pinned", "ready", 0)


@pytest.mark.clause("EC-3.6")
def test_landing_displaces_too() -> None:
    tier, holds = table(blocks=8, share=0.5)
    waiting = saving(tier, "w", 3)
    holds.hold(("announced", "w"), waiting, NOW)
    other = land(tier, "o", 2)
    holds.hold(("announced", "o"), other, NOW)
    tier.write_landed(waiting, ("save", 1))
    holds.landed(waiting)
    assert (waiting.state, other.state) == ("pinned", "ready")
    assert (holds.held_blocks, holds.displaced) == (3, 1)


@pytest.mark.clause("EC-3.6")
def test_a_large_entry_displaces_as_many_as_it_takes() -> None:
    tier, holds = table(blocks=8, share=0.5)
    small = [land(tier, name, 1) for name in "abcd"]
    for entry in small:
        assert holds.hold(("announced", entry.mm_hash), entry, NOW)
    large = land(tier, "large", 3)
    assert holds.hold(("announced", "large"), large, NOW)
    assert [entry.state for entry in small] == ["ready", "ready", "ready", "pinned"]
    assert (holds.displaced, holds.held_blocks) == (3, 4)
    tier.check()


@pytest.mark.clause("EC-11.3")
def test_of_all_that_wait_only_those_for_the_landed_name_start() -> None:
    """Two encodings are on their way, each announced and awaited by two requests."""
    tier, holds = table(blocks=8, share=1.0)
    entries = {name: saving(tier, name) for name in ("a", "b")}
    for waiter in ("r1", "r2"):
        for name, entry in entries.items():
            assert holds.hold(("announced", name, waiter), entry, NOW)
    tier.write_landed(entries["b"], ("save", 1))
    holds.landed(entries["b"])
    assert (len(entries["b"].holders), entries["a"].state) == (2, "saving")
    assert holds.held_blocks == 1
    tier.write_landed(entries["a"], ("save", 1))
    holds.landed(entries["a"])
    assert (len(entries["a"].holders), holds.held_blocks) == (2, 2)
    holds.tick(NOW)
    assert [entry.state for entry in entries.values()] == ["ready", "ready"]
    tier.check()


@pytest.mark.clause("EC-3.5")
def test_the_deadline_that_comes_first_is_named() -> None:
    tier, holds = table()
    for name, deadline in (("a", NOW + 2), ("b", NOW + 1), ("c", NOW + 3)):
        holds.hold(("announced", name), land(tier, name), deadline)
    for expected in (NOW + 1, NOW + 2, NOW + 3):
        assert holds.next_deadline() == expected
        holds.tick(expected)
    assert (holds.next_deadline(), len(holds)) == (None, 0)


def test_a_name_that_got_another_entry_is_held_anew() -> None:
    tier, holds = table(blocks=2, share=1.0)
    old = land(tier, "a", 2)
    holds.hold(("announced", "a"), old, NOW)
    holds.tick(NOW)
    land(tier, "b", 2)
    new = land(tier, "a", 2)
    assert old.state == "freed"
    assert holds.hold(("announced", "a"), new, NOW + 1)
    assert (new.state, holds.held_blocks) == ("pinned", 2)


def test_a_larger_entry_that_lands_under_a_waiting_hold_is_not_held() -> None:
    """The name was given up and allocated again, larger than all holds may keep."""
    tier, holds = table(blocks=8, share=0.5)
    first = saving(tier, "a", 1)
    holds.hold(("announced", "a"), first, NOW)
    tier.write_ended(first, ("save", 1))
    tier.cancel(first)
    other = land(tier, "o", 2)
    holds.hold(("announced", "o"), other, NOW)
    second = land(tier, "a", 5)
    holds.landed(second)
    assert (second.state, other.state) == ("ready", "pinned")
    assert holds.held_blocks == 2
    holds.tick(NOW)
    assert len(holds) == 0
    tier.check()


@pytest.mark.clause("EC-3.6")
def test_an_entry_that_several_wait_for_takes_its_share_once() -> None:
    tier, holds = table(blocks=8, share=0.5)
    entry, other = land(tier, "a", 3), land(tier, "b", 1)
    for waiter in ("r1", "r2", "r3"):
        assert holds.hold(("fetched", "a", waiter), entry, NOW + 10.0)
    assert (holds.held_blocks, len(entry.holders)) == (3, 3)
    assert holds.hold(("announced", "b"), other, NOW + 10.0)
    assert (holds.displaced, len(holds)) == (0, 4)
    for waiter in ("r1", "r2", "r3"):
        holds.release(("fetched", "a", waiter))
    assert (holds.held_blocks, entry.state, other.state) == (1, "ready", "pinned")


def test_by_default_holds_keep_half_of_the_region() -> None:
    assert HoldTable(make(8)).max_blocks == 4


def test_an_entry_that_is_held_again_takes_its_share_again() -> None:
    tier, holds = table(blocks=4)
    entry = land(tier, "a", 2)
    for _ in range(2):
        assert holds.hold(("announced", "a"), entry, NOW)
        assert holds.held_blocks == 2
        holds.release(("announced", "a"))
        assert holds.held_blocks == 0


def test_an_entry_as_large_as_the_share_is_held_when_it_lands() -> None:
    tier, holds = table(blocks=4)
    entry = saving(tier, "a", 2)
    assert holds.hold(("announced", "a"), entry, NOW)
    tier.write_landed(entry, ("save", 1))
    holds.landed(entry)
    assert (entry.state, holds.held_blocks) == ("pinned", 2)


def test_a_hold_may_be_wanted_before_the_write_has_begun() -> None:
    tier, holds = table()
    entry = tier.alloc("a", BLOCK)
    assert entry is not None
    assert holds.hold(("announced", "a"), entry, NOW)
    tier.begin_write(entry, ("save", 1))
    tier.write_landed(entry, ("save", 1))
    holds.landed(entry)
    assert entry.state == "pinned"


def test_a_hold_that_waits_keeps_the_later_deadline() -> None:
    tier, holds = table()
    entry = saving(tier, "a")
    for deadline, expected in ((NOW + 5, NOW + 5), (NOW + 1, NOW + 5)):
        assert holds.hold(("announced", "a"), entry, deadline)
        assert holds.next_deadline() == expected


def test_a_key_holds_one_entry_at_a_time() -> None:
    """What the key held before is let go, whether its bytes are there or not."""
    tier, holds = table()
    first, second = land(tier, "a"), land(tier, "b")
    assert holds.hold(("key",), first, NOW + 5)
    assert holds.hold(("key",), second, NOW)
    assert (first.state, second.state, holds.held_blocks) == ("ready", "pinned", 1)
    assert holds.next_deadline() == NOW
    waiting = saving(tier, "c")
    assert holds.hold(("key",), waiting, NOW + 3)
    assert (second.state, holds.held_blocks, holds.next_deadline()) == ("ready", 0, NOW + 3)
    assert holds.hold(("key",), first, NOW + 1)
    assert (first.state, holds.next_deadline()) == ("pinned", NOW + 1)
    tier.write_landed(waiting, ("save", 1))
    holds.landed(waiting)
    assert waiting.state == "ready"
