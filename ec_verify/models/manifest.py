# SPDX-License-Identifier: Apache-2.0
"""``tla/manifest.json``: which models there are and what each must show.

The fields are described in ``tla/README.md``. Loading checks the form of every
entry; ``problems`` compares the manifest with the files around it, so that no
model can be forgotten and no config can ask for something that it does not get.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ec_protocol.errors import ECError
from ec_protocol.tables.lifecycle import LIFECYCLE_NAMES, load_actions
from ec_verify.models.configs import Config, parse_config

FILE_NAME: Final = "manifest.json"
VERSION: Final = 1

Mode = Literal["exhaustive", "liveness", "simulation", "edges", "bug"]
Tier = Literal["pr", "full"]

#: Modes whose number of distinct states and depth are exact, hence pinned.
PINNED: Final = frozenset({"exhaustive", "liveness", "edges"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_CLAUSE = re.compile(r"EC-\d+\.\d+\Z")
_FAULT = re.compile(r"(F\d+)?\Z")
_USES = re.compile(r"\bEXTENDS\s+(\w+(?:\s*,\s*\w+)*)|\bINSTANCE\s+(\w+)")


class ManifestError(ECError):
    """The manifest cannot be used; the message names the entry and the field."""


@dataclass(frozen=True, slots=True)
class Simulate:
    """How far a simulation goes: ``traces`` random walks of ``depth`` states."""

    traces: int
    depth: int
    seed: int


@dataclass(frozen=True, slots=True)
class Model:
    """One entry; see ``tla/README.md`` for the meaning of each field."""

    name: str
    module: str
    cfg: str
    mode: Mode
    tier: Tier
    expected: str
    clauses: tuple[str, ...]
    distinct_states: int | None = None
    depth: int | None = None
    seconds: float | None = None
    fault: str = ""
    safeguard: str = ""
    lifecycles: tuple[str, ...] = ()
    modules: tuple[str, ...] | None = None
    deadlock: bool = True
    allow_dead: tuple[str, ...] = ()
    timeout: float = 900.0
    simulate: Simulate | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The models in the manifest's order, and the folder they lie in."""

    folder: Path
    models: tuple[Model, ...]
    raw: list[dict[str, Any]] = field(repr=False)

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
                near = difflib.get_close_matches(name, by_name, n=3)
                hint = (
                    f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(by_name)}"
                )
                raise ManifestError(f"no model is called {name!r}; {hint}")
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
    """Read ``manifest.json`` of a folder.

    Raises:
        ManifestError: It is missing, is no JSON, or an entry is malformed.
    """
    path = folder / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ManifestError(f"{FILE_NAME} is missing: expected it at {path}") from exc
    except json.JSONDecodeError as exc:
        raise ManifestError(f"{path}: no JSON: {exc}") from exc
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ManifestError(f'{path}: expected {{"version": {VERSION}, "models": [...]}}')
    raw = document.get("models")
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise ManifestError(f"{path}: `models` must be a list of objects")
    models = tuple(parse_model(entry) for entry in raw)
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"model {name!r} appears twice; names are unique")
    return Manifest(folder, models, raw)


def parse_model(entry: Mapping[str, Any]) -> Model:
    """Build one model from its JSON object.

    Raises:
        ManifestError: A field is missing, unknown, of a wrong type, or does not
            fit the mode.
    """
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise ManifestError(f"model {name!r}: `name` must be a word of letters, digits and _.-")
    known = [f.name for f in fields(Model)]
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ManifestError(f"model {name}: unknown field {key!r}{hint}")
    values: dict[str, Any] = {}
    for f in fields(Model):
        if f.name in entry:
            values[f.name] = _field(name, f.name, entry[f.name])
        elif f.default is MISSING:
            raise ManifestError(f"model {name}: field {f.name!r} is missing")
    model = Model(**values)
    _check_mode(model)
    return model


_STRINGS = ("name", "module", "cfg", "expected", "fault", "safeguard")
_LISTS = ("clauses", "lifecycles", "modules", "allow_dead")
_CHOICES: Mapping[str, tuple[str, ...]] = {"mode": get_args(Mode), "tier": get_args(Tier)}


def _field(model: str, key: str, value: Any) -> Any:
    def bad(wanted: str) -> ManifestError:
        return ManifestError(f"model {model}: {key} is {value!r}, expected {wanted}")

    if key in _STRINGS:
        if not isinstance(value, str):
            raise bad("a string")
    elif key in _CHOICES:
        if value not in _CHOICES[key]:
            raise bad(f"one of {', '.join(_CHOICES[key])}")
    elif key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise bad("a list of strings")
        return tuple(value)
    elif key in ("distinct_states", "depth", "steps"):
        if value is not None and (type(value) is not int or value < 1):
            raise bad("a positive whole number or null")
    elif key in ("seconds", "timeout"):
        if type(value) not in (int, float) or value <= 0:
            if value is None and key == "seconds":
                return None
            raise bad("a positive number of seconds")
    elif key == "deadlock":
        if type(value) is not bool:
            raise bad("true or false")
    elif key == "simulate":
        keys = [f.name for f in fields(Simulate)]
        if not isinstance(value, dict) or sorted(value) != sorted(keys):
            raise bad(f"an object with exactly {', '.join(keys)}")
        if not all(type(number) is int and number >= 0 for number in value.values()):
            raise bad("whole numbers")
        return Simulate(**value)
    return value


