# SPDX-License-Identifier: Apache-2.0
"""The ``transitions`` machines have the edges of their tables and no others."""

from __future__ import annotations

from typing import Any

import pytest
from transitions import Machine, MachineError

from ec_protocol.tables.lifecycle import LIFECYCLE_NAMES, Lifecycle, load_lifecycles
from ec_protocol.tables.machines import EFFECT_PREFIX, GuardedModel, build_machine, machines

pytestmark = pytest.mark.clause("EC-1.1")

Row = tuple[Any, ...]


def rows_of_table(lc: Lifecycle) -> list[Row]:
    return sorted(
        (e.source, e.event, e.dest, frozenset(e.needs), frozenset(e.forbids), e.effect)
        for e in lc.edges
    )


def rows_of_machine(machine: Machine) -> list[Row]:
    return sorted(
        (
            t.source,
            event.name,
            t.dest,
            frozenset(c.func for c in t.conditions if c.target),
            frozenset(c.func for c in t.conditions if not c.target),
            "".join(map(str, t.after)).removeprefix(EFFECT_PREFIX),
        )
        for event in machine.events.values()
        for transitions in event.transitions.values()
        for t in transitions
    )


@pytest.mark.parametrize("name", LIFECYCLE_NAMES)
def test_the_machine_has_exactly_the_edges_of_its_table(name: str) -> None:
    lc, machine = load_lifecycles()[name], machines()[name]
    assert rows_of_machine(machine) == rows_of_table(lc)
    assert list(machine.states) == list(lc.states)
    assert machine.initial == lc.initial


@pytest.mark.parametrize("name", LIFECYCLE_NAMES)
def test_there_are_no_automatic_events(name: str) -> None:
    lc = load_lifecycles()[name]
    assert set(machines()[name].events) == set(lc.events)
    machine, model = build_machine(lc), GuardedModel(lc)
    machine.add_model(model)
    assert not any(hasattr(model, f"to_{state}") for state in lc.states)


def test_the_machines_are_built_once() -> None:
    assert machines() is machines()
    assert tuple(machines()) == LIFECYCLE_NAMES


def test_a_guarded_model_walks_through_the_life_of_an_entry() -> None:
    lc = load_lifecycles()["entry"]
    machine, model = build_machine(lc), GuardedModel(lc)
    machine.add_model(model)
    assert model.state == "allocated"
    for event in ("begin_write", "write_landed", "pin", "pin"):
        assert model.trigger(event)  # type: ignore[attr-defined]
    assert model.trigger("unpin")  # type: ignore[attr-defined]
    assert (model.state, model.effects) == ("pinned", ["enqueue"])
    model.held = frozenset({"last_holder"})
    assert model.trigger("unpin")  # type: ignore[attr-defined]
    assert model.trigger("evict")  # type: ignore[attr-defined]
    assert (model.state, model.effects) == ("freed", ["enqueue", "enqueue", "free_blocks"])
    with pytest.raises(MachineError):
        model.trigger("pin")  # type: ignore[attr-defined]
    assert model.state == "freed"
