# SPDX-License-Identifier: Apache-2.0
"""The page and the drawing: whole, self-contained, and deaf to what names contain."""

import base64
import json
import re
import xml.etree.ElementTree as ET
import zlib

import pytest
from typer.testing import CliRunner

from ec_verify.behaviours.story import Arrow, Bar, Lane, OpenBars, Step, Story, Verdict
from ec_verify.cli import app
from ec_verify.pictures.layout import fit, lay_out
from ec_verify.pictures.page import WINDOW, drawing, page
from ec_verify.pictures.source import make_story
from tests.ec_verify.pictures.test_explain_models import RECORDED

RUN = CliRunner()
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def long_story(count: int) -> Story:
    story = Story("long", "many steps", [Lane("a", "a", "one"), Lane("b", "b", "two"),
                                         Lane("x", "x", "two", "bars")])  # fmt: skip
    bars = OpenBars(story)
    for row in range(count):
        story.steps.append(
            Step("ab"[row % 2], f"Step{row % 7}", subject=f"thing {row}", time=str(row),
                 changes={"g|n": str(row), f"g|only {row}": "here", f"g|only {row - 1}": None}
                 if row else {"g|n": "0", "g|only 0": "here"})
        )  # fmt: skip
        if row % 10 == 0:
            bars.show("bar", row, "x", f"bar {row}", "lease")
            story.arrows.append(Arrow("a", "b", row, min(row + 5, count - 1), f"m{row}", "ack"))
    return story


def windows_of(html: str) -> list[dict]:
    meta = json.loads(re.search(r'id="meta">(.*?)</script>', html, re.DOTALL)[1])
    found = re.findall(r'class="window">(.*?)</script>', html, re.DOTALL)
    if not meta["packed"]:
        return [json.loads(text) for text in found]
    return [json.loads(zlib.decompress(base64.b64decode(text))) for text in found]


def test_the_page_fetches_nothing():
    (path,) = RECORDED.glob("BugPeerReadF1.*.txt")
    html = page(make_story([str(path)]))
    without = html.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|<\w+[^>]*\ssrc=|@import|<link|url\((?!#)", without)
    assert "default-src 'none'" in html


def test_every_step_is_in_the_drawing_and_in_the_data():
    (path,) = RECORDED.glob("BugPeerReadF1.*.txt")
    story = make_story([str(path)])
    html = page(story)
    (window,) = windows_of(html)
    assert [step["l"] for step in window["steps"]] == [step.label for step in story.steps]
    assert len(re.findall(r'<g class="step[^"]*" data-i="\d+"', html)) == len(story.steps)
    assert "✗ NoWrongBytesInv is violated here" in html
    assert html.count('class="step protocol broke"') == 1


def test_a_window_begins_with_the_state_that_the_steps_before_made():
    count = 3 * WINDOW + 17
    windows = windows_of(page(long_story(count)))
    assert [w["first"] for w in windows] == [0, WINDOW, 2 * WINDOW, 3 * WINDOW]
    assert sum(len(w["steps"]) for w in windows) == count
    for window in windows[1:]:
        before = window["first"] - 1
        assert window["base"] == {"g|n": str(before), f"g|only {before}": "here"}
        assert window["body"].count('class="step ') == len(window["steps"])


def test_bars_and_arrows_reach_across_windows():
    story = long_story(2 * WINDOW)
    story.bars.append(Bar("x", WINDOW - 3, WINDOW + 3, "across", "quarantine"))
    story.arrows.append(Arrow("b", "a", WINDOW - 1, WINDOW + 1, "over", "nack"))
    for window in windows_of(page(story)):
        assert "across" in window["body"]
        assert "over" in window["body"]


def test_names_cannot_break_out_of_the_page():
    story = Story(HOSTILE, HOSTILE, [Lane("a", HOSTILE, HOSTILE)], about=HOSTILE)
    story.steps.append(Step("a", HOSTILE, subject=HOSTILE, notes=[HOSTILE], why=HOSTILE,
                            changes={f"{HOSTILE}|{HOSTILE}": HOSTILE}))  # fmt: skip
    story.bars.append(Bar("a", 0, None, HOSTILE, "lease"))
    story.arrows.append(Arrow("a", "a", 0, 0, HOSTILE, "ack"))
    story.verdict = Verdict(HOSTILE, 0, HOSTILE, facts=[(HOSTILE, HOSTILE)])
    html = page(story)
    assert "<img" not in html
    assert html.count("</script>") == 3
    (window,) = windows_of(html)
    assert window["steps"][0]["c"] == {f"{HOSTILE}|{HOSTILE}": HOSTILE}
    ET.fromstring(drawing(story))


@pytest.mark.parametrize("name", [p.name.split(".")[0] for p in sorted(RECORDED.iterdir())])
def test_the_drawing_is_a_whole_svg(name):
    (path,) = RECORDED.glob(f"{name}.*.txt")
    story = make_story([str(path)])
    root = ET.fromstring(drawing(story))
    width = float(root.attrib["width"])
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for step in story.steps:
        assert any(step.label in text for text in texts), step.label
    for node in root.iter("{http://www.w3.org/2000/svg}rect"):
        if "%" not in node.attrib["width"]:
            assert float(node.attrib.get("x", 0)) + float(node.attrib["width"]) <= width + 1


def test_bars_that_last_at_the_same_time_stand_side_by_side():
    story = long_story(40)
    story.bars = [Bar("x", 0, 20, "one", "lease"), Bar("x", 5, 30, "two", "fence"),
                  Bar("x", 22, 35, "three", "lease")]  # fmt: skip
    layout = lay_out(story, 0, 40, [0, 1, 2], [])
    assert layout.tracks == {0: 0, 1: 1, 2: 0}


def test_too_many_bars_are_counted_instead_of_drawn():
    story = long_story(10)
    story.bars = [Bar("x", 0, None, f"bar {n}", "lease") for n in range(50)]
    layout = lay_out(story, 0, 10, list(range(50)), [])
    assert layout.hidden_bars["x"] == 50 - len(layout.tracks) > 0
    assert f"(+{layout.hidden_bars['x']})" in page(story)


def test_texts_that_do_not_fit_are_cut():
    assert fit("short", 200) == "short"
    assert fit("a long text", 40, 6.0) == "a lon…"
    assert fit("text", 3) == ""


def test_the_command_writes_and_says_what_broke(tmp_path):
    (path,) = RECORDED.glob("BugPeerReadF1.*.txt")
    target = tmp_path / "f1.html"
    done = RUN.invoke(app, ["explain", str(path), "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert "NoWrongBytesInv at step 16" in done.stderr
    assert target.read_text().startswith("<!doctype html>")
    done = RUN.invoke(app, ["explain", str(path), "--svg", "--out", "-"])
    assert done.exit_code == 0
    ET.fromstring(done.stdout)


def test_the_command_runs_the_model_that_is_named(tmp_path):
    target = tmp_path / "f2.html"
    done = RUN.invoke(app, ["explain", "BugPeerReadF1", "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert "ReadDone" in target.read_text()


@pytest.mark.parametrize("what", ["BugPeerReadF11", "MCTier", "lost.ndjson"])
def test_bad_input_ends_with_2_and_one_sentence(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, ["explain", what])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {what}")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_ends_with_2(tmp_path):
    (path,) = RECORDED.glob("BugPeerReadF1.*.txt")
    done = RUN.invoke(app, ["explain", str(path), "--out", str(tmp_path / "no" / "where.html")])
    assert done.exit_code == 2
    assert "name another with --out" in done.stderr
