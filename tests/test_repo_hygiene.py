# SPDX-License-Identifier: Apache-2.0
"""Rules about the files themselves: licence lines, length, nothing of one machine."""

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

MAX_LINES = 450

# Places of one person's machine, alone or as the beginning of a longer path.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/$}-])/"
    r"((work|root|opt/wheels|opt/pypi)(?![\w-])|(home|Users)/[A-Za-z]|tmp/[a-z]/)"
)


def tracked_files() -> list[Path]:
    """The files of the checkout that git knows; all files where there is no git."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        files = [ROOT / name for name in listed if name]
    else:
        hidden = re.compile(r"/(\.[^/]+|__pycache__)/")
        files = [p for p in ROOT.rglob("*") if not hidden.search(f"/{p.relative_to(ROOT)}/")]
    return sorted(p for p in files if p.is_file())


@cache
def text_files() -> list[tuple[Path, str]]:
    found = []
    for path in tracked_files():
        try:
            found.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_source_file_names_its_licence():
    kinds = {".py", ".sh", ".tla", ".toml", ".yaml", ".yml"}
    lacking = [
        named(path)
        for path, text in text_files()
        if path.suffix in kinds and "SPDX-License-Identifier: Apache-2.0" not in text[:500]
    ]
    assert lacking == []


def test_python_files_begin_with_their_licence():
    """Exactly the first line, or the second below a `#!` line."""
    for path, text in text_files():
        if path.suffix == ".py":
            lines = text.splitlines() or [""]
            first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
            assert first == "# SPDX-License-Identifier: Apache-2.0", named(path)


def test_no_file_names_a_place_on_one_machine():
    found = [
        f"{named(path)}:{text.count(chr(10), 0, place.start()) + 1}: {place[0]}"
        for path, text in text_files()
        if path != Path(__file__).resolve()
        for place in MACHINE_PATH.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd /work/x && make", True),
        ("see /work", True),
        ("/opt/wheels/torch.whl", True),
        ("--find-links=/opt/pypi", True),
        ("/home/kim/src", True),
        ("a network/worker thing", False),
        ("/dev/shm/vllm_ec_x_dp0.mmap", False),
        ("$HOME/work", False),
        ("/workers are", False),
    ],
)
def test_what_counts_as_a_place(line, found):
    assert bool(MACHINE_PATH.search(line)) is found


def test_python_files_stay_short():
    long = {
        named(path): text.count("\n")
        for path, text in text_files()
        if path.suffix == ".py" and text.count("\n") > MAX_LINES
    }
    assert long == {}


def test_text_files_end_with_a_newline_and_have_no_trailing_blanks():
    for path, text in text_files():
        if path.suffix in {".md", ".py", ".tla", ".toml"} and text:
            assert text.endswith("\n"), named(path)
            assert not re.search(r"[ \t]+$", text, re.MULTILINE), named(path)


def test_every_direct_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    wanted += project["build-system"]["requires"]
    names = {_distribution(requirement) for requirement in wanted} - {"ec-connector"}
    pins = {
        _distribution(line)
        for line in (ROOT / "constraints" / "dev.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert names - pins == set()


def test_pins_are_exact_and_index_free():
    for line in (ROOT / "constraints" / "dev.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(
                r'[a-z0-9-]+==[0-9][0-9a-z.]*( ; sys_platform == "linux")?', line
            ), line


def _distribution(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()
