# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz.child TARGET [libFuzzer's arguments]``: one target until the end.

libFuzzer ends its process, so each target has one of its own.
"""

from __future__ import annotations

import logging
import sys

import atheris

with atheris.instrument_imports(include=["ec_protocol", "ec_connector", "ec_verify"]):
    from tests.fuzz.targets import ANY, TARGETS


def main() -> None:
    """Never returns."""
    logging.disable()
    name, *arguments = sys.argv[1:]
    atheris.Setup([sys.argv[0], *arguments], TARGETS.get(name, ANY).run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
