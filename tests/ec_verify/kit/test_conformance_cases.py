# SPDX-License-Identifier: Apache-2.0
"""The kit's own cases: what they cover, and our implementation under all of them."""

from __future__ import annotations

import json
import re
import resource
from functools import cache

import pytest

from tests.needs import needs

needs("msgspec")

from ec_protocol.tables.files import spec_dir
from ec_protocol.tables.timing import inequalities, timer_specs
from ec_verify.kit.language.clauses import clauses
from ec_verify.kit.language.schedule import AREAS, Case, case_dir, load_dir
from ec_verify.kit.runner import Result, Verdict, connector, run_cases
from ec_verify.kit.world.frames import STATUSES
from tests.recording import kit

#: What no black box can be asked (docs/conformance/kit.md): a field of the sockets' own PING,
#: and what a parent sees of processes that it has started.
UNSEEN = {"heartbeat_ttl_s", "start_s", "stall_s", "lived_s"}
#: What our implementation does not have, with the reason.
NOT_OURS = {"EC-6.2/6": "NIXL confirms no aborts"}


@cache
def cases() -> tuple[Case, ...]:
    return tuple(load_dir(case_dir()))


@cache
def texts() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in case_dir().glob("*.json"))


@cache
def steps_of(case_id: str) -> str:
    (case,) = (case for case in cases() if case.id == case_id)
    return json.dumps(case.steps)


def test_there_are_many_cases_in_every_area():
    assert len(cases()) >= 120
    counts = {area: sum(case.area == area for case in cases()) for area in AREAS}
    assert min(counts.values()) >= 10, counts


def test_every_clause_of_the_protocol_that_a_black_box_can_break_has_a_case():
    covered = {case.clause for case in cases()}
    without = {c for c in clauses() if c not in covered and not c.startswith(("EC-A.", "EC-13."))}
    # Tables, traces and clocks show only inside; the count of 2.3 and 7.1 is the others' sum.
    inside = {"EC-1.1", "EC-1.2", "EC-1.3", "EC-2.3", "EC-7.1", "EC-7.3", "EC-8.8"}
    # How processes are started, what locks they have, and who waits for whom.
    inside |= {"EC-14.1", "EC-14.3", "EC-14.4", "EC-14.5"}
    # Who watches them, and when another one is started.
    inside |= {"EC-14.10", "EC-14.11", "EC-14.12"}
    # Handshakes, files of keys, addresses and network devices lie below what the kit plays.
    inside |= {"EC-15.2", "EC-15.4", "EC-15.5", "EC-15.6", "EC-15.7"}
    # What a hash is made of.
    inside |= {"EC-8.9"}
    # What requests say of placeholders, which the adapter does not show.
    inside |= {"EC-11.5"}
    assert without <= inside


@pytest.mark.parametrize("number", range(1, 12))
def test_every_known_schedule_has_a_case(number: int):
    assert any(f"F{number}" in case.tags for case in cases())


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_every_status_is_sent_and_is_expected(status: str):
    steps = [step for case in cases() for step in case.steps]
    answered = {step.get("status", "OK") for step in steps if "answer" in step}
    expected = {str(step.get("expect", {}).get("status")) for step in steps if "ask" in step}
    variants = texts()
    expected |= {name for name in STATUSES if f'"status": "{name}"' in variants}
    wire = {step.get("vector", "") for step in steps if "answer" in step}
    name = status.removeprefix("NACK_").replace("_", "-").lower()
    assert status in answered or any(name in vector for vector in wire)
    # Producers answer NACK_INTERNAL to what only a fault of their own can cause.
    assert status in expected or status == "NACK_INTERNAL"


@pytest.mark.parametrize("timer", sorted(set(timer_specs()) - UNSEEN))
def test_every_timer_is_tried_just_before_at_and_just_after_its_bound(timer: str):
    moments = [
        str(step.get("until", "")) + str(step.get("takes", ""))
        for case in cases()
        for step in case.steps
        if "until" in step or "prepare" in step
    ]
    about = [moment for moment in moments if timer in moment]
    before = [moment for moment in about if moment.endswith("- eps")]
    after = [moment for moment in about if moment.endswith("+ eps")]
    assert before, timer
    assert after, timer
    assert set(about) - {*before, *after}, timer


def test_the_cases_at_the_bounds_are_those_of_the_document():
    """docs/conformance/kit.md: timer by timer."""
    text = (case_dir().parents[1] / "docs" / "conformance" / "kit.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+_s`(?:, )?)+) \| (.*) \|$", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+_s)`", " ".join(name for name, _ in rows))) == set(timer_specs())
    known = {case.id for case in cases()}
    for _, named in rows:
        assert set(re.findall(r"EC-[\d.]+/\d+", named)) <= known


def test_every_inequality_of_the_timers_is_broken_once():
    broken = {case.title for case in cases() if case.clause == "EC-7.2"}
    for item in inequalities():
        assert any(f"break {item.id}:" in title for title in broken), item.id


def test_every_golden_vector_is_used():
    names = {path.stem for path in (spec_dir() / "wire").glob("*.json")}
    used = {name for name in names if f'"{name}"' in texts()}
    assert names - used == set()


def test_quotes_are_of_their_clause():
    for case in cases():
        assert case.requirement in clauses()[case.clause], case.id
        assert case.requirement, case.id


def test_ids_of_our_own_cases_are_clause_addresses():
    for case in cases():
        assert case.id.partition("/")[0] in clauses(), case.id


def cpu_seconds() -> float:
    """Spent so far by this process and its children: another's load does not count."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@cache
def results(area: str) -> tuple[tuple[Result, ...], float]:
    needs("zmq")
    _, connect = connector("ours", None)
    began = cpu_seconds()
    with kit():
        found = tuple(run_cases([case for case in cases() if case.area == area], connect))
    return found, cpu_seconds() - began


@pytest.mark.parametrize("area", AREAS)
def test_ours_passes(area: str):
    wrong = {
        result.case.id: f"{result.verdict} {result.detail}"
        for result in results(area)[0]
        if result.verdict is not Verdict.OK and result.case.id not in NOT_OURS
    }
    assert wrong == {}


def test_a_whole_run_takes_less_than_a_minute():
    spent = {area: results(area)[1] for area in AREAS}
    assert sum(spent.values()) < 60, spent
