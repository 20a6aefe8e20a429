# SPDX-License-Identifier: Apache-2.0
"""Writes a schedule (``spec/SCENARIOS.md``) step by step.

A model's behaviour goes on where a correct implementation refuses, so nearly every
step is *tried*: what cannot be done is left out. What has to hold is not written down
step by step. It is what the kit watches in every case, and what the end of every
scenario asks: whatever a node would load is right, and once every transfer has ended and
every timer has run out, nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ec_verify.behaviours.reading import Event

Step = dict[str, Any]
E = TypeVar("E", bound=Event)

#: Encodings have two blocks, so that a transfer can stop in the middle of one.
BLOCKS_EACH = 2


class Draft:
    """A schedule under construction.

    Args:
        nodes: Setup of each node.
        encodings: Names of those that appear in it.
        timers: Timers that differ from their defaults, seconds.
    """

    def __init__(
        self,
        nodes: Mapping[str, dict[str, Any]],
        encodings: Iterable[str],
        timers: Mapping[str, float],
    ) -> None:
        self.nodes = {name: dict(setup) for name, setup in nodes.items()}
        self.encodings = dict.fromkeys(encodings, BLOCKS_EACH)
        self.timers = dict(timers)
        self.steps: list[Step] = []
        self.open_requests: dict[str, str] = {}  # name -> node
        self.end: int | None = None  # where the questions of every scenario begin
        self._note = ""
        self._spare = 0
        self._requests = 0

    # ------------------------------------------------------------------- writing
    def note(self, text: str) -> None:
        """What the next step comes from."""
        self._note = text

    def must(self, *steps: Step) -> None:
        """Steps that any implementation can take."""
        for step in steps:
            self.steps.append(self._noted(step))

    def attempt(self, *steps: Step) -> None:
        """Steps that only make sense one after the other, if at all."""
        self.steps.append(self._noted({"try": list(steps)}))

    def mark(self, name: str) -> None:
        """Name the present moment."""
        self.steps.append({"mark": name})

    def quiet_until(self, moment: str) -> None:
        """Let time pass while both processes stand still; nothing if it is over."""
        self.attempt({"until": moment, "quiet": True})

    def touch(self, node: str) -> None:
        """Let a node look at its clock."""
        self.must({"tick": node})

    def _noted(self, step: Step) -> Step:
        if self._note:
            step, self._note = {**step, "note": self._note}, ""
        return step

    # ------------------------------------------------------------------ requests
    def request(self, node: str, items: list[str], source: str | None = None) -> str:
        """A request of its own, which the host schedules at once; returns its name."""
        name = self.declare(node, items, source)
        self.must({"step": node, "run": [name]})
        return name

    def declare(self, node: str, items: list[str], source: str | None = None) -> str:
        """A request that is not scheduled yet."""
        self._requests += 1
        name = f"r{self._requests}"
        step: Step = {"request": name, "at": node, "items": items}
        if source is not None:
            step["from"] = source
        self.must(step)
        self.open_requests[name] = node
        return name

    def give_up(self, name: str | None) -> None:
        """Nobody waits for it any more."""
        if name is not None and name in self.open_requests:
            del self.open_requests[name]
            self.must({"finish": name, "aborted": True})

    def restart(self, node: str) -> None:
        """The node's process is killed and another one started; its requests are gone."""
        self.must({"restart": node})
        for name in [name for name, at in self.open_requests.items() if at == node]:
            del self.open_requests[name]

    def store_other(self, node: str) -> None:
        """Another encoding takes the space, if the node gives it up."""
        self.attempt({"store": self.spare(BLOCKS_EACH), "at": node})

    def settle(self, *, reads: bool = False) -> None:
        """Whatever the devices were handed lands, as in a real engine; so may READs."""
        for node, setup in self.nodes.items():
            if setup.get("played") != "kit":
                self.must({"settle": node, "reads": True} if reads else {"settle": node})

    def spare(self, blocks: int) -> str:
        """The name of an encoding of its own, of so many blocks."""
        self._spare += 1
        name = f"other{self._spare}"
        self.encodings[name] = blocks
        return name

    # ------------------------------------------------------------------- the end
    def whatever_is_loaded(self, node: str, encodings: Iterable[str], ranks: int = 1) -> None:
        """A step of its own loads each encoding, where the node promises it."""
        self.end = len(self.steps) if self.end is None else self.end
        for encoding in encodings:
            self.note(f"whatever {node} serves as {encoding} must be {encoding}")
            name = self.request(node, [encoding])
            for rank in range(ranks):
                self.attempt({"copy": f"load {encoding}", "at": node, "do": "move", "rank": rank})
            # What is not promised is encoded, and an engine saves what it has encoded.
            for kind in ("load", "save"):
                self.attempt({"copy": f"{kind} {encoding}", "at": node, "do": "land"})
            self.give_up(name)

    def nothing_is_left(self, clause: str = "EC-2.1") -> None:
        """Every transfer ends and every timer runs out: all blocks are there again.

        Args:
            clause: Of the expectations.
        """
        for name in list(self.open_requests):
            self.give_up(name)
        self.note("every copy and every READ comes to its end")
        self.settle(reads=True)
        self.note("every timer runs out, also one that another one sets off")
        for timer in ("fetch_budget_s", "quarantine_s", "lease_s", "quarantine_s", "lease_s"):
            self.must({"advance": timer})
        for node, setup in self.nodes.items():
            if setup.get("played") == "kit":
                continue
            self.must(
                {"room": setup["blocks"], "at": node, "expect": True, "clause": clause},
                {"idle": node, "expect": True, "clause": "EC-5.9"},
            )


class Translation(Generic[E]):
    """Writes the schedule of a behaviour, one event after the other.

    A subclass has a method ``on_<action>``, in lower case, for each action that
    something is to be done for.

    Args:
        events: Of the behaviour.
        draft: To be written.
    """

    def __init__(self, events: Sequence[E], draft: Draft) -> None:
        self.events = events
        self.draft = draft

    def translate(self) -> Draft:
        """The schedule.

        Raises:
            NotExpressible: The behaviour has a step that the schedule language lacks.
        """
        for event in self.events[1:]:
            self.draft.note(f"state {event.number}: {event.action}")
            self.take(event)
        self.end()
        return self.draft

    def take(self, event: E) -> None:
        """Write what an event is in a schedule; nothing if it cannot be seen from outside."""
        handler = getattr(self, f"on_{event.action.lower()}", None)
        if handler is not None:
            handler(event)

    def end(self) -> None:
        """Ask what every scenario asks at its end."""
        raise NotImplementedError
