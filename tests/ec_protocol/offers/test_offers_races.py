# SPDX-License-Identifier: Apache-2.0
"""Engine and server at once in one slot: what either does at every moment of the other's."""

from __future__ import annotations

import pytest

from ec_protocol.offers.table import (
    OfferTable,
)
from ec_protocol.p2p.wire import XferStatus
from tests.ec_protocol.offers.world import BLOCK, World

OK, MISSING, NOT_READY = XferStatus.OK, XferStatus.NACK_MISSING, XferStatus.NACK_NOT_READY


@pytest.mark.parametrize("at", ["before", "locked", "after"])
def test_the_engine_closes_at_every_moment_of_a_request(at: str) -> None:
    """Either the engine has the memory and nobody was granted it, or the other way round."""
    moments = 0
    while True:
        world = World()
        entry = world.save("h")
        closed: list[bool] = []
        seen = 0

        def close(
            where: str,
            world: World = world,
            entry: object = entry,
            closed: list[bool] = closed,
            moment: int = moments,
        ) -> None:
            nonlocal seen
            if where == at:
                if seen == moment:
                    closed.append(world.offers.close(entry, world.now))  # type: ignore[arg-type]
                seen += 1

        world.between_server = close
        ack = world.ask("h")
        if not closed:
            assert moments > 1, "a request looks at the slot and then keeps it"
            return
        assert closed == [ack.status != OK]
        moments += 1


@pytest.mark.parametrize("at", ["before", "locked", "after"])
def test_the_server_grants_at_every_moment_of_a_close(at: str) -> None:
    world = World()
    entry = world.save("h")
    granted: list[bool] = []

    def grant(where: str) -> None:
        if where == at and not granted:
            granted.append(world.ask("h").status == OK)

    world.between_engine = grant
    closed = world.offers.close(entry, world.now)
    world.between_engine = lambda _: None
    assert closed != granted[0]
    assert world.ask("h", 2).status == (OK if granted[0] else MISSING)


def test_a_server_that_stands_still_in_a_slot_costs_the_engine_that_slot_only() -> None:
    world = World()
    stuck, other = world.save("stuck"), world.save("other")
    slot = world.offers._offers[stuck.entry_id].slot
    assert world.server_locks.acquire(slot)
    assert not world.offers.close(stuck, world.now)
    assert world.offers.close(other, world.now)
    assert world.offers.counters["slots_locked"] == 1
    world.server_locks.die()
    assert world.offers.close(stuck, world.now)


@pytest.mark.clause("EC-14.3")
def test_what_landed_while_a_server_was_in_its_slot_is_offered_later() -> None:
    world = World()
    entry = world.begin("h")
    assert world.server_locks.acquire(world.offers._offers[entry.entry_id].slot)
    world.land(entry)
    world.server_locks.die()
    assert world.ask("h").status == NOT_READY, "the slot says that it is coming"
    world.offers.catch_up(world.now)
    assert world.ask("h", 2).status == OK


def test_a_slot_that_the_engine_is_writing_counts_as_coming() -> None:
    world = World()
    entry = world.save("h")
    assert world.engine_locks.acquire(world.offers._offers[entry.entry_id].slot)
    assert world.ask("h").status == NOT_READY
    assert world.shelf.counters["slots_locked"] >= 1


def test_a_server_that_goes_on_after_its_slot_was_closed_grants_nothing() -> None:
    world = World(blocks=1)
    old = world.save("old")
    found = world.shelf.find("old")
    assert found is not None
    assert world.offers.close(old, world.now)
    assert not world.shelf.keep(found, 1, world.now + 30)
    # Nor when the slot has another encoding by now, even one of the same name.
    new = world.save("new")
    assert world.offers.close(new, world.now)
    new = world.save("old", BLOCK // 2)
    slot = world.offers._offers[new.entry_id].slot
    assert slot == found.entry_id
    assert not world.shelf.keep(found, 1, world.now + 30)
    assert world.offers.ledger.needed_until(slot) == 0


@pytest.mark.clause("EC-14.2")
def test_what_is_only_coming_where_it_was_found_is_not_granted() -> None:
    """The same name in the same slot and blocks, and of one length, and no bytes yet."""
    world = World(blocks=1)
    world.save("h")
    found = world.shelf.find("h")
    assert found is not None
    world.save("another")
    copy = world.copies.plan_save("h", BLOCK)
    assert copy is not None
    world.copies.submit(copy)
    world.offers.catch_up(world.now)
    assert world.offers._offers[copy.entry.entry_id].slot == found.entry_id
    assert copy.entry.extents == found.extents
    assert not world.shelf.keep(found, 1, world.now + 30)


@pytest.mark.clause("EC-14.2")
def test_a_slot_that_another_name_has_by_now_is_not_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both in the same blocks, and of one length."""
    monkeypatch.setattr(OfferTable, "hash_of", lambda self, name: 7)
    world = World(blocks=1)
    world.save("old")
    found = world.shelf.find("old")
    assert found is not None
    new = world.save("new")
    assert world.offers._offers[new.entry_id].slot == found.entry_id
    assert not world.shelf.keep(found, 1, world.now + 30)
    assert world.offers.close(new, world.now)


@pytest.mark.clause("EC-14.2")
@pytest.mark.parametrize(("nbytes", "extents"), [(BLOCK, ((1, 1),)), (BLOCK - 1, ((0, 1),))])
def test_a_name_that_lies_elsewhere_by_now_is_not_granted(
    nbytes: int, extents: tuple[tuple[int, int], ...]
) -> None:
    world = World()
    world.save("h")
    found = world.shelf.find("h")
    assert found is not None
    assert (found.nbytes, found.extents) == (BLOCK, ((0, 1),))
    world.offers.table.write(found.entry_id, "open", "h", nbytes, extents)
    assert not world.shelf.keep(found, 1, world.now + 30)
    assert world.offers.ledger.needed_until(found.entry_id) == 0
