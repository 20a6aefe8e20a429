# SPDX-License-Identifier: Apache-2.0
"""What is granted is kept, whatever engine and server do to each other meanwhile."""

from __future__ import annotations

import math
import struct

import pytest

from ec_protocol.errors import GuardRefused, IllegalEvent, LocalProtocolError
from ec_protocol.offers.engine import Offers
from ec_protocol.offers.table import (
    MAX_EXTENTS,
    MAX_NAME_BYTES,
    PROBES,
    RECORD_BYTES,
    Ledger,
    OfferTable,
    slots_for,
    table_bytes,
)
from ec_protocol.p2p.wire import XferStatus
from ec_protocol.tables.dispatch import OFFER
from ec_protocol.tier.entry import Entry
from tests.ec_protocol.offers.world import BLOCK, START, World

OK, MISSING, NOT_READY = XferStatus.OK, XferStatus.NACK_MISSING, XferStatus.NACK_NOT_READY


def test_an_offered_entry_is_granted_without_asking_the_engine() -> None:
    world = World()
    entry = world.save("h", 100)
    ack = world.ask("h")
    assert ack.status == OK
    assert (ack.extents, ack.nbytes) == (list(entry.extents), 100)


def test_a_granted_entry_cannot_be_closed_until_its_attempt_says_that_it_is_done() -> None:
    world = World()
    entry = world.save("h")
    assert world.ask("h").status == OK
    assert not world.offers.close(entry, world.now)
    world.done("h")
    assert world.offers.close(entry, world.now)
    assert world.ask("h", 2).status == MISSING


def test_nor_until_its_lease_is_over_by_the_engines_own_clock() -> None:
    world = World()
    entry = world.save("h")
    world.ask("h")
    lease_s = world.timing.lease_s
    assert not world.offers.close(entry, math.nextafter(START + lease_s, 0))
    assert world.offers.close(entry, START + lease_s)


def test_the_longest_of_several_leases_counts() -> None:
    world = World()
    entry = world.save("h")
    world.ask("h", 1)
    world.now += 10
    world.ask("h", 2)
    world.done("h", 2)
    assert not world.offers.close(entry, START + world.timing.lease_s - 1)
    world.ask("h", 3)
    world.done("h", 1)
    assert not world.offers.close(entry, START + world.timing.lease_s + 9)


@pytest.mark.clause("EC-14.2")
def test_the_longest_counts_whichever_was_granted_first() -> None:
    world = World()
    entry = world.save("h")
    world.ask("h", 1)
    world.now += 10
    world.ask("h", 2)
    assert not world.offers.close(entry, START + world.timing.lease_s + 9)
    assert world.offers.close(entry, START + world.timing.lease_s + 10)


@pytest.mark.clause("EC-14.2")
def test_the_end_of_one_slots_grants_leaves_those_of_others() -> None:
    world = World()
    first, second = world.save("a"), world.save("b")
    world.ask("a", 1)
    world.ask("b", 2)
    world.done("a", 1)
    world.ask("b", 3)
    world.done("b", 3)
    assert world.offers.close(first, world.now)
    assert not world.offers.close(second, world.now)


@pytest.mark.clause("EC-14.2")
def test_a_slot_that_cannot_be_had_is_not_granted() -> None:
    """The engine is in it: whatever it says in that moment may be gone in the next."""
    world = World()
    entry = world.save("h")
    found = world.shelf.find("h")
    assert found is not None
    assert world.engine_locks.acquire(found.entry_id)
    assert not world.shelf.keep(found, 1, world.now + 30)
    assert world.offers.ledger.needed_until(found.entry_id) == 0
    world.engine_locks.release(found.entry_id)
    assert world.offers.close(entry, world.now)


def test_who_asks_too_early_is_told_to_ask_again() -> None:
    world = World()
    entry = world.begin("h")
    assert world.ask("h").status == NOT_READY
    world.land(entry)
    assert world.ask("h").status == OK


def test_what_was_expected_and_never_comes_is_missing() -> None:
    world = World()
    entry = world.begin("h")
    assert world.offers.close(entry, world.now)
    assert world.ask("h").status == MISSING


