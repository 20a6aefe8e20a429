# SPDX-License-Identifier: Apache-2.0
"""Keeps the patches of the seeded faults in step with the source.

``python -m tests.faults write NAME`` makes a patch of what is changed in the checkout;
``python -m tests.faults refresh`` merges patches that do not apply any more into the
source as it is now. Both keep the lines above the diff.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults import FAULTS, HERE
from tests.faults.patched import ROOT, PatchError, apply, paths, relative, source

#: A new fault is none before these lines are filled in.
HEADER = "Clause: EC-\nSchedule: \nFault: \nSymptom: \nCaught-by: \nNon-strict: \nRaises: \n\n"
FOLDERS = ("ec_protocol", "ec_connector", "ec_verify")
BY_HAND = """By hand, with everything else committed:
  git apply -3 tests/faults/NAME.patch  # then edit, or write it anew if its file is gone
  python -m tests.faults write NAME
  git checkout HEAD -- ec_protocol ec_connector ec_verify
"""


def git(*words: str, where: Path = ROOT, fine: Sequence[int] = (0,)) -> str:
    """What git says.

    Raises:
        PatchError: Its status is none of ``fine``.
    """
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True)
    if done.returncode not in fine:
        raise PatchError(done.stderr.strip() or f"git {words[0]} ended with {done.returncode}")
    return done.stdout


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A diff with as little around it as tells the places apart."""
    with tempfile.TemporaryDirectory(prefix="ec-faults-") as folder:
        for side, files in (("a", before), ("b", after)):
            for name, text in files.items():
                path = Path(folder, side, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        # The names of whole blobs: a merge needs the file as it was.
        words = ("--no-index", "--no-prefix", "--full-index", "-U2", "a", "b")
        return git("diff", *words, where=Path(folder), fine=(0, 1))


def put(name: str, diff: str) -> None:
    """Write a patch; what stands above its diff stays."""
    path = HERE / f"{name}.patch"
    old = path.read_text(encoding="utf-8") if path.is_file() else HEADER
    path.write_text(old.partition("diff --git ")[0] + diff, encoding="utf-8")


def write(name: str) -> None:
    """Make a patch of what the checkout has changed since its last commit.

    Raises:
        PatchError: That is nothing.
    """
    changed = git("diff", "--name-only", "HEAD", "--", *FOLDERS).split()
    if not changed:
        raise PatchError(f"nothing is changed in {', '.join(FOLDERS)}: what is the fault?")
    before = {path: git("show", f"HEAD:{path}") for path in changed}
    put(name, difference(before, {path: (ROOT / path).read_text("utf-8") for path in changed}))


def refresh(name: str) -> None:
    """Merge a patch into the source as it is now.

    Raises:
        PatchError: Both have changed the same lines, a file is gone, or what the patch
            was made for is not known to git.
    """
    patch = HERE / f"{name}.patch"
    blobs = re.findall(r"^index ([0-9a-f]+)\.\.", patch.read_text(encoding="utf-8"), re.MULTILINE)
    before = {
        path: git("cat-file", "blob", blob) for path, blob in zip(paths(patch), blobs, strict=True)
    }
    faulty = apply(patch, before)
    now, merged = {}, {}
    for path, was in before.items():
        now[path] = source(patch, path)
        with tempfile.TemporaryDirectory(prefix="ec-faults-") as folder:
            sides = {"now": now[path], "was": was, "faulty": faulty[path]}
            for side, text in sides.items():
                Path(folder, side).write_text(text, encoding="utf-8")
            try:
                merged[path] = git("merge-file", "-p", *sides, where=Path(folder))
            except PatchError as exc:
                raise PatchError(
                    f"{relative(patch)} and the source have changed the same lines of {path}"
                ) from exc
    put(name, difference(now, merged))


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("action", choices=("write", "refresh"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="refresh: all that do not apply")
    chosen = parser.parse_args()
    names = chosen.names
    if chosen.action == "write" and len(names) != 1:
        parser.error("write: name the fault")
    failed = 0
    for name in names or FAULTS:
        try:
            if chosen.action == "write":
                write(name)
            elif names or not _applies(HERE / f"{name}.patch"):
                refresh(name)
            else:
                continue
            sys.stdout.write(f"{relative(HERE / f'{name}.patch')}\n")
        except PatchError as exc:
            sys.stderr.write(f"{exc}\n")
            failed = 1
    if failed and chosen.action == "refresh":
        sys.stderr.write(BY_HAND)
    return failed


def _applies(patch: Path) -> bool:
    try:
        apply(patch, {})
    except PatchError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
