# SPDX-License-Identifier: Apache-2.0
"""Draws the events of a behaviour as a story.

``Picture`` knows no model: whatever has a lifecycle state becomes a bar. Its subclasses
stand beside the events that they draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final, Generic, TypeVar

from ec_protocol.tables.lifecycle import load_actions, load_lifecycles
from ec_verify.behaviours.reading import Event, Message, State, elements
from ec_verify.behaviours.story import Arrow, ArrowKind, BarStyle, Lane, OpenBars, Step, Story
from ec_verify.models.output import INITIAL
from ec_verify.models.tla_value import as_function, as_text

#: How a bar of an object in that state looks; others look plain.
STATE_STYLE: Final[Mapping[str, BarStyle]] = {
    "allocated": "allocated",
    "saving": "saving",
    "ready": "ready",
    "pinned": "pinned",
    "quarantined": "quarantine",
    "reading": "transfer",
    "in_flight": "transfer",
    "down": "quarantine",
    "orphan": "quarantine",
}

_MESSAGE_STYLE: Final[Mapping[str, ArrowKind]] = {
    "request": "request",
    "ok": "ack",
    "notice": "notice",
}
_WORDS: Final = {"ok": "OK", "retry": "NOT_READY", "refused": "refusal"}
#: What blocks hold that is no encoding.
_NO_ENCODING: Final = ("nothing", "nobody", "torn", "none", None)
#: Functions with more elements than this are shown as one value.
_MAX_ELEMENTS: Final = 12
#: So many of the objects that a step touched are named beside it.
_MAX_SUBJECT: Final = 3

E = TypeVar("E", bound=Event)


class Picture(Generic[E]):
    """Adds one step to the story for each event of the behaviour.

    Args:
        story: Gets lanes, steps, arrows and bars.
        first: The initial state.
    """

    #: Actions that are no protocol actions, with a sentence on each.
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, story: Story, first: State) -> None:
        self.story = story
        self.bars = OpenBars(story)
        self.row = -1
        self._under_way: dict[Message, Arrow] = {}
        self._rows: dict[str, str] = {}
        story.lanes = self.lanes(first)

    # ------------------------------------------------- what subclasses replace
    def lanes(self, first: State) -> list[Lane]:
        """The columns, from left to right."""
        # A model of several processes says in `pc` where each one is.
        return [
            *(Lane(f"pc {as_text(p)}", as_text(p), "processes") for p in elements(first, "pc")),
            Lane("engine", "engine", "engine"),
            Lane("reader", "reader", "data processes"),
            Lane("server", "server", "data processes"),
            Lane("environment", "environment", "others"),
            Lane("objects", "objects", "lifecycles", "bars"),
        ]

    def place(self, variable: str, key: Any) -> str:
        """``group|name`` for a variable, or for one element of a function.

        Args:
            variable: Its name.
            key: The element's argument, or None for the whole variable.
        """
        return f"state|{variable}" if key is None else f"{variable}|{variable}[{as_text(key)}]"

    def rows(self, state: State) -> dict[str, str]:
        """Every variable, and every element of a function, as text."""
        found: dict[str, str] = {}
        for variable, value in state.items():
            if variable == "ev":
                continue  # the step's notes say it
            pairs = as_function(value)
            if not pairs or len(pairs) > _MAX_ELEMENTS:
                pairs = {None: value}
            for key, item in pairs.items():
                found[self.place(variable, key)] = as_text(item)
        return found

    def draw(self, event: E, step: Step) -> None:
        """Add arrows and bars of the step that an event was."""
        touched = [key for variable in event.after for key in event.changed(variable)]
        step.subject = ", ".join(list(dict.fromkeys(map(as_text, touched)))[:_MAX_SUBJECT])
        for variable, value in event.after.items():
            for key, state in _lifecycle_states(value):
                label, style = f"{variable} {as_text(key)} {state}", STATE_STYLE.get(state, "state")
                there = state not in _quiet_states()
                self.bar((variable, key), there, "objects", label, style)

    # ------------------------------------------------------------ the telling
    def add(self, event: E) -> None:
        """Add the step that an event was."""
        self.row += 1
        known = load_actions().get(event.action)
        step = Step(
            lane=event.lane,
            label=event.action,
            kind="protocol" if known else "environment",
            notes=[f"{item.lifecycle} {item.source} → {item.dest}" for item in event.fired],
            time=str(event.number),
            why=known.why if known else self.environment.get(event.action, ""),
        )
        if event.action == INITIAL:
            step.lane, step.label, step.kind = "", "start", "start"
        elif step.lane == "" and step.kind == "environment":
            step.kind = "clock"
        before, self._rows = self._rows, self.rows(event.after)
        step.changes = differences(before, self._rows)
        self.story.steps.append(step)
        self.draw(event, step)

    # --------------------------------------------------------- for subclasses
    def bar(self, key: object, there: bool, lane: str, label: str, style: BarStyle) -> None:
        """From this row on something lasts, or it is over."""
        if there:
            self.bars.show(key, self.row, lane, label, style)
        else:
            self.bars.hide(key, self.row)

    def arrow(self, source: str, target: str, label: str, kind: ArrowKind) -> None:
        """Something that begins and ends in this row."""
        self.story.arrows.append(Arrow(source, target, self.row, self.row, label, kind))

    def label(self, message: Message) -> str:
        """A message in a few words."""
        return f"{_WORDS.get(message.kind, message.kind)} {as_text(message.of)}"

    def send(self, message: Message, source: str, target: str) -> None:
        """A message sets out; nobody has received it yet."""
        kind = _MESSAGE_STYLE.get(message.kind, "nack")
        arrow = Arrow(source, target, self.row, None, self.label(message), kind)
        self.story.arrows.append(arrow)
        self._under_way[message] = arrow

    def receive(self, message: Message) -> None:
        """A message arrives, or the network delivers it once more."""
        arrow = self._under_way.get(message)
        if arrow is None:
            return
        if arrow.end is None:
            arrow.end = self.row
        else:
            self.story.arrows.append(replace(arrow, end=self.row))


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What changed: new values, None for what is gone."""
    changed: dict[str, str | None] = {
        name: text for name, text in after.items() if before.get(name) != text
    }
    changed.update({name: None for name in before if name not in after})
    return changed


def held(content: Any) -> str:
    """What a block holds, in words."""
    return "wrong bytes" if content in _NO_ENCODING else f"bytes of {as_text(content)}"


def _lifecycle_states(value: Any) -> list[tuple[Any, str]]:
    """The elements of a function that are in a lifecycle state, or whose ``st`` is."""
    found = []
    for key, item in (as_function(value) or {}).items():
        state = item.get("st") if isinstance(item, dict) else item
        if isinstance(state, str) and state in _all_states():
            found.append((key, state))
    return found


@cache
def _all_states() -> frozenset[str]:
    return frozenset(state for table in load_lifecycles().values() for state in table.states)


@cache
def _quiet_states() -> frozenset[str]:
    """States in which an object is over."""
    return frozenset(state for table in load_lifecycles().values() for state in table.terminal)
