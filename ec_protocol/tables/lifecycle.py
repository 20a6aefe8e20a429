# SPDX-License-Identifier: Apache-2.0
"""The lifecycle tables of ``spec/lifecycle.toml``, loaded and checked.

Everything that decides which state follows which is in that file; nothing in
Python adds an edge. Loading fails with ``SpecError`` when a table contradicts
itself: an unknown state, event or guard, two edges that could both be taken,
or a state that cannot be reached or left.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from ec_protocol.errors import SpecError
from ec_protocol.tables.files import spec_path

LIFECYCLE_NAMES: Final = (
    "entry",
    "read",
    "grant",
    "copy",
    "peer",
    "offer",
    "loan",
    "process",
    "region",
)


@dataclass(frozen=True, slots=True)
class Edge:
    """One row of a table.

    Attributes:
        source: State the edge leaves.
        event: Event that takes it.
        needs: Guards that must hold.
        forbids: Guards that must not hold.
        dest: State the edge enters.
        effect: What the caller carries out; ``""`` for nothing.
        why: The reason the edge exists.
    """

    source: str
    event: str
    needs: tuple[str, ...]
    forbids: tuple[str, ...]
    dest: str
    effect: str
    why: str

    def allows(self, held: frozenset[str]) -> bool:
        """Whether the edge may be taken while exactly the guards ``held`` hold."""
        return held.issuperset(self.needs) and held.isdisjoint(self.forbids)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a lifecycle; ``by`` says whose bug an illegal one is."""

    name: str
    by: Literal["local", "remote"]
    doc: str


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One table: its states, events, guards and edges, in the file's order."""

    name: str
    doc: str
    initial: str
    terminal: tuple[str, ...]
    states: Mapping[str, str]
    events: Mapping[str, Event]
    guards: Mapping[str, str]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """One atomic protocol step; its name is shared by TLA+, traces and Python."""

    name: str
    actor: str
    models: tuple[str, ...]
    fires: tuple[str, ...]
    why: str


def parse_lifecycle(name: str, table: Mapping[str, Any]) -> Lifecycle:
    """Build one lifecycle from its TOML table.

    Raises:
        SpecError: The table contradicts itself; the message names the edge.
    """
    try:
        events = {
            key: Event(key, value["by"], value["doc"]) for key, value in table["events"].items()
        }
        edges = tuple(
            Edge(
                source=row["from"],
                event=row["event"],
                needs=tuple(g for g in row.get("guards", ()) if not g.startswith("!")),
                forbids=tuple(g[1:] for g in row.get("guards", ()) if g.startswith("!")),
                dest=row["to"],
                effect=row.get("effect", ""),
                why=row["why"],
            )
            for row in table["edges"]
        )
        lifecycle = Lifecycle(
            name=name,
            doc=table["doc"],
            initial=table["initial"],
            terminal=tuple(table["terminal"]),
            states=dict(table["states"]),
            events=events,
            guards=dict(table.get("guards", {})),
            edges=edges,
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise SpecError(f"lifecycle {name}: missing or malformed field: {exc!r}") from exc
    check_lifecycle(lifecycle)
    return lifecycle


def check_lifecycle(lc: Lifecycle) -> None:
    """Refuse a table that contradicts itself.

    Raises:
        SpecError: The message names the edge, state or event.
    """

    def bad(message: str) -> SpecError:
        return SpecError(f"lifecycle {lc.name}: {message}")

    for state in (lc.initial, *lc.terminal):
        if state not in lc.states:
            raise bad(f"unknown state {state!r} named as initial or terminal")
    for event in lc.events.values():
        if event.by not in ("local", "remote"):
            raise bad(f"event {event.name!r}: by must be 'local' or 'remote', not {event.by!r}")
    for edge in lc.edges:
        if edge.source not in lc.states or edge.dest not in lc.states:
            raise bad(f"edge {edge.source} --{edge.event}--> {edge.dest} names an unknown state")
        if edge.event not in lc.events:
            raise bad(f"edge {edge.source} --{edge.event}--> {edge.dest} names an unknown event")
        unknown = set(edge.needs + edge.forbids) - set(lc.guards)
        if unknown:
            raise bad(f"edge {edge.source} --{edge.event}: unknown guards {sorted(unknown)}")
        if edge.source in lc.terminal:
            raise bad(f"terminal state {edge.source!r} has an edge for {edge.event!r}")
    for held in guard_valuations(lc):
        taken: set[tuple[str, str]] = set()
        for edge in lc.edges:
            if edge.allows(held):
                key = (edge.source, edge.event)
                if key in taken:
                    raise bad(f"two edges for {key} when exactly {sorted(held)} hold")
                taken.add(key)
    reached = {lc.initial}
    while more := {e.dest for e in lc.edges if e.source in reached} - reached:
        reached |= more
    if lost := set(lc.states) - reached:
        raise bad(f"unreachable states {sorted(lost)}")
    if stuck := set(lc.states) - set(lc.terminal) - {e.source for e in lc.edges}:
        raise bad(f"states without a way out {sorted(stuck)}")
    if unused := set(lc.events) - {e.event for e in lc.edges}:
        raise bad(f"events without an edge {sorted(unused)}")


def guard_valuations(lc: Lifecycle) -> list[frozenset[str]]:
    """Every set of guards that may hold at once: the third axis of the test product."""
    names = tuple(lc.guards)
    return [
        frozenset(held)
        for size in range(len(names) + 1)
        for held in itertools.combinations(names, size)
    ]


@cache
def _document() -> dict[str, Any]:
    with open(spec_path("lifecycle.toml"), "rb") as file:
        return tomllib.load(file)


@cache
def load_lifecycles() -> Mapping[str, Lifecycle]:
    """Every lifecycle, by name."""
    document = _document()
    return {name: parse_lifecycle(name, document[name]) for name in LIFECYCLE_NAMES}


@cache
def load_actions() -> Mapping[str, Action]:
    """The protocol actions, by name.

    Raises:
        SpecError: An action fires an event that its lifecycle does not have.
    """
    lifecycles = load_lifecycles()
    actions: dict[str, Action] = {}
    for row in _document()["actions"]:
        action = Action(
            row["name"], row["actor"], tuple(row["models"]), tuple(row["fires"]), row["why"]
        )
        for fired in action.fires:
            if fired.startswith("create:"):
                known = fired.removeprefix("create:") in lifecycles
            else:
                lifecycle, _, event = fired.partition(".")
                known = lifecycle in lifecycles and event in lifecycles[lifecycle].events
            if not known:
                raise SpecError(f"action {action.name} fires {fired!r}, which no lifecycle has")
        actions[action.name] = action
    return actions
