# SPDX-License-Identifier: Apache-2.0
"""What a sequence diagram tells, whatever it was made from.

A *story* is a list of steps. Step *i* happens on one lane and is row *i* of the
diagram; arrows join two rows, bars span several. The state is kept as changes:
what step *i* made of it follows from the steps before. Lanes stand in groups,
one group for each process.

Rows are counted from 0, in the order of the story. ``None`` as the end of an
arrow or bar: it never came to an end within the story.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

LaneKind = Literal["actor", "bars"]
StepKind = Literal["protocol", "environment", "clock", "start"]
ArrowKind = Literal["request", "ack", "nack", "notice", "data", "local"]
BarStyle = Literal[
    "lease",
    "fence",
    "quarantine",
    "retired",
    "transfer",
    "allocated",
    "saving",
    "ready",
    "pinned",
    "bytes",
    "wrong",
    "state",
]

#: Variables by name; a name is ``group|variable``.
Changes = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Lane:
    """One column.

    Attributes:
        key: Named by steps, arrows and bars.
        title: Shown above it.
        group: Title of the process that it belongs to; lanes of one group stand
            side by side.
        kind: ``actor`` has a life line and steps, ``bars`` only bars.
    """

    key: str
    title: str
    group: str
    kind: LaneKind = "actor"


@dataclass(slots=True)
class Step:
    """One row.

    Attributes:
        lane: Where it happens; ``""`` for the clock, which all lanes share.
        label: Name of the action.
        kind: Whether the protocol, its environment or the clock takes it.
        subject: What it is about, in a few words.
        notes: What follows from it, a line each: shown below its name.
        time: What the time axis says beside the row; empty to say nothing.
        why: One sentence on the action.
        changes: New values of the variables that changed; None: gone.
    """

    lane: str
    label: str
    kind: StepKind = "protocol"
    subject: str = ""
    notes: Sequence[str] = ()
    time: str = ""
    why: str = ""
    changes: Changes = field(default_factory=dict)


@dataclass(slots=True)
class Arrow:
    """A message, or a move of bytes, from one lane to another."""

    source: str
    target: str
    start: int
    end: int | None
    label: str
    kind: ArrowKind


@dataclass(slots=True)
class Bar:
    """Something that lasts: a lease, a fence, a quarantine, a state of an object."""

    lane: str
    start: int
    end: int | None
    label: str
    style: BarStyle


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was wrong, or reached, and where.

    Attributes:
        title: The property.
        row: The step after which it no longer held; None if it is no single one.
        sentence: What that means.
        bad: Whether it is a violation; otherwise it is a fact worth showing.
        facts: Pairs of a name and a text to show below: the safeguard that was
            removed, the fault, the clauses.
        back_to: A behaviour that goes on for ever returns to this row.
        headline: Said instead of "TITLE is violated by step N".
    """

    title: str
    row: int | None
    sentence: str
    bad: bool = True
    facts: Sequence[tuple[str, str]] = ()
    back_to: int | None = None
    headline: str = ""


@dataclass(slots=True)
class Story:
    """A whole diagram."""

    title: str
    subtitle: str
    lanes: list[Lane]
    steps: list[Step] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    verdict: Verdict | None = None
    about: str = ""
    time_unit: str = ""
    #: Rows by file and line, where steps were read from files.
    places: dict[tuple[str, int], int] = field(default_factory=dict)

    def used_lanes(self, first: int, last: int, bars: list[int], arrows: list[int]) -> list[Lane]:
        """The lanes on which something happens in a window, in order.

        Args:
            first: First row of the window.
            last: One past its last row.
            bars: Indices of bars that touch it.
            arrows: Indices of arrows that touch it.
        """
        used = {step.lane for step in self.steps[first:last]}
        used |= {self.bars[index].lane for index in bars}
        for index in arrows:
            used |= {self.arrows[index].source, self.arrows[index].target}
        return [lane for lane in self.lanes if lane.key in used]


@dataclass(slots=True)
class OpenBars:
    """Bars under construction, by the thing that lasts.

    ``show`` begins a bar, or ends one and begins another when the label or the
    style has changed; ``hide`` ends it.
    """

    story: Story
    _open: dict[object, Bar] = field(default_factory=dict)

    def show(self, key: object, row: int, lane: str, label: str, style: BarStyle) -> None:
        """From ``row`` on ``key`` looks like this."""
        bar = self._open.get(key)
        if bar is not None:
            if (bar.label, bar.style, bar.lane) == (label, style, lane):
                return
            bar.end = row
        self._open[key] = bar = Bar(lane, row, None, label, style)
        self.story.bars.append(bar)

    def hide(self, key: object, row: int) -> None:
        """At ``row`` it is over, if it was there."""
        bar = self._open.pop(key, None)
        if bar is not None:
            bar.end = row
