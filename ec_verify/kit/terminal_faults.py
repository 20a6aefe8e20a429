# SPDX-License-Identifier: Apache-2.0
"""What ``ec-protocol conformance faults`` does and prints."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ec_verify.console import console
from ec_verify.kit.faults import (
    DEFAULT,
    Hunt,
    choose,
    hunt,
    load_faults,
    report,
)
from ec_verify.kit.language.schedule import all_cases, select
from ec_verify.kit.runner import load_factory
from ec_verify.kit.terminal import progress_bar, quiet_implementation


def run(names: list[str], mapping: str | None, sound: str, *, every: bool, as_json: bool) -> bool:
    """Hunt the faults and print who was caught by what; returns whether all were.

    Raises:
        ECError: A fault, a mapping or an adapter cannot be found.
    """
    chosen = choose(load_faults(mapping or DEFAULT), names)
    factory = load_factory(sound)
    hunts: list[Hunt] = []
    out = console(stderr=as_json)
    with quiet_implementation(), progress_bar(out) as progress:
        task = progress.add_task("faults", total=len(chosen))
        cases = select(all_cases(None), [])
        for one in hunt(chosen, cases, factory, every=every):
            hunts.append(one)
            progress.update(task, advance=1, description=one.name)
    document = report(hunts)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        console().print(_table(hunts, every=every))
        totals = document["totals"]
        spent = sum(one.seconds for one in hunts)
        console().print(
            f"{totals['caught']} of {totals['faults']} faults are caught by cases that "
            f"{escape(sound)} passes, in {spent:.1f} s"
        )
    return bool(document["ok"])


def _table(hunts: Sequence[Hunt], *, every: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("fault", "clause", "kind", "caught by", "cases noticing" if every else "noticed"):
        table.add_column(name, overflow="fold")
    for one in hunts:
        if not one.caught:
            table.add_row(one.name, one.fault.clause, one.fault.tag, "[bold red]nobody[/]", "")
            continue
        first = one.results[0]
        noticed = first.invariant or f"{first.verdict}, {first.clause}"
        table.add_row(
            one.name,
            one.fault.clause,
            one.fault.tag,
            first.case.id,
            str(len(one.results)) if every else noticed,
        )
    return table
