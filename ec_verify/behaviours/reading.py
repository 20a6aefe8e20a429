# SPDX-License-Identifier: Apache-2.0
"""Reads a behaviour of a TLA+ model: what happened in each step, and where.

A step becomes an ``Event``. ``Event`` itself knows no model: actions are in the lane of
their actor in ``spec/lifecycle.toml``. Its subclasses (``tier``, ``peer``, ``peer_read``,
``fleet``) know the variables of one module, and with them which attempt a step is about
and which messages it sent and took. A picture and a schedule are two uses of the same
events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

from ec_protocol.tables.lifecycle import load_actions
from ec_verify.models.graph import Fired
from ec_verify.models.output import Step
from ec_verify.models.tla_value import ValueTextError, as_function, as_text, parse

#: A state: variable name to value.
State = Mapping[str, Any]
#: One state with the action that led to it.
Move = tuple[str, State]
MessageKind = Literal["request", "ok", "retry", "refused", "notice"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message between a consumer and a producer.

    Attributes:
        kind: What it says; all but ``request`` and ``notice`` are answers.
        of: The attempt that it is about.
        process: Which process of the producer gave an answer; None for the others.
        consumer: Who asked.
        producer: Who was asked.
        about: What a request asks for.
    """

    kind: MessageKind
    of: Any
    process: Any = None
    consumer: str = "C"
    producer: str = "P"
    about: Any = field(default=None, compare=False)

    @property
    def channel(self) -> str:
        """The channel that it goes through, as schedules call it."""
        if self.kind == "request":
            return f"{self.consumer}>{self.producer}"
        if self.kind == "notice":
            return f"{self.consumer}~{self.producer}"
        return f"{self.producer}>{self.consumer}"


@dataclass(frozen=True)
class Event:
    """One step of a behaviour.

    Attributes:
        number: Of the state that it led to, from 1.
        action: What happened; the initial predicate for the first state.
        before: The state before; of the first event the same as ``after``.
        after: The state that it led to.
    """

    number: int
    action: str
    before: State
    after: State

    #: A state that has all of these variables is one of this model.
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def lane(self) -> str:
        """Where it happened; ``""`` for the clock."""
        # A model of several processes says in `pc` where each one is.
        if movers := self.changed("pc"):
            return f"pc {as_text(movers[0])}"
        row = load_actions().get(self.action)
        if row is None:
            return "" if self.action == "Tick" else "environment"
        return row.actor if row.actor in ("engine", "reader", "server") else ""

    @property
    def sent(self) -> Sequence[Message]:
        """Messages that were not on their way before."""
        return ()

    @property
    def taken(self) -> Sequence[Message]:
        """Messages that made the step possible."""
        return ()

    @cached_property
    def fired(self) -> list[Fired]:
        """The lifecycle events that the step fired."""
        events = self.after.get("ev")
        if not isinstance(events, list):
            return []
        return sorted(
            Fired(*map(str, item)) for item in events if isinstance(item, tuple) and len(item) == 4
        )

    def changed(self, variable: str) -> list[Any]:
        """Arguments at which a function is not what it was."""
        return changed_keys(variable, self.before, self.after)

    def gained(self, variable: str) -> list[Any]:
        """Elements that a set did not have before."""
        old = self.before.get(variable) or []
        return [item for item in self.after.get(variable) or [] if item not in old]

    def now(self, variable: str, key: Any) -> Any:
        """A function's value after the step; None outside of its domain."""
        return at(self.after, variable, key)

    def was(self, variable: str, key: Any) -> Any:
        """A function's value before the step; None outside of its domain."""
        return at(self.before, variable, key)


E = TypeVar("E", bound=Event)


def read(moves: Sequence[Move], kind: type[E]) -> list[E]:
    """The events of a behaviour, the initial state first."""
    states = [state for _, state in moves]
    pairs = zip(moves, [states[0], *states], strict=False)
    return [kind(n, action, before, after) for n, ((action, after), before) in enumerate(pairs, 1)]


def state_of(step: Step) -> State:
    """The variables' values; a text that is none is kept as it is."""
    state = {}
    for name, text in step.state.items():
        try:
            state[name] = parse(text)
        except ValueTextError:
            state[name] = " ".join(text.split())  # shown as it is
    return state


def at(state: State, variable: str, key: Any) -> Any:
    """A function's value in a state; None outside of its domain."""
    return elements(state, variable).get(key)


def elements(state: State, variable: str) -> dict[Any, Any]:
    """A function's arguments and values; none if the variable is no function."""
    return as_function(state.get(variable)) or {}


def changed_keys(variable: str, before: State, after: State) -> list[Any]:
    """Arguments at which a function differs between two states."""
    old, new = elements(before, variable), elements(after, variable)
    return [key for key, value in new.items() if old.get(key) != value]


def names_in(text: str) -> set[str]:
    """The elements of a set of names, as a config has it."""
    return {name.strip() for name in text.strip("{} ").split(",") if name.strip()}
