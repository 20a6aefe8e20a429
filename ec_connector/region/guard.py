# SPDX-License-Identifier: Apache-2.0
"""The guard: a tiny process that removes a region's name when all its users are gone.

SIGKILL gives nobody a chance to unlink. So the creator starts this file as a
script of its own (``python -I -S guard.py``), with one descriptor: a fresh opening
of the region file. The guard asks for the exclusive lock and sleeps in the kernel
for as long as any process holds the shared one. Waking up therefore *is* the
proof that nobody maps the file (the edge ``orphan --reap--> unlinked``). If the
name was removed in the ordinary way it finds no name and just ends.

It never polls, uses about 3 MB of its own, has left the session of its creator,
and ignores the signals by which a terminal or a supervisor stops a whole group:
it ends by itself as soon as the last user does. If it is killed as well, the
next start on the host reaps the file (``region_file.reap_orphans``).

Only modules that are built into the interpreter are imported at the top, since
everything imported here is paid for in every guard.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums; has no stub
import fcntl
import posix
import sys

# How long a fresh interpreter may take to start and go to the background.
_START_TIMEOUT_S = 30.0


def start_guard(fd: int, paths: list[str]) -> str | None:
    """Start a guard over an open region file that may not have a name yet.

    Args:
        fd: Any descriptor of the file; the guard gets an opening of its own, so
            it does not share our lock.
        paths: Absolute paths that may come to name the file.

    Returns:
        None when the guard is watching, else why there is none. A region
        works without one.
    """
    import os
    import subprocess

    if not sys.executable or not os.path.isfile(__file__):
        return "there is no interpreter or no guard.py file to run"
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        return f"the file cannot be opened a second time: {exc}"
    try:
        # The first process only forks and exits, which makes the guard nobody's
        # child: no zombie stays with us and nobody waits for it.
        with subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(own), *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # -I ignores PYTHON*; an interpreter with a shared libpython may need this one.
            env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            pass_fds=(own,),
            start_new_session=True,
        ) as first:
            try:
                code = first.wait(_START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                first.kill()
                return f"it did not start within {_START_TIMEOUT_S:g} s"
    except OSError as exc:
        return f"{sys.executable} cannot be run: {exc}"
    finally:
        os.close(own)
    return None if code == 0 else f"it ended with status {code}"


def _watch(fd: int, paths: list[str]) -> None:
    """Sleep until every holder is gone, then remove the names that are left."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    mine = posix.fstat(fd)
    for path in paths:
        try:
            named = posix.stat(path, follow_symlinks=False)
            # The lock is held until we exit, so no process can start to use
            # the file between the look and the unlink.
            if (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino):
                posix.unlink(path)
        except OSError:
            continue


def _main(argv: list[str]) -> None:
    for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_IGN)
    if posix.fork() == 0:
        _watch(int(argv[1]), argv[2:])
    posix._exit(0)


if __name__ == "__main__":
    _main(sys.argv)
