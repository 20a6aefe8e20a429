# SPDX-License-Identifier: Apache-2.0
"""Saves and loads: ranks report once each, and the last one decides."""

from __future__ import annotations

import itertools

import pytest

from ec_protocol.errors import IllegalEvent, LocalProtocolError
from ec_protocol.tier.copies import Copy, CopyTable
from ec_protocol.tier.encodings import EncodingTier

BLOCK = 16


def make(world_size: int = 1, blocks: int = 8) -> CopyTable:
    return CopyTable(EncodingTier(blocks, BLOCK), world_size)


def planned_save(copies: CopyTable, mm_hash: str = "a", blocks: int = 1) -> Copy:
    copy = copies.plan_save(mm_hash, blocks * BLOCK)
    assert copy is not None
    return copy


def saved(copies: CopyTable, mm_hash: str = "a", blocks: int = 1) -> None:
    copy = planned_save(copies, mm_hash, blocks)
    copies.submit(copy)
    copies.report(copy.copy_id, 0, landed=True)


def loading(copies: CopyTable) -> Copy:
    """A load of ``a``, which was saved, in flight."""
    saved(copies)
    copy = copies.plan_load("a")
    copies.submit(copy)
    return copy


@pytest.mark.clause("EC-4.5")
def test_a_save_lands_when_its_rank_says_so() -> None:
    copies = make(world_size=4)
    copy = planned_save(copies)
    entry = copy.entry
    assert (copy.kind, copy.state, entry.state) == ("save", "planned", "allocated")
    assert copies.save_of("a") is copy
    assert copies.get(copy.copy_id) is copy
    copies.submit(copy)
    assert (copy.state, entry.state, entry.writer) == ("in_flight", "saving", ("save", 1))
    assert copies.report(copy.copy_id, 0, landed=True) is copy
    assert (copy.state, entry.state) == ("landed", "ready")
    assert copies.save_of("a") is None
    assert copies.get(copy.copy_id) is None
    assert (len(copies), copies.landed) == (0, {"save": 1, "load": 0})
    copies.tier.check()


@pytest.mark.clause("EC-4.3")
def test_f7_a_save_whose_encoder_never_ran_frees_its_blocks() -> None:
    copies = make()
    copy = planned_save(copies)
    copies.submit(copy)
    copies.report(copy.copy_id, 0, landed=False)
    assert (copy.state, copy.entry.state) == ("skipped", "freed")
    assert copies.tier.free_blocks == 8
    assert (len(copies), copies.save_of("a")) == (0, None)
    assert copies.skipped == {"save": 1, "load": 0}
    saved(copies)
    copies.tier.check()


@pytest.mark.clause("EC-4.3")
def test_f7_a_save_that_the_step_never_carried_frees_its_blocks() -> None:
    copies = make()
    copy = planned_save(copies)
    copies.skip(copy)
    assert (copy.state, copy.entry.state) == ("skipped", "freed")
    assert (len(copies), copies.save_of("a"), copies.tier.free_blocks) == (0, None, 8)
    with pytest.raises(IllegalEvent):
        copies.skip(copy)
    copies.tier.check()


def test_what_has_an_entry_is_not_saved_again() -> None:
    copies = make()
    planned_save(copies)
    assert copies.plan_save("a", BLOCK) is None
    saved(copies, "b")
    assert copies.plan_save("b", BLOCK) is None
    assert len(copies) == 1


def test_what_has_no_room_is_not_saved() -> None:
    copies = make(blocks=2)
    planned_save(copies, "a", 2)
    assert copies.plan_save("b", BLOCK) is None
    assert (len(copies), copies.save_of("b")) == (1, None)


@pytest.mark.clause("EC-4.2")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_load_keeps_its_entry_until_the_last_rank(order: tuple[int, ...]) -> None:
    copies = make(world_size=3)
    copy = loading(copies)
    for i, rank in enumerate(order):
        assert copy.entry.holders == {("load", copy.copy_id)}
        assert copy.waiting == set(order[i:])
        copies.report(copy.copy_id, rank, landed=True)
    assert (copy.state, copy.entry.state, len(copies)) == ("landed", "ready", 0)
    assert copies.landed["load"] == 1
    copies.tier.check()


@pytest.mark.clause("EC-4.2")
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_rank_that_did_not_copy_makes_the_load_skipped_for_all(failing: int) -> None:
    copies = make(world_size=3)
    copy = loading(copies)
    for rank in range(3):
        assert copy.entry.state == "pinned"
        copies.report(copy.copy_id, rank, landed=rank != failing)
    assert (copy.state, copy.entry.state) == ("skipped", "ready")
    assert (copies.landed["load"], copies.skipped["load"]) == (0, 1)
    copies.tier.check()


