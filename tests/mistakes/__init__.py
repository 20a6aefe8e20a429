# SPDX-License-Identifier: Apache-2.0
"""One-line mistakes of code that does I/O, each noticed by a test that is named beside it.

The core's source is mutated by ``ec-protocol mutants --source``, whose changes are put
into functions of a running process. What opens sockets and starts processes is also made
of options, constants and the order of its lines, and runs in processes of its own: here a
mistake is written by hand in ``mistakes.toml`` and put into a copy of the checkout::

    ["a channel waits"]
    file = "ec_connector/processes/channel.py"
    old = "sock.setblocking(False)"
    new = "sock.setblocking(True)"
    test = "tests/ec_connector/processes/test_channel.py::test_what_is_full_refuses"

``old`` stands in the file once. ``python -m tests.mistakes`` runs for each the test, which
must fail.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import ROOT

FILE: Final = Path(__file__).parent / "mistakes.toml"
#: What tests read of a checkout.
_COPIED: Final = ("ec_connector", "ec_protocol", "ec_verify", "spec", "tests", "tla")
#: A test that takes longer does not end: many times what the longest takes.
TIMEOUT_S: Final = 40


class MistakeError(Exception):
    """A mistake cannot be made in the source as it is; the message says why."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One change of one place.

    Attributes:
        name: What is wrong, in words.
        file: Where, relative to the checkout.
        old: What stands there, once.
        new: What stands there instead.
        test: The test that fails then, as pytest has it.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    def made(self, text: str) -> str:
        """The file with the mistake.

        Raises:
            MistakeError: What is to be changed is not there, or in several places, or what
                comes out is no Python.
        """
        if (count := text.count(self.old)) != 1:
            raise MistakeError(f"{self.name!r}: {self.file} has {count} times {self.old!r}")
        changed = text.replace(self.old, self.new)
        try:
            before, after = ast.dump(ast.parse(text)), ast.dump(ast.parse(changed))
        except SyntaxError as exc:
            raise MistakeError(f"{self.name!r}: {self.file} is no Python any more: {exc}") from exc
        if before == after:
            raise MistakeError(f"{self.name!r}: {self.file} means what it meant")
        return changed


def load(path: Path = FILE) -> Mapping[str, Mistake]:
    """Every mistake by name."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Mistake(name, **entry) for name, entry in entries.items()}


class Copy:
    """A copy of the checkout in which mistakes are made, and a process that runs tests there.

    That process has imported what is heavy and not ours; each test runs in a fork of it.

    Args:
        folder: Where; empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in _COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for path in ROOT.glob("*.*"):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        self._tests = subprocess.Popen(
            [sys.executable, "-c", _RUN_TESTS],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "EC_TEST_TRACES": "off"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        if self._tests.stdin is not None:
            self._tests.stdin.close()
        self._tests.wait()

    def judge(self, mistake: Mistake) -> str:
        """Make the mistake and run its test.

        Returns:
            ``killed``, ``survived``, or what pytest said if it could not even run it.

        Raises:
            MistakeError: It cannot be made.
        """
        path = self._folder / mistake.file
        text = (ROOT / mistake.file).read_text(encoding="utf-8")
        self._write(path, mistake.made(text))
        try:
            code, said = self.run(mistake.test)
        finally:
            self._write(path, text)
        return {0: "survived", 1: "killed"}.get(code, said)

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests until one fails: pytest's status, and what it said."""
        options = ["-q", "-x", "-rfE", "-p", "no:cacheprovider", "--timeout", str(TIMEOUT_S)]
        stdin, stdout = self._tests.stdin, self._tests.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([*options, *tests]) + "\n")
        stdin.flush()
        code, said = json.loads(stdout.readline())
        return code, said

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python tells a file of the same second and length by nothing.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


_RUN_TESTS: Final = """
import contextlib, importlib, json, os, sys, tempfile
for name in ("pytest", "hypothesis.stateful", "msgspec", "torch", "transitions", "zmq"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for line in sys.stdin:
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                nothing = os.open(os.devnull, os.O_RDONLY)
                for fd, number in ((nothing, 0), (said.fileno(), 1), (said.fileno(), 2)):
                    os.dup2(fd, number)
                import pytest
                code = int(pytest.main(json.loads(line)))
                sys.stdout.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        print(json.dumps([code, said.read().decode(errors="replace").strip()]), flush=True)
"""
