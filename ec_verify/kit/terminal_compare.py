# SPDX-License-Identifier: Apache-2.0
"""``ec-protocol conformance compare``: reads the files, prints or fills in the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ec_verify.kit import compare as kit


def run(
    files: tuple[Path, Path, Path | None, Path | None],
    names: tuple[str, str] | None,
    *,
    markdown: bool,
    write: Path | None,
    check: bool,
    as_json: bool,
) -> bool:
    """Compare two reports.

    Args:
        files: Both reports, the findings, and a run with shipped timers.
        names: What to call the two; their adapters' names if left out.
        markdown: Print a section of a document.
        write: Fill it into this one.
        check: Only see whether the document is up to date.
        as_json: Print JSON.

    Returns:
        Whether every failure of the second is explained, and the document up to date.

    Raises:
        CompareError: A file cannot be used.
    """
    left, right = kit.read_report(files[0]), kit.read_report(files[1])
    findings = kit.read_findings(files[2]) if files[2] is not None else None
    shipped = kit.read_report(files[3]) if files[3] is not None else None
    result = kit.compare(left, right, findings, shipped)
    names = names or (str(left["adapter"]), str(right["adapter"]))
    fresh = True
    if write is not None:
        fresh = kit.fill(write, kit.markdown(result, names), check=check)
    if as_json:
        sys.stdout.write(json.dumps(result.as_json(), indent=1) + "\n")
    elif markdown:
        sys.stdout.write(kit.markdown(result, names))
    else:
        _table(result, names, fresh, write)
    return result.ok and fresh


def _table(result: kit.Comparison, names: tuple[str, str], fresh: bool, write: Path | None) -> None:
    console = Console(highlight=False)
    table = Table("case", *names, "finding")
    for id_, left, right, finding in result.rows():
        if left != right:
            table.add_row(id_, left, right, finding)
    console.print(table)
    for case in result.unexplained:
        console.print(f"[red]not explained:[/red] {escape(case)}")
    for case in result.unexplained_shipped:
        console.print(f"[red]not explained, with shipped timers:[/red] {escape(case)}")
    if not fresh:
        console.print(f"[red]{escape(str(write))} is not up to date:[/red] run it without --check")
