# SPDX-License-Identifier: Apache-2.0
"""What the tier tells others: events to its listener, and variables to the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_protocol.trace import Trace
from tests.ec_protocol.tier.test_tier import BLOCK, land, lost, make


def record_events(tier: EncodingTier) -> list[tuple[str, str, str]]:
    """Event, name and state at that moment, of everything the listener hears."""
    heard: list[tuple[str, str, str]] = []

    def listen(event: str, entry: Entry) -> None:
        heard.append((event, entry.mm_hash, entry.state))

    tier.listener = listen
    return heard


def test_the_listener_hears_of_each_event_once_and_with_the_state_it_led_to() -> None:
    tier = make(2)
    heard = record_events(tier)
    land(tier, "a", 2)
    given_up = tier.alloc("b", BLOCK)
    assert given_up is not None
    tier.cancel(given_up)
    proven = lost(tier, "c")
    tier.dma_ended(proven)
    retired = lost(tier, "d")
    tier.retire(retired)
    tier.reclaim(retired.entry_id)
    assert heard == [
        ("stored", "a", "ready"),
        ("evicted", "a", "freed"),
        ("lost", "b", "freed"),
        ("quarantined", "c", "quarantined"),
        ("recovered", "c", "freed"),
        ("quarantined", "d", "quarantined"),
        ("retired", "d", "freed"),
        ("recovered", "d", "freed"),
    ]


def test_pins_promises_and_writes_that_go_on_are_nobody_elses_business() -> None:
    tier = make()
    entry = land(tier, "a")
    heard = record_events(tier)
    tier.hold(entry, ("hold", 1))
    assert tier.reserve("a")
    tier.end_step()
    tier.release_hold(entry, ("hold", 1))
    again = tier.alloc("b", BLOCK)
    assert again is not None
    tier.begin_write(again, ("read", 1))
    tier.write_ended(again, ("read", 1))
    assert heard == []


@pytest.mark.clause("EC-1.3")
def test_after_every_event_the_trace_has_the_entry_and_the_counts_as_they_are() -> None:
    records: list[Mapping[str, Any]] = []
    tier = make(4)
    tier.recorder.trace = Trace("n", lambda: 0.0, records.append)
    # Of each event alone: what one of them left out the next would make good.
    seen: dict[str, Any] = {}

    def now(entry: Entry) -> None:
        trace = tier.recorder.trace
        variables, trace._vars, trace._fired = trace._vars, {}, []
        assert variables[f"entry:{entry.entry_id}"] == entry.variables()
        assert variables["tier"] == tier.variables()
        seen[entry.state] = variables

    entry = tier.alloc("a", BLOCK)
    assert records[-1]["vars"][f"entry:{entry.entry_id}"] == entry.variables()
    tier.begin_write(entry, ("read", 1))
    now(entry)
    tier.write_ended(entry, ("read", 1))
    now(entry)
    tier.begin_write(entry, ("save", 1))
    tier.write_landed(entry, ("save", 1))
    now(entry)
    tier.pin(entry, ("hold", 1))
    now(entry)
    tier.unpin(entry, ("hold", 1))
    now(entry)
    quarantined = entry
    for end in (tier.dma_ended, tier.retire):
        waiting = tier.alloc("b", BLOCK)
        assert waiting is not None
        quarantined = waiting
        tier.begin_write(quarantined, ("read", 1))
        tier.write_lost(quarantined, ("read", 1))
        now(quarantined)
        end(quarantined)
        now(quarantined)
    dropped = tier.alloc("c", BLOCK)
    assert dropped is not None
    tier.drop_allocated(dropped)
    now(dropped)
    assert set(seen) == {"saving", "allocated", "ready", "pinned", "quarantined", "freed"}
    before = tier.variables()
    tier.reclaim(quarantined.entry_id)
    assert records[-1]["action"] == "Reclaim"
    assert records[-1]["vars"]["tier"] == tier.variables() != before


@pytest.mark.clause("EC-1.3")
def test_the_first_record_tells_what_the_tier_is_built_with() -> None:
    records: list[Mapping[str, Any]] = []
    tier = EncodingTier(4, BLOCK, Trace("n", lambda: 0.0, records.append))
    land(tier, "a")
    assert records[0]["facts"]["tier"]["total"] == 4
    assert records[0]["facts"]["tier"]["block_size"] == BLOCK


def test_without_promises_a_step_ends_without_a_word() -> None:
    records: list[Mapping[str, Any]] = []
    tier = make()
    tier.recorder.trace = Trace("n", lambda: 0.0, records.append)
    tier.end_step()
    assert records == []
