# SPDX-License-Identifier: Apache-2.0
"""Mutants of the tables: made mechanically, complete, and deterministic as tables are."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from ec_protocol.tables.files import tla_dir
from ec_protocol.tables.lifecycle import (
    LIFECYCLE_NAMES,
    guard_valuations,
    load_actions,
    load_lifecycles,
)
from ec_protocol.tables.timing import inequalities
from ec_verify.models.manifest import load_manifest
from ec_verify.mutants.explanations import load_explanations, reason_for
from ec_verify.mutants.models import BATTERIES, REACHES
from ec_verify.mutants.operators import ACTIONS, OPERATORS, QUICK, TIMING, all_mutants, edge_name
from ec_verify.mutants.safeguards import constants, safeguards
from tests import ROOT

PAGE = ROOT / "docs" / "verification" / "mutants.md"
MUTANTS = all_mutants()
TABLES = load_lifecycles()


def mutant(wanted: str):
    return next(m for m in MUTANTS if m.id == wanted)


def behaviour(table):
    """What the table does: (state, event, guards that hold) -> (next state, effect)."""
    does = {}
    for held in guard_valuations(table):
        for edge in table.edges:
            if edge.allows(held):
                key = (edge.source, edge.event, held)
                assert key not in does, "two edges at once"
                does[key] = (edge.dest, edge.effect)
    return does


def test_ids_are_unique_and_can_be_typed():
    ids = [m.id for m in MUTANTS]
    assert len(set(ids)) == len(ids) > 700
    for known in ids:
        assert not set(known) & set(" *?[]!'\"$"), known


def test_every_operator_and_every_table_has_mutants():
    assert {m.operator for m in MUTANTS} == set(OPERATORS)
    assert {m.lifecycle for m in MUTANTS} == {*LIFECYCLE_NAMES, ACTIONS, TIMING}
    assert set(OPERATORS) > QUICK


@pytest.mark.parametrize("m", [m for m in MUTANTS if m.table], ids=lambda m: m.id)
def test_each_differs_from_its_table_and_stays_deterministic(m):
    was = TABLES[m.lifecycle]
    does, did = behaviour(m.table), behaviour(was)
    ends = (m.table.initial, m.table.terminal) != (was.initial, was.terminal)
    assert (does != did) != ends
    changed = {key[:2] for key in {*does, *did} if does.get(key) != did.get(key)}
    assert len(changed) <= 1, "in one place"


def test_every_guard_edge_effect_and_destination_is_mutated():
    ids = {m.id for m in MUTANTS}
    for name, table in TABLES.items():
        for edge in table.edges:
            at = f"{name}:{edge_name(edge)}"
            assert f"{at}:drop-edge" in ids
            for guard in (*edge.needs, *edge.forbids):
                assert f"{at}:drop-guard={guard}" in ids
                assert f"{name}:{edge.source}:{edge.event}:negate-guard={guard}" in ids
            assert not edge.effect or f"{at}:drop-effect" in ids
            for state in set(table.states) - {edge.dest}:
                assert f"{at}:to={state}" in ids
        known = {(e.source, e.event) for e in table.edges}
        for state, event in itertools.product(table.states, table.events):
            rogue = any(i.startswith(f"{name}:{state}:{event}:rogue=") for i in ids)
            leads = {e.dest for e in table.edges if e.event == event} - {state}
            assert rogue == ((state, event) not in known and bool(leads))


def test_every_event_of_every_action_is_dropped_once():
    for action in load_actions().values():
        for event in action.fires:
            fires = mutant(f"{ACTIONS}:{action.name}:drop-fires={event}").actions[action.name].fires
            assert {*fires, event} == {*action.fires}
            assert event not in fires


def test_every_inequality_is_mutated_in_every_way_and_alone():
    was = {item.id: item for item in inequalities()}
    made = {m.id: m for m in MUTANTS if m.lifecycle == TIMING}
    for ident, item in was.items():
        at = f"{TIMING}:{ident}"
        wanted = {f"{at}:drop-inequality", f"{at}:strictness", f"{at}:swap-sides"}
        wanted |= {f"{at}:drop-term={name}" for name in item.left if len(item.left) > 1}
        assert {known for known in made if known.startswith(at + ":")} == wanted
        for known in wanted:
            now = {i.id: i for i in made[known].timing}
            assert {i for i in was if now.get(i) != was[i]} == {ident}
            assert (ident in now) != known.endswith("drop-inequality")


def test_an_edge_without_its_guard_is_always_taken():
    table = mutant("read:granted:post_read+fence_open:drop-guard=fence_open").table
    does = behaviour(table)
    for held in guard_valuations(table):
        assert does["granted", "post_read", held] == ("reading", "post")


def test_of_two_guards_one_can_be_dropped():
    table = mutant("copy:in_flight:report+last_rank+all_landed:drop-guard=last_rank").table
    does = {key[2]: value[0] for key, value in behaviour(table).items() if key[1] == "report"}
    assert does == {
        frozenset(): "in_flight",
        frozenset({"last_rank"}): "skipped",
        frozenset({"all_landed"}): "landed",
        frozenset({"last_rank", "all_landed"}): "landed",
    }


def test_a_guard_that_is_negated_swaps_its_edges():
    does = behaviour(mutant("entry:pinned:unpin:negate-guard=last_holder").table)
    assert does["pinned", "unpin", frozenset()] == ("ready", "enqueue")
    assert does["pinned", "unpin", frozenset({"last_holder"})] == ("pinned", "")


# ---------------------------------------------------------------------- the models
def test_the_batteries_are_models_that_hold_and_name_every_table():
    manifest = load_manifest(tla_dir())
    models = {model.name: model for model in manifest.models}
    assert set(BATTERIES) == set(REACHES) == {*LIFECYCLE_NAMES, TIMING}
    for names in BATTERIES.values():
        for name in names:
            assert models[name].mode in ("exhaustive", "liveness")
            assert models[name].expected == "ok"
    modules = {m.module for m in manifest.models if m.name.startswith("Reach")}
    assert set(itertools.chain(*REACHES.values())) <= modules


# ------------------------------------------------------------------ the safeguards
def test_every_safeguard_of_every_module_is_removed_by_a_config():
    found = safeguards(load_manifest(tla_dir()))
    assert len(found) > 40
    assert [f"{s.module}.{s.name}" for s in found if not s.configs] == []


def test_safeguards_are_found_under_either_heading():
    above = """\\* Safeguards. All TRUE is
