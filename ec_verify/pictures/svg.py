# SPDX-License-Identifier: Apache-2.0
"""Draws a window of a story as SVG.

The head (names of processes and lanes) and the body are two drawings of the same
width, so that a page can keep the head in sight; ``standalone`` puts both into
one file. Looks come from ``page/diagram.css`` alone.
"""

from __future__ import annotations

from html import escape
from typing import Final

from ec_verify.behaviours.story import Arrow, Step, Story
from ec_verify.pictures.layout import (
    CALLOUT,
    CHIP_HEIGHT,
    CHIP_WIDTH,
    GUTTER,
    HEAD,
    LINE,
    TRACK,
    Column,
    Layout,
    fit,
    lay_out,
)

_KINDS: Final = ("request", "ack", "nack", "notice", "data", "local")
_SMALL: Final = 5.7
_STUB: Final = 0.55  # how far an arrow goes that nobody received


def draw(
    story: Story, first: int, last: int, bars: list[int], arrows: list[int]
) -> tuple[str, str]:
    """Head and body of the rows ``first`` to ``last - 1``.

    Args:
        story: The story.
        first: First row.
        last: One past the last row.
        bars: Indices of bars that touch these rows.
        arrows: Indices of arrows that touch them.
    """
    return _Drawing(story, lay_out(story, first, last, bars, arrows)).draw(bars, arrows)


def standalone(story: Story, css: str) -> str:
    """The whole story as one SVG file."""
    every_bar, every_arrow = list(range(len(story.bars))), list(range(len(story.arrows)))
    drawing = _Drawing(story, lay_out(story, 0, len(story.steps), every_bar, every_arrow))
    head, body = drawing.draw(every_bar, every_arrow)
    width, height = drawing.layout.width, drawing.layout.height
    verdict = ""
    top = 34.0
    if story.verdict is not None:
        look = "bad" if story.verdict.bad else "reached"
        verdict = f'<text class="headline {look}" x="14" y="48">{_text(story.verdict.title)}</text>'
        top = 58.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" width="{width:.0f}" '
        f'height="{top + HEAD + height:.0f}" viewBox="0 0 {width:.0f} {top + HEAD + height:.0f}">'
        f"<title>{_text(story.title)}</title><style>{css}</style>"
        f'<rect class="paper" width="100%" height="100%"/>'
        f'<text class="headline" x="14" y="24">{_text(story.title)}</text>{verdict}'
        f'<g transform="translate(0 {top:.0f})">{head}</g>'
        f'<g transform="translate(0 {top + HEAD:.0f})">{body}</g></svg>\n'
    )


def _text(text: str) -> str:
    return escape(text, quote=True)


