# SPDX-License-Identifier: Apache-2.0
"""How much of the specification traces go through: actions, and edges of the tables.

An accepted trace says nothing of what it does not contain. So the check tells what all
traces together have shown, and names what none of them has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ec_protocol.tables.lifecycle import Edge, load_actions, load_lifecycles
from ec_verify.traces.fields import VARIABLES
from ec_verify.traces.load import Fired, Record


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was shown, and how often.

    Attributes:
        actions: Every action of the table.
        edges: Every edge of the lifecycles that traces tell of, by its label.
    """

    actions: Counter[str]
    edges: Counter[str]

    @property
    def missing_actions(self) -> list[str]:
        """Actions that no trace has."""
        return [name for name, count in self.actions.items() if not count]

    @property
    def missing_edges(self) -> list[str]:
        """Edges that no trace has taken."""
        return [name for name, count in self.edges.items() if not count]

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        return {
            "actions": dict(self.actions),
            "missing_actions": self.missing_actions,
            "edges": dict(self.edges),
            "missing_edges": self.missing_edges,
        }


def total(parts: Iterable[tuple[Counter[str], Counter[str]]]) -> Coverage:
    """What traces show together, given actions and edges of each."""
    actions = Counter(dict.fromkeys(load_actions(), 0))
    edges = Counter({text: 0 for labels in _labels().values() for _, text in labels})
    for some_actions, some_edges in parts:
        actions.update(some_actions)
        edges.update(some_edges)
    return Coverage(actions, edges)


def edges_of(log: Sequence[Record]) -> Counter[str]:
    """The edges that a log takes."""
    return Counter(label for record in log for item in record.fired for label in _taken(item))


def label(lifecycle: str, edge: Edge) -> str:
    """An edge, for people: ``read: granted -post_read [fence_open]-> reading``."""
    guards = [*edge.needs, *(f"not {name}" for name in edge.forbids)]
    shown = f" [{', '.join(guards)}]" if guards else ""
    return f"{lifecycle}: {edge.source} -{edge.event}{shown}-> {edge.dest}"


def _taken(item: Fired) -> Iterable[str]:
    for edge, name in _labels().get(item.lifecycle, ()):
        if (edge.source, edge.event) == (item.before, item.event) and edge.allows(item.guards):
            yield name


@cache
def _labels() -> dict[str, list[tuple[Edge, str]]]:
    """The edges of each lifecycle whose objects traces tell of: not the region's file."""
    return {
        name: [(edge, label(name, edge)) for edge in table.edges]
        for name, table in load_lifecycles().items()
        if name in VARIABLES
    }
