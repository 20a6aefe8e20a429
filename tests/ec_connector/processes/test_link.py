# SPDX-License-Identifier: Apache-2.0
"""What an engine says to its data processes and hears of them, without any process."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.processes import link as link_module
from ec_protocol.engine import Engine
from ec_protocol.p2p import words
from tests.world.peers import PEER, READER, End, Played

BLOCK = 64
OTHER = 7


class World(Played):
    """One engine with a reader and a server that the test plays."""

    def __init__(self, blocks: int = 16, *, events: int = 0) -> None:
        self.engine = Engine(blocks=blocks, block_bytes=BLOCK)
        super().__init__(self.engine)
        if events:
            self.link.publish(events)
        self.now = 100.0
        self.at(self.now)

    def ask(self, name: str, waiter: str = "r", nbytes: int = BLOCK) -> str:
        waiters = self.engine.waiters
        assert waiters is not None
        return waiters.fetch(name, PEER, nbytes, None, waiter, self.now)

    def lent(self, end: End | None = None) -> list[words.Lend]:
        said = (end or self.reader).take()
        return [message for message in said if isinstance(message, words.Lend)]

    def say(self, *said: tuple[str, int], end: End | None = None) -> None:
        (end or self.reader).coming.append(words.Words(list(said)))
        self.at(self.now)

    def save(self, name: str) -> Any:
        copies = self.engine.copies
        copy = copies.plan_save(name, BLOCK)
        assert copy is not None
        copies.submit(copy)
        copies.report(copy.copy_id, 0, landed=True)
        return copy.entry

    @property
    def free(self) -> int:
        return self.engine.tier.free_blocks


# ------------------------------------------------------------------------------- loans
@pytest.mark.clause("EC-14.7")
def test_a_fetch_is_lent_and_lands_by_the_readers_word() -> None:
    world = World()
    assert world.ask("a", nbytes=2 * BLOCK) == "pending"
    world.turn()
    (lend,) = world.lent()
    assert (lend.mm_hash, lend.host, lend.port, lend.nbytes) == ("a", *PEER, 2 * BLOCK)
    assert lend.deadline == world.now + world.engine.timing.fetch_budget_s
    assert sum(count for _, count in lend.extents) == 2
    world.say(("landed", lend.loan))
    entry = world.engine.tier.get("a")
    assert entry is not None
    assert entry.servable


@pytest.mark.clause("EC-14.7")
@pytest.mark.parametrize(
    "word", [("landed", 99), ("exited", 1), ("retire", 1), ("", 1), ("proven", 1), ("landed", -1)]
)
def test_a_word_that_means_nothing_changes_nothing(word: tuple[str, int]) -> None:
    world = World()
    world.ask("a")
    world.turn()
    world.say(word)
    loans = world.link.loans
    assert loans is not None
    assert loans.counters["stray_words"] == 1
    assert world.engine.tier.get("a").state == "saving"  # type: ignore[union-attr]


@pytest.mark.clause("EC-14.7")
def test_a_reader_speaks_of_its_own_loans_only() -> None:
    world = World()
    other = End()
    world.link.reader_works(OTHER, other)
    world.ask("a")
    world.turn()
    mine, theirs = world.lent(), world.lent(other)
    (lend,) = mine + theirs
    stranger, number = (other, OTHER) if mine else (world.reader, READER)
    stranger.coming.append(words.Words([("landed", lend.loan)]))
    world.link.hear(number, world.now)
    assert world.engine.tier.get("a").state == "saving"  # type: ignore[union-attr]


@pytest.mark.clause("EC-14.4")
def test_a_reader_that_takes_nothing_costs_a_fall_back_and_no_memory() -> None:
    world = World(blocks=200)
    world.reader.full = True
    for number in range(150):
        world.ask(f"a{number}", f"r{number}")
        world.turn()
    loans = world.link.loans
    assert loans is not None
    assert len(loans) == 0
    assert world.free == 200
    assert world.ask("a0", "r0") == "failed"
    assert loans.counters["readers_busy"] == 150


@pytest.mark.clause("EC-14.4")
def test_what_is_taken_back_and_not_heard_ends_all_the_same() -> None:
    world = World()
    world.ask("a")
    world.turn()
    (lend,) = world.lent()
    world.reader.full = True
    world.engine.leave("r", world.now)
    world.turn()
    assert world.engine.tier.get("a") is not None
    world.say(("failed", lend.loan))
    assert world.free == 16


@pytest.mark.clause("EC-14.8")
def test_what_a_reader_said_before_its_end_counts() -> None:
    world = World()
    world.ask("a")
    world.ask("b", "r2")
    world.turn()
    lends = {lend.mm_hash: lend.loan for lend in world.lent()}
    world.reader.coming.append(words.Words([("landed", lends["a"])]))
    world.link.exited(READER, world.now)
    assert world.engine.tier.get("a").servable  # type: ignore[union-attr]
    assert world.engine.tier.get("b") is None
    assert world.ask("b", "r2") == "pending", "another reader may come"
    for _ in range(2):
        world.now += world.engine.timing.stall_s
        world.turn()
    assert world.ask("b", "r2") == "failed"


@pytest.mark.clause("EC-14.8", "EC-14.9")
def test_a_lost_read_ends_with_its_reader_and_the_fetch_of_another_is_lent_again() -> None:
    world = World()
    world.ask("lost")
    world.ask("fine", "r2")
    world.turn()
    lends = {lend.mm_hash: lend.loan for lend in world.lent()}
    world.say(("lost", lends["lost"]))
    assert world.engine.tier.quarantined_blocks == 1
    other = End()
    world.link.reader_works(OTHER, other)
    world.link.exited(READER, world.now)
    world.turn()
    assert world.engine.tier.quarantined_blocks == 0
    (again,) = world.lent(other)
    assert again.mm_hash == "fine"
    assert again.loan not in lends.values(), "numbers are never used again"


def test_a_reader_that_leaves_gets_no_new_work() -> None:
    world = World()
    world.link.reader_leaves(READER)
    assert world.ask("a") == "failed"
    world.link.reader_leaves(99)  # gone before that was heard
    assert world.link._leaving == {READER}
    world.link.exited(READER, world.now)
    assert world.link._leaving == set()
    world.link.exited(READER, world.now)


@pytest.mark.clause("EC-14.13")
def test_a_reader_that_was_killed_and_does_not_exit_is_waited_for_no_more() -> None:
    world = World()
    assert world.ask("a") == "pending"
    world.turn()
    world.link.reader_killed(READER, world.now)
    world.link.reader_killed(99, world.now)  # gone before that was heard
    assert world.ask("b", "r2") == "failed", "it gets no new work"
    for _ in range(2):
        world.now += world.engine.timing.stall_s / 2
        world.turn()
    assert world.ask("a") == "failed"
    assert world.engine.tier.quarantined_blocks == 1
    assert world.link.to_end(world.now) == [], "it was killed already"
    world.link.exited(READER, world.now)
    assert (world.engine.tier.quarantined_blocks, world.free) == (0, 16)


@pytest.mark.clause("EC-14.13")
def test_a_reader_that_says_nothing_of_what_it_was_lent_is_to_be_ended() -> None:
    world = World()
    world.ask("a")
    timing = world.engine.timing
    until = world.now + timing.fetch_budget_s + timing.read_timeout_s + timing.stall_s
    while world.now < until:
        assert world.link.to_end(world.now) == []
        world.turn()
        world.now += 1.0
    world.turn()
    text = f"reader {READER} says nothing of what it was lent"
    assert world.link.to_end(world.now) == [(READER, text)]
    assert world.link.to_end(world.now) == []


def test_a_channel_that_is_closed_ends_new_work_before_the_exit_does() -> None:
    world = World()
    world.reader.open = False
    world.turn()
    assert world.ask("a") == "failed"


def test_quarantine_ends_with_its_time_also_without_any_word() -> None:
    world = World()
    world.ask("a")
    world.turn()
    (lend,) = world.lent()
    world.say(("lost", lend.loan))
    world.now += world.engine.timing.quarantine_s
    world.turn()
    assert world.engine.tier.retired_blocks == 1
    world.link.exited(READER, world.now)
    assert world.engine.tier.retired_blocks == 0
    assert world.free == 16


# -------------------------------------------------------------------------------- offers
@pytest.mark.clause("EC-14.2")
@pytest.mark.parametrize("name", ["half \ud800", "", "x" * 513, "y" * 100_000])
def test_names_that_nobody_can_ask_for_are_saved_and_not_offered(name: str) -> None:
    """A client's own name must not be able to stop the engine."""
    world = World()
    world.save(name)
    world.turn()
    assert world.engine.tier.get(name).servable  # type: ignore[union-attr]
    assert len(world.link.offers) == 0  # type: ignore[arg-type]
    world.save("fine")
    world.turn()
    assert len(world.link.offers) == 1  # type: ignore[arg-type]


