# SPDX-License-Identifier: Apache-2.0
"""Makes mutants of the lifecycle tables and of the timers' inequalities, one change each.

A mutant is a ``Lifecycle`` (or the list of actions, or of inequalities) that differs
from the shipped one in one place. It stays deterministic, as the tables must: where a change makes
two edges possible at once, the changed one is taken. Nothing here reads the file
again or goes through its checks, since a mutant need not pass them.

Ids can be typed on a command line and name the place, then what was done to it::

    read:granted:post_read-fence_open:to=reading
    ^lifecycle ^state  ^event    ^guards ^operator
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ec_protocol.tables.lifecycle import Action, Edge, Lifecycle, load_actions, load_lifecycles
from ec_protocol.tables.timing import Inequality, inequalities

#: Where the rows of ``actions`` are mutated instead of a lifecycle.
ACTIONS: Final = "actions"

#: Where the inequalities of ``spec/timing.toml`` are.
TIMING: Final = "timing"

#: What is done to a table, in the order of the report.
OPERATORS: Final[Mapping[str, str]] = {
    "drop-guard": "an edge is taken although one of its guards does not hold",
    "negate-guard": "a guard counts when it does not hold, and the other way round",
    "drop-edge": "an edge is gone",
    "drop-effect": "an edge asks for nothing",
    "effect": "an edge asks for what another one asks for",
    "to": "an edge leads to another state",
    "rogue": "an event moves an object out of a state that has no edge for it",
    "initial": "objects begin in another state",
    "terminal": "a state is taken for a last one, or a last one is not",
    "drop-fires": "an action does not list an event that it fires",
    "drop-inequality": "any timers will do for it",
    "strictness": "the bound itself is allowed, or is not",
    "drop-term": "a timer is left out of a sum",
    "swap-sides": "what must be less must be more",
}

#: Operators of the quick set: every guard, every edge and every effect once.
QUICK: Final = frozenset(
    {"drop-guard", "negate-guard", "drop-edge", "drop-effect", "drop-inequality"}
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant.

    Attributes:
        id: Unique and stable as long as the table does not change there.
        lifecycle: Which table, ``ACTIONS`` or ``TIMING``.
        operator: Key of ``OPERATORS``.
        where: The edge, state, action or inequality, for people.
        table: The mutated lifecycle; ``None`` for a mutant of something else.
        actions: The mutated actions, likewise.
        timing: The mutated inequalities, likewise.
    """

    id: str
    lifecycle: str
    operator: str
    where: str
    table: Lifecycle | None = None
    actions: Mapping[str, Action] | None = None
    timing: tuple[Inequality, ...] | None = None


def edge_name(edge: Edge) -> str:
    """``state:event`` and the guards: ``+name`` must hold, ``-name`` must not."""
    guards = [f"+{g}" for g in edge.needs] + [f"-{g}" for g in edge.forbids]
    return f"{edge.source}:{edge.event}{''.join(guards)}"


def all_mutants(
    lifecycles: Mapping[str, Lifecycle] | None = None,
    actions: Mapping[str, Action] | None = None,
    timing: tuple[Inequality, ...] | None = None,
) -> list[Mutant]:
    """Every mutant of the tables, by default of the shipped ones; ids are unique."""
    found: list[Mutant] = []
    for table in (lifecycles or load_lifecycles()).values():
        for make in (
            _dropped_guards,
            _negated_guards,
            _dropped_edges,
            _effects,
            _destinations,
            _rogue_edges,
            _ends,
        ):
            found += make(table)
    found += _dropped_events(actions or load_actions())
    found += _timing_mutants(inequalities() if timing is None else timing)
    return found


def _mutant(table: Lifecycle, operator: str, place: str, change: str, after: Lifecycle) -> Mutant:
    return Mutant(f"{table.name}:{place}:{change}", table.name, operator, place, after)


def _with_edges(table: Lifecycle, edges: tuple[Edge, ...]) -> Lifecycle:
    return replace(table, edges=edges)


# ---------------------------------------------------------------------- guards
def _dropped_guards(table: Lifecycle) -> Iterator[Mutant]:
    for edge in table.edges:
        for guard in (*edge.needs, *edge.forbids):
            freed = replace(
                edge,
                needs=tuple(g for g in edge.needs if g != guard),
                forbids=tuple(g for g in edge.forbids if g != guard),
            )
            after = _with_edges(table, tuple(_preferring(table, edge, freed)))
            yield _mutant(table, "drop-guard", edge_name(edge), f"drop-guard={guard}", after)


def _preferring(table: Lifecycle, old: Edge, new: Edge) -> Iterator[Edge]:
    """The edges with ``new`` for ``old``; rivals keep only the guards ``new`` leaves them."""
    for edge in table.edges:
        if edge is old:
            yield new
        elif (edge.source, edge.event) == (new.source, new.event):
            yield from _minus(edge, new)
        else:
            yield edge


def _minus(edge: Edge, winner: Edge) -> Iterator[Edge]:
    """``edge`` wherever ``winner`` is not taken, as edges that exclude each other."""
    needs, forbids = list(edge.needs), list(edge.forbids)
    if set(winner.needs) & set(forbids) or set(winner.forbids) & set(needs):
        yield edge
        return
    for guard, wanted in [(g, True) for g in winner.needs] + [(g, False) for g in winner.forbids]:
        if guard in needs or guard in forbids:
            continue
        against = (forbids, needs) if wanted else (needs, forbids)
        against[0].append(guard)
        yield replace(edge, needs=tuple(needs), forbids=tuple(forbids))
        against[0].pop()
        against[1].append(guard)


