# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a diagram go: lanes from left to right, rows from top to bottom.

All lengths are pixels at zoom 1. A layout covers the rows ``first`` to
``last - 1`` of a story: a long story is drawn in windows, each with a layout of
its own, so that bars of other times take no room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ec_verify.behaviours.story import Bar, Lane, Story

GUTTER: Final = 76.0
HEAD: Final = 66.0
CHIP_WIDTH: Final = 128.0
CHIP_HEIGHT: Final = 24.0
ROW_PAD: Final = 9.0
LINE: Final = 14.0
CALLOUT: Final = 30.0
TRACK: Final = 27.0

_ACTOR: Final = 164.0
_BARS_PAD: Final = 18.0
_BARS_LEAST: Final = 60.0
_GROUP_GAP: Final = 14.0
_CHARACTER: Final = 6.7
_CLOCK_ROW: Final = 34.0
_TAIL: Final = 26.0
_MAX_TRACKS: Final = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One lane's place.

    Attributes:
        lane: The lane.
        left: Left edge.
        width: Width.
    """

    lane: Lane
    left: float
    width: float

    @property
    def middle(self) -> float:
        """Where its life line is."""
        return self.left + self.width / 2


@dataclass(frozen=True, slots=True)
class Row:
    """One step's place; ``middle`` is the height at which it happens."""

    top: float
    height: float
    middle: float


@dataclass(slots=True)
class Layout:
    """Places of everything in one window; built by ``lay_out``.

    Attributes:
        first: First row of the window.
        last: One past its last row.
        columns: By lane key.
        groups: Title, left and width of each process, from left to right.
        tracks: Track of each bar in a bars lane, by its index in the story.
        track_counts: How many tracks each bars lane has.
        hidden_bars: Bars without a track, by lane key: there were too many.
        rows: Places of the rows, the window's first one at index 0.
        width: Of the whole.
        height: Of the whole, without the head.
    """

    first: int
    last: int
    columns: dict[str, Column] = field(default_factory=dict)
    groups: list[tuple[str, float, float]] = field(default_factory=list)
    tracks: dict[int, int] = field(default_factory=dict)
    track_counts: dict[str, int] = field(default_factory=dict)
    hidden_bars: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def row(self, number: int) -> Row:
        """Place of a row of the story that is in the window."""
        return self.rows[number - self.first]

    def has(self, number: int) -> bool:
        """Whether the row is in the window."""
        return self.first <= number < self.last

    def bar_span(self, bar: Bar) -> tuple[float, float] | None:
        """Top and bottom of the visible part of a bar; None if there is none."""
        if bar.start >= self.last or (bar.end is not None and bar.end < self.first):
            return None
        top = self.row(bar.start).middle if self.has(bar.start) else 0.0
        ends_here = bar.end is not None and self.has(bar.end)
        bottom = self.row(bar.end).middle if ends_here and bar.end is not None else self.height
        return top, max(bottom, top + 4.0)


def lay_out(story: Story, first: int, last: int, bars: list[int], arrows: list[int]) -> Layout:
    """Place lanes, rows and bars of a window.

    Args:
        story: The story.
        first: First row.
        last: One past the last row.
        bars: Indices of the bars that touch the window, by their start.
        arrows: Indices of the arrows that touch it.
    """
    layout = Layout(first, last)
    _place_rows(story, layout)
    _place_bars(story, layout, bars)
    _place_lanes(layout, story.used_lanes(first, last, bars, arrows))
    return layout


def _place_rows(story: Story, layout: Layout) -> None:
    top = 6.0
    verdict_row = story.verdict.row if story.verdict else None
    for number in range(layout.first, layout.last):
        step = story.steps[number]
        if step.lane == "":
            height, middle = _CLOCK_ROW, top + _CLOCK_ROW / 2
        else:
            lines = len(step.notes) + bool(step.subject)
            height = ROW_PAD + CHIP_HEIGHT + 5.0 + LINE * lines + ROW_PAD
            middle = top + ROW_PAD + CHIP_HEIGHT / 2
        if number == verdict_row:
            height += CALLOUT
        layout.rows.append(Row(top, height, middle))
        top += height
    layout.height = top + _TAIL


def _place_bars(story: Story, layout: Layout, bars: list[int]) -> None:
    """Give each bar a track that is free while it lasts."""
    lanes = {lane.key: lane.kind for lane in story.lanes}
    busy_until: dict[str, list[float]] = {}
    for index in bars:
        bar = story.bars[index]
        span = layout.bar_span(bar)
        if span is None or lanes.get(bar.lane) != "bars":
            continue
        tracks = busy_until.setdefault(bar.lane, [])
        for track, until in enumerate(tracks):
            if until <= span[0]:
                tracks[track] = span[1]
                layout.tracks[index] = track
                break
        else:
            if len(tracks) < _MAX_TRACKS:
                tracks.append(span[1])
                layout.tracks[index] = len(tracks) - 1
            else:
                layout.hidden_bars[bar.lane] = layout.hidden_bars.get(bar.lane, 0) + 1
    layout.track_counts = {lane: len(tracks) for lane, tracks in busy_until.items()}


def _place_lanes(layout: Layout, lanes: list[Lane]) -> None:
    left = GUTTER
    for lane in lanes:
        if not layout.groups or layout.groups[-1][0] != lane.group:
            if layout.groups:
                left += _GROUP_GAP
            layout.groups.append((lane.group, left, 0.0))
        if lane.kind == "bars":
            wanted = max(layout.track_counts.get(lane.key, 0) * TRACK, len(lane.title) * _CHARACTER)
            width = max(_BARS_LEAST, wanted + _BARS_PAD)
        else:
            width = max(_ACTOR, len(lane.title) * _CHARACTER + _BARS_PAD)
        layout.columns[lane.key] = Column(lane, left, width)
        left += width
        title, start, _ = layout.groups[-1]
        layout.groups[-1] = (title, start, left - start)
    layout.width = left + 8.0


def fit(text: str, room: float, character: float = _CHARACTER) -> str:
    """The text, shortened with an ellipsis if it needs more than ``room`` pixels."""
    most = int(room / character)
    if len(text) <= most:
        return text
    return text[: max(most - 1, 1)] + "…" if most >= 2 else ""
