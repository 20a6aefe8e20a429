# SPDX-License-Identifier: Apache-2.0
"""``tla/mutants.json``: mutants that nothing can notice, each with its reason.

The file is ``{"version": 1, "models": [...], "core": [...], "source": [...]}``; the
lists hold ``{"reason": "...", "mutants": ["pattern", ...]}``. ``models`` is about mutants
of the tables and the TLA+ models, ``core`` about the same and the Python core, ``source``
about mutants of the core's source. A pattern is a mutant's id, or one with ``*`` for any
text. A reason for a mutant that something notices is stale and an error, so a pattern
covers survivors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from ec_protocol.errors import ECError

FILE_NAME: Final = "mutants.json"
VERSION: Final = 1

Side = Literal["models", "core", "source"]
SIDES: Final[tuple[Side, ...]] = ("models", "core", "source")


class Named(Protocol):
    """A mutant of whatever kind."""

    @property
    def id(self) -> str:
        """Its name."""


class ExplanationError(ECError):
    """The file cannot be used; the message names the place."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why some mutants behave like the table itself."""

    reason: str
    patterns: tuple[str, ...]

    def covers(self, mutant: Named) -> bool:
        """Whether the reason is given for this mutant."""
        return any(matches(mutant.id, pattern) for pattern in self.patterns)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is the name itself, or fits it with ``*`` for any text."""
    # Names of source mutants have brackets, which would be sets of characters.
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


def load_explanations(folder: Path) -> Mapping[Side, tuple[Explanation, ...]]:
    """Read the file of a folder.

    Raises:
        ExplanationError: It is missing, no JSON, or an entry is malformed.
    """
    path = folder / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ExplanationError(f"{FILE_NAME} is missing: expected it at {path}") from exc
    except json.JSONDecodeError as exc:
        raise ExplanationError(f"{path}: no JSON: {exc}") from exc
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ExplanationError(f'{path}: expected {{"version": {VERSION}, ...}}')
    if sorted(document) != sorted(["version", *SIDES]):
        raise ExplanationError(f"{path}: expected version, {' and '.join(SIDES)}, nothing else")
    return {side: tuple(_entry(path, side, raw) for raw in document[side]) for side in SIDES}


def _entry(path: Path, side: str, raw: Any) -> Explanation:
    if not isinstance(raw, dict) or sorted(raw) != ["mutants", "reason"]:
        raise ExplanationError(f"{path}: {side}: each entry has reason and mutants, not {raw!r}")
    reason, patterns = raw["reason"], raw["mutants"]
    if not isinstance(reason, str) or len(reason.split()) < 4:
        raise ExplanationError(f"{path}: {side}: a reason is a sentence, not {reason!r}")
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
        raise ExplanationError(f"{path}: {side}: mutants is a list of ids, not {patterns!r}")
    return Explanation(reason, tuple(patterns))


def unknown_patterns(explanations: Iterable[Explanation], mutants: Iterable[Named]) -> list[str]:
    """Patterns that are no mutant's id any more."""
    ids = [mutant.id for mutant in mutants]
    return [
        pattern
        for explanation in explanations
        for pattern in explanation.patterns
        if not any(matches(known, pattern) for known in ids)
    ]


def reason_for(explanations: Iterable[Explanation], mutant: Named) -> str | None:
    """Why nothing can notice this mutant; ``None`` if no reason is given."""
    for explanation in explanations:
        if explanation.covers(mutant):
            return explanation.reason
    return None


def stale(explanations: Iterable[Explanation], killed: Iterable[Named]) -> list[str]:
    """Ids of mutants that have a reason although something noticed them.

    Args:
        explanations: Of one side.
        killed: The mutants of this run that were killed.
    """
    reasons = tuple(explanations)
    return [mutant.id for mutant in killed if reason_for(reasons, mutant) is not None]