def test_a_name_that_was_evicted_and_saved_again_is_found_where_it_is_now() -> None:
    world = World(blocks=3)
    world.save("h", 2 * BLOCK)
    world.save("other", 2 * BLOCK)
    assert world.ask("h").status == MISSING
    again = world.save("h", BLOCK)
    ack = world.ask("h", 2)
    assert (ack.status, ack.extents) == (OK, list(again.extents))


# --------------------------------------------------------------------- making room
def test_what_is_granted_is_passed_over() -> None:
    world = World(blocks=3)
    for name in "abc":
        world.save(name)
    world.ask("a")
    world.save("d")
    assert [e.mm_hash for e in world.tier.entries()] == ["a", "c", "d"]
    world.done("a")
    world.save("e")
    assert [e.mm_hash for e in world.tier.entries()] == ["c", "d", "e"]
    world.tier.check()


def test_when_too_much_is_granted_nothing_is_evicted_and_all_is_offered_again() -> None:
    world = World(blocks=4)
    for name in "abcd":
        world.save(name)
    world.ask("b", 1)
    world.ask("c", 2, b"other")
    assert world.tier.alloc("big", 3 * BLOCK) is None
    assert world.tier.evictions == 0
    world.offers.catch_up(world.now)
    assert world.ask("a", 3, b"third").status == OK
    world.tier.check()
    assert world.tier.alloc("small", BLOCK) is not None
    assert [e.mm_hash for e in world.tier.entries()] == ["a", "b", "c", "small"]


def test_room_is_made_again_when_the_leases_are_over() -> None:
    world = World(blocks=2)
    world.save("a")
    world.save("b")
    world.ask("a", 1)
    world.ask("b", 2, b"other")
    assert world.tier.alloc("big", 2 * BLOCK) is None
    world.pass_time(world.timing.lease_s)
    world.offers.catch_up(world.now)
    assert world.tier.alloc("big", 2 * BLOCK) is not None
    world.tier.check()


def test_few_pieces_are_worth_evicting_more_for() -> None:
    world = World(blocks=8)
    for number in range(8):
        world.save(f"h{number}")
    world.ask("h1")
    entry = world.tier.alloc("big", 3 * BLOCK)
    assert entry is not None
    assert len(entry.extents) <= 2
    world.tier.check()


def test_an_entry_that_is_given_up_leaves_a_slot_that_is_closed_later() -> None:
    world = World()
    entry = world.begin("h")
    slot = world.offers._offers[entry.entry_id].slot
    assert world.server_locks.acquire(slot)
    world.land(entry, landed=False)
    assert world.tier.free_blocks == world.tier.num_blocks
    world.server_locks.release(slot)
    assert world.ask("h").status == NOT_READY
    world.offers.catch_up(world.now)
    assert world.ask("h", 2).status == MISSING


# ---------------------------------------------------------------------- deaths
def test_grants_outlive_the_server_that_made_them() -> None:
    world = World()
    entry = world.save("h")
    world.ask("h")
    world.restart_server()
    assert not world.offers.close(entry, world.now)
    assert world.shelf.inherited_blocks(world.now) == 1


def test_the_next_server_does_not_lower_what_it_found() -> None:
    world = World()
    entry = world.save("h")
    world.ask("h", 1)
    world.restart_server()
    world.ask("h", 2)
    world.done("h", 2)
    assert not world.offers.close(entry, world.now)
    world.done("h", 1)  # of a grant that this server does not know
    assert not world.offers.close(entry, world.now)
    world.pass_time(world.timing.lease_s)
    assert world.offers.close(entry, world.now)


def test_what_was_found_counts_for_the_share_of_all_grants() -> None:
    world = World(blocks=10)
    for number in range(9):
        world.save(f"h{number}")
        assert world.ask(f"h{number}", number, bytes([number])).status == OK
    world.save("more")
    world.restart_server()
    assert world.ask("more", 20, b"other").status == NOT_READY
    world.pass_time(world.timing.lease_s)
    assert world.ask("more", 21, b"other").status == OK


