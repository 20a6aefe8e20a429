# SPDX-License-Identifier: Apache-2.0
"""docs/security.md: every promise names clauses and tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.pages import read
from tests.docs.test_docs_pages import rows

PAGE = read(ROOT / "docs" / "security.md")
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
CLAUSE = re.compile(r"\bEC-\w+\.\d+\b")

#: The attacks that came from outside; whoever removes one from the table says so here.
ATTACKS = [
    *("01", "02", "03", "04", "05", "06", "07", "09", "10"),
    *("11b", "12", "15", "16", "20", "21", "23", "24"),
]


def table(title: str, first: str) -> list[list[str]]:
    """Rows of the table under a heading whose first column is called so, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = rows(section.partition(f"| {first} |")[2].partition("\n\n")[0])
    assert found, f"{title}: {first}"
    return found


def promises(first: str = "promise") -> list[list[str]]:
    return table("What is promised", first)


def attacks() -> list[list[str]]:
    return table("Attacks", "attack")


@cache
def files() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.setdefault(path.name, []).append(path)
    return found


@cache
def functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(read(path)))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in nodes if isinstance(node, kinds)}


@pytest.mark.parametrize("named", sorted(set(TEST.findall(PAGE))), ids="::".join)
def test_every_test_that_the_page_names_is_there(named: tuple[str, str]) -> None:
    file, name = named
    assert len(files().get(file, [])) == 1, f"{file}: {files().get(file, 'no such file')}"
    assert name in functions(files()[file][0])


def test_no_test_is_named_in_another_way() -> None:
    """Such as with a folder, or misspelt: it would not be looked for."""
    assert PAGE.count("::") == len(TEST.findall(PAGE))


def test_every_clause_that_the_page_names_is_the_protocols() -> None:
    defined = set(re.findall(r"\*\*(EC-\w+\.\d+)\*\*", read(ROOT / "spec" / "PROTOCOL.md")))
    named = set(CLAUSE.findall(PAGE))
    assert len(named) > 20
    assert named - defined == set()
    strangers = {clause for clause in defined if clause.startswith("EC-15.")}
    assert strangers - named == set(), "a clause of section 15 that no promise has"


@pytest.mark.parametrize("row", promises(), ids=lambda row: row[0][:60])
def test_every_promise_has_clauses_and_a_test_that_is_about_each(row: list[str]) -> None:
    _, clauses, tests = row
    named = TEST.findall(tests)
    assert named, "a promise without a test"
    assert CLAUSE.search(clauses), "a promise without a clause"
    cited = {c for file, _ in named for c in CLAUSE.findall(read(files()[file][0]))}
    assert set(CLAUSE.findall(clauses)) - cited == set(), "in none of these files"


@pytest.mark.parametrize("row", promises("promise of the proxy"), ids=lambda row: row[0][:60])
def test_every_promise_of_the_proxy_has_a_test(row: list[str]) -> None:
    assert TEST.search(row[2])


def test_every_attack_has_a_row_and_a_test_or_is_open() -> None:
    assert [row[0].split()[0] for row in attacks()] == ATTACKS
    for attack, before, after, test in attacks():
        assert all((before, after)), attack
        assert TEST.search(test) or test.startswith("open: "), attack


def test_the_page_has_all_four_parts() -> None:
    for title, first, least in (
        ("Who there is", "who", 8),
        ("What is promised", "promise", 20),
        ("What is not promised", "what", 10),
        ("Attacks", "attack", len(ATTACKS)),
    ):
        assert len(table(title, first)) >= least
