# SPDX-License-Identifier: Apache-2.0
"""One ``transitions.Machine`` per lifecycle: the executable definition.

The machines are built with ``auto_transitions=False`` and without wildcards, so
a state has the edges of its table and no others. They are the reference: the
dispatcher in ``dispatch`` is compiled *from these machines* and a test proves
that both agree on every state × event × guard. Guards are methods of the model
named after the guard; effects are model callbacks named ``effect_<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from transitions import Machine

from ec_protocol.tables.lifecycle import Lifecycle, load_lifecycles

EFFECT_PREFIX = "effect_"


class GuardedModel:
    """A model whose guards hold or not as told, and which writes its effects down.

    Args:
        held: The guards that hold.
    """

    state: str

    def __init__(self, lifecycle: Lifecycle, held: frozenset[str] = frozenset()) -> None:
        self.held = held
        self.effects: list[str] = []
        for guard in lifecycle.guards:
            setattr(self, guard, lambda guard=guard: guard in self.held)
        for effect in {edge.effect for edge in lifecycle.edges if edge.effect}:
            setattr(self, EFFECT_PREFIX + effect, lambda effect=effect: self.effects.append(effect))


def build_machine(lifecycle: Lifecycle) -> Machine:
    """The machine of one table. It has no model yet: see ``Machine.add_model``."""
    machine = Machine(
        model=None,
        states=list(lifecycle.states),
        initial=lifecycle.initial,
        auto_transitions=False,
        send_event=False,
    )
    for edge in lifecycle.edges:
        machine.add_transition(
            trigger=edge.event,
            source=edge.source,
            dest=edge.dest,
            conditions=list(edge.needs),
            unless=list(edge.forbids),
            after=[EFFECT_PREFIX + edge.effect] if edge.effect else None,
        )
    return machine


@cache
def machines() -> Mapping[str, Machine]:
    """The machine of every lifecycle, by name; built once."""
    return {name: build_machine(lc) for name, lc in load_lifecycles().items()}
