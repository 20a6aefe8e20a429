# SPDX-License-Identifier: Apache-2.0
"""On which kind of machine the servers run: ``--platform``, and a variable for children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ec_connector.bench import platforms
from ec_connector.bench.platforms import Platform

ROOT: Final = Path(__file__).resolve().parents[2]
#: Says it to tests that a run starts: ``cpu``, ``cuda``, or ``cuda:2`` for two GPUs.
VARIABLE: Final = "EC_E2E_PLATFORM"


def named(name: str) -> Platform:
    """The platform of a name.

    Raises:
        ValueError: There is none, or not with so many GPUs.
    """
    kind, _, count = name.partition(":")
    if kind == "cpu" and not count:
        # shims/sitecustomize.py says what each of them is for.
        return platforms.cpu([str(ROOT / "tests/e2e/shims"), str(ROOT)])
    if kind == "cuda" and (not count or (count.isdecimal() and int(count) > 0)):
        return platforms.cuda([str(ROOT)], int(count or 1))
    raise ValueError(f"{name!r}: choose cpu, cuda, or cuda:N for N GPUs")


def chosen() -> Platform:
    """What the environment says; a CPU if it says nothing."""
    return named(os.environ.get(VARIABLE, "cpu"))
