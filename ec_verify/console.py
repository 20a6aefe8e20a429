# SPDX-License-Identifier: Apache-2.0
"""Where the commands print for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL: Final = 120


def console(*, stderr: bool = False) -> Console:
    """A console that a table fits on, also where there is no terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDTH_WITHOUT_TERMINAL
    return made
