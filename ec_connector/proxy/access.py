# SPDX-License-Identifier: Apache-2.0
"""Who may ask: keys in files that nobody else can read.

A file holds one key a line, so that an old key and its successor can be valid at the
same time; empty lines and those that begin with ``#`` say nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ec_protocol.errors import ConfigError

#: Random keys are longer; a shorter one can be guessed.
MIN_KEY_CHARS: Final = 16
_MAX_FILE_BYTES: Final = 64 << 10
_KEY: Final = re.compile(r"[!-~]+")


class Keys:
    """Keys any of which opens.

    Args:
        keys: In clear; only their hashes are kept.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def open_to(self, headers: Mapping[str, str]) -> bool:
        """Whether a request brings one, as ``Authorization: Bearer`` or ``x-api-key``.

        Takes the same time whichever key it is and however much of it is right.
        """
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        offered = [token.strip()] if scheme.lower() == "bearer" else []
        offered.append(headers.get("x-api-key", ""))
        found = False
        for digest in [_digest(key) for key in offered]:
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: str) -> bytes:
    # Of equal length, which is what a comparison in constant time asks for.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_keys(option: str, path: Path) -> tuple[str, ...]:
    """The keys of a file.

    Args:
        option: What names the file, for the message.
        path: The file.

    Raises:
        ConfigError: It cannot be read, others may read it, it belongs to somebody else,
            or a line is no key. No message holds a key.
    """
    where = f"{option}={str(path)!r}"
    try:
        with path.open("rb") as file:
            # Of what was opened, not of what has the name by now.
            about = os.fstat(file.fileno())
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"{where}: cannot be read: {exc.strerror}") from exc
    if not stat.S_ISREG(about.st_mode):
        raise ConfigError(f"{where}: is no regular file")
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{where}: belongs to user {about.st_uid}; expected this user or root")
    if about.st_mode & 0o077:
        raise ConfigError(
            f"{where}: has mode {stat.S_IMODE(about.st_mode):04o}, so that others may use it; "
            f"make it private with: chmod 600 {path}"
        )
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{where}: is longer than {_MAX_FILE_BYTES} bytes")
    keys = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if len(key) < MIN_KEY_CHARS or not _KEY.fullmatch(key):
            raise ConfigError(
                f"{where}: line {number} is no key; expected {MIN_KEY_CHARS} or more characters "
                "without spaces, such as `openssl rand -hex 32` prints"
            )
        keys.append(key)
    if not keys:
        raise ConfigError(f"{where}: holds no key")
    return tuple(keys)
