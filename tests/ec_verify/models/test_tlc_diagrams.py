# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from ec_protocol.tables.files import checkout_dir
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_verify.models.generate import diagrams

ROOT = checkout_dir()


def test_documents_are_current():
    assert diagrams.stale(ROOT) == []


def test_the_page_has_every_lifecycle():
    page = (ROOT / "docs" / "verification" / "lifecycles.md").read_text(encoding="utf-8")
    for name in load_lifecycles():
        assert f"<!-- diagram:{name} -->\n```mermaid" in page
        assert f"<!-- table:{name} -->\n\n| state" in page


@pytest.mark.parametrize("table", load_lifecycles().values(), ids=lambda t: t.name)
def test_diagram_has_every_edge_and_no_other(table):
    drawn = set()
    for line in diagrams.mermaid(table).splitlines()[1:]:
        source, dest, labels = re.fullmatch(r"    (\S+) --> (\S+)(?: : (.*))?", line).groups()
        for label in (labels or "").split("<br/>"):
            drawn.add((source, label, dest))

    def label(edge):
        guards = ", ".join([*edge.needs, *(f"not {g}" for g in edge.forbids)])
        return (
            edge.event
            + (f" [{guards}]" if guards else "")
            + (f" / {edge.effect}" if edge.effect else "")
        )

    assert drawn == {
        ("[*]", "", table.initial),
        *((state, "", "[*]") for state in table.terminal),
        *((e.source, label(e), e.dest) for e in table.edges),
    }


def test_filling_keeps_the_text_around_and_is_stable():
    text = "before\n<!-- diagram:copy -->\nold\n<!-- /diagram -->\nafter <!-- diagram:copy -->\n"
    filled = diagrams.fill(text)
    assert filled.startswith("before\n<!-- diagram:copy -->\n```mermaid\nstateDiagram-v2\n")
    assert filled.endswith("```\n<!-- /diagram -->\nafter <!-- diagram:copy -->\n")
    assert "old" not in filled
    assert diagrams.fill(filled) == filled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- diagram:copi -->\n<!-- /diagram -->\n", "no such lifecycle; did you mean copy, "),
        ("<!-- diagram:copy -->\n<!-- /table -->\n", "is not closed by <!-- /diagram -->"),
        (
            "<!-- diagram:copy -->\n<!-- table:copy -->\n<!-- /table -->\n<!-- /diagram -->\n",
            "is not closed by",
        ),
        ("<!-- diagram:copy -->\n", "has no partner"),
        ("text\n<!-- /table -->\n", "has no partner"),
    ],
)
def test_marks_that_cannot_be_filled(text, message):
    with pytest.raises(diagrams.DiagramError) as caught:
        diagrams.fill(text)
    assert message in str(caught.value)


def test_writing_a_checkout(tmp_path):
    page = tmp_path / "docs" / "architecture.md"
    page.parent.mkdir()
    page.write_text("<!-- diagram:peer -->\n<!-- /diagram -->\n")
    assert diagrams.stale(tmp_path) == [page]
    assert diagrams.write(tmp_path) == [page]
    assert diagrams.write(tmp_path) == []
    page.write_text("<!-- diagram:nobody -->\n<!-- /diagram -->\n")
    with pytest.raises(diagrams.DiagramError, match=r"architecture\.md: <!-- diagram:nobody"):
        diagrams.stale(tmp_path)