class _Drawing:
    def __init__(self, story: Story, layout: Layout) -> None:
        self.story = story
        self.layout = layout
        self._out: list[str] = []

    def draw(self, bars: list[int], arrows: list[int]) -> tuple[str, str]:
        head = self._head()
        self._out = [_MARKERS]
        self._background()
        self._axis()
        for index in bars:
            self._bar(index)
        for index in arrows:
            self._arrow_line(self.story.arrows[index])
        for number in range(self.layout.first, self.layout.last):
            self._step(number, self.story.steps[number])
        for index in arrows:
            self._arrow_label(self.story.arrows[index])
        self._loop()
        return head, self._svg("".join(self._out), self.layout.height)

    def _svg(self, inside: str, height: float) -> str:
        width = self.layout.width
        return (
            f'<svg class="diagram" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" aria-hidden="true">{inside}</svg>'
        )

    # ------------------------------------------------------------- head and back
    def _head(self) -> str:
        out = []
        for number, (title, left, width) in enumerate(self.layout.groups):
            out.append(
                f'<path class="group g{number % 4}" d="M{left:.1f} {HEAD:.0f}v{14 - HEAD:.0f}'
                f'q0 -8 8 -8h{width - 16:.1f}q8 0 8 8v{HEAD - 14:.0f}z"/>'
                f'<text class="process" x="{left + width / 2:.1f}" y="26">'
                f"{_text(fit(title, width, 7.6))}</text>"
            )
        for column in self.layout.columns.values():
            hidden = self.layout.hidden_bars.get(column.lane.key, 0)
            more = f" (+{hidden})" if hidden else ""
            out.append(
                f'<text class="lane" x="{column.middle:.1f}" y="50">'
                f"{_text(fit(column.lane.title + more, column.width + 8))}</text>"
            )
        out.append(f'<text class="lane unit" x="{GUTTER - 12:.0f}" y="50">'
                   f"{_text(self.story.time_unit)}</text>")  # fmt: skip
        return self._svg("".join(out), HEAD)

    def _background(self) -> None:
        height = self.layout.height
        for number, (_, left, width) in enumerate(self.layout.groups):
            self._out.append(
                f'<rect class="group g{number % 4}" x="{left:.1f}" y="0" width="{width:.1f}" '
                f'height="{height:.1f}"/>'
            )
        for column in self.layout.columns.values():
            if column.lane.kind == "actor":
                self._out.append(
                    f'<line class="life" x1="{column.middle:.1f}" x2="{column.middle:.1f}" '
                    f'y1="0" y2="{height:.1f}"/>'
                )
        self._out.append('<rect class="now" x="0" y="0" width="100%" height="0"/>')

    def _axis(self) -> None:
        x = GUTTER - 10
        self._out.append(
            f'<line class="axis" x1="{x}" x2="{x}" y1="4" y2="{self.layout.height - 4:.1f}"/>'
        )

    # --------------------------------------------------------------------- bars
    def _bar(self, index: int) -> None:
        bar = self.story.bars[index]
        column = self.layout.columns.get(bar.lane)
        span = self.layout.bar_span(bar)
        if column is None or span is None:
            return
        top, bottom = span
        height = bottom - top
        title = f"<title>{_text(bar.label)}</title>"
        if column.lane.kind == "actor":
            self._out.append(
                f'<rect class="bar thin {bar.style}" x="{column.middle - 6:.1f}" y="{top:.1f}" '
                f'width="12" height="{height:.1f}" rx="4">{title}</rect>'
            )
            return
        track = self.layout.tracks.get(index)
        if track is None:
            return
        left = self._track_left(column, track, bar.lane)
        self._out.append(
            f'<rect class="bar {bar.style}" x="{left:.1f}" y="{top:.1f}" width="{TRACK - 6:.0f}" '
            f'height="{height:.1f}" rx="5">{title}</rect>'
        )
        if label := fit(bar.label, height - 10, 6.1):
            x, y = left + TRACK / 2 + 0.5, top + 7
            self._out.append(
                f'<text class="bar-text {bar.style}" transform="translate({x:.1f} {y:.1f}) '
                f'rotate(90)">{_text(label)}</text>'
            )

    def _track_left(self, column: Column, track: int, lane: str) -> float:
        width = self.layout.track_counts[lane] * TRACK
        return column.left + (column.width - width) / 2 + track * TRACK + 3

    # -------------------------------------------------------------------- steps
    def _step(self, number: int, step: Step) -> None:
        row = self.layout.row(number)
        verdict = self.story.verdict
        broke = verdict is not None and verdict.row == number
        look = " broke" if broke and verdict is not None and verdict.bad else ""
        look += " reached" if broke and verdict is not None and not verdict.bad else ""
        self._out.append(
            f'<g class="step {step.kind}{look}" data-i="{number}" data-y="{row.top:.1f}" '
            f'data-h="{row.height:.1f}"><rect class="hit" x="0" y="{row.top:.1f}" '
            f'width="{self.layout.width:.0f}" height="{row.height:.1f}"/>'
            f'<circle class="tick" cx="{GUTTER - 10}" cy="{row.middle:.1f}" r="3.2"/>'
            f'<text class="number" x="{GUTTER - 18}" y="{row.middle + 4:.1f}">'
            f"{_text(step.time)}</text>"
        )
        if step.lane == "":
            self._clock(step, row.middle)
        elif (column := self.layout.columns.get(step.lane)) is not None:
            self._chip(step, column, row.middle)
        if broke and verdict is not None:
            self._callout(number)
        self._out.append("</g>")

    def _clock(self, step: Step, y: float) -> None:
        width = self.layout.width
        text = step.label + (f"   {step.subject}" if step.subject else "")
        room = len(text) * 6.4 + 26
        self._out.append(
            f'<line class="clock" x1="{GUTTER}" x2="{width - 8:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<rect class="clock" x="{GUTTER + 12}" y="{y - 11:.1f}" width="{room:.0f}" '
            f'height="22" rx="11"/>'
            f'<text class="clock" x="{GUTTER + 25}" y="{y + 4:.1f}">{_text(text)}</text>'
        )

    def _chip(self, step: Step, column: Column, middle: float) -> None:
        x, top = column.middle, middle - CHIP_HEIGHT / 2
        self._out.append(
            f'<rect class="chip" x="{x - CHIP_WIDTH / 2:.1f}" y="{top:.1f}" '
            f'width="{CHIP_WIDTH:.0f}" height="{CHIP_HEIGHT:.0f}" rx="6"/>'
            f'<text class="action" x="{x:.1f}" y="{middle + 4.3:.1f}">'
            f"{_text(fit(step.label, CHIP_WIDTH - 8, 7.0))}</text>"
        )
        y = top + CHIP_HEIGHT + LINE - 1
        lines = ([("subject", step.subject)] if step.subject else []) + [
            ("note", note) for note in step.notes
        ]
        for look, line in lines:
            self._out.append(
                f'<text class="{look}" x="{x:.1f}" y="{y:.1f}">'
                f"{_text(fit(line, column.width - 2, _SMALL))}</text>"
            )
            y += LINE

    def _callout(self, number: int) -> None:
        verdict = self.story.verdict
        if verdict is None:
            return
        row = self.layout.row(number)
        y = row.top + row.height - CALLOUT / 2 - 3
        what = "is violated here" if verdict.bad else "is reached here"
        said = verdict.headline.rstrip(".") or f"{verdict.title} {what}"
        text = f"{'✗' if verdict.bad else '✓'} {said}"
        room = len(text) * 7.2 + 28
        x = GUTTER + 12.0
        column = self.layout.columns.get(self.story.steps[number].lane)
        if column is not None:
            x = min(max(column.middle - room / 2, x), self.layout.width - room - 12)
        self._out.append(
            f'<rect class="callout" x="{x:.1f}" y="{y - 12:.1f}" width="{room:.0f}" height="25" '
            f'rx="6"/><text class="callout" x="{x + room / 2:.1f}" y="{y + 5:.1f}">'
            f"{_text(text)}</text>"
        )

    # ------------------------------------------------------------------- arrows
    def _ends(self, arrow: Arrow) -> tuple[float, float, float, float] | None:
        source = self.layout.columns.get(arrow.source)
        target = self.layout.columns.get(arrow.target)
        if source is None or target is None:
            return None
        layout = self.layout
        y1 = layout.row(arrow.start).middle if layout.has(arrow.start) else 0.0
        x1 = source.middle
        x2 = target.middle
        side = 1 if x2 > x1 else -1
        if layout.has(arrow.start) and self.story.steps[arrow.start].lane == arrow.source:
            x1 += side * CHIP_WIDTH / 2
        if arrow.end is None:
            return x1, y1, x1 + (x2 - x1) * _STUB, y1 + 9.0
        y2 = layout.row(arrow.end).middle if layout.has(arrow.end) else layout.height
        if layout.has(arrow.end) and self.story.steps[arrow.end].lane == arrow.target:
            x2 -= side * CHIP_WIDTH / 2
        elif target.lane.kind == "bars":
            x2 -= side * TRACK / 2
        return x1, y1, x2, y2

    def _arrow_line(self, arrow: Arrow) -> None:
        ends = self._ends(arrow)
        if ends is None:
            return
        x1, y1, x2, y2 = ends
        lost = " lost" if arrow.end is None else ""
        head = "open" if arrow.end is None else arrow.kind
        self._out.append(
            f'<line class="arrow {arrow.kind}{lost}" data-i="{arrow.start}" x1="{x1:.1f}" '
            f'y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" marker-end="url(#m-{head})"/>'
        )

    def _arrow_label(self, arrow: Arrow) -> None:
        ends = self._ends(arrow)
        if ends is None:
            return
        x1, y1, x2, y2 = ends
        label = arrow.label + (" (not received)" if arrow.end is None else "")
        # Where the line is steep the label stands near its beginning.
        at = 0.5 if abs(y2 - y1) < 60 else 0.3
        x, y = x1 + (x2 - x1) * at, y1 + (y2 - y1) * at
        anchor = ""
        if arrow.start == arrow.end and abs(x2 - x1) < len(label) * 6.4:
            # A short one: the label begins at the box and runs over the line's other end.
            at_box = self.story.steps[arrow.start].lane == arrow.source
            x, side = (x1, x2 - x1) if at_box else (x2, x1 - x2)
            x += 4.0 if side > 0 else -4.0
            anchor = f' style="text-anchor:{"start" if side > 0 else "end"}"'
        self._out.append(
            f'<text class="arrow-text {arrow.kind}" data-i="{arrow.start}" x="{x:.1f}" '
            f'y="{y - 6:.1f}"{anchor}>{_text(label)}</text>'
        )

    def _loop(self) -> None:
        verdict = self.story.verdict
        if verdict is None or verdict.back_to is None:
            return
        last = len(self.story.steps) - 1
        if not (self.layout.has(verdict.back_to) and self.layout.has(last)):
            return
        top, bottom = self.layout.row(verdict.back_to).middle, self.layout.row(last).middle
        self._out.append(
            f'<path class="loop" d="M{GUTTER - 34} {bottom + 8:.1f}h-20'
            f'V{min(top, bottom - 4):.1f}h20" marker-end="url(#m-loop)"/>'
            f'<text class="loop" transform="translate(14 {bottom:.1f}) rotate(-90)">'
            f"for ever</text>"
        )


_MARKERS: Final = "<defs>" + "".join(
    f'<marker id="m-{kind}" class="{kind}" viewBox="0 0 10 10" refX="9" refY="5" '
    f'markerWidth="7.5" markerHeight="7.5" orient="auto-start-reverse">'
    f'<path d="M0 0.8L10 5L0 9.2z"/></marker>'
    for kind in (*_KINDS, "loop")
) + (
    '<marker id="m-open" class="open" viewBox="0 0 10 10" refX="5" refY="5" markerWidth="8" '
    'markerHeight="8"><circle cx="5" cy="5" r="3.6"/></marker></defs>'
)  # fmt: skip
