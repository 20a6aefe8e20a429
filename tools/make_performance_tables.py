#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the tables of ``docs/performance.md`` from ``docs/performance/*.json``.

The JSON is what ``ec-connector bench --json`` printed on the machine that the page
names, so no figure of a table is typed by hand. A block
``<!-- rows:FILE BENCH -->`` … ``<!-- /rows -->`` takes the rows of one benchmark, with a
word more only those whose case has it; ``<!-- deaths:FILE -->`` … ``<!-- /deaths -->`` the
table of ``ec-connector bench deaths``.

Usage: ``make_performance_tables.py [--check]``; ``--check`` writes nothing and exits 1
when the page differs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- rows:(\S+) (\w+)(?: (\S+))? -->\n).*?(<!-- /rows -->)", re.DOTALL)
DEATHS = re.compile(r"(<!-- deaths:(\S+) -->\n).*?(<!-- /deaths -->)", re.DOTALL)


def table(rows: list[dict[str, object]]) -> str:
    """One table, figures with four digits."""
    lines = ["| case | ours | baseline | unit | ratio |", "|---|---:|---:|---|---:|"]
    for row in rows:
        ours, baseline, ratio = (f"{row[name]:.4g}" for name in ("ours", "baseline", "ratio"))
        short = f"{float(ratio):.3g}"
        lines.append(f"| {row['case']} | {ours} | {baseline} | {row['unit']} | {short} |")
    return "\n".join(lines) + "\n"


def deaths(found: dict[str, list[dict[str, object]]]) -> str:
    """A line for each role and signal; times in milliseconds."""
    names = ("role", "signal", "deaths", "unnoticed", "fell_back", "not_served")
    times = ("p50_ms", "p99_ms", "max_ms")
    lines = [
        "| process | signal | deaths | no request noticed | some fell back | not served again "
        "| p50 | p99 | longest |",
        "|---|---|" + "---:|" * 7,
    ]
    for line in found["table"]:
        cells = [str(line[name]) for name in names] + [f"{line[name]:.0f} ms" for name in times]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """The page with every block replaced by what its file says.

    Raises:
        ValueError: A file has no row for a block, or there are no blocks.
    """

    def read(file: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((PAGE.parent / "performance" / file).read_text("utf-8"))
        return found

    def fill(match: re.Match[str]) -> str:
        begin, file, bench, word, end = match.groups()
        document = read(file)
        rows = [row for row in document["rows"] if row["bench"] == bench]
        rows = [row for row in rows if not word or word in row["case"]]
        if not rows:
            raise ValueError(f"{file} has no rows of the benchmark {bench} {word or ''}")
        return begin + table(rows) + end

    text, count = BLOCK.subn(fill, text)
    text = DEATHS.sub(lambda m: m[1] + deaths(read(m[2])["deaths"]) + m[3], text)
    if not count:
        raise ValueError(f"{PAGE.name}: no <!-- rows:FILE BENCH --> … <!-- /rows -->")
    return text


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: filled(PAGE.read_text(encoding="utf-8"))}))
