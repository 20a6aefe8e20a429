# SPDX-License-Identifier: Apache-2.0
"""Compares a model's state graph with the lifecycle tables and the actions.

This ties the proofs to the running code: TLC checks the model, the graph of a
small configuration shows that the model takes exactly the edges of the tables,
and the code's dispatcher is compiled from the same tables.

Edges that differ only in their guards are one edge here, since a model's
history names the states and the event, not the guards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ec_protocol.tables.lifecycle import Action, Lifecycle, load_actions, load_lifecycles
from ec_verify.models.graph import Fired, Graph


def table_edges(table: Lifecycle) -> frozenset[Fired]:
    """The edges of one lifecycle, without their guards."""
    return frozenset(Fired(table.name, e.source, e.event, e.dest) for e in table.edges)


def differences(
    graph: Graph,
    *,
    lifecycles: Iterable[str],
    modules: Collection[str],
    allow_dead: Collection[str] = (),
    tables: Mapping[str, Lifecycle] | None = None,
    actions: Mapping[str, Action] | None = None,
) -> list[str]:
    """Everything in which the graph and the tables disagree.

    Args:
        graph: The dumped state graph.
        lifecycles: Names of the lifecycles whose edges must all be taken.
        modules: Every action whose ``models`` name one of these must be taken
            and must fire everything that it lists.
        allow_dead: Actions that this model leaves out on purpose.
        tables: Instead of the shipped lifecycles.
        actions: Instead of the shipped actions.

    Returns:
        One sentence per difference, in a stable order; empty when all agrees.
    """
    tables = load_lifecycles() if tables is None else tables
    actions = load_actions() if actions is None else actions
    return [
        *_edge_differences(graph, lifecycles, tables),
        *_action_differences(graph, modules, allow_dead, actions),
    ]


def _edge_differences(
    graph: Graph, lifecycles: Iterable[str], tables: Mapping[str, Lifecycle]
) -> list[str]:
    found = []
    seen = frozenset[Fired]().union(*graph.fired.values())
    known = frozenset[Fired]().union(*map(table_edges, tables.values()))
    for edge in sorted(seen - known):
        takers = ", ".join(sorted(a for a, fired in graph.fired.items() if edge in fired))
        found.append(f"the model takes an edge that the table does not have: {edge} (by {takers})")
    for name in lifecycles:
        for edge in sorted(table_edges(tables[name]) - seen):
            found.append(f"the model never takes an edge of the table: {edge}")
    return found


def _action_differences(
    graph: Graph,
    modules: Collection[str],
    allow_dead: Collection[str],
    actions: Mapping[str, Action],
) -> list[str]:
    found = []
    # A lifecycle that no action fires (the region's: it is no step under the lock) has
    # its edges compared, and nothing to compare its model's actions with.
    rowed = {event.partition(".")[0] for action in actions.values() for event in action.fires}
    for name, fired in sorted(graph.fired.items()):
        events = {f"{item.lifecycle}.{item.event}" for item in fired if item.lifecycle in rowed}
        action = actions.get(name)
        if action is None and events:
            found.append(
                f"{name} fires {', '.join(sorted(events))} but is no action of spec/lifecycle.toml"
            )
        elif action is not None:
            for event in sorted(events - set(action.fires)):
                found.append(f"{name} fires {event}, which its `fires` does not list")
    for action in actions.values():
        if action.name in allow_dead or not set(action.models) & set(modules):
            continue
        if action.name not in graph.fired:
            found.append(f"{action.name} is never taken")
            continue
        events = {f"{item.lifecycle}.{item.event}" for item in graph.fired[action.name]}
        for event in action.fires:
            if not event.startswith("create:") and event not in events:
                found.append(f"{action.name} never fires {event}, which its `fires` lists")
    return found