def test_a_server_that_keeps_too_much_is_named_once_in_a_while() -> None:
    world = World()
    offers, link = world.link.offers, world.link
    assert offers is not None
    entries = [world.save(f"e{number}") for number in range(16)]
    world.turn()
    assert link.to_end(world.now) == []
    for entry in entries:
        offers.ledger._ends[offers._offers[entry.entry_id].slot] = world.now + 10.0
    assert link.to_end(world.now) == [], "nobody has been refused yet"
    assert not offers.close(entries[0], world.now)
    assert link.to_end(world.now) == [(2, "server 2 keeps too much")]
    assert not offers.close(entries[0], world.now)
    assert link.to_end(world.now + link_module._WATCH_S - 0.01) == []
    assert link.to_end(world.now + link_module._WATCH_S)[0][0] == 2
    assert link.to_end(world.now + 9.0) == [], "nobody has been refused since"
    link.exited(2, world.now)
    assert not offers.close(entries[0], world.now)
    assert link.to_end(world.now + 9.0) == [], "it is gone"


# -------------------------------------------------------------------------------- events
def told(world: World) -> list[str]:
    return [
        event[1] if len(event) > 1 else event
        for message in world.server.take()
        for event in message.events
    ]


@pytest.mark.clause("EC-13.5")
def test_events_go_out_in_order_and_in_messages_that_fit() -> None:
    world = World(blocks=100, events=1000)
    names = [f"{number:03}" + "\U0001f600" * 509 for number in range(90)]
    for name in names:
        world.save(name)
    world.turn()
    messages = list(world.server.said)
    assert told(world) == names
    assert all(len(words.encode(message)) <= words.MAX_BYTES for message in messages)
    assert not world.link.events.pending  # type: ignore[union-attr]


@pytest.mark.clause("EC-13.5", "EC-14.4")
def test_events_that_nobody_takes_wait_in_order_up_to_the_bound() -> None:
    world = World(blocks=100, events=5)
    world.server.full = True
    for number in range(8):
        world.save(f"e{number}")
        world.turn()
    assert told(world) == []
    world.server.full = False
    world.turn()
    (message,) = world.server.said
    assert [event[1] for event in message.events] == ["e0", "e1", "e2", "e3", "e4"]
    assert message.missing == 3


@pytest.mark.clause("EC-14.4")
def test_events_wait_for_the_next_server() -> None:
    world = World(events=50)
    world.link.exited(2, world.now)
    world.save("a")
    world.turn()
    assert told(world) == []
    world.link.server_works(9, world.server)
    world.turn()
    assert set(told(world)) == {"a"}
