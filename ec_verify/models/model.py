# SPDX-License-Identifier: Apache-2.0
"""One model: what TLC runs, what it must show, and what was measured of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from ec_protocol.tables.lifecycle import LIFECYCLE_NAMES, load_actions
from ec_verify.models.config import Config
from ec_verify.models.errors import ManifestError
from ec_verify.nearest import did_you_mean

Mode = Literal["exhaustive", "liveness", "simulation", "edges", "bug"]
Tier = Literal["pr", "full"]

#: Modes whose number of distinct states and depth are exact, hence pinned.
PINNED: Final = frozenset({"exhaustive", "liveness", "edges"})
#: What is measured, and stands in ``manifest.json``.
MEASURED: Final = ("distinct_states", "depth", "seconds", "steps")

_CLAUSE: Final = re.compile(r"EC-\d+\.\d+\Z")
_FAULT: Final = re.compile(r"(F\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Simulate:
    """How far a simulation goes: ``traces`` random walks of ``depth`` states."""

    traces: int
    depth: int
    seed: int


@dataclass(frozen=True, slots=True)
class Model:
    """One model; see ``tla/README.md`` for the meaning of each field."""

    name: str
    module: str
    mode: Mode
    config: Config
    expected: str = "ok"
    about: str = ""
    tier: Tier = "pr"
    clauses: tuple[str, ...] = ()
    fault: str = ""
    safeguard: str = ""
    lifecycles: tuple[str, ...] = ()
    modules: tuple[str, ...] | None = None
    deadlock: bool = True
    allow_dead: tuple[str, ...] = ()
    timeout: float = 900.0
    simulate: Simulate | None = None
    distinct_states: int | None = None
    depth: int | None = None
    seconds: float | None = None
    steps: int | None = None

    @property
    def config_text(self) -> str:
        """The config for TLC, with what the model is about at its head."""
        return self.config.text(self.about)


def parse_model(name: str, table: Mapping[str, Any], pins: Mapping[str, Any]) -> Model:
    """Build one model.

    Args:
        name: Its name.
        table: Its fields, of ``declared.read_models``.
        pins: Its entry of the manifest; empty if it has none yet.

    Raises:
        ManifestError: A field is missing, of a wrong type, or does not fit the mode; or
            the manifest has another field than those of ``MEASURED``.
    """
    values = {key: _field(name, key, value) for key, value in table.items()}
    config = Config(**{f.name: values.pop(f.name) for f in fields(Config) if f.name in values})
    for key in ("module", "mode"):
        if key not in values:
            raise ManifestError(f"model {name}: field {key!r} is missing, and no base has it")
    if values["mode"] == "bug" and "expected" not in values:
        values["expected"] = _must_fail(name, config)
    model = Model(name=name, config=config, **values, **_measured(name, pins))
    _check_mode(model)
    return model


def _must_fail(name: str, config: Config) -> str:
    if len(config.checked) != 1:
        raise ManifestError(
            f"model {name}: expected is missing: mode bug checks one invariant or property, "
            f"which must fail, but here are {', '.join(config.checked) or 'none'}"
        )
    return config.checked[0]


def _measured(name: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, value in entry.items():
        if key not in MEASURED:
            raise ManifestError(
                f"model {name}: manifest.json: unknown field {key!r}; {did_you_mean(key, MEASURED)}"
            )
        whole = key != "seconds"
        fits = type(value) is int if whole else type(value) in (int, float)
        if not fits or value <= 0:
            wanted = "a positive whole number" if whole else "a positive number"
            raise ManifestError(f"model {name}: {key} is {value!r}, expected {wanted}")
    return entry


_STRINGS: Final = (
    *("module", "expected", "about", "fault", "safeguard"),
    *("specification", "init", "next", "constraint", "view", "symmetry", "action_constraint"),
)
_LISTS: Final = ("clauses", "lifecycles", "modules", "allow_dead", "invariants", "properties")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"mode": get_args(Mode), "tier": get_args(Tier)}


def _field(model: str, key: str, value: Any) -> Any:
    def bad(wanted: str) -> ManifestError:
        return ManifestError(f"model {model}: {key} is {value!r}, expected {wanted}")

    if key in _STRINGS:
        if not isinstance(value, str):
            raise bad("a string")
        return " ".join(value.split())
    elif key in _CHOICES:
        if value not in _CHOICES[key]:
            raise bad(f"one of {', '.join(_CHOICES[key])}")
    elif key in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise bad("a list of strings")
        return tuple(value)
    elif key == "timeout":
        if type(value) not in (int, float) or value <= 0:
            raise bad("a positive number of seconds")
    elif key == "deadlock":
        if type(value) is not bool:
            raise bad("true or false")
    elif key == "simulate":
        keys = [f.name for f in fields(Simulate)]
        if not isinstance(value, dict) or sorted(value) != sorted(keys):
            raise bad(f"a table with exactly {', '.join(keys)}")
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
        raise bad(f"mode {model.mode} has no distinct_states and no depth in manifest.json")
    if not _FAULT.match(model.fault):
        raise bad(f"fault is {model.fault!r}, expected F1, F2, ... or an empty string")
    for clause in model.clauses:
        if not _CLAUSE.match(clause):
            raise bad(f"clause {clause!r} is not of the form EC-3.2")
    for lifecycle in model.lifecycles:
        if lifecycle not in LIFECYCLE_NAMES:
            near = did_you_mean(lifecycle, LIFECYCLE_NAMES)
            raise bad(f"unknown lifecycle {lifecycle!r}; {near}")
    known_modules = sorted({module for one in load_actions().values() for module in one.models})
    for module in model.modules or ():
        if module not in known_modules:
            near = did_you_mean(module, known_modules)
            raise bad(f"no action is in module {module!r}; {near}")
