# SPDX-License-Identifier: Apache-2.0
"""What ``ec-protocol conformance walk`` does and prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.markup import escape

from ec_protocol.errors import ConfigError
from ec_verify.console import console
from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language.schedule import LANGUAGE_VERSION
from ec_verify.kit.runner import Result, connector, save_history
from ec_verify.kit.terminal import progress_bar, quiet_implementation
from ec_verify.kit.walks import reason, shorten, walk


@dataclass(slots=True)
class Found:
    """One way to fail: the first walk that did, shortened, and how many did."""

    result: Result
    walks: int = 1


def run(
    adapter: str | None,
    command: str | None,
    *,
    seed: int,
    walks: int,
    length: int,
    every: bool,
    save: Path | None,
    as_json: bool,
) -> bool:
    """Take walks, until one fails or with ``every`` all of them; whether none failed.

    Raises:
        ECError: An adapter is wrong, or lacks an operation that walks need.
    """
    name, connect = connector(adapter, command)
    found: dict[tuple[str, str], Found] = {}
    taken = 0
    out = console(stderr=as_json)
    with quiet_implementation(), progress_bar(out) as progress:
        task = progress.add_task("walks", total=walks)
        for number in range(seed, seed + walks):
            try:
                failure = walk(number, length, connect)
            except Unsupported as exc:
                raise ConfigError(f"{name} cannot walk: not supported: {exc}") from exc
            taken += 1
            progress.update(task, advance=1, description=f"seed {number}")
            if failure is None:
                continue
            known = found.get(reason(failure))
            if known is not None:
                known.walks += 1
                continue
            found[reason(failure)] = Found(shorten(failure, connect))
            if not every:
                break
    failures = list(found.values())
    if save is not None:
        for one in failures:
            _save(one.result, name, save)
    if as_json:
        typer.echo(json.dumps(_document(name, seed, taken, length, failures)))
    else:
        _print(name, seed, taken, length, failures)
    return not failures


def _document(
    name: str, seed: int, taken: int, length: int, failures: list[Found]
) -> dict[str, Any]:
    return {
        "adapter": name,
        "ok": not failures,
        "seed": seed,
        "walks": taken,
        "steps": length,
        "failures": [
            {
                **one.result.row(),
                "invariant": one.result.invariant,
                "walks": one.walks,
                "schedule": one.result.case.steps,
            }
            for one in failures
        ],
    }


def _print(name: str, seed: int, taken: int, length: int, failures: list[Found]) -> None:
    out = console()
    last = seed + taken - 1
    if not failures:
        out.print(
            f"[green]OK[/green] {escape(name)}: {taken} walks of {length} steps, seeds {seed} to "
            f"{last}, broke no invariant and left nothing behind"
        )
    for one in failures:
        result = one.result
        out.print(f"[bold red]FAILED[/] {escape(result.case.id)}, {one.walks} of {taken} walks")
        out.print(f"    {result.clause}: {escape(result.requirement)}", style="dim")
        out.print(f"    {escape(result.detail)}")
        for step in result.case.steps:
            out.print(f"    {escape(json.dumps(step))}")


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
