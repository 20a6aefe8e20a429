# SPDX-License-Identifier: Apache-2.0
"""What somebody may have meant who typed a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

_MOST: Final = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The three of the known names that look most like ``name``, the nearest first."""
    wanted = name.casefold()
    matcher = SequenceMatcher(b=wanted, autojunk=False)

    def unlike(other: str) -> float:
        matcher.set_seq1(other.casefold())
        return -matcher.ratio()

    return sorted(dict.fromkeys(known), key=unlike)[:_MOST]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: ``did you mean A, B or C?``."""
    near = nearest(name, known)
    if not near:
        return "there is none"
    *others, last = near
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
