# SPDX-License-Identifier: Apache-2.0
"""What is missing skips a test on somebody's machine and fails it where all must be there."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.outcomes import Failed, Skipped

from tests import ROOT, needs

Raises = Callable[[str], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def raises(kind: type[BaseException], match: str) -> Iterator[None]:
    """As of pytest; but a skip that should have been a failure must not skip this test."""
    with pytest.raises((Failed, Skipped), match=match) as caught:
        yield
    assert caught.type is kind


@pytest.fixture(params=["somebody's machine", "all required"])
def unmet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Raises:
    """What is missing has the consequence that it must have there."""
    everything = request.param == "all required"
    monkeypatch.setenv(needs.VARIABLE, "all" if everything else "")
    return functools.partial(raises, Failed if everything else Skipped)


@pytest.mark.parametrize(
    ("said", "ci", "required"),
    [
        ("all", None, True),
        ("", "true", False),
        ("what is there", "1", False),
        (None, "true", True),
        (None, "1", True),
        (None, "0", False),
        (None, "false", False),
        (None, "", False),
        (None, None, False),
    ],
)
def test_who_requires_everything(monkeypatch, said, ci, required):
    for name, value in ((needs.VARIABLE, said), ("CI", ci)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert needs.required() == required


def test_a_missing_package(unmet):
    with unmet("no_such_package is not installed"):
        needs.needs("json", "no_such_package")
    with unmet("no_such_package is not installed"):
        needs.installed("no_such_package")


@pytest.mark.parametrize("error", ["ImportError('libucs.so.0')", "OSError('no such symbol')"])
def test_a_broken_package(unmet, error, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with unmet(r"broken_package is broken: (Import|OS)Error"):
        needs.needs("broken_package")


def test_anything_else_that_is_missing(unmet):
    needs.that(True, "fine")
    with unmet("no tmpfs"):
        needs.that(False, "no tmpfs")


def test_what_is_there_passes(unmet):
    needs.needs("json", "pytest")
    needs.installed("pytest")
    needs.optional(True, "a device")


@pytest.mark.usefixtures("unmet")
def test_hardware_is_never_required():
    with raises(Skipped, "a device"):
        needs.optional(False, "a device")


class Marked:
    """An item with these marks."""

    def __init__(self, *marks: str) -> None:
        self._marks = marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def absent(name: str) -> None:
    return None


def test_a_mark_says_what_a_test_needs(unmet, monkeypatch):
    check: Callable[[Marked], None] = needs.check  # type: ignore[assignment]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", absent)
    check(Marked())
    with unmet("vllm is not installed"):
        check(Marked("vllm"))
    with raises(Skipped, "needs a CUDA device"):
        check(Marked("cuda"))


#: Skips that say nothing to those who require everything.
DIRECT = {"skip", "importorskip", "skipif"}


def direct_skips(text: str) -> list[int]:
    """Lines of ``pytest.skip`` and its like, of ``pytest.mark.skipif`` too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in DIRECT:
            whole = ast.unparse(node.value)
            if whole in ("pytest", "pytest.mark", "unittest"):
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest"):
            found += [node.lineno for name in node.names if name.name in (*DIRECT, "SkipTest")]
    return found


def test_no_test_skips_in_another_way():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(needs.__file__)
        for line in direct_skips(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pytest.skip('x')",
        "pytest.importorskip('x')",
        "@pytest.mark.skipif(True, reason='')\ndef test(): pass",
        "pytestmark = pytest.mark.skip",
        "from pytest import skip",
    ],
)
def test_another_way_would_be_found(text):
    assert direct_skips(text) == [1]
