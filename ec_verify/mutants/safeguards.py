# SPDX-License-Identifier: Apache-2.0
"""The safeguards of the TLA+ modules: mutants that somebody wrote by hand.

A safeguard is a BOOLEAN constant under a heading ``CONSTANTS`` that calls it so, TRUE
in the protocol. Each model ``Bug…`` sets some of them to FALSE and names
the property that TLC must then find violated; ``ec-protocol check`` sees to that. Here
it is only put together which config is the mutant of which safeguard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ec_verify.models.manifest import Manifest
from ec_verify.models.modules import module_files, reached

_HEADING = re.compile(
    r"^CONSTANTS[ ]*\\\*[^\n]*[Ss]afeguards[^\n]*\n((?:[ ]+[^\n]*\n)+)"
    r"|^\\\* Safeguards[^\n]*\n(?:\\\*[^\n]*\n)*CONSTANTS[ ]*\n((?:[ ]+[^\n]*\n)+)",
    re.MULTILINE,
)
_SINGLE = re.compile(r"^ +(\w+),? *\\\* Safeguard: ", re.MULTILINE)
_NAME = re.compile(r"^ +(\w+),? *(?:\\\*.*)?$", re.MULTILINE)


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
    files = module_files(manifest.folder)
    owners = {path.stem: constants(path.read_text("utf-8")) for path in files.values()}
    roots = {model.module for model in manifest.models}
    parts = {root: [path.stem for path in reached(root, files)] for root in roots}
    off: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for model in manifest.models:
        if model.mode != "bug":
            continue
        lacking = [name for name, value in model.config.constants.items() if value == "FALSE"]
        for module in parts[model.module]:
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
