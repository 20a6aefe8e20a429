# SPDX-License-Identifier: Apache-2.0
"""docs/upstream.md: what it shows of vLLM's own classes is what the installed release does.

A test that fails means that the release behaves otherwise: then the page has to say so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.e2e.platform import named
from tests.interop.driver import marks

pytestmark = marks

PAGE = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")

#: Runs each file that it is given, and says what each printed. One import of vLLM takes long.
RUN = """
import contextlib, io, json, sys
said = []
for name in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(open(name).read(), name, "exec"), {})
        except Exception as exc:
            print(f"{type(exc).__name__}: {exc}")
    said.append(out.getvalue())
print(json.dumps(said))
"""


def shown() -> dict[str, tuple[str, str]]:
    """Programs that need no server, by the anchor before them, and what they print."""
    found = {}
    for section in PAGE.split('<a id="')[1:]:
        block = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", section, re.DOTALL)
        if block is not None and "sys.argv" not in block[1]:
            found[section.partition('"')[0]] = (block[1], block[2])
    return found


def test_what_the_page_shows_is_what_vllm_does(tmp_path: Path) -> None:
    programs = shown()
    assert len(programs) == 6
    files = []
    for name, (program, _) in programs.items():
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, files)],
        env={**os.environ, **named("cpu").env, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for (name, (_, expected)), printed in zip(programs.items(), said, strict=True):
        # Of an error its beginning is shown.
        for line, was in zip(expected.splitlines(), printed.splitlines(), strict=True):
            assert was == line or (": " in line and was.startswith(line)), f"{name}: {was}"
