#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the reference tables into the pages of ``docs/reference``, between their markers.

Settings, metrics and timers come from ``ec_connector.config.settings``,
``ec_connector.metrics`` and ``ec_protocol.tables.timing``, commands and their options from
the two command lines themselves, so that no page can lag behind the code. The Korean pages
are translations: their tables are written by hand, and a test compares names, types and
defaults.

Usage: ``make_guide_reference.py [--check]``; ``--check`` writes nothing and exits 1
when a page differs.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402
from generated import write_or_check  # noqa: E402

import ec_connector.cli  # noqa: E402
import ec_verify.cli  # noqa: E402
from ec_connector.config.settings import config_reference  # noqa: E402
from ec_connector.metrics import metrics_reference  # noqa: E402
from ec_protocol.tables.timing import inequalities, timer_specs  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
PROGRAMS = {"ec-connector": ec_connector.cli.app, "ec-protocol": ec_verify.cli.app}


def timing_reference() -> str:
    """The inequalities between timers, by the names of their keys."""
    keys = {name: spec.key for name, spec in timer_specs().items()}
    lines = ["| must hold | because |", "|---|---|"]
    for item in inequalities():
        left = " + ".join(f"`{keys[name]}`" for name in item.left)
        right = " + ".join(f"`{keys[name]}`" for name in item.right)
        operator = {"<": "<", "<=": "≤"}[item.op]
        lines.append(f"| {left} {operator} {right} | {item.why} |")
    return "\n".join(lines) + "\n"


def commands_reference() -> str:
    """Every command of both programs, with its arguments and options."""
    parts = []
    for program, app in PROGRAMS.items():
        parts.append(f"\n## `{program}`\n")
        for words, command in _leaves(typer.main.get_command(app), program):
            about = " ".join((command.help or "").split())
            parts.append(f"\n### `{words}`\n\n{about}\n")
            rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
            if rows:
                parts.append("\n| argument or option | default | meaning |\n|---|---|---|\n")
                parts += rows
    return "".join(parts) + "\n"


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """The commands below one that groups others, in their order; else itself."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    for name, part in inner.items():
        yield from _leaves(part, f"{words} {name}")


def _row(param: Any) -> str:
    name = ", ".join(o for o in param.opts if o.startswith("-"))
    if not name:
        name = param.metavar or param.name.upper()
    elif not param.is_flag:
        name = f"{name} {param.metavar or _kind(param)}"
    cells = (f"`{name}`", _default(param), " ".join((param.help or "").split()))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _kind(param: Any) -> str:
    """What may be given, in the words of ``--help``."""
    kind = param.type_descriptor
    if kind.is_choice:
        return "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices)
    if kind.is_tuple:
        return " ".join(["TEXT"] * param.nargs)
    shown = str(param.bare_type()).removeprefix("list[").rstrip("]").split()[0]
    return {"int": "N", "float": "N", "str": "TEXT"}.get(shown, shown.upper())


def _default(param: Any) -> str:
    if param.required:
        return "**required**"
    value = param.default
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value is False or value in ([], (), ""):
        return "off" if getattr(param, "is_flag", False) else ""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return f"`{value}`"


PAGES = {
    "settings": {"config": config_reference, "timing": timing_reference},
    "metrics": {"metrics": metrics_reference},
    "commands": {"commands": commands_reference},
}


def filled(page: str, text: str) -> str:
    """The page's text with every block replaced by what the code says now.

    Raises:
        ValueError: A block has no markers.
    """
    for name, make in PAGES[page].items():
        begin, end = f"<!-- reference:{name} -->\n", "<!-- /reference -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"{page}.md: no {begin.strip()} … {end}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


def main() -> int:
    """Fill the pages in, or say whether they are."""
    pages = {name: FOLDER / f"{name}.md" for name in PAGES}
    return write_or_check(
        {path: filled(name, path.read_text(encoding="utf-8")) for name, path in pages.items()}
    )


if __name__ == "__main__":
    sys.exit(main())
