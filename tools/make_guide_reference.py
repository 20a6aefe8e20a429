#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the reference tables into ``docs/guide.md``, between their markers.

The tables come from ``ec_connector.config.settings``, ``ec_connector.metrics`` and
``ec_protocol.tables.timing``, so that the guide cannot lag behind the code. The Korean guide
is a translation: its tables are written by hand, and a test compares names, types and
defaults.

Usage: ``make_guide_reference.py [--check]``; ``--check`` writes nothing and exits 1
when the guide differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ec_connector.config.settings import config_reference  # noqa: E402
from ec_connector.metrics import metrics_reference  # noqa: E402
from ec_protocol.tables.timing import inequalities, timer_specs  # noqa: E402

GUIDE = ROOT / "docs" / "guide.md"


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


BLOCKS = {"config": config_reference, "metrics": metrics_reference, "timing": timing_reference}


def filled(text: str) -> str:
    """The guide's text with every block replaced by what the code says now.

    Raises:
        ValueError: A block has no markers.
    """
    for name, make in BLOCKS.items():
        begin, end = f"<!-- reference:{name} -->\n", "<!-- /reference -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise ValueError(f"{GUIDE.name}: no {begin.strip()} … {end}")
        text = f"{before}{begin}{make()}{end}{after}"
    return text


def main() -> int:
    """Fill the guide in, or say whether it is."""
    text = GUIDE.read_text(encoding="utf-8")
    wanted = filled(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    GUIDE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
