# SPDX-License-Identifier: Apache-2.0
"""Entries: each event that is illegal in a state raises and changes nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ec_protocol.errors import IllegalEvent, LocalProtocolError
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry, Holder, Writer
from ec_protocol.trace import Trace

LIFECYCLE = load_lifecycles()["entry"]
LEGAL = {(e.source, e.event) for e in LIFECYCLE.edges}
WRITER: Writer = ("read", 1)
HOLDER: Holder = ("load", 1)


def entry_in(state: str, tier: EncodingTier, mm_hash: str = "subject") -> Entry:
    """A new entry, brought into ``state`` by legal steps only."""
    entry = tier.alloc(mm_hash, 40, (2, 10))
    assert entry is not None
    if state == "freed":
        tier.cancel(entry)
    if state in ("saving", "ready", "pinned", "quarantined"):
        tier.begin_write(entry, WRITER)
    if state in ("ready", "pinned"):
        tier.write_landed(entry, WRITER)
    if state == "pinned":
        tier.pin(entry, HOLDER)
    if state == "quarantined":
        tier.write_lost(entry, WRITER)
    assert entry.state == state
    return entry


#: How the tier is asked for each event. The writer is whatever the entry says, so
#: that the table's own check is reached and not only the check of the writer.
CALLS: dict[str, Callable[[EncodingTier, Any], Any]] = {
    "begin_write": lambda tier, entry: tier.begin_write(entry, ("save", 9)),
    "write_landed": lambda tier, entry: tier.write_landed(entry, entry.writer),
    "write_ended": lambda tier, entry: tier.write_ended(entry, entry.writer),
    "write_lost": lambda tier, entry: tier.write_lost(entry, entry.writer),
    "cancel": lambda tier, entry: tier.cancel(entry),
    "pin": lambda tier, entry: tier.pin(entry, ("grant", 2)),
    "unpin": lambda tier, entry: tier.unpin(entry, HOLDER),
    "dma_ended": lambda tier, entry: tier.dma_ended(entry),
    "retire": lambda tier, entry: tier.retire(entry),
    # What the tier does to the entry at the head of its queue.
    "evict": lambda tier, entry: tier.recorder.move(entry, "evict"),
}


def snapshot(tier: EncodingTier, entry: Entry) -> dict[str, Any]:
    """Everything that an event could have changed."""
    slots = {name: getattr(entry, name) for name in Entry.__slots__}
    return {
        **{name: set(v) if isinstance(v, set) else v for name, v in slots.items()},
        "tier": tier.variables(),
        "free": tier._space.free_extents(),
        "live": dict(tier._live),
        "quarantined": dict(tier._quarantined),
        "retired": dict(tier._retired),
        "evictable": tier.evictable_blocks,
        "queue": list(tier._queue),
        "steps": dict(tier._step_holders),
    }


def test_there_is_a_call_for_each_event() -> None:
    assert set(CALLS) == set(LIFECYCLE.events)


@pytest.mark.clause("EC-1.2")
@pytest.mark.parametrize("event", CALLS)
@pytest.mark.parametrize("state", LIFECYCLE.states)
def test_an_illegal_event_raises_and_changes_nothing(state: str, event: str) -> None:
    tier = EncodingTier(8, 16)
    entry_in("ready", tier, "bystander")
    entry = entry_in(state, tier)
    if (state, event) in LEGAL:
        CALLS[event](tier, entry)
        return
    records: list[Any] = []
    tier.recorder.trace = Trace("t", lambda: 0.0, records.append)
    before = snapshot(tier, entry)
    with pytest.raises(LocalProtocolError) as caught:
        CALLS[event](tier, entry)
    if event != "unpin":
        assert isinstance(caught.value, IllegalEvent)
        assert (caught.value.state, caught.value.event) == (state, event)
    assert snapshot(tier, entry) == before
    tier.check()
    # Nothing of the failed step was recorded or leaks into the record of the next one.
    assert records == []
    tier.reserve("bystander")
    assert [item["event"] for item in records[-1]["fired"]] == ["pin"]


@pytest.mark.parametrize("state", LIFECYCLE.states)
def test_servable_means_ready_or_pinned(state: str) -> None:
    entry = entry_in(state, EncodingTier(8, 16))
    assert entry.servable == (state in ("ready", "pinned"))


def test_variables_are_those_of_the_spec() -> None:
    tier = EncodingTier(8, 16)
    entry = entry_in("pinned", tier)
    tier.pin(entry, ("grant", 4))
    assert entry.variables() == {
        "mm_hash": "subject",
        "state": "pinned",
        "extents": ((0, 3),),
        "holders": [("grant", 4), ("load", 1)],
        "writer": None,
    }
    assert entry_in("saving", EncodingTier(8, 16)).variables()["writer"] == WRITER


def test_an_entry_shows_itself() -> None:
    entry = entry_in("pinned", EncodingTier(8, 16))
    assert repr(entry) == "Entry(1, 'subject', pinned, 3 blocks, 1 holders)"
