# SPDX-License-Identifier: Apache-2.0
"""Reads the state graph that TLC writes with ``-dump dot,actionlabels``.

A node's label is the whole state; of it only the history variable ``ev`` is
kept, the set of lifecycle events that the step into the node fired. An edge's
label is the name of the action.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ec_protocol.errors import ECError

_NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"')
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_EV = re.compile(r"(?:^|\n)(?:/\\ )?ev = (\{.*?\})(?=\n/\\ |\Z)", re.DOTALL)
_TUPLE = re.compile(r'<<\s*"(\w+)",\s*"(\w+)",\s*"(\w+)",\s*"(\w+)"\s*>>')


class GraphError(ECError):
    """The dump is not what the comparison needs; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Fired:
    """One item of ``ev``: an object of ``lifecycle`` took the edge."""

    lifecycle: str
    source: str
    event: str
    dest: str

    def __str__(self) -> str:
        return f"{self.lifecycle}: {self.source} --{self.event}--> {self.dest}"


@dataclass(frozen=True, slots=True)
class Graph:
    """A state graph, reduced to what the comparison needs.

    Attributes:
        fired: For each action label, the events seen in the states it led to;
            an action that fired nothing has an empty set.
        states: Number of nodes.
    """

    fired: Mapping[str, frozenset[Fired]]
    states: int


def parse_fired(text: str) -> frozenset[Fired]:
    """The items of a printed ``ev`` value.

    Raises:
        GraphError: It holds something else than tuples of four strings.
    """
    items = frozenset(Fired(*match.groups()) for match in _TUPLE.finditer(text))
    if _TUPLE.sub("", text).strip("{}, \n"):
        raise GraphError(
            f"ev = {text}: expected a set of <<lifecycle, from, event, to>> tuples of strings; "
            "build them with Ev of Lifecycle.tla"
        )
    return items


def parse_graph(lines: Iterable[str]) -> Graph:
    """Read the lines of a dot file.

    Raises:
        GraphError: A state has no variable ``ev``, or there are no states.
    """
    ev_of: dict[str, frozenset[Fired]] = {}
    # Equal texts are common and parsing is the slow part.
    known: dict[str, frozenset[Fired]] = {}
    into: dict[str, set[str]] = {}
    for line in lines:
        if edge := _EDGE.match(line):
            into.setdefault(edge[3], set()).add(edge[2])
        elif node := _NODE.match(line):
            label = _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], node[2])
            found = _EV.search(label)
            if found is None:
                raise GraphError(
                    "a state has no variable `ev`: models compared with the tables keep the "
                    f"events fired by the last step in it. State:\n{label}"
                )
            text = found[1]
            if text not in known:
                known[text] = parse_fired(text)
            ev_of[node[1]] = known[text]
    if not ev_of:
        raise GraphError("the dumped graph holds no state")
    fired = {
        action: frozenset().union(*(ev_of[target] for target in targets if target in ev_of))
        for action, targets in into.items()
    }
    return Graph(fired, len(ev_of))


def read_graph(path: Path) -> Graph:
    """Read a dot file; see ``parse_graph``."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return parse_graph(file)
