# SPDX-License-Identifier: Apache-2.0
"""Every action of the table has its place in Python, and fires what its row lists.

Short scenarios on two linked ends, recorded; together they must produce each action
and each event that an action may fire must have been fired by it at least once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ec_protocol.tables.dispatch import DISPATCH
from ec_protocol.tables.lifecycle import load_actions
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from tests.ec_protocol import test_processes
from tests.ec_protocol.offers import world as offers
from tests.ec_protocol.p2p.test_consumer import N, granted, reading
from tests.world import lending
from tests.world.core import BLOCK, PRODUCER, World

pytestmark = pytest.mark.clause("EC-1.3")

Records = list[Mapping[str, Any]]
ROOMY = Timing(fetch_budget_s=1000.0)


def save(world: World, copies: CopyTable, mm_hash: str, blocks: int = 1) -> None:
    copy = copies.plan_save(mm_hash, blocks * BLOCK)
    copies.submit(copy)
    copies.report(copy.copy_id, 0, landed=True)


def saves_and_loads(world: World) -> None:
    copies = world.copies = CopyTable(world.tier, world_size=2)
    save(world, copies, "a")
    world.tier.reserve("a")
    load = copies.plan_load("a")
    copies.submit(load)
    world.tier.end_step()
    copies.report(load.copy_id, 1, landed=True)
    copies.report(load.copy_id, 0, landed=True)
    failed = copies.plan_load("a")
    copies.submit(failed)
    copies.report(failed.copy_id, 0, landed=True)
    copies.report(failed.copy_id, 1, landed=False)
    copies.skip(copies.plan_load("a"))


def saves_that_come_to_nothing(world: World) -> None:
    copies = world.copies
    never_ran = copies.plan_save("a", N)
    copies.submit(never_ran)
    copies.report(never_ran.copy_id, 0, landed=False)
    not_carried = copies.plan_save("a", N)
    assert not_carried is not None
    copies.skip(not_carried)
    given_up = world.tier.alloc("b", N)
    assert given_up is not None
    world.tier.cancel(given_up)


def eviction_and_holds(world: World) -> None:
    copies = world.copies
    save(world, copies, "a", blocks=16)
    save(world, copies, "b", blocks=16)
    entry = world.tier.get("b")
    assert entry is not None
    world.tier.hold(entry, ("hold", -1))
    world.tier.release_hold(entry, ("hold", -1))


def a_fetch(world: World) -> None:
    world.finish(reading(world))
    world.waiters.consumed("request-1", "h")
    world.reads.shutdown(world.now)


def answers(world: World) -> None:
    world.producer.tier.alloc("later", N)
    world.fetch("later", N, "r1")
    world.fetch("missing", N, "r2")
    world.exchange()
    world.fetch("silence", N, "r3")
    world.reads.attempts.drain()
    world.tick(world.timing.ack_timeout_s)
    world.fetch("aborted", N, "r4")
    world.waiters.leave("r4", world.now)
    world.waiters.leave("r1", world.now)
    granted(world, "given-up", "r5")
    world.waiters.leave("r5", world.now)


def the_fence(world: World) -> None:
    attempt = granted(world)
    world.advance(31.0)
    assert not world.post(attempt)
    world.tick(1.0)
    world.exchange()
    late = max(world.prepared)
    assert world.post(late)
    world.advance(29.75)
    world.finish(late)


def not_even_prepared(world: World) -> None:
    world.reads.post_failed(granted(world), world.now)


def lost_reads(world: World) -> None:
    failed, slow = reading(world, "a", "a"), reading(world, "b", "b")
    world.reads.read_error(failed, world.now)
    world.tick(world.timing.read_timeout_s)
    assert world.reads.attempts.quarantined == 2
    world.reads.attempts.dma_ended(failed, "endpoint_closed", world.now)
    world.tick(world.timing.quarantine_s)
    world.reads.attempts.dma_ended(slow, "endpoint_closed", world.now)


def other_bytes(world: World) -> None:
    world.reads.read_corrupt(reading(world), world.now)


def a_dead_peer(world: World) -> None:
    posted = reading(world, "a", "a")
    granted(world, "b", "b")
    world.fetch("c", N, "c")
    world.reads.peer_lost(PRODUCER, world.now)
    world.reads.attempts.dma_ended(posted, "endpoint_closed", world.now)
    world.tick(world.timing.lease_s)


def a_restart(world: World) -> None:
    granted(world)
    world.restart_producer()
    world.fetch("other", N)
    world.exchange()


SCENARIOS: list[Callable[[World], None]] = [
    saves_and_loads,
    saves_that_come_to_nothing,
    eviction_and_holds,
    a_fetch,
    answers,
    the_fence,
    not_even_prepared,
    lost_reads,
    other_bytes,
    a_dead_peer,
    a_restart,
]


def play(scenario: Callable[[World], None]) -> Records:
    records: Records = []
    world = World(timing=ROOMY, sink=records.append)
    scenario(world)
    return records


def entries_that_are_offered() -> Records:
    records: Records = []
    world = offers.World(blocks=2, sink=records.append)
    world.save("a")
    world.save("b")
    world.save("c")
    return records


def blocks_that_are_lent() -> Records:
    world = lending.World(readers=(1, 2))
    for word in ("landed", "failed"):
        world.says(word, world.lend(word))
    for number, proof in enumerate(("proven", "exited", "late", "died", "stuck")):
        world.loans.working([10 * number, 10 * number + 1])
        loan = world.lend(proof, (f"host-{number}", 1))
        if proof in ("proven", "exited", "late"):
            world.says("lost", loan)
        if proof == "late":
            world.now += world.timing.quarantine_s
            world.loans.tick(world.now)
        if proof == "stuck":
            world.loans.killed(loan.reader, world.now)
            lending.pass_time(world, world.timing.stall_s)
        elif proof in ("exited", "died"):
            world.loans.exited(loan.reader, world.now)
        else:
            world.says("proven", loan)
    return list(world.records)


def processes_that_come_and_go() -> Records:
    world = test_processes.running(test_processes.READERS)
    world.processes.drain(1, world.now)
    world.tick(world.timing.drain_s)
    world.exit(1)
    return list(world.records)


@pytest.fixture(scope="module")
def history() -> dict[str, Records]:
    told = {scenario.__name__: play(scenario) for scenario in SCENARIOS}
    parts = (entries_that_are_offered, blocks_that_are_lent, processes_that_come_and_go)
    return told | {part.__name__: part() for part in parts}


def test_every_action_of_the_table_has_its_place(history: dict[str, Records]) -> None:
    recorded = {record["action"] for records in history.values() for record in records}
    assert recorded == set(load_actions())


def test_what_an_action_fires_is_in_its_row(history: dict[str, Records]) -> None:
    for records in history.values():
        for record in records:
            fired = {f"{item['lifecycle']}.{item['event']}" for item in record["fired"]}
            assert fired <= set(load_actions()[record["action"]].fires), record["action"]


def test_every_event_of_every_row_is_fired_by_its_action(history: dict[str, Records]) -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for records in history.values():
        for record in records:
            for item in record["fired"]:
                seen[record["action"]].add(f"{item['lifecycle']}.{item['event']}")
    for name, action in load_actions().items():
        listed = {event for event in action.fires if not event.startswith("create:")}
        assert seen[name] == listed, name


def test_every_recorded_move_is_an_edge(history: dict[str, Records]) -> None:
    """EC-1.1, from the record: state, event and guards lead where the table says."""
    moves = 0
    for records in history.values():
        for record in records:
            for item in record["fired"]:
                dispatcher = DISPATCH[item["lifecycle"]]
                step = dispatcher.fire(
                    item["from"], item["event"], dispatcher.mask(*item["guards"])
                )
                assert step.state == item["to"]
                moves += 1
    assert moves > 100


def test_each_object_moves_without_gaps(history: dict[str, Records]) -> None:
    """What an object was left in is what it is next moved from."""
    for records in history.values():
        state: dict[tuple[str, str, Any], str] = {}
        for record in records:
            for item in record["fired"]:
                key = (record["node"], item["lifecycle"], item["id"])
                known = state.get(key, DISPATCH[item["lifecycle"]].initial)
                assert item["from"] == known, (record["action"], item)
                state[key] = item["to"]
            for name, variables in record["vars"].items():
                lifecycle, _, number = name.partition(":")
                key = (record["node"], lifecycle, int(number) if number else 0)
                if key in state:
                    assert variables["state"] == state[key], (record["action"], name)


def test_actors_are_the_ones_that_the_models_interleave() -> None:
    actors = {"engine", "reader", "server", "clock", "parent"}
    assert {a.actor for a in load_actions().values()} == actors
