# SPDX-License-Identifier: Apache-2.0
"""A folder beside the region for what libraries put into shared memory under a name.

UCX gives each piece a name in ``/dev/shm`` and takes it away again a moment later. A
process that is killed in between leaves it there, under a name that says nothing of its
owner. So each data process is given a folder of its own, which its parent removes when it
is gone; and all of them lie in one folder of the instance.

Engine and parent keep a shared ``flock`` on that folder, as on the region (EC-10.2): if
nobody has it, all of it is an orphan, which the next start on the host removes (EC-10.6).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"ec_ucx_vllm_ec_[A-Za-z0-9._-]+_dp[0-9]+\.[0-9a-f]{16}")
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """The folder of one instance, kept by the process that made it. One thread only.

    Args:
        region: Path of the region's file.

    Attributes:
        path: Where it is.
        fd: Holds the lock; whoever inherits it holds it too.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, region: str) -> None:
        folder, name = os.path.split(region)
        stem = name.removesuffix(".mmap")
        while True:
            self.path = os.path.join(folder, f"ec_ucx_{stem}.{secrets.token_hex(8)}")
            os.mkdir(self.path, 0o700)
            fd = _locked(self.path, fcntl.LOCK_SH)
            if fd is not None:
                break  # nobody took it for an orphan before it had its lock
        self.fd = fd

    def clear(self) -> None:
        """Remove what processes have left there."""
        for part in _listed(self.path):
            remove(os.path.join(self.path, part))

    def close(self) -> None:
        """Remove it. May be called twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            remove(self.path)
            os.close(fd)


def remove(path: str) -> None:
    """Remove a folder, if it is any, and what is in it, as far as that can be done."""
    if path:
        shutil.rmtree(path, ignore_errors=True)


def remove_orphan(path: str) -> bool:
    """Remove a folder of ours that nobody keeps.

    Returns:
        Whether it was one.
    """
    if not _NAME.fullmatch(os.path.basename(path)):
        return False
    fd = _locked(path, fcntl.LOCK_EX)
    if fd is None:
        return False
    try:
        if os.fstat(fd).st_uid not in (os.geteuid(), 0):
            return False
        remove(path)
        return not Path(path).exists()
    finally:
        os.close(fd)


def _locked(path: str, how: int) -> int | None:
    """Open a folder under its lock; None if it is none, is locked, or is gone by then."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        mine, named = os.fstat(fd), os.stat(path, follow_symlinks=False)
        if stat.S_ISDIR(named.st_mode) and (mine.st_dev, mine.st_ino) == (
            named.st_dev,
            named.st_ino,
        ):
            return fd
    os.close(fd)
    return None


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
