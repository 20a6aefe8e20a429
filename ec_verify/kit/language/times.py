# SPDX-License-Identifier: Apache-2.0
"""Time expressions: sums of timer names, marks, ``eps`` and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: "Just before" and "just after" a bound, seconds.
EPS: Final = 0.001
_TERM: Final = re.compile(r"\s*([+-]?)\s*(?:(\d+(?:\.\d+)?)\s*\*\s*)?([A-Za-z_]\w*|\d+(?:\.\d+)?)")


class ScheduleError(Exception):
    """The schedule cannot be played as written, through no fault of the implementation."""


def evaluate(expression: str | float, values: Mapping[str, float]) -> float:
    """The value of an expression in seconds.

    Terms are added from left to right, so that a bound comes out as the very number
    that an implementation gets which adds the same timers in the same order.

    Raises:
        ScheduleError: It is no such sum, or names something unknown.
    """
    if isinstance(expression, int | float):
        return float(expression)
    total, at = 0.0, 0
    text = expression.strip()
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or (at > 0 and not term[1]):
            raise ScheduleError(f"{expression!r} is no sum of timers, marks and numbers")
        at = term.end()
        name = term[3]
        if name[0].isdigit():
            value = float(name)
        elif name == "eps":
            value = EPS
        elif name in values:
            value = values[name]
        else:
            raise ScheduleError(f"{expression!r}: {name} is neither a timer nor a mark")
        value *= float(term[2] or 1)
        total += -value if term[1] == "-" else value
        while at < len(text) and text[at].isspace():
            at += 1
    return total