def test_a_load_that_the_step_never_carried_releases_its_holder() -> None:
    copies = make(world_size=2)
    saved(copies)
    copy = copies.plan_load("a")
    copies.skip(copy)
    assert (copy.state, copy.entry.state, copy.entry.holders) == ("skipped", "ready", set())
    copies.tier.check()


def test_loads_of_one_encoding_are_independent() -> None:
    copies = make()
    saved(copies)
    first, second = copies.plan_load("a"), copies.plan_load("a")
    copies.submit(first)
    copies.submit(second)
    copies.report(first.copy_id, 0, landed=True)
    assert first.entry.holders == {("load", second.copy_id)}
    copies.report(second.copy_id, 0, landed=True)
    assert first.entry.state == "ready"


@pytest.mark.clause("EC-4.4", "EC-4.1")
def test_a_rank_reports_once() -> None:
    copies = make(world_size=2)
    copy = loading(copies)
    copies.report(copy.copy_id, 1, landed=True)
    for rank in (1, 2, -1):
        with pytest.raises(LocalProtocolError, match=r"waiting for ranks \[0\]"):
            copies.report(copy.copy_id, rank, landed=False)
    assert (copy.state, copy.waiting, copy.all_landed) == ("in_flight", {0}, True)
    assert copy.entry.state == "pinned"
    copies.report(copy.copy_id, 0, landed=True)
    assert copy.state == "landed"


@pytest.mark.clause("EC-4.1")
def test_only_rank_0_saves() -> None:
    copies = make(world_size=2)
    copy = planned_save(copies)
    copies.submit(copy)
    with pytest.raises(LocalProtocolError, match=r"save 1 by rank 1: .* ranks \[0\]"):
        copies.report(copy.copy_id, 1, landed=True)
    assert copy.entry.state == "saving"


@pytest.mark.clause("EC-4.4")
def test_a_report_names_a_copy_in_flight() -> None:
    copies = make()
    for copy_id in (0, 1, 99):
        with pytest.raises(LocalProtocolError, match="no such copy"):
            copies.report(copy_id, 0, landed=True)
    copy = planned_save(copies)
    with pytest.raises(IllegalEvent):
        copies.report(copy.copy_id, 0, landed=True)
    assert (copy.state, copy.waiting, copy.entry.state) == ("planned", {0}, "allocated")


@pytest.mark.clause("EC-4.6")
def test_a_late_report_cannot_reach_a_later_copy_of_the_same_encoding() -> None:
    copies = make()
    first = planned_save(copies)
    copies.skip(first)
    second = planned_save(copies)
    copies.submit(second)
    assert second.copy_id != first.copy_id
    with pytest.raises(LocalProtocolError, match="no such copy"):
        copies.report(first.copy_id, 0, landed=True)
    assert second.entry.state == "saving"


def test_a_copy_in_flight_cannot_be_called_back() -> None:
    copies = make()
    copy = planned_save(copies)
    copies.submit(copy)
    for step in (copies.skip, copies.submit):
        with pytest.raises(IllegalEvent):
            step(copy)
    assert (copy.state, copy.entry.state) == ("in_flight", "saving")
    assert list(copies) == [copy]


@pytest.mark.clause("EC-3.3")
@pytest.mark.parametrize("state", ["missing", "allocated", "saving", "quarantined"])
def test_only_servable_encodings_are_loaded(state: str) -> None:
    copies = make()
    if state != "missing":
        copy = planned_save(copies)
        if state != "allocated":
            copies.submit(copy)
        if state == "quarantined":
            copies.tier.write_lost(copy.entry, ("save", copy.copy_id))
    before = len(copies)
    with pytest.raises(LocalProtocolError, match="not servable; reserve it first"):
        copies.plan_load("a")
    assert len(copies) == before
    copies.tier.check()


@pytest.mark.clause("EC-3.3")
def test_the_load_of_a_promised_encoding_takes_over_from_the_reservation() -> None:
    copies = make(blocks=2)
    saved(copies, "a", 2)
    assert copies.tier.reserve("a")
    assert copies.plan_save("b", BLOCK) is None, "the promise is not evicted"
    copy = copies.plan_load("a")
    copies.tier.end_step()
    assert copy.entry.holders == {("load", copy.copy_id)}


@pytest.mark.parametrize("world_size", [0, -1])
def test_somebody_takes_part(world_size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"world_size={world_size}"):
        make(world_size)


def test_variables_are_those_of_the_spec() -> None:
    copies = make(world_size=2)
    copy = loading(copies)
    copies.report(copy.copy_id, 0, landed=False)
    assert copy.variables() == {
        "kind": "load",
        "entry": 1,
        "state": "in_flight",
        "waiting": [1],
        "all_landed": False,
    }
