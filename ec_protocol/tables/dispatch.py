# SPDX-License-Identifier: Apache-2.0
"""The fast dispatcher, compiled at import from the ``transitions`` machines.

``transitions`` costs microseconds a trigger; an engine step may fire thousands.
So the edges are read once out of each ``Machine`` object and laid out as one
dict from (state, event) to what can happen. Guards are passed as a bit mask
(``Dispatcher.mask``); an edge is taken when its mask matches. The result is a
``Step``; the caller stores ``step.state`` and carries out ``step.effect``.

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
    """

    __slots__ = ("_guarded", "_plain", "bits", "initial", "lifecycle", "name")

    def __init__(self, lifecycle: Lifecycle, machine: Machine) -> None:
        self.lifecycle: Final = lifecycle
        self.name: Final = lifecycle.name
        self.initial: Final = lifecycle.initial
        self.bits: Final[Mapping[str, int]] = {
            guard: 1 << i for i, guard in enumerate(lifecycle.guards)
        }
        # Edges without guards need no mask at all: they are the hot ones.
        self._plain: dict[tuple[str, str], Step] = {}
        self._guarded: dict[tuple[str, str], tuple[tuple[int, int, Step], ...]] = {}
        for event in machine.events.values():
            for source, transitions in event.transitions.items():
                rows = []
                for t in transitions:
                    care = want = 0
                    for condition in t.conditions:
                        bit = self.bits[str(condition.func)]
                        care |= bit
                        want |= bit if condition.target else 0
                    effect = str(t.after[0]).removeprefix(EFFECT_PREFIX) if t.after else ""
                    rows.append((care, want, Step(str(t.dest), effect)))
                if len(rows) == 1 and rows[0][0] == 0:
                    self._plain[source, event.name] = rows[0][2]
                else:
                    self._guarded[source, event.name] = tuple(rows)

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
        step = self._plain.get((state, event))
        if step is not None:
            return step
        for care, want, step in self._guarded.get((state, event), ()):
            if guards & care == want:
                return step
        raise self._error(state, event, guards)

    def allows(self, state: str, event: str, guards: int = 0) -> bool:
        """Whether ``fire`` would succeed."""
        if (state, event) in self._plain:
            return True
        return any(guards & care == want for care, want, _ in self._guarded.get((state, event), ()))

    def _error(self, state: str, event: str, guards: int) -> Exception:
        known = self.lifecycle.events.get(event)
        remote = known is not None and known.by == "remote"
        if (state, event) in self._guarded:
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
REGION: Final = DISPATCH["region"]
