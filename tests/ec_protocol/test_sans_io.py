# SPDX-License-Identifier: Apache-2.0
"""The core reads no clock, starts no thread and opens nothing by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ec_protocol

PACKAGE = Path(ec_protocol.__file__).parent
CORE = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN = {
    "asyncio",
    "concurrent",
    "datetime",
    "mmap",
    "multiprocessing",
    "select",
    "socket",
    "subprocess",
    "threading",
    "time",
}


@pytest.mark.clause("EC-7.1")
@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_clock_thread_or_socket(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert not imported & FORBIDDEN


def test_the_check_sees_something() -> None:
    assert len(CORE) > 15
