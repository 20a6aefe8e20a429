# SPDX-License-Identifier: Apache-2.0
"""All models of ``tla/``: those of every ``models.toml``, with the pins of ``manifest.json``.

The fields are described in ``tla/README.md``. Loading checks the form of every model;
``problems`` compares them with the files around them, so that no module can be forgotten
and no config can ask for something that it does not get.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ec_verify.models import declared
from ec_verify.models.errors import ManifestError
from ec_verify.models.model import PINNED, Model, Simulate, Tier, parse_model
from ec_verify.models.modules import module_files, reached
from ec_verify.nearest import did_you_mean

__all__ = [
    "PINNED",
    "Manifest",
    "ManifestError",
    "Model",
    "Simulate",
    "Tier",
    "load_manifest",
    "problems",
    "with_seed",
    "write_pins",
]

FILE_NAME: Final = "manifest.json"
VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Manifest:
    """The models, and the folder that their folders lie in.

    Attributes:
        folder: With ``manifest.json``.
        models: In the order of ``manifest.json``; those it does not have yet come last.
        pins: What ``manifest.json`` holds, by model.
    """

    folder: Path
    models: tuple[Model, ...]
    pins: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def select(self, names: Sequence[str], tier: Tier) -> tuple[Model, ...]:
        """The models with these names, or those of the tier if there are none.

        Raises:
            ManifestError: A name is unknown; the message offers the nearest.
        """
        if not names:
            return tuple(m for m in self.models if tier == "full" or m.tier == "pr")
        by_name = {model.name: model for model in self.models}
        for name in names:
            if name not in by_name:
                raise ManifestError(f"no model is called {name!r}; {did_you_mean(name, by_name)}")
        return tuple(by_name[name] for name in dict.fromkeys(names))


def with_seed(models: Sequence[Model], seed: int | None) -> tuple[Model, ...]:
    """The models, with this seed for those that walk at random; None changes nothing."""
    if seed is None:
        return tuple(models)
    return tuple(
        replace(model, simulate=replace(model.simulate, seed=seed)) if model.simulate else model
        for model in models
    )


def load_manifest(folder: Path) -> Manifest:
    """Read the models of a folder: ``manifest.json``, and ``models.toml`` of each folder in it.

    Raises:
        ManifestError: A file is missing or malformed, or a model is.
    """
    pins = _read_pins(folder / FILE_NAME)
    tables: dict[str, Mapping[str, Any]] = {}
    places: dict[str, Path] = {}
    for path in sorted(folder.glob(f"*/{declared.FILE_NAME}")):
        for name, table in declared.read_models(path).items():
            if name in tables:
                raise ManifestError(
                    f"{path}: model {name!r} is in {places[name]} already: rename one"
                )
            tables[name] = table
            places[name] = path
    names = [*(name for name in pins if name in tables), *(n for n in tables if n not in pins)]
    models = tuple(parse_model(name, tables[name], pins.get(name, {})) for name in names)
    return Manifest(folder, models, pins)


def _read_pins(path: Path) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ManifestError(f"{FILE_NAME} is missing: expected it at {path}") from exc
    except json.JSONDecodeError as exc:
        raise ManifestError(f"{path}: no JSON: {exc}") from exc
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ManifestError(f'{path}: expected {{"version": {VERSION}, "models": {{...}}}}')
    pins = document.get("models")
    if not isinstance(pins, dict) or not all(isinstance(entry, dict) for entry in pins.values()):
        raise ManifestError(f"{path}: `models` must be an object of objects, by model")
    return pins


def problems(manifest: Manifest, protocol: Path | None) -> dict[str, list[str]]:
    """Where the models and the files around them disagree.

    Args:
        manifest: A loaded manifest.
        protocol: ``spec/PROTOCOL.md``, to look up clause ids in.

    Returns:
        Sentences by model name; those of no single model are under ``""``.
    """
    found: dict[str, list[str]] = {}
    known_clauses: set[str] | None = None
    if protocol is not None and protocol.is_file():
        known_clauses = set(re.findall(r"\bEC-\d+\.\d+\b", protocol.read_text(encoding="utf-8")))
    files = module_files(manifest.folder)
    for model in manifest.models:
        sentences = _config_problems(model)
        if model.module not in files:
            sentences.insert(0, f"{model.module} is missing: expected it in {manifest.folder}")
        if known_clauses is not None:
            sentences += [
                f"clause {clause} is not in {protocol}"
                for clause in model.clauses
                if clause not in known_clauses
            ]
        if sentences:
            found[model.name] = sentences
    if orphans := _orphans(manifest, files):
        found[""] = orphans
    return found


def _config_problems(model: Model) -> list[str]:
    found = []
    config = model.config
    if bool(config.specification) == bool(config.init and config.next):
        found.append("it needs a specification, or init and next, and not both")
    if not model.about:
        found.append("about is missing: say what TLC is asked, or what it finds")
    if (
        model.mode == "bug"
        and model.expected != "deadlock"
        and model.expected not in config.checked
    ):
        found.append(f"it checks no {model.expected}, so it cannot be violated")
    if model.mode == "liveness":
        if not config.properties:
            found.append("a liveness model needs properties")
        if config.symmetry:
            found.append(f"symmetry is {config.symmetry!r}: it makes TLC's liveness results wrong")
    if model.mode == "edges":
        # Both merge states, and with them the history that is compared.
        for name, value in (("symmetry", config.symmetry), ("view", config.view)):
            if value:
                found.append(f"{name} is {value!r}: it hides what is compared with the tables")
    if model.mode in ("exhaustive", "simulation") and not config.checked:
        found.append("it checks nothing: give it invariants or properties")
    return found


def _orphans(manifest: Manifest, files: dict[str, Path]) -> list[str]:
    """Modules that no model reaches, configs, and pins of models that are gone.

    Trace specifications are run by ``ec-protocol trace check``, not from here.
    """
    folder = manifest.folder
    roots = {model.module for model in manifest.models}
    used = {path for root in roots for path in reached(root, files)}
    known = {model.name for model in manifest.models}
    return [
        *(
            f"no model uses {path.relative_to(folder)}: add one or remove it"
            for name, path in files.items()
            if path not in used and not name.startswith("Trace")
        ),
        *(
            f"{path.relative_to(folder)}: configs are made from {declared.FILE_NAME}; remove it"
            for path in sorted(folder.rglob("*.cfg"))
        ),
        *(
            f"{FILE_NAME} pins {name}, which no {declared.FILE_NAME} has: remove it there"
            for name in manifest.pins
            if name not in known
        ),
    ]


def write_pins(manifest: Manifest, updates: Mapping[str, Mapping[str, Any]]) -> None:
    """Write new values into ``manifest.json``, everything else untouched.

    The file is read again first: models take minutes, and it may have been edited
    since it was loaded.

    Args:
        manifest: A loaded manifest.
        updates: New values by model name.

    Raises:
        ManifestError: The file cannot be written (an installed copy).
    """
    path = manifest.folder / FILE_NAME
    pins = _read_pins(path)
    for name, values in updates.items():
        pins.setdefault(name, {}).update(values)
    try:
        path.write_text(dump_pins(pins), encoding="utf-8")
    except OSError as exc:
        raise ManifestError(f"{path} cannot be written ({exc}): run from a checkout") from exc


def dump_pins(pins: Mapping[str, Mapping[str, Any]]) -> str:
    """The file's canonical text: one model a line."""
    lines = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in pins.items())
    return f'{{\n  "version": {VERSION},\n  "models": {{\n{lines}\n  }}\n}}\n'
