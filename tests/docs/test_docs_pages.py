# SPDX-License-Identifier: Apache-2.0
"""Pages, links and places: nothing that a document names is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests import ROOT
from tests.docs.pages import anchors, links, named, pages, read

EACH_PAGE = pytest.mark.parametrize("page", pages(), ids=named)


@EACH_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(read(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert ROOT in [there, *there.parents], f"{target} leaves the checkout"
        if anchor:
            assert anchor in anchors(read(there)), target


def test_every_document_is_reached_from_the_front_page() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        todo += [(page.parent / unquote(t).partition("#")[0]).resolve() for t in links(read(page))]
    assert [named(page) for page in pages() if page not in reached] == []


def test_the_front_page_is_short_and_begins_with_a_picture() -> None:
    text = read(ROOT / "README.md")
    assert text.count("\n") <= 110
    assert "(docs/img/dataflow.svg)" in text.partition("\n## ")[0]


def test_every_document_has_its_licence_where_documents_have_it() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name != "performance.md":
            first = read(page).partition("\n")[0]
            assert first == "<!-- SPDX-License-Identifier: Apache-2.0 -->", named(page)


@pytest.mark.parametrize(
    "tool", ["make_dataflow_svg.py", "make_guide_reference.py", "make_performance_tables.py"]
)
def test_what_is_generated_is_current(tool: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, f"run tools/{tool}"


def test_nothing_in_the_repository_names_a_page_that_is_gone() -> None:
    """In docstrings, help texts and configuration too."""
    suffixes = {".py", ".toml", ".tla", ".yaml", ".md", ".sh"}
    tops = [p for p in ROOT.iterdir() if p.suffix in suffixes]
    folders = ("docs", "ec_connector", "ec_protocol", "ec_verify", "spec", "tests", "tla", "tools")
    for path in [*tops, *(p for f in folders for p in (ROOT / f).rglob("*"))]:
        if path.suffix in suffixes:
            for place in re.findall(r"(?<![\w/.-])docs/[\w./-]+\.(?:md|svg|png)", read(path)):
                there = ROOT / place
                assert there.is_file(), f"{named(path)}: {place}"


# -------------------------------------------------------------- folder map, architecture
def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\| (?!-)", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def places(text: str) -> list[str]:
    """Paths in code marks: with a slash, or a file's name at the top."""
    spans = re.findall(r"`([\w.][\w./-]*)`", text)
    return [s for s in spans if "/" in s and not s.startswith(("/", "make"))]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_in_code_marks_exist(page: str) -> None:
    found = [p for p in places(read(ROOT / page)) if p not in ("tla/*/models.toml", ".ci/run")]
    assert len(found) >= 6
    generated = {"tla/common/Lifecycle.tla"}
    assert [p for p in found if p not in generated and not (ROOT / p).exists()] == []


def test_the_map_of_the_folders_has_every_folder() -> None:
    text = read(ROOT / "README.md").partition("## Where everything is")[2].partition("\n## ")[0]
    mapped = {re.findall(r"`([\w]+)/`", row[0])[0] for row in rows(text)[1:]}
    assert mapped == {
        p.name
        for p in ROOT.iterdir()
        if p.is_dir() and re.match(r"\w", p.name) and (list(p.glob("*.py")) or p.name in mapped)
    }


def test_the_way_of_one_encoding_is_the_codes() -> None:
    """Every function of the table is defined in the file of its row."""
    text = read(ROOT / "docs" / "architecture.md")
    table = rows(text.partition("## One encoding, file by file")[2].partition("\n## ")[0])
    steps = [row for row in table if row[0].isdigit()]
    assert [int(row[0]) for row in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 20
    for _, file, calls, _ in steps:
        source = read(ROOT / file.strip("`"))
        for call in re.findall(r"`([\w.]+)`", calls):
            owner, _, name = call.rpartition(".")
            assert not owner or f"class {owner}" in source, f"{file}: {call}"
            assert re.search(rf"(def|class) {name}\b", source), f"{file}: {call}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_names_of_the_code_exist(page: str) -> None:
    """``Class.method`` in the prose."""
    code = "\n".join(
        read(p) for top in ("ec_protocol", "ec_connector") for p in (ROOT / top).rglob("*.py")
    )
    for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", read(ROOT / page)):
        if name in ("tla", "toml"):
            continue
        assert f"class {owner}" in code, owner
        assert re.search(rf"def {name}\b", code), f"{owner}.{name}"


def test_the_clause_that_is_followed_is_followed_by_real_names() -> None:
    text = read(ROOT / "CONTRIBUTING.md").partition("## One clause")[2].partition("\n## ")[0]
    where = {
        "spec/PROTOCOL.md": ["**EC-5.3**"],
        "spec/lifecycle.toml": ['event = "read_done"', "in_lease", '"promote"', '"drop_bytes"'],
        "tla/peer_read/PeerRead.tla": ["ReadDone(a) =="],
        "tla/peer_read/PeerProps.tla": ["FencedAcceptInv =="],
        "tla/peer_read/models.toml": ["[model.MCPeerRead]", "[model.BugPeerReadF3]", "AcceptFence"],
        "ec_protocol/p2p/attempts.py": ["def read_done", "now < attempt.fence", '"ReadDone"'],
        "tests/ec_protocol/p2p/test_consumer_reads.py": [
            "test_bytes_count_only_if_the_end_was_seen_before_the_fence",
            '@pytest.mark.clause("EC-5.3")',
        ],
        "spec/conformance/lease.json": ['"EC-5.3/1"'],
        "tests/faults/accepts-late-reads.patch": ["Clause: EC-5.3"],
    }
    for file, wanted in where.items():
        source = read(ROOT / file)
        for piece in wanted:
            assert piece in source, f"{file}: {piece}"
            word = re.findall(r"EC-[\d.]+\d(?:/\d)?|[A-Za-z]\w{5,}", piece)[-1]
            assert word in text, word
