# SPDX-License-Identifier: Apache-2.0
"""What a seeded fault is, and the adapter that carries one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.node import Node
from ec_protocol.parts import Parts
from ec_protocol.tables.timing import Timing
from ec_verify.adapters.ours.adapter import Ours

Part = Literal[
    "acks",
    "adapter",
    "attempts",
    "copies",
    "fetches",
    "grants",
    "holds",
    "node",
    "scheduler",
    "tier",
]
_Kind = TypeVar("_Kind", bound=type)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in an implementation that is right otherwise.

    Attributes:
        name: Names it on the command line.
        clause: Clause that it breaks.
        tag: Schedule of that kind that it falls for, such as ``F1``; or ``""``.
        text: What is wrong.
        part: Which part is replaced.
        kind: What by.
    """

    name: str
    clause: str
    tag: str
    text: str
    part: Part
    kind: type

    def make(self) -> Ours:
        """A fresh process of the faulty implementation: an adapter factory."""
        return self.kind() if self.part == "adapter" else Faulty(self)


#: Every seeded fault by name.
FAULTS: dict[str, Fault] = {}


def fault(name: str, clause: str, tag: str = "", *, part: Part) -> Callable[[_Kind], _Kind]:
    """Register a faulty part; its docstring says what is wrong."""

    def register(kind: _Kind) -> _Kind:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name!r}")
        FAULTS[name] = Fault(name, clause, tag, inspect.cleandoc(kind.__doc__ or ""), part, kind)
        return kind

    return register


def with_timers(timing: Timing, **timers: float) -> Timing:
    """Other timers, without the check of the inequalities that they may break."""
    changed = copy.copy(timing)
    names = {field.name for field in dataclasses.fields(timing)}
    for name, value in timers.items():
        if name not in names:
            raise ValueError(f"no timer is called {name!r}")
        object.__setattr__(changed, name, value)
    return changed


class Faulty(Ours):
    """``Ours`` with one part replaced."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self._parts: Mapping[str, type] = {fault.part: fault.kind}

    def make_node(self, **settings: Any) -> Node:
        """See ``Ours.make_node``."""
        kind: type[Node] = self._parts.get("node", Node)
        names = {field.name for field in dataclasses.fields(Parts)}
        parts: dict[str, Any] = {p: kind for p, kind in self._parts.items() if p in names}
        return kind(**settings, parts=Parts(**parts))

    def make_scheduler(self, node: Node, **args: Any) -> ECScheduler:
        """See ``Ours.make_scheduler``."""
        made: ECScheduler = self._parts.get("scheduler", ECScheduler)(node, **args)
        return made
