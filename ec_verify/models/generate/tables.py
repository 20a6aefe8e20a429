# SPDX-License-Identifier: Apache-2.0
"""The tables of ``tla/README.md`` that are made from the models and their pins.

The document holds marked blocks; everything else in it is written by hand::

    <!-- models -->
    ...
    <!-- /models -->

``models`` are those that must hold, ``properties`` what each of them checks beside
the config that must fail, ``faults`` the schedules that were found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ec_verify.models.config import REPLACED, Config
from ec_verify.models.manifest import Manifest, Model, load_manifest

DOCUMENT: Final = "README.md"
#: Where the schedules made from counterexamples lie, relative to the document.
SCENARIOS: Final = "../spec/scenarios"

_BLOCK = re.compile(
    r"^<!-- (?P<kind>models|properties|faults) -->\n.*?^<!-- /(?P=kind) -->$",
    re.DOTALL | re.MULTILINE,
)
#: Properties that show only that a behaviour is there.
REACH: Final = "Reach"


def family(model: Model) -> str:
    """The protocol module that the model is about: ``PeerRead`` for MCPeerRead.tla."""
    return model.module.removesuffix(".tla").removeprefix("MC")


def checked(manifest: Manifest) -> dict[tuple[str, str], list[str]]:
    """(Module, property) -> the models that must hold and check it."""
    found: dict[tuple[str, str], list[str]] = {}
    for model in manifest.models:
        if model.expected == "ok":
            for prop in dict.fromkeys(model.config.checked):
                found.setdefault((family(model), prop), []).append(model.name)
    return found


def must_fail(manifest: Manifest) -> dict[tuple[str, str], list[str]]:
    """(Module, property) -> the models that must violate it."""
    found: dict[tuple[str, str], list[str]] = {}
    for model in manifest.models:
        if model.mode == "bug":
            found.setdefault((family(model), model.expected), []).append(model.name)
    return found


def fill(text: str, manifest: Manifest) -> str:
    """The document's text with every marked block made anew."""
    makers = {"models": _models, "properties": _properties, "faults": _faults}

    def block(match: re.Match[str]) -> str:
        kind = match["kind"]
        return f"<!-- {kind} -->\n{makers[kind](manifest)}<!-- /{kind} -->"

    return _BLOCK.sub(block, text)


def stale(folder: Path) -> bool:
    """Whether the document of ``folder``, if it has one, is not what its manifest says."""
    path = folder / DOCUMENT
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    return fill(text, load_manifest(folder)) != text


def write(folder: Path) -> bool:
    """Fill the document's blocks; returns whether anything changed."""
    if not stale(folder):
        return False
    path = folder / DOCUMENT
    text = path.read_text(encoding="utf-8")
    path.write_text(fill(text, load_manifest(folder)), encoding="utf-8")
    return True


def _models(manifest: Manifest) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for model in manifest.models:
            if model.expected != "ok":
                continue
            if model.simulate:
                states = f"{model.simulate.traces:,} walks"
                depth = f"≤ {model.simulate.depth}"
            else:
                states = f"{model.distinct_states:,}" if model.distinct_states else ""
                depth = str(model.depth or "")
            seconds = f"{model.seconds:.0f}" if model.seconds else ""
            yield (
                f"`{model.name}`",
                model.mode if model.tier == "pr" else f"{model.mode}, nightly",
                bounds(model.config),
                states,
                depth,
                seconds,
            )

    header = ("model", "mode", "bounds", "distinct states", "depth", "seconds")
    return _rows(header, rows())


def bounds(config: Config) -> str:
    """The constants of a config that are no safeguards: sizes, sets and timers."""
    return "; ".join(
        f"{name} {value.removeprefix(REPLACED)}"
        for name, value in config.constants.items()
        if value not in ("TRUE", name) and not (value == "FALSE" and name != "Remote")
    )


def _properties(manifest: Manifest) -> str:
    failing = must_fail(manifest)

    def rows() -> Iterator[tuple[str, ...]]:
        for (module, prop), names in sorted(checked(manifest).items()):
            yield (
                f"`{prop}`",
                module,
                ", ".join(f"`{name}`" for name in names),
                ", ".join(f"`{name}`" for name in failing.get((module, prop), ())),
            )

    return _rows(("property", "module", "holds in", "must fail in"), rows())


def _scenarios(manifest: Manifest) -> dict[str, str]:
    """The file of each model's schedule: its own, or another model's with the same one."""
    found = {}
    for path in sorted((manifest.folder / SCENARIOS).glob("*.json")):
        found[path.stem] = path.name
        for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            found |= dict.fromkeys(case.get("also", ()), path.name)
    return found


def _faults(manifest: Manifest) -> str:
    scenarios = _scenarios(manifest)

    def rows() -> Iterator[tuple[str, ...]]:
        for model in sorted(manifest.models, key=lambda m: (int(m.fault[1:] or 0), m.name)):
            if not model.fault:
                continue
            file = scenarios.get(model.name)
            link = f"[{file}]({SCENARIOS}/{file})" if file else ""
            yield (
                model.fault,
                f"`{model.name}`",
                model.safeguard,
                f"`{model.expected}`",
                str(model.steps or ""),
                link,
            )

    header = ("fault", "config", "without", "TLC violates", "steps", "scenario")
    return _rows(header, rows())


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