def test_a_new_server_knows_everything_that_is_offered() -> None:
    world = World(blocks=16)
    for number in range(16):
        world.save(f"h{number}")
    world.restart_server()
    assert all(world.ask(f"h{n}", n, bytes([n])).status == OK for n in range(8))


# --------------------------------------------------------------- a hostile server
@pytest.mark.clause("EC-14.5")
def test_a_lease_that_cannot_be_is_believed_for_one_lease() -> None:
    world = World()
    entry = world.save("h")
    slot = world.offers._offers[entry.entry_id].slot
    for absurd in (math.inf, 1e300):
        world.offers.ledger.need(slot, absurd)
        now = world.now
        assert not world.offers.close(entry, now)
        assert not world.offers.close(entry, now + world.timing.lease_s - 1)
        world.now = now + world.timing.lease_s
    assert world.offers.close(entry, world.now)
    assert world.offers.counters["absurd_leases"] == 2


@pytest.mark.clause("EC-14.5")
def test_what_is_remembered_of_such_a_lease_is_what_the_ledger_says() -> None:
    """The next server has written something else: that it cannot be is judged anew."""
    world = World()
    entry = world.save("h")
    slot = world.offers._offers[entry.entry_id].slot
    for _ in range(2):
        world.offers.ledger.need(slot, 1e300)
        assert not world.offers.close(entry, world.now)
        assert list(world.offers._absurd) == [slot]
        world.offers.ledger.need(slot, world.now)
        world.offers.catch_up(world.now)
        assert world.offers._absurd == {}
        world.now += world.timing.lease_s
    assert world.offers.counters["absurd_leases"] == 2


def test_room_is_judged_by_the_time_at_which_it_is_wanted() -> None:
    """No hook may have been called since the lease ended, or since it was granted."""
    world = World(blocks=1)
    world.save("h")
    world.now += 10 * world.timing.lease_s
    assert world.ask("h").status == OK
    assert world.copies.plan_save("other", BLOCK) is None
    assert world.offers.counters["absurd_leases"] == 0
    world.now += world.timing.lease_s
    assert world.copies.plan_save("other", BLOCK) is not None


def test_a_server_that_keeps_more_than_it_may_is_noticed() -> None:
    world = World(blocks=10)
    entries = [world.save(f"h{n}") for n in range(10)]
    slots = [world.offers._offers[e.entry_id].slot for e in entries]
    for slot in slots[:9]:
        world.offers.ledger.need(slot, world.now + 1)
    assert not world.offers.overdrawn(world.now)
    world.offers.ledger.need(slots[9], world.now + 1)
    assert world.offers.overdrawn(world.now)


def test_no_number_is_no_lease() -> None:
    world = World()
    entry = world.save("h")
    world.offers.ledger.need(world.offers._offers[entry.entry_id].slot, math.nan)
    assert world.offers.close(entry, world.now)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * RECORD_BYTES,
        b"\x02" + b"\xff" * 15 + b"\0" * (RECORD_BYTES - 16),
        struct.pack("<BxHHxxQ", 2, 1, 0, BLOCK) + b"\xff" * (RECORD_BYTES - 16),
    ],
    ids=["noise", "lengths", "a name that is no text"],
)
def test_a_record_that_makes_no_sense_is_not_granted(garbage: bytes) -> None:
    world = World()
    entry = world.save("h")
    slot = world.offers._offers[entry.entry_id].slot
    at = 64 + 8 * world.offers.table.slots + RECORD_BYTES * slot
    world.table_buffer[at : at + RECORD_BYTES] = garbage
    assert world.ask("h").status == MISSING


def test_blocks_outside_the_region_are_not_granted() -> None:
    world = World(blocks=2)
    entry = world.save("h")
    slot = world.offers._offers[entry.entry_id].slot
    at = 64 + 8 * world.offers.table.slots + RECORD_BYTES * slot + struct.calcsize("<BxHHxxQ")
    struct.pack_into("<II", world.table_buffer, at, 1, 2)
    assert world.ask("h").status == MISSING


