# SPDX-License-Identifier: Apache-2.0
"""The TLA+ modules of a folder and of the folders in it.

TLC finds what a module extends beside it, so every run gets all of them in one folder:
their names are unique.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ec_verify.models.errors import ManifestError

_USES: Final = re.compile(r"\bEXTENDS\s+(\w+(?:\s*,\s*\w+)*)|\bINSTANCE\s+(\w+)")


def module_files(folder: Path) -> dict[str, Path]:
    """Every module by its file's name, e.g. ``Tier.tla``.

    Raises:
        ManifestError: Two have the same name.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.tla")):
        if path.name in found:
            raise ManifestError(
                f"{path} and {found[path.name]}: two modules of one name; rename one of them"
            )
        found[path.name] = path
    return found


def copy_modules(source: Path, target: Path) -> None:
    """Copy every module of ``source`` into the one folder ``target``."""
    for name, path in module_files(source).items():
        shutil.copyfile(path, target / name)


def reached(root: str, files: dict[str, Path]) -> Iterator[Path]:
    """A module, and all that it extends or instantiates, as far as there are files.

    Args:
        root: Its file's name.
        files: Of ``module_files``.
    """
    queue, seen = [root], set[str]()
    while queue:
        name = queue.pop(0)
        if name in seen or name not in files:
            continue
        seen.add(name)
        yield files[name]
        text = files[name].read_text(encoding="utf-8", errors="replace")
        for extended, instanced in _USES.findall(text):
            queue += [f"{used.strip()}.tla" for used in (extended or instanced).split(",")]
