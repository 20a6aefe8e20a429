# SPDX-License-Identifier: Apache-2.0
"""Which tests call which functions of the core: found by watching each test once.

A test that never comes to a function cannot notice what is wrong there, so a mutant of
it need not ask that test. What a fixture of a whole module calls is counted for every
test of its file, whichever of them happened to set it up.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import ec_protocol

if TYPE_CHECKING:
    import pytest


class Watch:
    """Notes calls of functions of ``ec_protocol`` while tests run in this process."""

    def __init__(self) -> None:
        self._folder = Path(str(ec_protocol.__file__)).parent
        self._names: dict[int, tuple[CodeType, str]] = {}
        self._seen: set[str] = set()
        self._by_test: dict[str, set[str]] = {}
        self._by_file: defaultdict[str, set[str]] = defaultdict(set)

    def start(self) -> None:
        """From now on, in this thread."""
        sys.setprofile(self._note)

    def set_up(self, item: pytest.Item) -> None:
        """The fixtures of a test are ready."""
        self._by_file[item.path.name] |= self._seen

    def over(self, item: pytest.Item) -> None:
        """A test is over."""
        self._by_test[item.nodeid], self._seen = self._seen, set()

    def stop(self, items: Iterable[pytest.Item]) -> dict[str, list[str]]:
        """The ids of the tests that call each function, by ``module:Class.name``."""
        sys.setprofile(None)
        tests: defaultdict[str, list[str]] = defaultdict(list)
        for item in items:
            for name in self._by_test.get(item.nodeid, set()) | self._by_file[item.path.name]:
                tests[name].append(item.nodeid)
        return dict(tests)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            known = self._names.get(id(code))
            if known is None:
                # With the code itself, so that its id is not given to another one.
                known = self._names[id(code)] = (code, self._name(code))
            if known[1]:
                self._seen.add(known[1])

    def _name(self, code: CodeType) -> str:
        path = Path(code.co_filename)
        return f"{path.stem}:{code.co_qualname}" if self._folder in path.parents else ""