def _check_mode(model: Model) -> None:
    def bad(message: str) -> ManifestError:
        return ManifestError(f"model {model.name}: {message}")

    if (model.mode == "bug") == (model.expected == "ok"):
        raise bad('expected must be "ok", or for mode "bug" the name of what TLC must violate')
    if model.mode == "bug" and not model.safeguard:
        raise bad("safeguard must say what was removed")
    if model.mode != "bug" and (model.fault or model.safeguard):
        raise bad("fault and safeguard belong to mode bug only")
    if (model.mode == "edges") != bool(model.lifecycles):
        raise bad("lifecycles must be given for mode edges, and for no other")
    if (model.mode == "edges") != (model.modules is not None):
        raise bad("modules must be given (it may be empty) for mode edges, and for no other")
    if (model.mode == "simulation") != (model.simulate is not None):
        raise bad("simulate must be given for mode simulation, and for no other")
    if model.mode != "bug" and model.steps:
        raise bad("steps is the length of a counterexample: for mode bug only")
    if model.mode not in PINNED and (model.distinct_states or model.depth):
        raise bad(f"distinct_states and depth must be null for mode {model.mode}")
    if not _FAULT.match(model.fault):
        raise bad(f"fault is {model.fault!r}, expected F1, F2, ... or an empty string")
    for clause in model.clauses:
        if not _CLAUSE.match(clause):
            raise bad(f"clause {clause!r} is not of the form EC-3.2")
    for lifecycle in model.lifecycles:
        if lifecycle not in LIFECYCLE_NAMES:
            raise bad(f"unknown lifecycle {lifecycle!r}; known: {', '.join(LIFECYCLE_NAMES)}")
    known_modules = {module for action in load_actions().values() for module in action.models}
    for module in model.modules or ():
        if module not in known_modules:
            raise bad(
                f"no action is in module {module!r}; known: {', '.join(sorted(known_modules))}"
            )


def problems(manifest: Manifest, protocol: Path | None) -> dict[str, list[str]]:
    """Where the manifest and the files around it disagree.

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
    for model in manifest.models:
        sentences = [
            f"{file} is missing: expected it in {manifest.folder}"
            for file in (model.module, model.cfg)
            if not (manifest.folder / file).is_file()
        ]
        if not sentences:
            text = (manifest.folder / model.cfg).read_text(encoding="utf-8")
            sentences = _config_problems(model, parse_config(text))
        if known_clauses is not None:
            sentences += [
                f"clause {clause} is not in {protocol}"
                for clause in model.clauses
                if clause not in known_clauses
            ]
        if sentences:
            found[model.name] = sentences
    if orphans := _orphans(manifest):
        found[""] = [
            f"no entry of {FILE_NAME} uses {file}: add one or remove it" for file in orphans
        ]
    return found


def _config_problems(model: Model, config: Config) -> list[str]:
    found = [f"{model.cfg}: TLC 2.15 does not know {keyword}" for keyword in config.unsupported]
    checked = {*config.invariants, *config.properties}
    if model.mode == "bug" and model.expected != "deadlock" and model.expected not in checked:
        found.append(f"{model.cfg} checks no {model.expected}, so it cannot be violated")
    if model.mode == "liveness":
        if not config.properties:
            found.append(f"{model.cfg}: a liveness model needs a PROPERTY")
        if "SYMMETRY" in config.sections:
            found.append(f"{model.cfg}: SYMMETRY makes TLC's liveness results wrong")
    if model.mode == "edges":
        # Both merge states, and with them the history that is compared.
        for section in sorted({"VIEW", "SYMMETRY"} & config.sections):
            found.append(f"{model.cfg}: a model compared with the tables must not use {section}")
    if model.mode in ("exhaustive", "simulation") and not checked:
        found.append(f"{model.cfg} checks nothing")
    return found


def _orphans(manifest: Manifest) -> list[str]:
    """Files of the folder that no model reaches.

    Trace specifications are run by `ec-protocol trace check`, not from here.
    """
    folder = manifest.folder
    used = {model.cfg for model in manifest.models}
    queue = [model.module for model in manifest.models]
    while queue:
        file = queue.pop()
        if file in used or not (folder / file).is_file():
            continue
        used.add(file)
        text = (folder / file).read_text(encoding="utf-8", errors="replace")
        for extended, instanced in _USES.findall(text):
            queue += [f"{name.strip()}.tla" for name in (extended or instanced).split(",")]
    present = {path.name for pattern in ("*.tla", "*.cfg") for path in folder.glob(pattern)}
    return sorted(file for file in present - used if not file.startswith("Trace"))


def write_pins(manifest: Manifest, updates: Mapping[str, Mapping[str, Any]]) -> None:
    """Write new values into the manifest file, everything else untouched.

    The file is read again first: models take minutes, and it may have been edited
    since it was loaded.

    Args:
        manifest: A loaded manifest.
        updates: New field values by model name.

    Raises:
        ManifestError: The file cannot be written (an installed copy).
    """
    raw = load_manifest(manifest.folder).raw
    for entry in raw:
        entry.update(updates.get(entry["name"], {}))
    path = manifest.folder / FILE_NAME
    try:
        path.write_text(dump_manifest(raw), encoding="utf-8")
    except OSError as exc:
        raise ManifestError(f"{path} cannot be written ({exc}): run from a checkout") from exc


def dump_manifest(raw: Iterable[Mapping[str, Any]]) -> str:
    """The manifest's canonical text: one field a line, short lists on one line."""
    blocks = []
    for entry in raw:
        lines = [f"      {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items()]
        blocks.append("    {\n" + ",\n".join(lines) + "\n    }")
    body = ",\n".join(blocks)
    return f'{{\n  "version": {VERSION},\n  "models": [\n{body}\n  ]\n}}\n'
