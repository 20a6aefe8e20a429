# SPDX-License-Identifier: Apache-2.0
"""Where tests put what is not to stay, and how it goes away when nobody cleaned up.

Folders in ``/dev/shm`` and in the system's folder for temporary files carry the process
that made them, as ``ec-test-PID-START-RANDOM``: START is when it started, in the kernel's
ticks, so that another process with the same number later is not taken for it. Region
files in ``/dev/shm`` itself carry the process in the name of their instance. So whoever
comes next knows what nobody needs any more, also after SIGKILL: ``reap`` removes what dead
processes left and never touches what belongs to a live one. It must see those processes:
containers that share ``/dev/shm`` have to share their process ids too.

Each session has one folder for temporary files, which its children inherit, pytest's
``tmp_path`` included; ``--basetemp`` keeps the latter. Standard library only:
``python -m tests.leftovers`` is what ``make clean`` runs, with any Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

SHM = Path("/dev/shm")

#: Folders of tests, of ``make`` and of ``make e2e``.
_FOLDER = re.compile(r"ec-(?:test|make|e2e)-(?P<pid>\d+)-(?P<start>\d+)-\w+")
#: What our programs make there, and regions of tests: with the process id alone.
_PROGRAM = re.compile(
    r"ec-conformance-(?P<folder>\d+)-\w+"
    r"|\.?(?:ec_ucx_)?vllm_ec_(?:test|fake|builtin|demo|guide)-(?P<region>\d+)(?:-[\w-]+)?_dp\d+"
    r"(?:\.mmap(?:\.\w+\.tmp)?|\.[0-9a-f]{16})"
)


def start_of(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name comes second, in brackets, and may contain anything.
    state, *numbers = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(numbers[18])


def prefix(kind: str = "test") -> str:
    """What a folder's name begins with if this process makes it."""
    pid = os.getpid()
    return f"ec-{kind}-{pid}-{start_of(pid)}-"


def maker(name: str) -> tuple[int, int | None] | None:
    """The process that made this, and when it started if the name says so; None: not ours."""
    if found := _FOLDER.fullmatch(name):
        return int(found["pid"]), int(found["start"])
    if found := _PROGRAM.fullmatch(name):
        return int(found["folder"] or found["region"]), None
    return None


def is_left(name: str) -> bool:
    """Whether this is a name of ours and its maker has ended."""
    made = maker(name)
    if made is None:
        return False
    pid, start = made
    now = start_of(pid)
    return now is None or (start is not None and now != start)


def temporary_root() -> Path:
    """The system's folder for temporary files, also where a session's own takes its place."""
    where = Path(tempfile.gettempdir())
    for folder in (where, *where.parents):
        if _FOLDER.fullmatch(folder.name):
            return folder.parent
    return where


def reap(roots: Iterable[Path] | None = None) -> list[Path]:
    """Remove what dead processes left; several may do so at once.

    Args:
        roots: Where to look; ``/dev/shm`` and the folder for temporary files if left out.

    Returns:
        What was there.
    """
    found = []
    for root in (SHM, temporary_root()) if roots is None else roots:
        with contextlib.suppress(FileNotFoundError):
            found += [path for path in sorted(root.iterdir()) if is_left(path.name)]
    for path in found:
        _remove(path)
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for mounted in _mounts(path):
            subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _mounts(path: Path) -> list[str]:
    """What a test that was killed has mounted there, the innermost first."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    points = [line.split()[1] for line in lines]
    return [point for point in reversed(points) if Path(point).is_relative_to(path)]


def orphaned_regions() -> list[str]:
    """Remove region files that no process uses, by the rule of the connector itself."""
    try:
        from ec_connector.region.file import reap_orphans
    except ImportError:  # a Python without what the connector needs
        return []
    return [f"{SHM}/{name}" for name in reap_orphans(str(SHM)).names]


@contextlib.contextmanager
def shm_folder() -> Iterator[Path]:
    """A folder on the tmpfs that regions are made for."""
    path = Path(tempfile.mkdtemp(prefix=prefix(), dir=SHM))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Home:
    """A folder for the temporary files of this process and of its children.

    Args:
        kind: Of its name.
    """

    def __init__(self, kind: str = "test") -> None:
        self._before = os.environ.get("TMPDIR"), tempfile.tempdir
        self.path = Path(tempfile.mkdtemp(prefix=prefix(kind), dir=temporary_root()))
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.path)

    def remove(self) -> None:
        """Remove it; temporary files go where they went before."""
        variable, tempfile.tempdir = self._before
        if variable is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = variable
        _remove(self.path)


def remove_own() -> None:
    """Remove what this process, which needs nothing any more, and dead ones left."""
    reap()
    with contextlib.suppress(FileNotFoundError):
        for path in list(SHM.iterdir()):
            if (made := maker(path.name)) is not None and made[0] == os.getpid():
                _remove(path)


def main() -> None:
    """Remove what dead runs left, and say what."""
    for path in [*map(str, reap()), *orphaned_regions()]:
        print(f"removed {path}")


if __name__ == "__main__":
    main()
