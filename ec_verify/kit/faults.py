# SPDX-License-Identifier: Apache-2.0
"""Tries the kit itself: implementations with a known fault must each be caught.

A set of seeded faults is a mapping from names to objects with ``clause``, ``tag``,
``text`` and ``make``, an adapter factory. A checkout has one for ``ours``, which patches
the source; whoever writes an adapter may bring his own (``--faults module:mapping``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ec_protocol.errors import ConfigError
from ec_protocol.tables.files import checkout_dir
from ec_verify.kit.adapter import Factory
from ec_verify.kit.language.schedule import Case
from ec_verify.kit.runner import Result, Verdict, import_module, run_case
from ec_verify.kit.world.links import InProcess
from ec_verify.nearest import did_you_mean

#: The faults of our own implementation.
DEFAULT: Final = "tests.faults:FAULTS"


class SeededFault(Protocol):
    """What is asked of a seeded fault."""

    @property
    def clause(self) -> str:
        """Clause that it breaks."""

    @property
    def tag(self) -> str:
        """Tag of the cases that are about it, such as ``F1``; or ``""``."""

    @property
    def text(self) -> str:
        """What is wrong, in one sentence."""

    @property
    def make(self) -> Factory:
        """Makes a fresh faulty process."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of one fault.

    Attributes:
        name: The fault.
        fault: What is known of it.
        results: Verdicts other than OK that the sound implementation does not get,
            first to last.
        cases: Cases that were played.
        seconds: How long it took.
    """

    name: str
    fault: SeededFault
    results: Sequence[Result]
    cases: int
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a case noticed."""
        return bool(self.results)

    def row(self) -> dict[str, Any]:
        """The result as ``conformance faults --json`` has it."""
        first = self.results[0] if self.results else None
        return {
            "name": self.name,
            "clause": self.fault.clause,
            "tag": self.fault.tag,
            "text": self.fault.text,
            "caught": self.caught,
            "caught_by": [result.case.id for result in self.results],
            "verdict": str(first.verdict) if first else "",
            "invariant": first.invariant if first else "",
            "detail": first.detail if first else "",
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
        }


def load_faults(name: str = DEFAULT) -> Mapping[str, SeededFault]:
    """The mapping behind ``module:attribute``.

    Raises:
        ConfigError: There is none, or it is empty.
    """
    module, colon, attribute = name.partition(":")
    if name == DEFAULT and checkout_dir() is None:
        raise ConfigError(
            "our own seeded faults are patches of the source: run this from a checkout, "
            "or name others with --faults module:mapping"
        )
    try:
        faults: Mapping[str, SeededFault] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"faults={name!r}: expected module:mapping ({exc})") from exc
    if not colon or not isinstance(faults, Mapping) or not faults:
        raise ConfigError(f"faults={name!r}: expected module:mapping of at least one fault")
    return faults


def choose(faults: Mapping[str, SeededFault], names: Sequence[str]) -> dict[str, SeededFault]:
    """The faults of these names; all without names.

    Raises:
        ConfigError: There is none of that name.
    """
    for name in names:
        if name not in faults:
            raise ConfigError(f"no fault is called {name!r}; {did_you_mean(name, faults)}")
    return {name: faults[name] for name in names} if names else dict(faults)


def hunt(
    faults: Mapping[str, SeededFault],
    cases: Sequence[Case],
    sound: Factory,
    *,
    every: bool = False,
) -> Iterator[Hunt]:
    """Play the cases against each fault.

    Args:
        faults: By name.
        cases: What to play.
        sound: The implementation without a fault: a case that it does not pass proves
            nothing and is not counted.
        every: Play all cases; otherwise until one notices, those first that are about
            the fault's clause or tag.
    """
    passes: dict[str, bool] = {}

    def is_sound(case: Case) -> bool:
        if case.id not in passes:
            verdict = run_case(case, lambda node: InProcess(sound)).verdict
            passes[case.id] = verdict is Verdict.OK
        return passes[case.id]

    for name, fault in faults.items():
        began = time.perf_counter()
        order = sorted(
            cases, key=lambda case: not (case.clause == fault.clause or fault.tag in case.tags)
        )
        found: list[Result] = []
        played = 0
        # Once, and not in a case: what cannot be made is no fault that a case has noticed.
        make = fault.make
        for case in order:
            played += 1
            result = run_case(case, lambda node: InProcess(make))  # noqa: B023
            if result.verdict in (Verdict.FAILED, Verdict.NON_STRICT) and is_sound(case):
                found.append(result)
                if not every:
                    break
        yield Hunt(name, fault, found, played, time.perf_counter() - began)


def report(hunts: Sequence[Hunt]) -> dict[str, Any]:
    """The machine-readable report (``conformance faults --json``)."""
    caught = sum(one.caught for one in hunts)
    return {
        "ok": bool(hunts) and caught == len(hunts),
        "totals": {"faults": len(hunts), "caught": caught},
        "faults": [one.row() for one in hunts],
    }
