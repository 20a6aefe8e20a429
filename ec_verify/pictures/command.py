# SPDX-License-Identifier: Apache-2.0
"""The command ``ec-protocol explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ec_verify.console import errors, fail
from ec_verify.models.terminable import terminable
from ec_verify.pictures.page import drawing, page
from ec_verify.pictures.source import make_story

#: Written to standard output instead of a file.
STDOUT = Path("-")


def explain(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT",
            help="A model that must fail (its counterexample is shown), a file with TLC's output, "
            "a scenario, or the trace files of one run.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write; - for standard output."),
    ] = None,
    svg: Annotated[bool, typer.Option("--svg", help="The drawing alone, as SVG.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check traces against the specification as well.")
    ] = False,
    adapter: Annotated[
        str, typer.Option(help="What a scenario is played against; see docs/conformance/kit.md.")
    ] = "ours",
    case: Annotated[
        str, typer.Option(metavar="ID", help="Which case of a file that has several.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds before TLC is killed.")
    ] = None,
) -> None:
    """Draw a counterexample, a scenario or a recorded run as a sequence diagram."""
    with errors(), terminable():
        story = make_story(what, timeout, adapter, case, check)
    text = drawing(story) if svg else page(story)
    if out == STDOUT:
        typer.echo(text, nl=False)
        return
    target = out or Path(f"{story.title}.{'svg' if svg else 'html'}".replace(" ", "-"))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as exc:
        fail(f"{target}: {exc.strerror}; name another with --out", 2)
    typer.echo(f"wrote {target}: {len(story.steps)} steps", err=True)
    if story.verdict is not None:
        verdict = story.verdict
        where = "" if verdict.row is None else f" at step {verdict.row + 1}"
        typer.echo(f"{verdict.headline or f'{verdict.title}{where}:'} {verdict.sentence}", err=True)
