# SPDX-License-Identifier: Apache-2.0
"""Scenario files: how they are laid out, written, and compared with what is made anew.

No schedule stands in two of them. Of models whose behaviours are the same schedule one
has the file, and the case names the others under ``also``: the first of those with a
known fault (F1 to F11), or else the first, in the manifest's order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ec_protocol.tables.files import spec_dir
from ec_verify.models.manifest import Manifest, Model
from ec_verify.scenarios.make import LANGUAGE_VERSION, Made

Document = Mapping[str, Any]

_NOTE: Final = "Made by `ec-protocol scenario make`: change the model or the translation instead."


def scenario_dir() -> Path:
    """Where the scenario files lie."""
    return spec_dir() / "scenarios"


def path_of(model: str, folder: Path) -> Path:
    """The file that a model's scenarios stand in."""
    return folder / f"{model}.json"


def there(folder: Path) -> dict[str, list[Document]]:
    """The cases of the files of a folder that were made by the command, by model."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # not ours
        if isinstance(document, dict) and document.get("note") == _NOTE:
            found[path.stem] = document["cases"]
    return found


def relatives(
    models: Sequence[Model], manifest: Manifest, old: Mapping[str, Sequence[Document]]
) -> list[Model]:
    """The models, and those that share a file with one of them, in the manifest's order.

    A file is made of all of its models or of none: otherwise it would name a model whose
    behaviour may be another by now.

    Args:
        models: Which are to be made.
        manifest: All of them.
        old: Files that are there (``there``).
    """
    wanted = {model.name for model in models}
    files = [
        {name, *(_model_of(other) for case in cases for other in case.get("also", []))}
        for name, cases in old.items()
    ]
    before = 0
    while len(wanted) > before:
        before = len(wanted)
        for shared in files:
            if shared & wanted:
                wanted |= shared
    return [model for model in manifest.models if model.name in wanted]


def _model_of(case: str) -> str:
    """The model of a case: walks have the number of their seed behind its name."""
    name, dash, seed = case.rpartition("-")
    return name if dash and seed.isdigit() else case


def schedule(case: Document) -> str:
    """What is played, without what is said about it."""
    return json.dumps([_bare(case["setup"]), _bare(case["steps"])], sort_keys=True)


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _bare(inner) for key, inner in value.items() if key != "note"}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def settled(
    made: Iterable[Made], old: Mapping[str, Sequence[Document]], manifest: Manifest
) -> dict[str, list[Document]]:
    """The cases of each model that has a file, when no schedule stands in two.

    Args:
        made: What models say now.
        old: The files of models that were not asked now.
        manifest: Says which model comes first.
    """
    order = {model.name: (not model.fault, number) for number, model in enumerate(manifest.models)}
    cases: list[tuple[str, Document]] = [(one.model.name, one.document) for one in made]
    cases += [(name, case) for name, some in old.items() for case in some]
    groups: dict[str, list[tuple[str, Document]]] = {}
    # Models that are gone come last; the sort keeps the order of one model's walks.
    for name, case in sorted(cases, key=lambda pair: order.get(pair[0], (True, len(order)))):
        groups.setdefault(schedule(case), []).append((name, case))
    found: dict[str, list[Document]] = {}
    for group in groups.values():
        found.setdefault(group[0][0], []).append(_with_names([case for _, case in group]))
    return found


def _with_names(cases: Sequence[Document]) -> Document:
    """The first of cases of one schedule, with the names and tags of all."""
    first, *others = cases
    names = [name for case in cases for name in case.get("also", [])]
    names += [case["id"] for case in others]
    tags = dict.fromkeys(tag for case in cases for tag in case["tags"])
    document = {}
    for key, value in first.items():
        if key == "setup" and names:
            document["also"] = sorted(names)
        if key != "also":
            document[key] = value
    document["tags"] = sorted(tags, key=lambda tag: tag == "model")
    return document


def texts(
    cases: Mapping[str, Sequence[Document]], names: Iterable[str], folder: Path
) -> dict[Path, str | None]:
    """The files of these models and of those named, with their texts; None: no file."""
    return {
        path_of(name, folder): text(cases[name]) if name in cases else None
        for name in dict.fromkeys([*cases, *names])
    }


def text(cases: Iterable[Document]) -> str:
    """A file of these cases: a step a line, so that a change of one is a line's change."""
    head = f'{{\n "version": {LANGUAGE_VERSION},\n "note": {json.dumps(_NOTE)},\n "cases": [\n'
    return head + ",\n".join(_case(case) for case in cases) + "\n ]\n}\n"


def _case(case: Document) -> str:
    lines = [
        f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in case.items()
        if key != "steps"
    ]
    steps = ",\n".join(f"    {json.dumps(step, ensure_ascii=False)}" for step in case["steps"])
    return "  {\n" + ",\n".join([*lines, f'   "steps": [\n{steps}\n   ]']) + "\n  }"


def stale(wanted: Mapping[Path, str | None]) -> list[Path]:
    """Files that are not what they would be if they were made now; None: not there."""
    return [
        path
        for path, want in wanted.items()
        if (path.read_text(encoding="utf-8") if path.is_file() else None) != want
    ]


def write(wanted: Mapping[Path, str | None]) -> None:
    """Make the files what they should be."""
    for path in stale(wanted):
        want = wanted[path]
        if want is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(want, encoding="utf-8")
