# SPDX-License-Identifier: Apache-2.0
"""The parts of a TLC config file that the manifest is checked against.

TLC 2.15 itself reads the file in full; here it is enough to know which
invariants and properties it lists and which sections it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SECTIONS = {
    "CONSTANT": "CONSTANT",
    "CONSTANTS": "CONSTANT",
    "INIT": "INIT",
    "NEXT": "NEXT",
    "SPECIFICATION": "SPECIFICATION",
    "INVARIANT": "INVARIANT",
    "INVARIANTS": "INVARIANT",
    "PROPERTY": "PROPERTY",
    "PROPERTIES": "PROPERTY",
    "SYMMETRY": "SYMMETRY",
    "VIEW": "VIEW",
    "CONSTRAINT": "CONSTRAINT",
    "CONSTRAINTS": "CONSTRAINT",
    "ACTION_CONSTRAINT": "ACTION_CONSTRAINT",
    "ACTION_CONSTRAINTS": "ACTION_CONSTRAINT",
}

#: Understood by newer checkers only; TLC 2.15 takes them for names of the
#: section before and fails with a message that does not say so.
UNSUPPORTED = ("ALIAS", "CHECK_DEADLOCK", "POSTCONDITION")

_COMMENT = re.compile(r"\\\*[^\n]*|\(\*.*?\*\)", re.DOTALL)
_STRING = re.compile(r'"[^"\n]*"')


@dataclass(frozen=True, slots=True)
class Config:
    """What one config file asks for.

    Attributes:
        invariants: Names under INVARIANT, in order.
        properties: Names under PROPERTY, in order.
        sections: Every section the file has, by its singular keyword.
        unsupported: Keywords that TLC 2.15 does not know.
    """

    invariants: tuple[str, ...]
    properties: tuple[str, ...]
    sections: frozenset[str]
    unsupported: tuple[str, ...]


def parse_config(text: str) -> Config:
    """Read a config file's text; comments and strings are skipped."""
    names: dict[str, list[str]] = {}
    unsupported = []
    section = ""
    for word in _STRING.sub("_", _COMMENT.sub(" ", text)).split():
        if word in _SECTIONS:
            section = _SECTIONS[word]
            names.setdefault(section, [])
        elif word in UNSUPPORTED:
            unsupported.append(word)
            section = ""
        elif section:
            names[section].append(word)
    return Config(
        invariants=tuple(names.get("INVARIANT", ())),
        properties=tuple(names.get("PROPERTY", ())),
        sections=frozenset(names),
        unsupported=tuple(unsupported),
    )


def with_properties(text: str, keep: Iterable[str]) -> str:
    """The same config with only these properties, and comments removed.

    Used to find out which of several temporal properties is violated: TLC 2.15
    says only that one of them is.
    """
    lines, skipping = [], False
    for line in _COMMENT.sub(" ", text).splitlines():
        out = []
        for word in line.split():
            if word in _SECTIONS or word in UNSUPPORTED:
                skipping = _SECTIONS.get(word) == "PROPERTY"
            if not skipping:
                out.append(word)
        lines.append(" ".join(out))
    lines += [f"PROPERTY {name}" for name in keep]
    return "\n".join(lines) + "\n"
