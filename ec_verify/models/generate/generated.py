# SPDX-License-Identifier: Apache-2.0
"""What the generators of TLA+ modules share. The modules are committed."""

from __future__ import annotations

from pathlib import Path


def comment(text: str) -> str:
    """Text that SANY accepts in a line comment: one line, ASCII."""
    return " ".join(text.split()).encode("ascii", "replace").decode("ascii")


def is_current(path: Path, text: str) -> bool:
    """Whether the file is there and says just this."""
    return path.is_file() and path.read_text(encoding="ascii", errors="replace") == text


def write(path: Path, text: str) -> Path:
    """Write the file and return its path."""
    path.write_text(text, encoding="ascii")
    return path
