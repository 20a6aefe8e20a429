# SPDX-License-Identifier: Apache-2.0
"""Makes the HTML page of a story: one file, nothing fetched, nothing to install.

A story of up to ``WINDOW`` steps is in the page as it is. A longer one is cut into
windows of that many steps; each carries its drawing and the state at its
beginning, compressed, and the page unpacks the one that is looked at. A trace of
50,000 records makes a page of a few megabytes that opens at once.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

from ec_verify.behaviours.story import Story
from ec_verify.pictures.svg import draw, standalone

#: Steps in one window.
WINDOW: Final = 200


def page(story: Story) -> str:
    """The page, complete.

    Raises:
        ValueError: The story has no steps.
    """
    # Only this command needs it, so the rest of the tools start without.
    import jinja2
    from markupsafe import Markup

    if not story.steps:
        raise ValueError("a story without steps cannot be shown")
    single = len(story.steps) <= WINDOW
    windows = list(_windows(story))
    first = windows[0]
    head, body = first["head"], first["body"]
    if single:
        del first["head"], first["body"]  # the page has them already
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(_file("page.html.j2"))
    return template.render(
        story=story,
        verdict=story.verdict,
        lane_titles={lane.key: f"{lane.group}: {lane.title}" for lane in story.lanes},
        single=single,
        head=Markup(head),
        body=Markup(body),
        diagram_css=Markup(_file("diagram.css")),
        page_css=Markup(_file("page.css")),
        script=Markup(_file("page.js")),
        meta=Markup(_json(_meta(story, single))),
        windows=[Markup(_json(w) if single else _pack(w)) for w in windows],
    )


def drawing(story: Story) -> str:
    """The story as one SVG file, all steps in it."""
    return standalone(story, _file("diagram.css"))


def _meta(story: Story, single: bool) -> dict[str, Any]:
    labels = list(dict.fromkeys(step.label for step in story.steps))
    number = {label: index for index, label in enumerate(labels)}
    row = story.verdict.row if story.verdict else None
    return {
        "count": len(story.steps),
        "size": WINDOW,
        "packed": not single,
        "verdict": row,
        "start": row if row is not None else 0,
        "lanes": {lane.key: f"{lane.group} · {lane.title}" for lane in story.lanes},
        "labels": labels,
        "index": [[number[step.label], step.subject] for step in story.steps],
    }


def _windows(story: Story) -> Iterator[dict[str, Any]]:
    """Each window's drawing, its steps, and the state before its first step."""
    state: dict[str, str] = {}
    count = len(story.steps)
    bars = _by_window([(bar.start, bar.end) for bar in story.bars], count)
    arrows = _by_window([(arrow.start, arrow.end or arrow.start) for arrow in story.arrows], count)
    for number, first in enumerate(range(0, count, WINDOW)):
        steps = story.steps[first : first + WINDOW]
        head, body = draw(story, first, first + len(steps), bars[number], arrows[number])
        yield {
            "first": first,
            "head": head,
            "body": body,
            "base": dict(state),
            "steps": [
                {
                    "a": step.lane,
                    "l": step.label,
                    "s": step.subject,
                    "n": list(step.notes),
                    "w": step.why,
                    "c": dict(step.changes),
                }
                for step in steps
            ],
        }
        for step in steps:
            for name, text in step.changes.items():
                if text is None:
                    state.pop(name, None)
                else:
                    state[name] = text


def _by_window(spans: list[tuple[int, int | None]], count: int) -> list[list[int]]:
    """For each window the indices of the spans that touch it."""
    found: list[list[int]] = [[] for _ in range(0, count, WINDOW)]
    for index, (start, end) in enumerate(spans):
        last = count - 1 if end is None else end
        for window in range(start // WINDOW, last // WINDOW + 1):
            found[window].append(index)
    return found


def _pack(window: dict[str, Any]) -> str:
    text = json.dumps(window, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), 6)).decode("ascii")


def _json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it ends that element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(name: str) -> str:
    return resources.files("ec_verify.pictures").joinpath("page", name).read_text("utf-8")
