# SPDX-License-Identifier: Apache-2.0
"""What ``ec-protocol conformance walk`` does and prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ec_protocol.conformance.adapter import Unsupported
from ec_protocol.conformance.runner import Result, connector, save_history
from ec_protocol.conformance.schedule import LANGUAGE_VERSION
from ec_protocol.conformance.terminal import console, quiet_implementation
from ec_protocol.conformance.walks import shorten, walk
from ec_protocol.errors import ConfigError


def run(
    adapter: str | None,
    command: str | None,
    *,
    seed: int,
    walks: int,
    length: int,
    save: Path | None,
    as_json: bool,
) -> bool:
    """Take walks until one fails or all are taken; returns whether none failed.

    Raises:
        ECError: An adapter is wrong, or lacks an operation that walks need.
    """
    name, connect = connector(adapter, command)
    failure: Result | None = None
    taken = 0
    out = console(stderr=as_json)
    with (
        quiet_implementation(),
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        ) as progress,
    ):
        task = progress.add_task("walks", total=walks)
        for number in range(seed, seed + walks):
            try:
                failure = walk(number, length, connect)
            except Unsupported as exc:
                raise ConfigError(f"{name} cannot walk: not supported: {exc}") from exc
            taken += 1
            progress.update(task, advance=1, description=f"seed {number}")
            if failure is not None:
                failure = shorten(failure, connect)
                break
    if failure is not None and save is not None:
        _save(failure, name, save)
    if as_json:
        typer.echo(json.dumps(_document(name, seed, taken, length, failure)))
    else:
        _print(name, seed, taken, length, failure)
    return failure is None


def _document(
    name: str, seed: int, taken: int, length: int, failure: Result | None
) -> dict[str, Any]:
    return {
        "adapter": name,
        "ok": failure is None,
        "seed": seed,
        "walks": taken,
        "steps": length,
        "failure": None
        if failure is None
        else {**failure.row(), "invariant": failure.invariant, "schedule": failure.case.steps},
    }


def _print(name: str, seed: int, taken: int, length: int, failure: Result | None) -> None:
    if failure is None:
        last = seed + taken - 1
        console().print(
            f"[green]OK[/green] {escape(name)}: {taken} walks of {length} steps, seeds {seed} to "
            f"{last}, broke no invariant and left nothing behind"
        )
        return
    console().print(f"[bold red]FAILED[/] {escape(failure.case.id)}")
    console().print(f"    {failure.clause}: {escape(failure.requirement)}", style="dim")
    console().print(f"    {escape(failure.detail)}")
    for step in failure.case.steps:
        console().print(f"    {escape(json.dumps(step))}")


def _save(failure: Result, name: str, folder: Path) -> None:
    """A case file that plays the schedule again, and the history of its last play."""
    folder.mkdir(parents=True, exist_ok=True)
    failure.case.file = ""
    case = msgspec.to_builtins(failure.case)
    case["clause"] = failure.clause
    case["note"] = f"found in {name}: {failure.detail}"
    case = {key: value for key, value in case.items() if value not in ("", [])}
    document = {"version": LANGUAGE_VERSION, "cases": [case]}
    path = folder / f"{failure.file_name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    save_history(failure, name, folder / "histories" / path.name)
