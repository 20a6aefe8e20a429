# SPDX-License-Identifier: Apache-2.0
"""A TLC config: what a model asks of TLC, and the text that TLC reads.

``models.toml`` holds it field by field (``ec_verify.models.declared``); the text is made
for each run, in the run's folder.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

#: In front of the value of a constant: another operator stands in its place.
REPLACED: Final = "<- "

_WIDTH: Final = 76


@dataclass(frozen=True, slots=True)
class Config:
    r"""What one model asks of TLC; what is empty is left out of the text.

    Attributes:
        specification: The behaviours: a temporal formula of the root module.
        init: Without a specification, the first states, ...
        next: ... and the steps.
        constants: Constant to the text of its value, ``{b1, b2}``, in the text's order;
            ``<- SizeOne`` puts the operator ``SizeOne`` in its place.
        constraint: States beyond it are not looked at.
        view: States that look the same through it are one.
        symmetry: The permutations that lead to the same state.
        action_constraint: Steps that break it are not taken.
        invariants: What holds in every state.
        properties: What holds of every behaviour.
    """

    specification: str = ""
    init: str = ""
    next: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    constraint: str = ""
    view: str = ""
    symmetry: str = ""
    action_constraint: str = ""
    invariants: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()

    @property
    def checked(self) -> tuple[str, ...]:
        """Everything that TLC can find violated, apart from a deadlock."""
        return self.invariants + self.properties

    @property
    def assigned(self) -> dict[str, str]:
        """The constants that have a value of their own."""
        return {k: v for k, v in self.constants.items() if not v.startswith(REPLACED)}

    @property
    def replaced(self) -> dict[str, str]:
        """The constants and operators in whose place another operator stands, and which."""
        return {
            name: value.removeprefix(REPLACED)
            for name, value in self.constants.items()
            if value.startswith(REPLACED)
        }

    def text(self, about: str = "") -> str:
        """The config as TLC reads it.

        Args:
            about: Becomes the comment at its head.
        """
        lines = textwrap.wrap(about, _WIDTH, break_long_words=False, break_on_hyphens=False)
        comment = [f"\\* {line}" for line in lines]
        return "".join(f"{line}\n" for line in (*comment, *self._lines()))

    def _lines(self) -> Iterator[str]:
        for keyword, value in (
            ("SPECIFICATION", self.specification),
            ("INIT", self.init),
            ("NEXT", self.next),
        ):
            if value:
                yield f"{keyword} {value}"
        if self.constants:
            yield "CONSTANTS"
            for name, value in self.constants.items():
                yield f"    {name} {value if value.startswith(REPLACED) else f'= {value}'}"
        for keyword, value in (
            ("CONSTRAINT", self.constraint),
            ("VIEW", self.view),
            ("SYMMETRY", self.symmetry),
            ("ACTION_CONSTRAINT", self.action_constraint),
        ):
            if value:
                yield f"{keyword} {value}"
        for keyword, names in (("INVARIANTS", self.invariants), ("PROPERTIES", self.properties)):
            if names:
                yield keyword
                yield from (f"    {name}" for name in names)