def _negated_guards(table: Lifecycle) -> Iterator[Mutant]:
    """All edges of one state and event see the guard the other way round."""
    groups = dict.fromkeys((e.source, e.event) for e in table.edges)
    for source, event in groups:
        rivals = [e for e in table.edges if (e.source, e.event) == (source, event)]
        for guard in dict.fromkeys(g for e in rivals for g in (*e.needs, *e.forbids)):
            after = tuple(_flipped(e, guard) if e in rivals else e for e in table.edges)
            change = f"negate-guard={guard}"
            yield _mutant(
                table, "negate-guard", f"{source}:{event}", change, _with_edges(table, after)
            )


def _flipped(edge: Edge, guard: str) -> Edge:
    if guard in edge.needs:
        rest = tuple(g for g in edge.needs if g != guard)
        return replace(edge, needs=rest, forbids=(*edge.forbids, guard))
    if guard in edge.forbids:
        rest = tuple(g for g in edge.forbids if g != guard)
        return replace(edge, forbids=rest, needs=(*edge.needs, guard))
    return edge


# ----------------------------------------------------------------------- edges
def _dropped_edges(table: Lifecycle) -> Iterator[Mutant]:
    for edge in table.edges:
        after = tuple(e for e in table.edges if e is not edge)
        yield _mutant(table, "drop-edge", edge_name(edge), "drop-edge", _with_edges(table, after))


def _destinations(table: Lifecycle) -> Iterator[Mutant]:
    for edge in table.edges:
        for state in table.states:
            if state != edge.dest:
                after = _replaced(table, edge, replace(edge, dest=state))
                yield _mutant(table, "to", edge_name(edge), f"to={state}", after)


def _effects(table: Lifecycle) -> Iterator[Mutant]:
    """No effect, and each effect that edges of the same event or into the same state have."""
    for edge in table.edges:
        if edge.effect:
            after = _replaced(table, edge, replace(edge, effect=""))
            yield _mutant(table, "drop-effect", edge_name(edge), "drop-effect", after)
        near = dict.fromkeys(
            e.effect for e in table.edges if e.event == edge.event or e.dest == edge.dest
        )
        for effect in near:
            if effect and effect != edge.effect:
                after = _replaced(table, edge, replace(edge, effect=effect))
                yield _mutant(table, "effect", edge_name(edge), f"effect={effect}", after)


def _rogue_edges(table: Lifecycle) -> Iterator[Mutant]:
    """Every event in every state without an edge for it, leading where it leads elsewhere."""
    known = {(e.source, e.event) for e in table.edges}
    for state, event in itertools.product(table.states, table.events):
        if (state, event) in known:
            continue
        models = {e.dest: e for e in table.edges if e.event == event and e.dest != state}
        for dest, model in models.items():
            rogue = replace(model, source=state, needs=(), forbids=())
            after = _with_edges(table, (*table.edges, rogue))
            yield _mutant(table, "rogue", f"{state}:{event}", f"rogue={dest}", after)


def _replaced(table: Lifecycle, old: Edge, new: Edge) -> Lifecycle:
    return _with_edges(table, tuple(new if edge is old else edge for edge in table.edges))


# ----------------------------------------------------- ends and rows of actions
def _ends(table: Lifecycle) -> Iterator[Mutant]:
    for state in table.states:
        if state != table.initial:
            after = replace(table, initial=state)
            yield _mutant(table, "initial", table.initial, f"initial={state}", after)
        last = state in table.terminal
        terminal = tuple(s for s in table.states if (s in table.terminal) != (s == state))
        change = "not-terminal" if last else "terminal"
        yield _mutant(table, "terminal", state, change, replace(table, terminal=terminal))


def _dropped_events(actions: Mapping[str, Action]) -> Iterator[Mutant]:
    for action in actions.values():
        for event in action.fires:
            fires = tuple(e for e in action.fires if e != event)
            yield Mutant(
                f"{ACTIONS}:{action.name}:drop-fires={event}",
                ACTIONS,
                "drop-fires",
                action.name,
                actions={**actions, action.name: replace(action, fires=fires)},
            )


# ----------------------------------------------------------------- the inequalities
def _timing_mutants(items: tuple[Inequality, ...]) -> Iterator[Mutant]:
    def mutant(item: Inequality, change: str, *instead: Inequality) -> Mutant:
        after = tuple(x for i in items for x in (instead if i is item else (i,)))
        operator = change.partition("=")[0]
        return Mutant(f"{TIMING}:{item.id}:{change}", TIMING, operator, str(item), timing=after)

    for item in items:
        yield mutant(item, "drop-inequality")
        yield mutant(item, "strictness", replace(item, op="<=" if item.op == "<" else "<"))
        yield mutant(item, "swap-sides", replace(item, left=item.right, right=item.left))
        for name in item.left if len(item.left) > 1 else ():
            rest = tuple(term for term in item.left if term != name)
            yield mutant(item, f"drop-term={name}", replace(item, left=rest))
