# SPDX-License-Identifier: Apache-2.0
"""What both ends record of themselves: every variable that changed, when it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from ec_protocol.p2p.wire import XferAck, XferStatus
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_protocol.tables.timing import Timing
from tests.ec_protocol.p2p.test_consumer import N, granted, reading
from tests.ec_protocol.tables import test_actions
from tests.world.core import BLOCK, PRODUCER, START, Region, World

pytestmark = pytest.mark.clause("EC-1.3")

ROOMY = Timing(fetch_budget_s=1000.0)


@cache
def asked(lifecycle: str, state: str, event: str) -> set[str]:
    """The guards that the table has for an event in a state; no others are evaluated."""
    edges = load_lifecycles()[lifecycle].edges
    met = [edge for edge in edges if (edge.source, edge.event) == (state, event)]
    return {guard for edge in met for guard in (*edge.needs, *edge.forbids)}


class Watched(World):
    """Compares what the records say with what there is, after every record."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.told: dict[str, Any] = {}
        super().__init__(timing=ROOMY, sink=self.watch)

    def watch(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        node = record["node"]
        self.told.update({(node, name): variables for name, variables in record["vars"].items()})
        for fired in record["fired"]:
            assert set(fired["guards"]) <= asked(fired["lifecycle"], fired["from"], fired["event"])
        for name, variables in self.are(node):
            assert self.told.get((node, name)) == variables, (record["action"], name)

    def are(self, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What there is at one end; a peer's list of attempts shrinks between two records."""
        if node == "producer" and hasattr(self, "producer"):
            for number, grant in self.producer.grants._grants.items():
                yield f"grant:{number}", grant.variables()
        elif node == "consumer" and hasattr(self, "reads"):
            for number, attempt in self.reads.attempts._attempts.items():
                yield f"read:{number}", attempt.variables()
        region: Region | None = {"consumer": self, "producer": getattr(self, "producer", None)}[
            node
        ]
        if region is not None and hasattr(region, "copies"):
            for copy in region.copies:
                yield f"copy:{copy.copy_id}", copy.variables()
            for entry in region.tier.entries():
                yield f"entry:{entry.entry_id}", entry.variables()
            yield "tier", region.tier.variables()

    def of(self, action: str) -> list[Mapping[str, Any]]:
        return [record for record in self.records if record["action"] == action]


@pytest.fixture
def world() -> Watched:
    return Watched()


@pytest.mark.parametrize("scenario", test_actions.SCENARIOS)
def test_the_records_tell_all_there_is_to_tell(
    world: Watched, scenario: Callable[[World], None]
) -> None:
    scenario(world)
    assert world.records


def test_requests_that_another_process_takes_over_are_told_at_once(world: Watched) -> None:
    """Also the one that has no answer yet."""
    for name in ("a", "b", "c"):
        world.fetch(name, N, name)
    world.carry_out()
    first, second, _ = world.requests
    world.requests = [first]
    world.exchange()
    world.restart_producer()
    world.requests = [second]
    world.exchange()
    (down,) = world.of("PeerDown")
    assert down["fired"][0]["event"] == "replaced"
    assert {k: v["attempts"] for k, v in down["vars"].items() if k.startswith("peer:")} == {
        "peer:1": [],
        "peer:2": [2, 3],
    }


# -------------------------------------------------------------------- the acks
def test_what_a_grant_says_is_recorded(world: Watched) -> None:
    world.producer.save("first", BLOCK)
    granted(world)
    (record,) = world.of("AckOk")
    read = record["vars"]["read:1"]
    assert (read["state"], read["lease_s"], read["fence"]) == ("granted", 30.0, START + 29.5)
    assert read["incarnation"] == world.producer.grants.incarnation
    assert read["source"] == [(1, 2)], "two blocks of the producer, after the first"
    assert record["args"] == {"attempt": 1, "mm_hash": "h", "now": START}
    assert record["vars"]["peer:1"]["incarnation"] == world.producer.grants.incarnation


def test_an_answer_of_a_process_that_was_replaced_is_recorded_as_refused(world: Watched) -> None:
    for name in ("a", "b"):
        world.fetch(name, N, name)
    world.carry_out()
    for number, incarnation in ((1, "old"), (2, "new")):
        name = "ab"[number - 1]
        ack = XferAck(name, XferStatus.NACK_NOT_READY, f"c1.{number}", incarnation=incarnation)
        world.reads.on_ack(PRODUCER, ack, world.now)
    world.tick(world.timing.retry_interval_s)
    late = XferAck("a", XferStatus.NACK_NOT_READY, "c1.3", incarnation="old")
    assert world.reads.on_ack(PRODUCER, late, world.now) == 3
    assert world.reads.counters["former_incarnations"] == 1
    (record,) = world.of("AckRefused")
    assert record["fired"][0]["event"] == "ack_refused"
    assert record["vars"]["read:3"]["state"] == "failed"
    assert world.fetch("a", N, "a") == "failed"


# ------------------------------------------------------------- how they are built
def test_the_first_record_of_each_end_tells_what_it_is_built_with(world: Watched) -> None:
    reading(world)
    facts = {}
    for record in world.records:
        if "facts" in record:
            assert record["node"] not in facts, "told once"
            facts[record["node"]] = record["facts"]
    tier = {"total": 16, "block_size": BLOCK}
    assert facts["consumer"] == {
        "tier": tier,
        "copies": {"ranks": 1},
        "holds": {"max_blocks": 8},
        "reads": {
            "session": "c1",
            "ack_timeout_s": 2.0,
            "read_timeout_s": 20.0,
            "quarantine_s": 60.0,
            "lease_s": 30.0,
            "lease_margin_s": 0.5,
            "min_read_s": 0.25,
        },
    }
    assert facts["producer"] == {
        "tier": tier,
        "copies": {"ranks": 1},
        "holds": {"max_blocks": 8},
        "grants": {
            "incarnation": world.producer.grants.incarnation,
            "lease_s": 30.0,
            "quota_blocks": 8,
            "grant_quota_blocks": 14,
        },
    }


def test_what_a_grant_pins_and_for_whom_is_recorded(world: Watched) -> None:
    world.finish(reading(world))
    grant, complete = world.of("Grant") + world.of("Complete")
    assert grant["vars"]["grant:1"] == {
        "state": "granted",
        "entry": 1,
        "attempt": 1,
        "notice": "c1.1:h",
        "identity": b"consumer-identity".hex(),
        "expires_at": START + 30.0,
        "extents": ((0, 2),),
    }
    assert complete["vars"]["grant:1"]["state"] == "completed"
    assert complete["args"] == {"grant": 1, "mm_hash": "h", "attempt": 1, "now": START}


@pytest.mark.parametrize("why", ["lease", "shutdown"])
def test_why_a_grant_expired_is_recorded(world: Watched, why: str) -> None:
    granted(world)
    if why == "lease":
        world.producer.grants.tick(START + 30.0)
    else:
        world.producer.grants.shutdown(START + 30.0)
    (record,) = world.of("Expire")
    assert (record["args"]["why"], record["args"]["now"]) == (why, START + 30.0)
    assert record["vars"]["grant:1"]["state"] == "expired"
