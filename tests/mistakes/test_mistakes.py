# SPDX-License-Identifier: Apache-2.0
"""Each mistake can be made in the source as it is, and its test notices it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.mistakes import Copy, Mistake, MistakeError, load

MISTAKES = load()


@cache
def functions(path: Path) -> frozenset[str]:
    """The tests of a module; of a class its name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


def test_each_can_be_made_and_names_a_test_that_is_there() -> None:
    wrong = []
    for mistake in MISTAKES.values():
        try:
            mistake.made((ROOT / mistake.file).read_text(encoding="utf-8"))
        except MistakeError as exc:
            wrong.append(str(exc))
        module, _, name = mistake.test.partition("::")
        if name not in functions(ROOT / module):
            wrong.append(f"{mistake.name!r}: there is no {mistake.test}")
    assert wrong == []


def test_there_are_enough_of_every_part() -> None:
    assert len(MISTAKES) >= 150
    parts = Counter(str(Path(mistake.file).parent) for mistake in MISTAKES.values())
    for part in ("processes", "network", "network/data", "region"):
        assert parts[f"ec_connector/{part}"] >= 5, part
    for part in ("ec_protocol", "ec_protocol/offers"):
        assert parts[part] >= 10, part
    assert len({(m.file, m.old, m.new) for m in MISTAKES.values()}) == len(MISTAKES)


def test_the_page_says_how_many_there_are() -> None:
    page = (ROOT / "docs" / "verification" / "mutants.md").read_text(encoding="utf-8")
    assert f"mistakes.toml` has\n{len(MISTAKES)} of them" in page


def test_what_cannot_be_made_is_an_error_that_names_it() -> None:
    def made(old: str, new: str) -> str:
        return Mistake("it", "file.py", old, new, "").made("x = 1\ny = 1\n")

    assert made("x = 1", "x = 2") == "x = 2\ny = 1\n"
    for old, new, says in (
        ("z = 1", "", "'it': file.py has 0 times 'z = 1'"),
        (" = 1", " = 2", "2 times"),
        ("x = 1", "x =", "no Python any more"),
        ("x = 1", "x = (1)", "means what it meant"),
    ):
        with pytest.raises(MistakeError, match=says):
            made(old, new)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("mistakes"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_mistake_all_these_tests_pass(copy: Copy) -> None:
    """One that fails anyway would notice everything."""
    code, said = copy.run(*sorted({mistake.test for mistake in MISTAKES.values()}))
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_is_noticed(copy: Copy, name: str) -> None:
    assert copy.judge(MISTAKES[name]) == "killed"
