# SPDX-License-Identifier: Apache-2.0
"""Generator of ``tla/common/Timing.tla``, the inequalities between timers in TLA+.

``tla/timers/Timers.tla`` lets a process start with any timers that keep them and shows what
each is for. The generated file is committed, like ``tla/common/Lifecycle.tla``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ec_protocol.tables.files import tla_dir
from ec_protocol.tables.timing import Inequality, inequalities, timer_specs
from ec_verify.models.generate import generated
from ec_verify.models.generate.generated import comment

FILE_NAME: Final = "Timing.tla"
#: Of ``tla/``.
FOLDER: Final = "common"

_HEADER: Final = r"""\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Timing -------------------------------
\* Generated from spec/timing.toml by `ec-protocol generate`: do not edit.
\*
\* t is a record of timers, all in the same unit. Sound(t): a process may start with
\* them.
EXTENDS Integers
"""
_FOOTER: Final = "=" * 77 + "\n"


def generate(items: Iterable[Inequality] | None = None) -> str:
    """The text of ``Timing.tla``, by default of the shipped inequalities."""
    chosen = inequalities() if items is None else tuple(items)
    names = [f'"{name}"' for name in timer_specs()]
    lines = [_HEADER, "TimerNames == {", "    " + ",\n    ".join(names) + "}", ""]
    for item in chosen:
        lines += [f"\\* {comment(item.why)}", f"{item.id}(t) == {_formula(item)}", ""]
    lines += ["Sound(t) ==", *(f"    /\\ {item.id}(t)" for item in chosen)]
    return "\n".join([*lines, _FOOTER])


def is_current(folder: Path | None = None) -> bool:
    """Whether the committed file is what ``generate`` would write."""
    return generated.is_current((folder or tla_dir() / FOLDER) / FILE_NAME, generate())


def write(folder: Path | None = None) -> Path:
    """Write the file and return its path."""
    return generated.write((folder or tla_dir() / FOLDER) / FILE_NAME, generate())


def _formula(item: Inequality) -> str:
    left, right = (" + ".join(f"t.{name}" for name in side) for side in (item.left, item.right))
    return f"{left} {item.op} {right}"
