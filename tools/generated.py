# SPDX-License-Identifier: Apache-2.0
"""The end of every tool that makes files: write them, or only look."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(made: Mapping[Path, str]) -> int:
    """Write what was made; with ``--check`` say which files are not like it.

    Returns:
        The exit status: 1 if a file is stale.
    """
    status = 0
    for path, wanted in made.items():
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        if "--check" in sys.argv[1:]:
            sys.stderr.write(f"{path.name} is stale: run tools/{Path(sys.argv[0]).name}\n")
            status = 1
        else:
            path.write_text(wanted, encoding="utf-8")
    return status
