# SPDX-License-Identifier: Apache-2.0
"""`spec/lifecycle.toml` as plain frozen data, for generators and comparisons.

The running code compiles its machines from the same file through
`ec_protocol.lifecycle`. The formal tools read it on their own, on purpose: a
mistake in one reader then shows up as a difference between the two.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ec_protocol._files import spec_path

#: Order of the lifecycles in generated files and in the documentation.
LIFECYCLE_NAMES = ("entry", "read", "grant", "copy", "peer", "region")

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_ACTION_NAME = re.compile(r"[A-Z][A-Za-z0-9]*\Z")


class TableError(ValueError):
    """`spec/lifecycle.toml` contradicts itself; the message names the place."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One row of a lifecycle table.

    Attributes:
        needs: guards that must hold.
        forbids: guards that must not hold.
        effect: what the caller carries out; empty for nothing.
        why: one sentence that justifies the edge.
    """

    source: str
    event: str
    needs: tuple[str, ...]
    forbids: tuple[str, ...]
    target: str
    effect: str
    why: str


@dataclass(frozen=True, slots=True)
class Table:
    """One lifecycle: its vocabulary, each word with its meaning, and its edges."""

    name: str
    doc: str
    initial: str
    terminal: tuple[str, ...]
    states: Mapping[str, str]
    guards: Mapping[str, str]
    events: Mapping[str, str]
    remote_events: frozenset[str]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """One atomic protocol step.

    Attributes:
        models: TLA+ modules that have the action.
        fires: `"lifecycle.event"` or `"create:lifecycle"` items.
    """

    name: str
    actor: str
    models: tuple[str, ...]
    fires: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Tables:
    """All lifecycles, in `LIFECYCLE_NAMES` order, and all actions by name."""

    lifecycles: Mapping[str, Table]
    actions: Mapping[str, Action]


def load_tables(path: Path | None = None) -> Tables:
    """Read and check the tables.

    Args:
        path: another file than the shipped one (used by tests and tools).

    Raises:
        TableError: a name is unknown, doubled or unusable as an identifier.
    """
    with open(path or spec_path("lifecycle.toml"), "rb") as file:
        return parse_tables(tomllib.load(file))


def parse_tables(raw: Mapping[str, Any]) -> Tables:
    """Build the tables from parsed TOML; see `load_tables`."""
    found = {name for name in raw if name not in ("version", "actions")}
    if found != set(LIFECYCLE_NAMES):
        raise TableError(
            f"lifecycles are {sorted(found)}, expected exactly {sorted(LIFECYCLE_NAMES)}"
        )
    lifecycles = {name: _table(name, raw[name]) for name in LIFECYCLE_NAMES}
    actions: dict[str, Action] = {}
    for entry in raw["actions"]:
        action = Action(
            name=entry["name"],
            actor=entry["actor"],
            models=tuple(entry["models"]),
            fires=tuple(entry["fires"]),
            why=entry["why"],
        )
        if not _ACTION_NAME.match(action.name):
            raise TableError(f"action {action.name!r}: not a TLA+ operator name")
        if action.name in actions:
            raise TableError(f"action {action.name!r} appears twice")
        for item in action.fires:
            _check_fires(action.name, item, lifecycles)
        actions[action.name] = action
    return Tables(lifecycles, actions)


def _table(name: str, raw: Mapping[str, Any]) -> Table:
    states = dict(raw["states"])
    guards = dict(raw.get("guards", {}))
    events = {event: body["doc"] for event, body in raw["events"].items()}
    for kind, words in (("state", states), ("guard", guards), ("event", events)):
        for word in words:
            if not _NAME.match(word):
                raise TableError(f"{name}: {kind} {word!r} is not a snake_case name")
    edges = tuple(_edge(name, item, states, guards, events) for item in raw["edges"])
    keys = [(e.source, e.event, frozenset(e.needs), frozenset(e.forbids)) for e in edges]
    for key in keys:
        if keys.count(key) > 1:
            raise TableError(f"{name}: two edges from {key[0]!r} on {key[1]!r} with equal guards")
    initial, terminal = raw["initial"], tuple(raw["terminal"])
    for state in (initial, *terminal):
        if state not in states:
            raise TableError(f"{name}: initial or terminal state {state!r} is not in its states")
    return Table(
        name=name,
        doc=raw["doc"],
        initial=initial,
        terminal=terminal,
        states=states,
        guards=guards,
        events=events,
        remote_events=frozenset(e for e, body in raw["events"].items() if body["by"] == "remote"),
        edges=edges,
    )


def _edge(
    name: str,
    raw: Mapping[str, Any],
    states: Iterable[str],
    guards: Iterable[str],
    events: Iterable[str],
) -> Edge:
    literals: list[str] = list(raw.get("guards", []))
    edge = Edge(
        source=raw["from"],
        event=raw["event"],
        needs=tuple(g for g in literals if not g.startswith("!")),
        forbids=tuple(g[1:] for g in literals if g.startswith("!")),
        target=raw["to"],
        effect=raw.get("effect", ""),
        why=raw["why"],
    )
    where = f"{name}: edge {edge.source} --{edge.event}--> {edge.target}"
    for state in (edge.source, edge.target):
        if state not in states:
            raise TableError(f"{where}: unknown state {state!r}")
    if edge.event not in events:
        raise TableError(f"{where}: unknown event {edge.event!r}")
    for guard in (*edge.needs, *edge.forbids):
        if guard not in guards:
            raise TableError(f"{where}: unknown guard {guard!r}")
    return edge


def _check_fires(action: str, item: str, lifecycles: Mapping[str, Table]) -> None:
    if item.startswith("create:"):
        if item.removeprefix("create:") not in lifecycles:
            raise TableError(f"action {action}: {item!r} names no lifecycle")
        return
    lifecycle, _, event = item.partition(".")
    if lifecycle not in lifecycles or event not in lifecycles[lifecycle].events:
        raise TableError(f"action {action}: {item!r} names no event")
