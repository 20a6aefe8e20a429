# SPDX-License-Identifier: Apache-2.0
"""The documents as data: pages, links, anchors, and the commands that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

#: What a command may begin with.
PROGRAMS = {"ec-connector", "ec-protocol", "make", "pip", "pytest", "vllm"}

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Every document of the checkout, in order."""
    tops = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    folders = ("docs", "spec", "tla", "tests")
    return [*tops, *(p for name in folders for p in sorted((ROOT / name).rglob("*.md")))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(text: str) -> str:
    """A page without what is fenced or commented out."""
    return re.sub(r"<!--.*?-->", "", _FENCED.sub("", text), flags=re.DOTALL)


def links(text: str) -> list[str]:
    """Targets of links and pictures, code left out."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text)))


def anchors(text: str) -> set[str]:
    """What ``#...`` may name in a page, as GitHub makes it of its headings."""
    found: list[str] = re.findall(r'<a id="([^"]+)"></a>', text)
    seen: dict[str, int] = {}
    for head in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE):
        head = re.sub(r"<[^>]*>|\[([^\]]*)\]\([^)]*\)", r"\1", head)
        slug = re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.append(f"{slug}-{number}" if number else slug)
    return set(found)


def program(words: list[str]) -> str:
    """What a command runs; of a venv the name alone."""
    return re.sub(r"^\.venv(-e2e)?/bin/", "", words[0])


def split(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def _commands(block: str) -> Iterator[str]:
    """The commands of a block, lines that belong together joined, without comments."""
    pending = ""
    for line in block.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if line.rstrip().endswith("\\"):
            continue
        try:
            split(pending)
        except ValueError:  # a quotation goes on
            continue
        text, pending = re.sub(r"\s+#\s.*$", "", pending).replace("\\\n", ""), ""
        text = text if "\n" in text else " ".join(text.split())
        if text:
            yield text.strip()


def command_blocks() -> dict[tuple[str, ...], list[str]]:
    """The commands of each fenced block that shows any, with the pages that show it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for page in pages():
        for _, language, block in _FENCED.findall(read(page)):
            if language not in ("", "sh", "console"):
                continue
            commands = tuple(_commands(block))
            known = [c for c in commands if split(c) and program(split(c)) in PROGRAMS]
            if known:
                found.setdefault(commands, []).append(named(page))
    return found


def mentioned() -> dict[str, list[str]]:
    """Commands within a sentence or a table, with their pages; placeholders stay."""
    found: dict[str, list[str]] = {}
    for page in pages():
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(read(page)).replace("\\|", "|")):
            first, _, rest = span.partition(" ")
            if rest and program([first]) in ("ec-connector", "ec-protocol", "make", "python"):
                found.setdefault(span, []).append(named(page))
    return found