\\* the protocol.
CONSTANTS
    One,  \\* first
    Two

X == 1
"""
    beside = """CONSTANTS   \\* Safeguards, TRUE.
    Three,
    Four   \\* last

VARIABLES
    five
"""
    single = """CONSTANTS
    Many,     \\* how many
    Six       \\* Safeguard: counted.
"""
    assert constants(above) == ["One", "Two"]
    assert constants(beside) == ["Three", "Four"]
    assert constants(single) == ["Six"]
    assert constants("CONSTANTS\n    Enc,   \\* Encodings.\n") == []


def test_the_page_counts_what_there_is():
    text = PAGE.read_text(encoding="utf-8")
    counted = {}
    for names, counts in re.findall(
        r"^\| ((?:`[a-z-]+`(?:, )?)+) \| [^|]* \| ([\d, ]+) \|$", text, re.M
    ):
        words = re.findall(r"`([a-z-]+)`", names)
        counted.update(zip(words, map(int, counts.split(", ")), strict=True))
    assert counted == Counter(m.operator for m in MUTANTS)
    quick = sum(m.operator in QUICK for m in MUTANTS)
    assert f"{quick} mutants" in text


def test_the_page_tells_what_became_of_them():
    """What is explained is a survivor: a reason for another one fails a run."""
    reasons = load_explanations(tla_dir())["models"]
    made = Counter(m.lifecycle for m in MUTANTS)
    explained = Counter(m.lifecycle for m in MUTANTS if reason_for(reasons, m) is not None)
    text = PAGE.read_text(encoding="utf-8")
    rows = [*((f"`{n}`", n) for n in made if n != TIMING), ("timers", TIMING)]
    for shown, name in rows:
        killed = made[name] - explained[name]
        assert f"| {shown} | {made[name]} | {killed} | {explained[name]} | 0 |\n" in text
    total = made.total(), made.total() - explained.total(), explained.total()
    assert f"| all | {total[0]} | {total[1]} | {total[2]} | 0 |\n" in text
