#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws ``docs/img/dataflow.svg``: the way of one encoding from client to client.

The picture is made of the lists below, with the standard library alone, and is the same
each time. It follows the reader's choice of a light or dark page and has a ground of its
own, so that it is readable on either.

Usage: ``make_dataflow_svg.py [--check]``; ``--check`` writes nothing and exits 1 when the
picture differs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "img" / "dataflow.svg"
WIDTH, HEIGHT = 920, 566

TITLE = "The way of one encoding"
ABOUT = (
    "A client sends a picture to the proxy. An encoder server encodes it, saves the encoding "
    "to its CPU tier, offers it to its server process and announces it. The engine of a decoder "
    "server lends blocks to a reader process, which asks the encoder's server process over ZMQ, "
    "is granted the encoding under a lease, and reads it over NIXL into its own tier; from "
    "there it is loaded."
)

STYLE = """\
svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.ground { fill: #ffffff; }
.panel { fill: #f4f6f9; stroke: #b6c0cc; }
.box { fill: #ffffff; stroke: #57606a; }
.tier { fill: #e6f4ea; stroke: #2f7d4a; }
text { fill: #1f2328; font-size: 13px; }
.name { font-weight: 600; }
.small { fill: #57606a; font-size: 12px; }
.line { fill: none; stroke: #57606a; stroke-width: 1.5; }
.bytes { fill: none; stroke: #c2410c; stroke-width: 3; }
.head { fill: #57606a; }
.bytes-head, .bytes-text { fill: #c2410c; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117; }
  .panel { fill: #161b22; stroke: #3d444d; }
  .box { fill: #0d1117; stroke: #9198a1; }
  .tier { fill: #12261a; stroke: #4fae72; }
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  .line { stroke: #9198a1; }
  .head { fill: #9198a1; }
  .bytes { stroke: #f0883e; }
  .bytes-head, .bytes-text { fill: #f0883e; }
}
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with its name and lines below it."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    name: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrow:
    """From a place to a place, and what it says there."""

    x1: int
    y1: int
    x2: int
    y2: int
    text: str
    at: tuple[int, int]
    anchor: str = "start"
    carries_bytes: bool = False


MAPPED = "one file in /dev/shm, mapped by the processes of the server"
ENGINE = ("vLLM's scheduler;", "no network here")
PANELS = (
    Box(20, 150, 380, 366, "panel", "Encoder server (producer)"),
    Box(520, 150, 380, 366, "panel", "Decoder server (consumer)"),
)
BOXES = (
    Box(20, 30, 110, 56, "box", "Client"),
    Box(375, 30, 170, 56, "box", "Proxy", ("or your orchestrator",)),
    Box(36, 190, 150, 76, "box", "Workers, GPU", ("the encoder runs", "once a picture")),
    Box(214, 190, 170, 76, "box", "Engine", ENGINE),
    Box(214, 312, 170, 56, "box", "ec-server", ("a process of its own",)),
    Box(36, 424, 348, 76, "tier", "CPU tier", (MAPPED,)),
    Box(536, 190, 170, 76, "box", "Engine", ENGINE),
    Box(536, 312, 170, 56, "box", "ec-reader", ("a process of its own",)),
    Box(734, 190, 150, 76, "box", "Workers, GPU", ("prefill and decode,", "no encoder run")),
    Box(536, 424, 348, 76, "tier", "CPU tier", (MAPPED,)),
)
ARROWS = (
    Arrow(130, 48, 375, 48, "1  request with a picture", (150, 40)),
    Arrow(375, 72, 130, 72, "10  tokens", (150, 90)),
    Arrow(400, 86, 250, 190, "2  the picture", (218, 126)),
    Arrow(318, 190, 440, 86, "4  announced", (404, 132)),
    Arrow(500, 86, 606, 190, "5  request with a reference", (586, 132)),
    Arrow(299, 266, 299, 312, "offers", (308, 294)),
    Arrow(621, 266, 621, 312, "6  lends blocks", (630, 294)),
    Arrow(536, 330, 384, 330, "7  asks, ZMQ", (460, 322), "middle"),
    Arrow(384, 352, 536, 352, "grant, lease", (460, 369), "middle"),
    Arrow(299, 368, 299, 424, "maps, to read", (290, 401), "end"),
    Arrow(621, 368, 621, 424, "maps, to write", (630, 401)),
    Arrow(111, 266, 111, 424, "3  save", (122, 346), carries_bytes=True),
    Arrow(384, 462, 536, 462, "8  READ, NIXL", (460, 450), "middle", carries_bytes=True),
    Arrow(809, 424, 809, 266, "9  load", (820, 346), carries_bytes=True),
)
CAPTION = (
    "One server alone needs 3 and 9 only, and no process beside the engine. "
    "Thick: the encoding's bytes."
)


def drawn() -> str:
    """The picture's text."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title about">',
        f"<!-- Made by tools/{Path(__file__).name}. SPDX-License-Identifier: Apache-2.0 -->",
        f'<title id="title">{escape(TITLE)}</title>',
        f'<desc id="about">{escape(ABOUT)}</desc>',
        f"<style>\n{STYLE}</style>",
        "<defs>",
        _marker("head", 8),
        _marker("bytes-head", 5),
        "</defs>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
    ]
    for panel in PANELS:
        lines.append(_rect(panel))
        right = panel.x > WIDTH // 2  # beside the arrow from the proxy
        x = panel.x + (panel.width - 16 if right else 16)
        lines.append(_text(x, panel.y + 24, panel.name, "name", "end" if right else "start"))
    for box in BOXES:
        lines += [_rect(box), *_labels(box)]
    for arrow in ARROWS:
        lines += _arrow(arrow)
    lines.append(_text(WIDTH // 2, HEIGHT - 18, CAPTION, "small", "middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _marker(name: str, size: int) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" '
        f'markerHeight="{size}" orient="auto"><path class="{name}" d="M0 0 10 5 0 10z"/></marker>'
    )


def _rect(box: Box) -> str:
    return (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}" rx="6"/>'
    )


def _labels(box: Box) -> list[str]:
    middle = box.x + box.width // 2
    rows = [(box.name, "name"), *((line, "small") for line in box.lines)]
    top = box.y + box.height // 2 - 9 * (len(rows) - 1) + 5
    return [
        _text(middle, top + 18 * number, text, kind, "middle")
        for number, (text, kind) in enumerate(rows)
    ]


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _arrow(arrow: Arrow) -> list[str]:
    line, head, text = ("bytes", "bytes-head", "bytes-text name")
    if not arrow.carries_bytes:
        line, head, text = ("line", "head", "label")
    return [
        f'<path class="{line}" marker-end="url(#{head})" '
        f'd="M{arrow.x1} {arrow.y1} {arrow.x2} {arrow.y2}"/>',
        _text(*arrow.at, arrow.text, text, arrow.anchor),
    ]


if __name__ == "__main__":
    sys.exit(write_or_check({PICTURE: drawn()}))
