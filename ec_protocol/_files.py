# SPDX-License-Identifier: Apache-2.0
"""Where the specification files are: in a source checkout or in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _root(name: str) -> Path:
    # The wheel carries spec/ and tla/ inside the package; a checkout has them beside it.
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def spec_path(name: str = "") -> Path:
    """Path of a file (or folder) under ``spec/``."""
    return _root("spec") / name


def tla_dir() -> Path:
    """The folder with the TLA+ modules, configs and ``manifest.json``."""
    return _root("tla")
