# SPDX-License-Identifier: Apache-2.0
"""Peers: one incarnation at a time is current, older ones stay until they drain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from ec_protocol.errors import GuardRefused, IllegalEvent
from ec_protocol.p2p.peers import PeerTable
from ec_protocol.p2p.wire import PREFERRED_VERSION
from ec_protocol.tables.timing import Timing
from ec_protocol.trace import Recorder, Trace

KEY = ("host", 5601)
NOW = 1000.0


def made(trace: Trace | None = None) -> PeerTable:
    table = PeerTable(Timing(), Recorder(trace), [])
    table.rests._most_s = 4.0
    return table


def test_an_address_has_one_current_incarnation() -> None:
    table = made()
    assert table.current(KEY) is None
    first = table.open(KEY, NOW)
    assert (first.state, first.incarnation) == ("connecting", "")
    assert first.version == PREFERRED_VERSION
    assert first.last_used == NOW
    assert table.current(KEY) is first
    assert table.usable() == [first]
    second = table.open(KEY, NOW)
    assert table.current(KEY) is second
    assert second.peer_id != first.peer_id
    assert table.usable() == [second]


def test_traffic_makes_it_live() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    table.heard(peer)
    table.heard(peer)
    assert peer.state == "live"


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("event", ["lost", "close"])
def test_down_is_no_longer_current(event: str, heard: bool) -> None:
    table = made()
    peer = table.open(KEY, NOW)
    if heard:
        table.heard(peer)
    table.down(peer, event, NOW)
    assert (peer.state, table.usable(), table.current(KEY)) == ("down", [], None)
    assert table.all() == [peer]


@pytest.mark.clause("EC-9.2")
def test_a_replaced_incarnation_leaves_the_new_one_current() -> None:
    table = made()
    old = table.open(KEY, NOW)
    table.heard(old)
    new = table.open(KEY, NOW)
    table.down(old, "replaced", NOW)
    assert table.current(KEY) is new
    assert set(table.all()) == {old, new}
    assert not table.rests.resting(KEY, NOW), "somebody answers at the address"


def test_only_a_peer_that_was_heard_can_be_replaced() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    with pytest.raises(IllegalEvent):
        table.down(peer, "replaced", NOW)
    assert peer.state == "connecting"
    assert table.current(KEY) is peer


@pytest.mark.clause("EC-6.4", "EC-9.5")
def test_a_peer_drains_when_no_read_refers_to_it() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    peer.attempts.add(1)
    assert not table.drain(peer), "it is not down"
    table.down(peer, "close", NOW)
    assert not table.drain(peer), "a READ is left"
    assert table.all() == [peer]
    peer.attempts.clear()
    assert table.drain(peer)
    assert (peer.state, table.all()) == ("drained", [])
    assert not table.drain(peer), "once"


def test_the_table_itself_does_not_let_a_peer_with_reads_drain() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    table.down(peer, "close", NOW)
    with pytest.raises(GuardRefused):
        table._recorder.move(peer, "drain")


LEAST_S = Timing().retry_max_interval_s


def rests(table: PeerTable, now: float) -> float:
    """How long an address is left alone that has just been lost, seconds."""
    loss = table.rests._rests[KEY]
    assert table.rests.resting(KEY, now)
    assert table.rests.resting(KEY, math.nextafter(loss.until, 0.0))
    assert not table.rests.resting(KEY, loss.until)
    assert not table.rests.resting(("other", 1), now)
    return loss.until - now


@pytest.mark.clause("EC-9.4", "EC-7.3")
@pytest.mark.parametrize(
    ("tried", "rest"), [(0.0, LEAST_S), (0.001, LEAST_S), (1.5, 1.5), (4.0, 4.0), (60.0, 4.0)]
)
def test_an_address_rests_for_as_long_as_it_was_tried_in_vain(tried: float, rest: float) -> None:
    table = made()
    table.down(table.open(KEY, NOW), "lost", NOW + tried)
    assert rests(table, NOW + tried) == rest


@pytest.mark.clause("EC-9.4")
def test_one_that_was_there_for_long_and_is_lost_may_soon_be_there_again() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    table.heard(peer)
    table.down(peer, "lost", NOW + 3600.0)
    assert rests(table, NOW + 3600.0) == LEAST_S


@pytest.mark.clause("EC-9.4")
@pytest.mark.parametrize("heard", [False, True])
def test_losses_in_a_row_make_it_rest_longer(heard: bool) -> None:
    """Refused again and again, or let in and thrown out."""
    table, now, found = made(), NOW, []
    for _ in range(6):
        peer = table.open(KEY, now)
        if heard:
            table.heard(peer)
        table.down(peer, "lost", now)
        found.append(rests(table, now))
        now = table.rests._rests[KEY].until
        table.rests.forget(now)
    assert found == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    now += 4.0
    table.rests.forget(now)
    table.down(table.open(KEY, now), "lost", now)
    assert rests(table, now) == LEAST_S, "a quiet while, and it is as at first"


def test_a_closed_address_does_not_cool_down() -> None:
    table = made()
    table.down(table.open(KEY, NOW), "close", NOW)
    assert not table.rests.resting(KEY, NOW)


def test_opening_ends_the_cool_down() -> None:
    table = made()
    table.down(table.open(KEY, NOW), "lost", NOW)
    early = NOW + LEAST_S / 4
    assert table.rests.resting(KEY, early)
    table.open(KEY, early)
    assert not table.rests.resting(KEY, early)


@pytest.mark.clause("EC-9.4")
def test_an_address_was_lost_until_it_is_tried_again_or_the_loss_is_forgotten() -> None:
    table = made()
    assert not table.was_lost(KEY)
    peer = table.open(KEY, NOW)
    assert not table.was_lost(KEY)
    table.down(peer, "lost", NOW)
    assert table.was_lost(KEY)
    table.open(KEY, NOW + 1.0)
    assert not table.was_lost(KEY), "nobody knows yet"
    assert not table.was_lost(("other", 1))
    again = made()
    again.down(again.open(KEY, NOW), "lost", NOW)
    again.rests.forget(NOW + 1000.0)
    assert not again.was_lost(KEY)


@pytest.mark.clause("EC-9.5")
def test_nothing_about_peers_grows_with_time() -> None:
    table = made()
    for i in range(100):
        now = NOW + i
        peer = table.open(("host", i), now)
        table.down(peer, "lost", now)
        table.drain(peer)
        table.rests.forget(now)
        assert len(table.rests._rests) <= 5
    table.rests.forget(NOW + 1000)
    assert (table.rests._rests, table._current, table._down) == ({}, {}, {})


def test_variables_are_those_of_the_spec() -> None:
    table = made()
    peer = table.open(KEY, NOW)
    peer.attempts |= {3, 1}
    peer.incarnation = "abc"
    assert peer.variables() == {
        "key": "host:5601",
        "state": "connecting",
        "incarnation": "abc",
        "version": 2,
        "attempts": [1, 3],
    }


@pytest.mark.clause("EC-9.5")
def test_a_loss_is_forgotten_when_no_other_one_follows_and_not_before() -> None:
    table = made()
    table.down(table.open(KEY, NOW), "lost", NOW)
    table.rests.forget(math.nextafter(NOW + LEAST_S + 4.0, 0.0))
    assert list(table.rests._rests) == [KEY]
    table.rests.forget(NOW + LEAST_S + 4.0)
    assert table.rests._rests == {}


@pytest.mark.clause("EC-1.3")
def test_a_recorded_move_tells_the_state_it_led_to() -> None:
    records: list[Mapping[str, Any]] = []
    table = made(Trace("n", lambda: NOW, records.append))
    peer = table.open(KEY, NOW)
    table.down(peer, "lost", NOW)
    states = [record["vars"][f"peer:{peer.peer_id}"]["state"] for record in records]
    assert states == ["connecting", "down"]


@pytest.mark.clause("EC-9.5")
def test_the_longest_idle_of_several_is_the_next_to_be_disconnected() -> None:
    table = made()
    assert table.next_deadline() is None
    first, second, busy = (table.open(("host", n), NOW + n) for n in (1, 2, 0))
    busy.attempts.add(1)
    due = table.next_deadline()
    assert due is not None
    table.close_idle(math.nextafter(due, 0.0))
    assert table.usable() == [first, second, busy]
    table.close_idle(due)
    assert table.usable() == [second, busy]
    assert table.next_deadline() == due + 1.0
