# SPDX-License-Identifier: Apache-2.0
"""Each invariant of ``tla/traces/TraceProps.tla`` can fail, and does for what it is about.

The actions' guards would reject these traces sooner, so here every record is believed
(``tla/traces/TraceBelieve.tla``) and the invariants judge alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from ec_protocol.tables.files import tla_dir
from ec_protocol.tier.holds import HoldTable
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.load import make_run
from ec_verify.traces.merge import merged
from ec_verify.traces.replay import Verdict, replay
from tests.ec_verify.traces.instances import Instances
from tests.ec_verify.traces.trace_cases import (
    blocks_that_are_given_twice,
    more_granted_than_the_share,
)
from tests.ec_verify.traces.traced import Raw, Recorded
from tests.world.core import BLOCK

pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(300)]

Doctor = Callable[[list[Raw]], None]
DOCTORS: dict[str, Doctor] = {}


def breaks(invariant: str) -> Callable[[Doctor], Doctor]:
    def note(doctor: Doctor) -> Doctor:
        DOCTORS[invariant] = doctor
        return doctor

    return note


def find(records: list[Raw], action: str, node: str = "") -> Raw:
    return next(r for r in records if r["action"] == action and r["node"].startswith(node))


def variables(record: Raw, key: str) -> dict[str, Any]:
    variables: dict[str, Any] = record["vars"][key]
    return variables


def base() -> list[Raw]:
    """A save, a load and a fetch of the same, all well."""
    world = Recorded()
    copies = world.copies
    holds = HoldTable(world.producer.tier)
    world.save("b", BLOCK)
    world.tier.reserve("b")
    copies.submit(copies.plan_load("b"))
    world.tier.end_step()
    attempt = world.fetched("a")
    entry = world.producer.tier.get("a")
    assert entry is not None
    assert holds.hold(("announced", "a"), entry, world.now + 5.0)
    world.finish(attempt)
    return world.records


@breaks("TypeOKInv")
def an_unknown_state(records: list[Raw]) -> None:
    variables(find(records, "PlanSave"), "copy:1")["state"] = "lost"


@breaks("NoOverlapInv")
def one_block_of_two_entries(records: list[Raw]) -> None:
    world = Recorded()
    blocks_that_are_given_twice(world)
    records[:] = world.records


@breaks("ConservedInv")
def a_block_that_is_gone(records: list[Raw]) -> None:
    variables(find(records, "Reserve"), "tier")["free"] -= 1


@breaks("OneNameInv")
def one_name_of_two_entries(records: list[Raw]) -> None:
    second = [r for r in records if r["action"] == "Alloc" and r["node"] == "consumer"][1]
    variables(second, "entry:2")["mm_hash"] = "b"


@breaks("PromiseKeptInv")
def a_promise_for_what_is_not_held(records: list[Raw]) -> None:
    variables(find(records, "Reserve"), "entry:1")["state"] = "ready"


@breaks("PinSafetyInv")
def pinned_by_nobody(records: list[Raw]) -> None:
    variables(find(records, "EndStep"), "entry:1")["holders"] = []


@breaks("NoReuseUnderDMAInv")
def a_read_into_blocks_that_count_as_unused(records: list[Raw]) -> None:
    variables(find(records, "PostRead"), "entry:2")["state"] = "allocated"


@breaks("DestinationInv")
def an_attempt_for_blocks_that_are_being_written(records: list[Raw]) -> None:
    second = [r for r in records if r["action"] == "Alloc" and r["node"] == "consumer"][1]
    variables(second, "entry:2")["state"] = "saving"


@breaks("ServeReadyOnlyInv")
def a_grant_without_a_pin(records: list[Raw]) -> None:
    entry = variables(find(records, "Grant"), "entry:1")
    entry["state"], entry["holders"] = "ready", []


@breaks("NoWrongBytesInv")
def ready_without_having_landed(records: list[Raw]) -> None:
    find(records, "SaveLanded")["action"] = "SaveSkipped"


@breaks("FencedAcceptInv")
def accepted_after_the_fence(records: list[Raw]) -> None:
    find(records, "ReadDone")["args"]["now"] += 100.0


@breaks("AttemptIdentityInv")
def two_attempts_of_one_session(records: list[Raw]) -> None:
    record = find(records, "RequestRead")
    record["vars"]["read:2"] = {**variables(record, "read:1"), "state": "quarantined"}
    variables(record, "read:1")["state"] = "done"
    record["vars"].update(copy.deepcopy(QUARANTINED))


@breaks("SharesInv")
def more_than_the_share(records: list[Raw]) -> None:
    world = Recorded()
    more_granted_than_the_share(world)
    records[:] = world.records


@breaks("CoveredReadInv")
def a_source_that_moves_under_the_read(records: list[Raw]) -> None:
    variables(find(records, "Hold", "producer"), "entry:1")["extents"] = [[7, 1]]


@breaks("OneSessionInv")
def three_sessions_of_one_address(records: list[Raw]) -> None:
    record = find(records, "PeerOpen")
    for number in (2, 3):
        record["vars"][f"peer:{number}"] = variables(record, "peer:1")


# ------------------------------------------------------- instances of several processes
def base_of_instances(blocks: int = 1) -> list[Raw]:
    """An offer, a grant, a loan, and a READ that is posted, all well."""
    world = Instances()
    world.reading("a", blocks)
    return world.all


@breaks("OfferedInv")
def an_open_offer_of_what_is_not_there(records: list[Raw]) -> None:
    records[:] = base_of_instances()
    variables(find(records, "Offer", "p.engine"), "offer:1")["entry"] = 7


@breaks("KeptInv")
def an_entry_that_goes_under_a_lease(records: list[Raw]) -> None:
    world = Instances()
    world.reading("a", 10)
    # Nobody reads any more, but the lease runs.
    world.producer.offers._needed = lambda slot, now: False  # type: ignore[method-assign]
    world.producer.save("b", 10)
    records[:] = [r for r in world.all if r["node"].startswith("p.")]


@breaks("LentInv")
def a_read_into_blocks_that_are_not_lent_any_more(records: list[Raw]) -> None:
    world = Instances()
    loan, _ = world.reading("a")
    world.consumer.loans.heard(loan.reader, "failed", loan.loan_id, world.clock())
    records[:] = world.all


@breaks("WordsInv")
def bytes_that_are_nobodys(records: list[Raw]) -> None:
    world = Instances()
    _, key = world.reading("a", 10)
    world.now += 40.0
    world.producer.server.tick(world.clock())
    world.producer.catch_up()
    world.producer.save("b", 10)
    world.now -= 40.0
    world.finish(key, notice=False)
    records[:] = world.all


@breaks("OneServerInv")
def a_second_server_beside_the_first(records: list[Raw]) -> None:
    records[:] = base_of_instances()
    (started, *_) = (
        r for r in records if r["action"] == "StartProcess" and "process:3" in r["vars"]
    )
    assert started["node"] == "p.parent"
    variables(started, "process:3")["kind"] = "server"
    for record in records:
        if record["node"] == "p.parent" and "process:3" in record["vars"]:
            variables(record, "process:3")["kind"] = "server"


#: Entry 2 of the consumer as a quarantined READ of attempt 2 leaves it.
QUARANTINED = {
    "entry:2": {
        "mm_hash": "a",
        "state": "quarantined",
        "extents": [[1, 1]],
        "holders": [],
        "writer": ["read", 2],
    }
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, tuple[Verdict, list[Any]]]:
    tasks = []
    for name, doctor in [("", lambda records: None), *DOCTORS.items()]:
        records = copy.deepcopy(base())
        doctor(records)
        run = make_run(name, [(name, records)])
        tasks.append((run, merged(run), ()))
    done = replay(tasks, TlcRunner(), believe=True)
    return {item.run.name: (item.verdict, list(item.log)) for item in done}


def test_the_base_breaks_none(verdicts):
    assert verdicts[""][0] == Verdict(True)


@pytest.mark.parametrize("invariant", DOCTORS)
def test_an_invariant_can_fail(verdicts, invariant):
    blame = verdicts[invariant][0].blame
    assert blame is not None, "nothing failed"
    assert blame.what == invariant


def test_all_invariants_are_here():
    text = (tla_dir() / "traces" / "TraceProps.tla").read_text(encoding="utf-8")
    stated = re.findall(r"^(\w+Inv)\(", text, re.MULTILINE)
    checked = re.findall(
        r'Guard\("(\w+Inv)", \1\(', (tla_dir() / "traces" / "Trace.tla").read_text(encoding="utf-8")
    )
    assert sorted(stated) == sorted(checked) == sorted(DOCTORS)
