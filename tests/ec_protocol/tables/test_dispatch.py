# SPDX-License-Identifier: Apache-2.0
"""The compiled dispatcher and the ``transitions`` machine are the same thing.

Both are run over the whole product of states, events and guard valuations of every
lifecycle and must agree on the next state, the emitted effect, the kind of error and
whose bug it is. ``disagreements`` does the comparison; further down machines are
damaged in every possible single place to show that it notices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from transitions import Machine, MachineError

from ec_protocol.errors import (
    GuardRefused,
    IllegalEvent,
    LocalProtocolError,
    ProtocolError,
    RemoteGuardRefused,
    RemoteIllegalEvent,
    RemoteProtocolError,
)
from ec_protocol.tables.dispatch import (
    COPY,
    DISPATCH,
    ENTRY,
    GRANT,
    LOAN,
    OFFER,
    PEER,
    PROCESS,
    READ,
    REGION,
    Dispatcher,
)
from ec_protocol.tables.lifecycle import (
    LIFECYCLE_NAMES,
    Edge,
    Lifecycle,
    guard_valuations,
    load_lifecycles,
)
from ec_protocol.tables.machines import GuardedModel, build_machine

pytestmark = pytest.mark.clause("EC-1.2")


class Outcome(NamedTuple):
    """What came of one event: ``kind`` is moved, illegal or refused."""

    kind: str
    whose: str
    state: str
    effects: tuple[str, ...]


def by_machine(machine: Machine, lc: Lifecycle, state: str, event: str, held: frozenset[str]):
    """The reference: trigger the event on a fresh model of the real machine."""
    model = GuardedModel(lc, held)
    machine.add_model(model, initial=state)
    try:
        moved = model.trigger(event)  # type: ignore[attr-defined]
        kind = "moved" if moved else "refused"
    except MachineError:
        kind = "illegal"
    finally:
        machine.remove_model(model)
    if kind != "moved":
        # Nothing changed: neither the state, nor did an effect run.
        assert model.state == state
        assert model.effects == []
    whose = "" if kind == "moved" else lc.events[event].by
    return Outcome(kind, whose, model.state, tuple(model.effects))


_ERRORS = {
    IllegalEvent: ("illegal", "local"),
    GuardRefused: ("refused", "local"),
    RemoteIllegalEvent: ("illegal", "remote"),
    RemoteGuardRefused: ("refused", "remote"),
}


def by_dispatcher(dispatcher: Dispatcher, state: str, event: str, held: frozenset[str]) -> Outcome:
    error: ProtocolError
    try:
        step = dispatcher.fire(state, event, dispatcher.mask(*held))
    except ProtocolError as exc:
        error = exc
    else:
        return Outcome("moved", "", step.state, (step.effect,) if step.effect else ())
    kind, whose = _ERRORS[type(error)]
    assert isinstance(error, LocalProtocolError) == (whose == "local")
    assert isinstance(error, RemoteProtocolError) == (whose == "remote")
    assert vars(error).items() >= {"lifecycle": dispatcher.name, "state": state}.items()
    assert vars(error).items() >= {"event": event, "clause": "EC-1.2"}.items()
    if isinstance(error, GuardRefused | RemoteGuardRefused):
        assert frozenset(error.guards) == held
    return Outcome(kind, whose, state, ())


def disagreements(dispatcher: Dispatcher, machine: Machine, lc: Lifecycle) -> Iterator[str]:
    """Every point of the product at which dispatcher and machine differ."""
    for state in lc.states:
        for event in lc.events:
            for held in guard_valuations(lc):
                want = by_machine(machine, lc, state, event, held)
                got = by_dispatcher(dispatcher, state, event, held)
                if got != want:
                    yield f"{state} × {event} × {sorted(held)}: {got}, machine: {want}"
                allowed = dispatcher.allows(state, event, dispatcher.mask(*held))
                if allowed != (got.kind == "moved"):
                    yield f"{state} × {event} × {sorted(held)}: allows() says {allowed}"


@pytest.mark.clause("EC-1.1")
@pytest.mark.parametrize("name", LIFECYCLE_NAMES)
def test_dispatcher_and_machine_agree_everywhere(name: str) -> None:
    lc = load_lifecycles()[name]
    dispatcher = DISPATCH[name]
    before = repr(dispatcher.steps)
    assert list(disagreements(dispatcher, build_machine(lc), lc)) == []
    assert repr(dispatcher.steps) == before


def test_the_product_is_as_large_as_it_should_be() -> None:
    """A product that shrank unnoticed would prove less than it seems to."""
    sizes = {
        name: len(lc.states) * len(lc.events) * len(guard_valuations(lc))
        for name, lc in load_lifecycles().items()
    }
    assert sizes == {
        "entry": 6 * 10 * 2,
        "read": 8 * 15 * 8,
        "grant": 3 * 2 * 2,
        "copy": 4 * 3 * 4,
        "peer": 4 * 5 * 2,
        "offer": 3 * 2 * 2,
        "loan": 4 * 7,
        "process": 6 * 5,
        "region": 5 * 6 * 2,
    }


# ------------------------------------------------------------- testing the test
def rewired(lc: Lifecycle, index: int, **changes: object) -> Lifecycle:
    """The lifecycle with one edge changed; it need not pass the table's own checks."""
    edges = list(lc.edges)
    edges[index] = dataclasses.replace(edges[index], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(lc, edges=tuple(edges))


EDGES = [(name, i) for name, lc in load_lifecycles().items() for i in range(len(lc.edges))]
EDGE_IDS = [
    f"{name}-{e.source}-{e.event}-{i}"
    for name, lc in load_lifecycles().items()
    for i, e in enumerate(lc.edges)
]


@pytest.mark.parametrize(("name", "index"), EDGES, ids=EDGE_IDS)
def test_one_redirected_edge_is_noticed(name: str, index: int) -> None:
    lc = load_lifecycles()[name]
    edge = lc.edges[index]
    other = next(state for state in lc.states if state != edge.dest)
    assert any(disagreements(DISPATCH[name], build_machine(rewired(lc, index, dest=other)), lc))


@pytest.mark.parametrize(("name", "index"), EDGES, ids=EDGE_IDS)
def test_one_changed_effect_is_noticed(name: str, index: int) -> None:
    lc = load_lifecycles()[name]
    effects = {e.effect for e in lc.edges} - {lc.edges[index].effect}
    if not effects:
        # A lifecycle without any effect: give the dispatcher's side one instead.
        changed = rewired(lc, index, effect="surprise")
        assert any(
            disagreements(Dispatcher(changed, build_machine(changed)), build_machine(lc), lc)
        )
        return
    mutant = rewired(lc, index, effect=min(effects))
    assert any(disagreements(DISPATCH[name], build_machine(mutant), lc))


@pytest.mark.parametrize(("name", "index"), EDGES, ids=EDGE_IDS)
def test_one_missing_edge_is_noticed(name: str, index: int) -> None:
    lc = load_lifecycles()[name]
    mutant = build_machine(lc)
    edge = lc.edges[index]
    left = mutant.events[edge.event].transitions[edge.source]
    left[:] = [t for t in left if {c.func for c in t.conditions if c.target} != set(edge.needs)]
    if not left:
        del mutant.events[edge.event].transitions[edge.source]
    assert any(disagreements(DISPATCH[name], mutant, lc))


GUARDED = [
    (name, i)
    for name, i in EDGES
    for e in [load_lifecycles()[name].edges[i]]
    if e.needs or e.forbids
]


@pytest.mark.parametrize(("name", "index"), GUARDED)
def test_one_inverted_guard_is_noticed(name: str, index: int) -> None:
    lc = load_lifecycles()[name]
    edge = lc.edges[index]
    for guard in (*edge.needs, *edge.forbids):
        mutant = rewired(
            lc,
            index,
            needs=tuple({*edge.needs} ^ {guard}),
            forbids=tuple({*edge.forbids} ^ {guard}),
        )
        assert any(disagreements(DISPATCH[name], build_machine(mutant), lc)), guard


@pytest.mark.parametrize("name", LIFECYCLE_NAMES)
def test_one_edge_too_many_is_noticed(name: str) -> None:
    lc = load_lifecycles()[name]
    event = next(iter(lc.events))
    extra = Edge(lc.terminal[0], event, (), (), lc.initial, "", "A way back from the end.")
    mutant = dataclasses.replace(lc, edges=(*lc.edges, extra))
    assert any(disagreements(DISPATCH[name], build_machine(mutant), lc))


def test_an_event_given_to_the_other_side_is_noticed() -> None:
    lc = load_lifecycles()["read"]
    event = dataclasses.replace(lc.events["ack_ok"], by="local")
    mutant = dataclasses.replace(lc, events={**lc.events, "ack_ok": event})
    assert any(disagreements(Dispatcher(mutant, build_machine(mutant)), build_machine(lc), lc))


# -------------------------------------------------------------------- the rest
def test_names_of_the_dispatchers() -> None:
    named = (ENTRY, READ, GRANT, COPY, PEER, OFFER, LOAN, PROCESS, REGION)
    assert [dispatcher.name for dispatcher in named] == list(LIFECYCLE_NAMES)
    for name, dispatcher in DISPATCH.items():
        assert dispatcher.initial == load_lifecycles()[name].initial


@pytest.mark.parametrize(
    ("state", "event"), [("nowhere", "pin"), ("ready", "explode"), ("", ""), ("nowhere", "explode")]
)
def test_unknown_states_and_events_are_our_own_bug(state: str, event: str) -> None:
    with pytest.raises(IllegalEvent, match=f"entry: event '{event}' is not allowed"):
        ENTRY.fire(state, event)
    assert not ENTRY.allows(state, event)


def test_guards_that_an_edge_does_not_name_are_ignored() -> None:
    everything = READ.mask(*READ.bits)
    assert READ.fire("requested", "ack_retry", everything).state == "retryable"
    assert READ.fire("granted", "post_read", everything).state == "reading"


def test_without_a_mask_no_guard_holds() -> None:
    first = next(iter(GRANT.bits))
    assert GRANT.allows("granted", "complete", GRANT.mask(first))
    assert not GRANT.allows("granted", "complete")
    with pytest.raises(RemoteGuardRefused, match="with guards held: none"):
        GRANT.fire("granted", "complete")


def test_a_mask_of_an_unknown_guard_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        READ.mask("fence_opne")


def test_messages_name_the_lifecycle_the_state_and_the_guards() -> None:
    with pytest.raises(RemoteGuardRefused, match="grant: no edge for event 'complete' in state"):
        GRANT.fire("granted", "complete", 0)
    with pytest.raises(GuardRefused, match="with guards held: none"):
        PEER.fire("down", "drain", 0)
    with pytest.raises(RemoteIllegalEvent, match="read: event 'ack_ok' is not allowed in state"):
        READ.fire("reading", "ack_ok", READ.mask("fence_open"))
