# SPDX-License-Identifier: Apache-2.0
"""Seeded faults: our own implementation with one thing wrong, to try the kit on.

A kit that cannot catch anything is worthless. Each ``*.patch`` in this folder breaks one
clause, and nothing else that its author knows of; ``ec-protocol conformance faults``
tells which case notices. Patches are applied to a copy of the source, so that a change
of the source which a fault depends on ends with an error and not with a fault that is
none. Each is an adapter of its own too: ``--adapter tests.faults:accepts-late-reads``.

A patch is what ``git diff`` writes, under a few lines that say what it is about::

    Clause: EC-5.3
    Schedule: F3
    Fault: The bytes of a READ that is seen done after its fence are accepted.
    Symptom: A wrong picture, when a READ takes longer than its lease.
    Caught-by: EC-5.3/2 EC-5.3/3

``Caught-by`` are cases that must be FAILED, ``Non-strict`` those that can be no more than
NON-STRICT; one of the two must be there. ``Schedule`` may be left out. ``Raises`` names
the errors that cases notice, if there are any: another one is a mistake in the patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cache
from pathlib import Path
from typing import Any

from ec_verify.kit.runner import Verdict
from tests.faults.patched import PatchedPackages, PatchError, relative

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in an implementation that is right otherwise.

    Attributes:
        patch: What makes it so.
        clause: Clause that it breaks.
        tag: Schedule of that kind that it falls for, such as ``F1``; or ``""``.
        text: What is wrong.
        symptom: What a user would see of it.
        caught_by: Cases that must notice, with their verdicts.
        raises: Errors that they notice, if it is these.
    """

    patch: Path
    clause: str
    tag: str
    text: str
    symptom: str
    caught_by: Mapping[str, Verdict]
    raises: frozenset[str]

    @property
    def name(self) -> str:
        """Names it on the command line."""
        return self.patch.stem

    @property
    def make(self) -> Callable[[], Any]:
        """Makes a fresh process of the faulty implementation: an adapter factory.

        Raises:
            PatchError: The patch does not fit the source any more.
        """
        return made_with(self.patch)


def read(patch: Path) -> Fault:
    """The fault that a patch is.

    Raises:
        PatchError: A line above its diff is missing.
    """
    said = {
        name: " ".join(text.split())
        for name, text in HeaderParser().parsestr(patch.read_text(encoding="utf-8")).items()
    }
    if lacking := {"Clause", "Fault", "Symptom"} - said.keys():
        raise PatchError(f"{relative(patch)}: above the diff is no line {', '.join(lacking)}")
    return Fault(
        patch,
        said["Clause"],
        said.get("Schedule", ""),
        said["Fault"],
        said["Symptom"],
        {
            **dict.fromkeys(said.get("Caught-by", "").split(), Verdict.FAILED),
            **dict.fromkeys(said.get("Non-strict", "").split(), Verdict.NON_STRICT),
        },
        frozenset(said.get("Raises", "").split()),
    )


@cache
def made_with(*patches: Path) -> Callable[[], Any]:
    """The factory of an implementation with all of these patches."""
    return PatchedPackages(patches).make


#: Every seeded fault by name.
FAULTS = {fault.name: fault for fault in map(read, sorted(HERE.glob("*.patch")))}


def __getattr__(name: str) -> Any:
    """The factory of a fault, by its name."""
    if name in FAULTS:
        return FAULTS[name].make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
