# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: where they print, progress, errors, JSON.

An error names what is wrong and says the fix, on standard error. Exit status: 0 if all is
as it should be, 1 if not, 2 for a command line that makes no sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn, Protocol

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ec_protocol.errors import ECError
from ec_verify.estimate import Estimate

_WIDTH_WITHOUT_TERMINAL: Final = 120

#: The option that all commands with a report have.
AsJson = Annotated[bool, typer.Option("--json", help="JSON alone on standard output.")]


def console(*, stderr: bool = False) -> Console:
    """A console that a table fits on, also where there is no terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDTH_WITHOUT_TERMINAL
    return made


def fail(message: str, status: int = 1) -> NoReturn:
    """End with a message."""
    console(stderr=True).print(f"[red]error:[/red] {escape(message)}")
    raise typer.Exit(status)


@contextmanager
def errors(
    status: int = 2,
    *,
    document: Mapping[str, Any] | None = None,
    interrupted: str = "interrupted",
) -> Iterator[None]:
    """An error inside ends the command with a message, and no traceback.

    Args:
        status: Exit status after an error.
        document: For a reader of JSON, who gets an object in any case.
        interrupted: Said after Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        fail(interrupted, 130)
    except ECError as exc:
        if document is not None:
            echo_json(document)
        fail(str(exc), status)


def echo_json(document: Any, indent: int | None = 2) -> None:
    """Write a document to standard output."""
    typer.echo(json.dumps(document, indent=indent))


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A table that wraps its first columns and has numbers in the others."""
    made = Table(header_style="bold", box=box.SIMPLE_HEAD)
    for name in columns:
        made.add_column(name, overflow="fold")
    for name in numbers:
        made.add_column(name, justify="right")
    return made


class _Step(Protocol):
    def __call__(self, name: str, seconds: float = 0.0) -> None:
        """One is done, and took this long."""


@contextmanager
def progress(
    out: Console, what: str, total: int, *, every: int = 0, jobs: int = 1
) -> Iterator[_Step]:
    """A bar on a terminal, which goes away when it is done.

    Args:
        out: Where.
        what: What there are so many of.
        total: How many there are.
        every: Where there is no terminal, print how many are done after each so many.
        jobs: How many are worked on at once.

    Yields:
        Called when one is done, from any thread.
    """
    done, lock = 0, threading.Lock()
    estimate = Estimate({str(number): 1.0 for number in range(total)}, jobs)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )

    def step(name: str, seconds: float = 0.0) -> None:
        nonlocal done
        with lock:
            estimate.finished(str(done), seconds)
            done += 1
            bar.update(task, advance=1, description=escape(name)[:50])
            if every and not out.is_terminal and (done % every == 0 or done == total):
                out.print(f"{done}/{total}{estimate}")

    with bar:
        task = bar.add_task(what, total=total)
        yield step
