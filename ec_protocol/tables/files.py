# SPDX-License-Identifier: Apache-2.0
"""Where the language-neutral sources of the protocol lie.

`spec/` and `tla/` are top-level folders of a checkout and are shipped inside
the wheel as `ec_protocol/spec` and `ec_protocol/tla`. Everything that reads
them asks here, so that the same code runs from either place.
"""

from __future__ import annotations

from pathlib import Path

#: ``ec_protocol/``.
_PACKAGE = Path(__file__).resolve().parent.parent


def _folder(name: str) -> Path:
    """The shipped folder if there is one, else the checkout's.

    The wheel comes first: beside an installed package there may be an
    unrelated folder of the same name.
    """
    shipped = _PACKAGE / name
    if shipped.is_dir():
        return shipped
    checkout = _PACKAGE.parent / name
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(
        f"{name}/ was found neither at {shipped} (installed) nor at {checkout} (checkout): "
        "reinstall the ec-connector distribution"
    )


def spec_dir() -> Path:
    """The folder of the normative tables, clauses and wire vectors."""
    return _folder("spec")


def spec_path(name: str) -> Path:
    """The path of one file of `spec/`.

    Args:
        name: file name relative to `spec/`, e.g. `"lifecycle.toml"`.

    Raises:
        FileNotFoundError: the file, or `spec/` itself, is not there.
    """
    path = spec_dir() / name
    if not path.is_file():
        raise FileNotFoundError(f"spec/{name} is missing: expected it at {path}")
    return path


def tla_dir() -> Path:
    """The folder of the TLA+ modules, their models and `manifest.json`."""
    return _folder("tla")


def checkout_dir() -> Path | None:
    """The root of the source checkout, or None when running from a wheel."""
    root = _PACKAGE.parent
    return root if (root / "spec").is_dir() and (root / "tla").is_dir() else None
