# SPDX-License-Identifier: Apache-2.0
"""The safeguards of the TLA+ modules: mutants that somebody wrote by hand.

A safeguard is a BOOLEAN constant under a heading ``CONSTANTS`` that calls it so, TRUE
in the protocol. Each ``Bug*.cfg`` of the manifest sets some of them to FALSE and names
the property that TLC must then find violated; ``ec-protocol check`` sees to that. Here
it is only put together which config is the mutant of which safeguard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ec_verify.models.manifest import Manifest

_HEADING = re.compile(
    r"^CONSTANTS[ ]*\\\*[^\n]*[Ss]afeguards[^\n]*\n((?:[ ]+[^\n]*\n)+)"
    r"|^\\\* Safeguards[^\n]*\n(?:\\\*[^\n]*\n)*CONSTANTS[ ]*\n((?:[ ]+[^\n]*\n)+)",
    re.MULTILINE,
)
_SINGLE = re.compile(r"^ +(\w+),? *\\\* Safeguard: ", re.MULTILINE)
_NAME = re.compile(r"^ +(\w+),? *(?:\\\*.*)?$", re.MULTILINE)
_OFF = re.compile(r"^\s*(\w+) *= *FALSE\s*$", re.MULTILINE)
_USES = re.compile(r"\bEXTENDS\s+(\w+(?:\s*,\s*\w+)*)")


@dataclass(frozen=True, slots=True)
class Safeguard:
    """One safeguard and what happens without it.

    Attributes:
        module: The module that has it.
        name: The constant.
        configs: ``(model, violated property)`` of each config that lacks it, those
            that lack it alone first.
    """

    module: str
    name: str
    configs: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        """The safeguard's object in ``ec-protocol mutants --json``."""
        return {
            "module": self.module,
            "safeguard": self.name,
            "verdict": "covered" if self.configs else "missing",
            "configs": [{"model": model, "expected": found} for model, found in self.configs],
        }


def constants(text: str) -> list[str]:
    """The names of the safeguards of one module's text."""
    found = [
        name for match in _HEADING.finditer(text) for name in _NAME.findall(match[1] or match[2])
    ]
    return found + [name for name in _SINGLE.findall(text) if name not in found]


def safeguards(manifest: Manifest) -> list[Safeguard]:
    """Every safeguard of the manifest's folder, by module."""
    folder = manifest.folder
    owners = {path.stem: constants(path.read_text("utf-8")) for path in folder.glob("*.tla")}
    off: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for model in manifest.models:
        if model.mode != "bug":
            continue
        lacking = _OFF.findall((folder / model.cfg).read_text(encoding="utf-8"))
        for module in _modules(folder, Path(model.module).stem):
            for name in set(lacking) & set(owners[module]):
                row = (len(lacking), model.name, model.expected)
                off.setdefault((module, name), []).append(row)
    return [
        Safeguard(
            module,
            name,
            tuple((model, expected) for _, model, expected in sorted(off.get((module, name), ()))),
        )
        for module in sorted(owners)
        for name in owners[module]
    ]


def _modules(folder: Path, root: str) -> Iterator[str]:
    """The module and all that it extends, as far as they lie in the folder."""
    queue, seen = [root], set[str]()
    while queue:
        name = queue.pop()
        path = folder / f"{name}.tla"
        if name in seen or not path.is_file():
            continue
        seen.add(name)
        yield name
        for names in _USES.findall(path.read_text(encoding="utf-8")):
            queue += [part.strip() for part in names.split(",")]
