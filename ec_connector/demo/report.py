# SPDX-License-Identifier: Apache-2.0
"""What a demo run measured, as a table for people and as JSON for scripts.

The JSON is a contract: `{"ok": bool, "runs": [row, ...]}`, each row with exactly
the fields of `JSON_FIELDS`. A measurement that a run does not have (the local
run asks no peer) is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

RunName = Literal["p2p", "local", "producer-killed"]
RUN_NAMES: tuple[RunName, ...] = get_args(RunName)

JSON_FIELDS = (
    "name",
    "outcome",
    "encodings",
    "bytes",
    "wrong_bytes",
    "ack_ms",
    "read_ms",
    "load_ms",
    "recompute_ms",
    "gb_per_s",
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the demo.

    Times are means per encoding, in milliseconds.

    Attributes:
        name: which run.
        expected: the run ended as it should: every encoding came the way that
            this run is about, or fell back where falling back is the point.
        outcome: in a few words, how the encodings were had, e.g. `4 pulled`.
        encodings: how many encodings were compared.
        bytes: their total size.
        wrong_bytes: bytes that differed from the consumer's own encoding.
        ack_ms: from sending the request to having the producer's answer.
        read_ms: from posting the READ to seeing it complete.
        load_ms: region to encoder cache.
        recompute_ms: what encoding the picture costs instead.
        gb_per_s: bytes over READ time, or over load time where nothing is read; 1e9 bytes.
        note: one sentence for people, e.g. why the consumer fell back.
    """

    name: RunName
    expected: bool
    outcome: str
    encodings: int
    bytes: int
    wrong_bytes: int
    ack_ms: float | None = None
    read_ms: float | None = None
    load_ms: float | None = None
    recompute_ms: float | None = None
    gb_per_s: float | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """The run ended as it should, compared something, and found no wrong byte."""
        return self.expected and self.encodings > 0 and self.wrong_bytes == 0


def all_ok(rows: Sequence[RunRow]) -> bool:
    """Whether the demo succeeded: at least one run, and every run `ok`."""
    return bool(rows) and all(row.ok for row in rows)


def to_json(rows: Sequence[RunRow]) -> str:
    """The documented JSON document, on one line."""
    runs = [{field: _rounded(getattr(row, field)) for field in JSON_FIELDS} for row in rows]
    return json.dumps({"ok": all_ok(rows), "runs": runs}, allow_nan=False)


def to_table(rows: Sequence[RunRow]) -> Table:
    """The same rows for a terminal."""
    table = Table(title="Encodings moved and compared bit for bit", title_justify="left")
    table.add_column("run", no_wrap=True)
    table.add_column("outcome")
    for heading in (
        "encodings",
        "MB",
        "wrong bytes",
        "ack ms",
        "READ ms",
        "load ms",
        "recompute ms",
        "GB/s",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            Text(row.outcome, style="green" if row.ok else "bold red"),
            str(row.encodings),
            f"{row.bytes / 1e6:.1f}",
            Text(str(row.wrong_bytes), style="bold red" if row.wrong_bytes else ""),
            _cell(row.ack_ms),
            _cell(row.read_ms),
            _cell(row.load_ms),
            _cell(row.recompute_ms),
            _cell(row.gb_per_s),
        )
    return table


def print_report(rows: Sequence[RunRow], console: Console) -> None:
    """Print the table, the notes, and a closing sentence."""
    console.print(to_table(rows))
    for row in rows:
        if row.note:
            console.print(Text(f"{row.name}: {row.note}"))
    failed = [row.name for row in rows if not row.ok]
    if failed:
        console.print(Text(f"FAILED: {', '.join(failed)}", style="bold red"))
    elif rows:
        encodings = sum(row.encodings for row in rows)
        console.print(Text(f"All {encodings} encodings are bit-identical to a local encoding."))


class Step(Protocol):
    """Tells the progress display that one more piece of work is done."""

    def __call__(self, doing: str, done: int = 0) -> None:
        """Show `doing` as the current activity and advance by `done` pieces."""


@contextmanager
def progress_bar(total: int) -> Iterator[Step]:
    """A progress bar on stderr, which leaves stdout to the result.

    Where stderr is no terminal nothing is animated: each activity is one line.

    Args:
        total: pieces of work until the bar is full.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def line(doing: str, done: int = 0) -> None:
            nonlocal last
            if doing != last:
                console.print(Text(doing))
            last = doing

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)

        def advance(doing: str, done: int = 0) -> None:
            progress.update(task, description=doing, advance=done)

        yield advance


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
