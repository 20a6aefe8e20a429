# SPDX-License-Identifier: Apache-2.0
"""The fast dispatcher, compiled at import from the ``transitions`` machines.

``transitions`` costs microseconds a trigger; an engine step may fire thousands.
So the edges are read once out of each ``Machine`` object and laid out as one
dict from (state, event, guards) to what happens. Guards are passed as a bit mask
(``Dispatcher.mask``). The result is a ``Step``; the caller stores ``step.state``
and carries out ``step.effect``.

An event without an edge, or without an edge whose guards hold, raises a typed
error and changes nothing (EC-1.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from transitions import Machine

from ec_protocol.errors import (
    GuardRefused,
    IllegalEvent,
    RemoteGuardRefused,
    RemoteIllegalEvent,
)
from ec_protocol.tables.lifecycle import Lifecycle, load_lifecycles
from ec_protocol.tables.machines import EFFECT_PREFIX, machines


class Step(NamedTuple):
    """What an event does: the next state and the effect to carry out."""

    state: str
    effect: str


class Dispatcher:
    """All edges of one lifecycle behind one dict lookup.

    Stateless after construction, hence safe from any thread.

    Attributes:
        bits: Mask of each guard.
        steps: What happens, by state, event and mask of the guards that hold.
    """

    __slots__ = ("bits", "initial", "lifecycle", "name", "steps")

    def __init__(self, lifecycle: Lifecycle, machine: Machine) -> None:
        self.lifecycle: Final = lifecycle
        self.name: Final = lifecycle.name
        self.initial: Final = lifecycle.initial
        self.bits: Final[Mapping[str, int]] = {
            guard: 1 << i for i, guard in enumerate(lifecycle.guards)
        }
        # Laid out for every set of guards that may hold, so that one lookup is enough.
        self.steps: dict[tuple[str, str, int], Step] = {}
        for event in machine.events.values():
            for source, edges in event.transitions.items():
                for edge in edges:
                    effect = str(edge.after[0]).removeprefix(EFFECT_PREFIX) if edge.after else ""
                    step = Step(str(edge.dest), effect)
                    wants = [(self.bits[str(c.func)], c.target) for c in edge.conditions]
                    for held in range(1 << len(self.bits)):
                        if all(bool(held & bit) == target for bit, target in wants):
                            self.steps.setdefault((source, event.name, held), step)

    def mask(self, *guards: str) -> int:
        """The bit mask in which exactly ``guards`` hold."""
        total = 0
        for guard in guards:
            total |= self.bits[guard]
        return total

    def fire(self, state: str, event: str, guards: int = 0) -> Step:
        """Look up what ``event`` does in ``state`` while the masked guards hold.

        Raises:
            IllegalEvent, RemoteIllegalEvent: The state has no edge for the event.
            GuardRefused, RemoteGuardRefused: It has, but no guard set matches.
        """
        step = self.steps.get((state, event, guards))
        if step is None:
            raise self._error(state, event, guards)
        return step

    def allows(self, state: str, event: str, guards: int = 0) -> bool:
        """Whether ``fire`` would succeed."""
        return (state, event, guards) in self.steps

    def _error(self, state: str, event: str, guards: int) -> Exception:
        known = self.lifecycle.events.get(event)
        remote = known is not None and known.by == "remote"
        if any(edge[:2] == (state, event) for edge in self.steps):
            held = tuple(g for g, bit in self.bits.items() if guards & bit)
            refused = RemoteGuardRefused if remote else GuardRefused
            return refused(self.name, state, event, held)
        illegal = RemoteIllegalEvent if remote else IllegalEvent
        return illegal(self.name, state, event)


DISPATCH: Final[Mapping[str, Dispatcher]] = {
    name: Dispatcher(lifecycle, machines()[name]) for name, lifecycle in load_lifecycles().items()
}
ENTRY: Final = DISPATCH["entry"]
READ: Final = DISPATCH["read"]
GRANT: Final = DISPATCH["grant"]
COPY: Final = DISPATCH["copy"]
PEER: Final = DISPATCH["peer"]
OFFER: Final = DISPATCH["offer"]
LOAN: Final = DISPATCH["loan"]
PROCESS: Final = DISPATCH["process"]
REGION: Final = DISPATCH["region"]
