# SPDX-License-Identifier: Apache-2.0
"""Expectations: how they fail, and how values are compared with what a case says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal


class CheckFailed(Exception):
    """The implementation did something else than the protocol asks for.

    Attributes:
        clause: Address of the clause that is broken, or an invariant's clause.
        expected: What should have been, for people.
        seen: What was.
        level: Whether the clause is a MUST here.
        invariant: Name of the invariant, if the kit noticed it by itself.
        where: The step at which it was noticed.
        step: That step.
    """

    def __init__(
        self,
        expected: str,
        seen: str,
        *,
        clause: str = "",
        level: Literal["MUST", "SHOULD"] | None = None,
        invariant: str = "",
    ) -> None:
        super().__init__(f"expected {expected}; seen {seen}")
        self.expected = expected
        self.seen = seen
        self.clause = clause
        self.level = level
        self.invariant = invariant
        self.where = ""
        self.step: dict[str, Any] = {}


def violated(invariant: str, clause: str, expected: str, seen: str) -> CheckFailed:
    """An invariant that the kit watches by itself is broken."""
    return CheckFailed(expected, seen, clause=clause, level="MUST", invariant=invariant)


_MISSING = object()


def compare(wanted: Any, seen: Any, what: str) -> None:
    """Compare a value with an expectation.

    An object whose keys are all of ``absent``, ``present``, ``min``, ``max``, ``len``, ``min_len``,
    ``not``, ``in``, ``near`` and ``match`` is a matcher; any other object is compared key by key,
    further keys of the value are ignored.

    Raises:
        CheckFailed: They do not agree.
    """
    if isinstance(wanted, Mapping):
        if wanted and set(wanted) <= set(_MATCHERS):
            for name, argument in wanted.items():
                if not _MATCHERS[name](argument, seen):
                    raise CheckFailed(f"{what} {name} {argument!r}", _shown(seen))
            return
        if not isinstance(seen, Mapping):
            raise CheckFailed(f"{what} to be an object", _shown(seen))
        for key, inner in wanted.items():
            compare(inner, seen.get(key, _MISSING), f"{what}.{key}" if what else key)
        return
    if seen is _MISSING or wanted != seen or isinstance(wanted, bool) != isinstance(seen, bool):
        raise CheckFailed(f"{what} = {wanted!r}", _shown(seen))


def _shown(value: Any) -> str:
    return "nothing" if value is _MISSING else f"{value!r:.300}"


def _near(argument: Any, seen: Any) -> bool:
    return isinstance(seen, int | float) and abs(seen - argument) < 1e-6


_MATCHERS: Mapping[str, Any] = {
    "absent": lambda argument, seen: (seen is _MISSING or seen is None) is argument,
    "present": lambda argument, seen: (seen is not _MISSING) is argument,
    "min": lambda argument, seen: isinstance(seen, int | float) and seen >= argument,
    "max": lambda argument, seen: isinstance(seen, int | float) and seen <= argument,
    "len": lambda argument, seen: hasattr(seen, "__len__") and len(seen) == argument,
    "min_len": lambda argument, seen: hasattr(seen, "__len__") and len(seen) >= argument,
    "not": lambda argument, seen: seen is not _MISSING and seen != argument,
    "in": lambda argument, seen: seen in argument,
    "near": _near,
    "match": lambda argument, seen: isinstance(seen, str) and bool(re.fullmatch(argument, seen)),
}
