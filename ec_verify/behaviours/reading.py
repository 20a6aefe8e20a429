# SPDX-License-Identifier: Apache-2.0
"""Tells a behaviour of a TLA+ model as a story.

``Teller`` knows no model: actions go to the lane of their actor in
``spec/lifecycle.toml``, and whatever has a lifecycle state becomes a bar. Its
subclasses (``peer_read``, ``tier_model``, ``peer_model``) know the variables of
one module, and with them who sends what to whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final

from ec_protocol.tables.lifecycle import load_actions, load_lifecycles
from ec_verify.behaviours.story import BarStyle, Lane, OpenBars, Step, StepKind, Story
from ec_verify.models.graph import Fired
from ec_verify.models.output import INITIAL
from ec_verify.models.tla_value import as_function, shown

#: A state: variable name to value.
State = Mapping[str, Any]

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

#: Functions with more elements than this are shown as one value.
_MAX_ELEMENTS: Final = 12
#: So many of the objects that a step touched are named beside it.
_MAX_SUBJECT: Final = 3


class Teller:
    """Adds one step to the story for each state of the behaviour.

    Args:
        story: Gets lanes, steps, arrows and bars.
        first: The initial state.
    """

    #: A state that has all of these variables is one of this model.
    needs: ClassVar[frozenset[str]] = frozenset()
    #: Actions that are no protocol actions, with a sentence on each.
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, story: Story, first: State) -> None:
        self.story = story
        self.bars = OpenBars(story)
        self.row = -1
        story.lanes = self.lanes(first)

    # ------------------------------------------------- what subclasses replace
    def lanes(self, first: State) -> list[Lane]:
        """The columns, from left to right."""
        # A model of several processes says in `pc` where each one is.
        processes = as_function(first.get("pc")) or {}
        return [
            *(Lane(f"pc {shown(name)}", shown(name), "processes") for name in processes),
            Lane("engine", "engine", "engine"),
            Lane("pump", "pump", "engine"),
            Lane("environment", "environment", "others"),
            Lane("objects", "objects", "lifecycles", "bars"),
        ]

    def lane_of(self, action: str, before: State, after: State) -> str:
        """Where an action happens; ``""`` for the clock."""
        if movers := changed_keys("pc", before, after):
            return f"pc {shown(movers[0])}"
        row = load_actions().get(action)
        if row is None:
            return "" if action == "Tick" else "environment"
        return row.actor if row.actor in ("engine", "pump") else ""

    def place(self, variable: str, key: Any) -> str | None:
        """``group|name`` for a variable, or for one element of a function.

        Args:
            variable: Its name.
            key: The element's argument, or None for the whole variable.

        Returns:
            None to leave it out.
        """
        return f"state|{variable}" if key is None else f"{variable}|{variable}[{shown(key)}]"

    def elements(self, variable: str, value: Any) -> dict[Any, Any] | None:
        """A function's elements if they are to be shown one by one."""
        pairs = as_function(value)
        return pairs if pairs and len(pairs) <= _MAX_ELEMENTS else None

    def draw(self, action: str, before: State, after: State, step: Step) -> None:
        """Add arrows and bars of the step that led from ``before`` to ``after``."""
        touched = [key for variable in after for key in changed_keys(variable, before, after)]
        step.subject = ", ".join(list(dict.fromkeys(map(shown, touched)))[:_MAX_SUBJECT])
        for variable, value in after.items():
            for key, state in lifecycle_states(value):
                name = (variable, key)
                if state in _quiet_states():
                    self.bars.hide(name, self.row)
                else:
                    label = f"{variable} {shown(key)} {state}"
                    style = STATE_STYLE.get(state, "state")
                    self.bars.show(name, self.row, "objects", label, style)

    # ------------------------------------------------------------ the telling
    def tell(self, action: str, before: State, after: State) -> None:
        """Add the step that ``action`` was."""
        self.row += 1
        fired = fired_by(after)
        known = load_actions().get(action)
        kind: StepKind = "protocol" if known else "environment"
        if action == INITIAL:
            kind = "start"
        lane = "" if kind == "start" else self.lane_of(action, before, after)
        if lane == "" and kind == "environment":
            kind = "clock"
        step = Step(
            lane=lane,
            label="start" if kind == "start" else action,
            kind=kind,
            notes=[f"{item.lifecycle} {item.source} → {item.dest}" for item in fired],
            why=known.why if known else self.environment.get(action, ""),
            changes=differences(self.rows(before) if before else {}, self.rows(after)),
        )
        self.story.steps.append(step)
        # Nothing was sent before the beginning, so nothing changed there.
        self.draw(action, before or after, after, step)

    def rows(self, state: State) -> dict[str, str]:
        """Every variable, and every element of a function, as text."""
        found: dict[str, str] = {}
        for variable, value in state.items():
            if variable == "ev":
                continue  # the step's notes say it
            pairs = self.elements(variable, value)
            if pairs is None:
                name = self.place(variable, None)
                if name is not None:
                    found[name] = shown(value)
                continue
            for key, item in pairs.items():
                name = self.place(variable, key)
                if name is not None:
                    found[name] = shown(item)
        return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What changed: new values, None for what is gone."""
    changed: dict[str, str | None] = {
        name: text for name, text in after.items() if before.get(name) != text
    }
    changed.update({name: None for name in before if name not in after})
    return changed


def fired_by(state: State) -> list[Fired]:
    """The lifecycle events that the step into the state fired."""
    events = state.get("ev")
    if not isinstance(events, list):
        return []
    return sorted(
        Fired(*map(str, item)) for item in events if isinstance(item, tuple) and len(item) == 4
    )


def changed_keys(variable: str, before: State, after: State) -> list[Any]:
    """Arguments at which a function differs between two states."""
    old = as_function(before.get(variable)) or {}
    new = as_function(after.get(variable)) or {}
    return [key for key, value in new.items() if old.get(key) != value]


def gained(variable: str, before: State, after: State) -> list[Any]:
    """Elements that a set did not have in the state before."""
    old = before.get(variable) or []
    return [item for item in after.get(variable) or [] if item not in old]


def lifecycle_states(value: Any) -> list[tuple[Any, str]]:
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
