# SPDX-License-Identifier: Apache-2.0
"""Scenario files: how they are laid out, written, and compared with what is made anew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ec_protocol._files import spec_dir
from ec_protocol.scenarios.make import LANGUAGE_VERSION, Made

_NOTE: Final = "Made by `ec-protocol scenario make`: change the model or the translation instead."


def scenario_dir() -> Path:
    """Where the scenario files lie."""
    return spec_dir() / "scenarios"


def path_of(made: Made, folder: Path) -> Path:
    """The file that a scenario stands in: one for each model."""
    return folder / f"{made.model.name}.json"


def texts(scenarios: Iterable[Made], folder: Path) -> dict[Path, str]:
    """The files that hold these scenarios, with their texts."""
    cases: dict[Path, list[Mapping[str, Any]]] = {}
    for made in scenarios:
        cases.setdefault(path_of(made, folder), []).append(made.document)
    return {path: text(documents) for path, documents in cases.items()}


def text(cases: Iterable[Mapping[str, Any]]) -> str:
    """A file of these cases: a step a line, so that a change of one is a line's change."""
    head = f'{{\n "version": {LANGUAGE_VERSION},\n "note": {json.dumps(_NOTE)},\n "cases": [\n'
    return head + ",\n".join(_case(case) for case in cases) + "\n ]\n}\n"


def _case(case: Mapping[str, Any]) -> str:
    lines = [
        f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in case.items()
        if key != "steps"
    ]
    steps = ",\n".join(f"    {json.dumps(step, ensure_ascii=False)}" for step in case["steps"])
    return "  {\n" + ",\n".join([*lines, f'   "steps": [\n{steps}\n   ]']) + "\n  }"


def stale(wanted: Mapping[Path, str]) -> list[Path]:
    """Files that are not what they would be if they were made now."""
    return [
        path
        for path, want in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != want
    ]
