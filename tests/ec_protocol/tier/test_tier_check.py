# SPDX-License-Identifier: Apache-2.0
"""The tier's own checker, which other tests rely on, sees what is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ec_protocol.errors import LocalProtocolError
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from tests.ec_protocol.tier.test_tier import land, lost, make


def overlap(tier: EncodingTier, a: Entry, b: Entry) -> None:
    b.extents = a.extents


def lost_block(tier: EncodingTier, a: Entry, b: Entry) -> None:
    a.extents = ((a.extents[0][0], 1),)


def free_and_owned(tier: EncodingTier, a: Entry, b: Entry) -> None:
    tier._space.free(a.extents)


def retired_and_owned(tier: EncodingTier, a: Entry, b: Entry) -> None:
    tier._retired[99] = a


def vanished(tier: EncodingTier, a: Entry, b: Entry) -> None:
    del tier._live[a.mm_hash]


def holder_without_pin(tier: EncodingTier, a: Entry, b: Entry) -> None:
    b.holders.add(("load", 7))


def pin_without_holder(tier: EncodingTier, a: Entry, b: Entry) -> None:
    a.holders.clear()


def evictable_miscounted(tier: EncodingTier, a: Entry, b: Entry) -> None:
    tier._evictable_blocks += 1


def retired_miscounted(tier: EncodingTier, a: Entry, b: Entry) -> None:
    tier.retired_blocks += 1


@pytest.mark.parametrize(
    ("corrupt", "invariant"),
    [
        (overlap, "NoOverlap"),
        (free_and_owned, "NoOverlap"),
        (retired_and_owned, "NoOverlap"),
        (lost_block, "Conserved"),
        (vanished, "Conserved"),
        (evictable_miscounted, "Conserved"),
        (retired_miscounted, "Conserved"),
        (holder_without_pin, "PinSafety"),
        (pin_without_holder, "PinSafety"),
    ],
)
@pytest.mark.clause("EC-2.1", "EC-2.4")
def test_the_checker_sees_what_is_broken(
    corrupt: Callable[[EncodingTier, Entry, Entry], None], invariant: str
) -> None:
    tier = make(8)
    a, b = land(tier, "a", 2), land(tier, "b", 2)
    tier.pin(a, ("load", 1))
    tier.check()
    corrupt(tier, a, b)
    with pytest.raises(LocalProtocolError, match=f"^{invariant}: "):
        tier.check()


@pytest.mark.clause("EC-2.1")
def test_the_checker_counts_every_entry_wherever_it_is() -> None:
    """Several in each place where an entry may be."""
    tier = make(10)
    for name in ("r1", "r2", "r3"):
        tier.retire(lost(tier, name))
    for name in ("q1", "q2"):
        lost(tier, name)
    for name in ("a", "b"):
        tier.pin(land(tier, name), ("load", 1))
    land(tier, "c")
    land(tier, "d")
    tier.check()
    assert (tier.retired_blocks, tier.quarantined_blocks, tier.free_blocks) == (3, 2, 1)
