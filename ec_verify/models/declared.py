# SPDX-License-Identifier: Apache-2.0
"""Reads ``models.toml``: the models of one folder of ``tla/``, and what they share.

::

    [base.Tier]                 # shared; never run
    module = "MCTier.tla"
    constants = { Blocks = "{b1}", PinLoads = true }

    [model.BugTierPinLoads]     # run by `ec-protocol check BugTierPinLoads`
    base = "Tier"               # a base or a model of the same file
    about = "A load holds nothing: its blocks are reused under it."
    constants = { PinLoads = false }

A table takes over every field of its base that it does not write itself, but for
``about``; ``constants`` are taken over one by one. An empty string or list takes away
what the base has. What the fields mean is said in ``tla/README.md``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ec_verify.models.config import Config
from ec_verify.models.errors import ManifestError
from ec_verify.nearest import did_you_mean

FILE_NAME: Final = "models.toml"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_WORD: Final = re.compile(r"\w+\Z")
_KINDS: Final = ("base", "model")
_CONFIG: Final = tuple(Config.__dataclass_fields__)
#: What a table may hold, beside the fields of the config; ``parse_model`` checks each.
FIELDS: Final = (
    "base",
    "about",
    "module",
    "mode",
    "tier",
    "expected",
    "clauses",
    "fault",
    "safeguard",
    "lifecycles",
    "modules",
    "deadlock",
    "allow_dead",
    "timeout",
    "simulate",
    *_CONFIG,
)

Table = Mapping[str, Any]


def read_models(path: Path) -> dict[str, dict[str, Any]]:
    """The models of one file, each with all that it takes over.

    Args:
        path: A ``models.toml``.

    Returns:
        Fields by model, in the file's order, without ``base``.

    Raises:
        ManifestError: It is no TOML, or a table has an unknown field, an unknown base,
            or itself for a base.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as exc:
        raise ManifestError(f"{path}: no TOML: {exc}") from exc
    tables: dict[str, Table] = {}
    for kind, named in document.items():
        if kind not in _KINDS or not isinstance(named, dict):
            raise ManifestError(
                f"{path}: {kind!r} is not expected there: a table is [base.NAME] or [model.NAME]"
            )
        for name, table in named.items():
            if name in tables:
                raise ManifestError(f"{path}: {name!r} is both a base and a model: rename one")
            _check_table(f"{path}: [{kind}.{name}]", name, table)
            tables[name] = table
    return {name: _resolved(path, name, tables) for name in document.get("model", {})}


def _check_table(where: str, name: str, table: Any) -> None:
    if not _NAME.match(name):
        raise ManifestError(f"{where}: a name must be a word of letters, digits and _.-")
    if not isinstance(table, dict):
        raise ManifestError(f"{where} is {table!r}, expected a table")
    for key, value in table.items():
        if key not in FIELDS:
            raise ManifestError(f"{where}: unknown field {key!r}; {did_you_mean(key, FIELDS)}")
        if key == "constants":
            _check_constants(where, value)


def _check_constants(where: str, constants: Any) -> None:
    if not isinstance(constants, dict):
        raise ManifestError(f"{where}: constants is {constants!r}, expected a table")
    for name, value in constants.items():
        if not _WORD.match(name):
            raise ManifestError(f"{where}: constants.{name} is no name that TLA+ knows")
        if not isinstance(value, str | int):
            raise ManifestError(
                f"{where}: constants.{name} is {value!r}, expected true, false, a whole "
                'number, or a string with the TLA+ text, e.g. "{b1}" or "<- SizeOne"'
            )


def _resolved(path: Path, name: str, tables: Mapping[str, Table]) -> dict[str, Any]:
    chain = [name]
    while (base := tables[chain[-1]].get("base")) is not None:
        here = f"{path}: {chain[-1]}: base is {base!r}"
        if not isinstance(base, str) or base not in tables:
            raise ManifestError(
                f"{here}, which this file does not have; {did_you_mean(str(base), tables)}"
            )
        if base in chain:
            raise ManifestError(f"{here}, which leads back to it: {' -> '.join([*chain, base])}")
        chain.append(base)
    fields: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for link in reversed(chain):
        fields |= tables[link]
        constants |= tables[link].get("constants", {})
    fields.pop("base", None)
    fields.pop("about", None)
    about = {"about": tables[name]["about"]} if "about" in tables[name] else {}
    written = {key: text for key, value in constants.items() if (text := _text(value))}
    return {**about, **fields, "constants": written}


def _text(value: str | int) -> str:
    """A constant's value as TLA+ writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    return str(value)
