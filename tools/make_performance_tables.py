#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the tables of ``docs/performance.md`` from ``docs/performance/*.json``.

The JSON is what ``ec-connector bench --json`` printed on the machine that the page
names, so no figure of a table is typed by hand. A block
``<!-- rows:FILE BENCH -->`` … ``<!-- /rows -->`` takes the rows of one benchmark, with a
word more only those whose case has it.

Usage: ``make_performance_tables.py [--check]``; ``--check`` writes nothing and exits 1
when the page differs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- rows:(\S+) (\w+)(?: (\S+))? -->\n).*?(<!-- /rows -->)", re.DOTALL)


def table(rows: list[dict[str, object]]) -> str:
    """One table, figures with four digits."""
    lines = ["| case | ours | baseline | unit | ratio |", "|---|---:|---:|---|---:|"]
    for row in rows:
        ours, baseline, ratio = (f"{row[name]:.4g}" for name in ("ours", "baseline", "ratio"))
        short = f"{float(ratio):.3g}"
        lines.append(f"| {row['case']} | {ours} | {baseline} | {row['unit']} | {short} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """The page with every block replaced by what its file says.

    Raises:
        ValueError: A file has no row for a block, or there are no blocks.
    """

    def fill(match: re.Match[str]) -> str:
        begin, file, bench, word, end = match.groups()
        document = json.loads((PAGE.parent / "performance" / file).read_text(encoding="utf-8"))
        rows = [row for row in document["rows"] if row["bench"] == bench]
        rows = [row for row in rows if not word or word in row["case"]]
        if not rows:
            raise ValueError(f"{file} has no rows of the benchmark {bench} {word or ''}")
        return begin + table(rows) + end

    text, count = BLOCK.subn(fill, text)
    if not count:
        raise ValueError(f"{PAGE.name}: no <!-- rows:FILE BENCH --> … <!-- /rows -->")
    return text


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: filled(PAGE.read_text(encoding="utf-8"))}))
