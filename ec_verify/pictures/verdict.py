# SPDX-License-Identifier: Apache-2.0
"""Marks in the story of a trace what the specification says of it.

The checking is ``ec-protocol trace check``'s; this finds the row of the record that was
rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ec_verify.behaviours.story import Story, Verdict
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import Report, check_runs
from ec_verify.traces.load import RecordError, make_run
from ec_verify.traces.read import read_trace


def give_verdict(story: Story, paths: Sequence[Path]) -> None:
    """Give the story of traces its verdict.

    Args:
        story: Made by ``story_of_traces`` of the same paths.
        paths: The trace files of one run.

    Raises:
        TraceError: A file is no trace.
    """
    name = str(paths[0] if len(paths) == 1 else paths[0].parent)
    try:
        run = make_run(name, [(str(path), read_trace(path)) for path in paths])
    except RecordError as exc:
        story.verdict = Verdict("Record", None, str(exc), headline="Rejected.")
        return
    (report,) = check_runs([run], TlcRunner())
    story.verdict = verdict_of(report, story)


def verdict_of(report: Report, story: Story) -> Verdict:
    """What a report says, with the row that it is about."""
    rejection = report.rejection
    if rejection is None:
        return Verdict(
            "Accepted",
            None,
            f"The specification allows these {report.records} records of "
            f"{report.processes} process(es).",
            bad=False,
            headline="Accepted.",
        )
    facts = [
        (name, text)
        for name, text in (
            ("record", f"{rejection.file}, line {rejection.line}" if rejection.file else ""),
            ("expected", rejection.expected),
            ("recorded", rejection.logged),
            ("next", rejection.advice),
        )
        if text
    ]
    row = story.places.get((rejection.file, rejection.line))
    if row is None:
        return Verdict("Trace", None, rejection.conjunct, facts=facts, headline="Rejected.")
    return Verdict(
        rejection.action or "Record",
        row,
        f"The specification does not allow this record: {rejection.conjunct} does not hold.",
        facts=facts,
        headline=f"Rejected at step {row + 1}, {rejection.action}.",
    )