# ---------------------------------------------------------------------- bounds
def test_what_does_not_fit_a_record_is_not_offered_and_counted() -> None:
    world = World(blocks=4 * MAX_EXTENTS)
    entry = world.save("\N{GRINNING FACE}" * (MAX_NAME_BYTES // 4))
    assert world.offers.offered(entry)
    long = world.save("x" * (MAX_NAME_BYTES // 4 + 1))
    assert not world.offers.offered(long)
    assert world.offers.counters["not_offered_name"] == 2  # expected, then offered
    assert world.ask(long.mm_hash).status == MISSING
    assert world.offers.close(long, world.now)


def test_an_entry_in_many_pieces_is_offered_up_to_the_bound() -> None:
    world = World(blocks=4 * MAX_EXTENTS)
    # The tier does not have these entries, so nothing of them is recorded.
    world.tier.recorder.trace = None

    def entry(number: int, pieces: int) -> Entry:
        extents = tuple((2 * n, 1) for n in range(pieces))
        made = Entry(number, f"h{number}", extents, pieces, pieces * BLOCK, None)
        made.state = "ready"
        return made

    assert world.offers.offer(entry(1, MAX_EXTENTS))
    assert world.ask("h1").extents == [(2 * n, 1) for n in range(MAX_EXTENTS)]
    assert world.offers.offer(entry(2, MAX_EXTENTS + 1)) is False
    assert world.ask("h2", 2).status == MISSING


def test_names_with_one_hash_share_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfferTable, "hash_of", lambda self, name: 7)
    world = World(blocks=2 * PROBES)
    entries = [world.save(f"h{number}") for number in range(PROBES + 1)]
    assert world.offers.counters["not_offered_no_slot"] == 2
    assert [world.offers.offered(e) for e in entries] == [True] * PROBES + [False]
    assert world.ask("h31").status == OK
    assert world.ask("h32", 2).status == MISSING
    assert world.offers.close(entries[3], world.now)
    assert world.offers.offer(entries[32])
    assert world.ask("h32", 3).status == OK


def test_a_table_has_twice_the_slots_that_its_region_has_entries() -> None:
    assert [slots_for(n) for n in (1, 32, 33, 880, 1 << 20)] == [64, 64, 128, 2048, 65536]


def test_a_buffer_that_is_no_table_is_refused() -> None:
    world = World()
    slots = world.offers.table.slots
    with pytest.raises(LocalProtocolError, match="must run the same version"):
        OfferTable(memoryview(bytearray(table_bytes(slots))))
    with pytest.raises(LocalProtocolError, match="must run the same version"):
        Ledger(memoryview(world.table_buffer))
    with pytest.raises(LocalProtocolError, match="too short for 64 slots"):
        OfferTable(memoryview(world.table_buffer)[:-1])
    with pytest.raises(LocalProtocolError, match="too short for a header"):
        Ledger(memoryview(world.ledger_buffer)[:63])


def test_an_offer_moves_along_its_table_only() -> None:
    world = World()
    entry = world.save("h")
    with pytest.raises(IllegalEvent):
        world.offers.offer(entry)
    with pytest.raises(GuardRefused):
        OFFER.fire("open", "close", OFFER.mask("granted"))
    assert world.offers.close(entry, world.now)
    assert world.offers.close(entry, world.now), "who is not offered is closed"
    assert len(world.offers) == 0
    assert isinstance(world.offers, Offers)


@pytest.mark.clause("EC-14.6")
@pytest.mark.parametrize("absurd", [math.inf, 1e300])
def test_what_a_hostile_server_has_written_does_not_hide_the_next_ones_grants(
    absurd: float,
) -> None:
    """Its figure would stand above every true one, and the engine stops to believe it."""
    world = World()
    entry = world.save("h")
    world.offers.ledger.need(world.offers._offers[entry.entry_id].slot, absurd)
    assert not world.offers.close(entry, world.now)
    world.restart_server()
    world.pass_time(world.timing.lease_s - 1)
    assert world.ask("h").status == OK
    world.pass_time(2)
    assert not world.offers.close(entry, world.now), "a grant of the new server has 29 s left"
    world.pass_time(world.timing.lease_s)
    assert world.offers.close(entry, world.now)
