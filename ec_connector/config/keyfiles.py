# SPDX-License-Identifier: Apache-2.0
"""Files with keys: who may read them, what is in them, and when they change.

The format is that of ZeroMQ's certificates, as ``ec-connector keygen`` and pyzmq write
them: lines ``public-key = "…"`` and, in a secret one, ``secret-key = "…"``. Several public
files put together are a list of keys, and so is a folder of them.

The engine looks at a secret file and does not read it: only the processes that
authenticate with it do (EC-15.4).
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ec_protocol.announcements import is_public_key
from ec_protocol.errors import ConfigError

logger = logging.getLogger(__name__)

#: Endings of the two files of a pair.
PUBLIC: Final = ".key"
SECRET: Final = ".key_secret"
#: A list of keys is looked at no more often.
LOOK_S: Final = 1.0
#: Longest file, and most files of a folder.
_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 4096

_ROOT: Final = 0
_LINE: Final = re.compile(r"""^\s*(public|secret)-key\s*=\s*["']?([^"'\s]*)["']?\s*$""")

#: What tells one version of a file from another.
_Seen = tuple[int, ...]


class KeyFileError(ConfigError):
    """A file with keys cannot be used; the message names setting, file, mode and fix."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both keys of an instance, as text.

    Attributes:
        public: What others are told.
        secret: What nobody is told.
    """

    public: str
    secret: str = field(repr=False)


def check_key_file(path: str, setting: str = "ec_key_file") -> None:
    """See that a secret file is there and nobody else's to read, without reading it.

    Raises:
        KeyFileError: It is missing, no file, somebody else's, or others may read it.
    """
    try:
        found = os.stat(path)
    except OSError as exc:
        raise _unusable(setting, path, exc.strerror or str(exc), _MAKE) from exc
    _check_secret(setting, path, found)


def read_key_pair(path: str, setting: str = "ec_key_file") -> KeyPair:
    """Read a secret file, which has both keys; what is checked is what is read.

    Raises:
        KeyFileError: As ``check_key_file``; or the keys in it are none.
    """
    text = _read(setting, path, _MAKE, lambda fd: _check_secret(setting, path, os.fstat(fd)))
    keys = dict(_keys_in(text))
    public, secret = keys.get("public"), keys.get("secret")
    if not is_public_key(public) or not is_public_key(secret):
        raise _unusable(setting, path, "it does not hold a public and a secret key", _MAKE)
    return KeyPair(public, secret)


def write_key_pair(path: str, pair: KeyPair) -> tuple[Path, Path]:
    """Write a new pair beside each other: ``PATH.key`` and ``PATH.key_secret``.

    The secret one can be read by its owner alone from the moment on that it is there.

    Raises:
        KeyFileError: One of them exists, which is then left as it is, or cannot be written.
    """
    public, secret = Path(path + PUBLIC), Path(path + SECRET)
    line = f'curve\n    public-key = "{pair.public}"\n'
    private = f'# Secret: it never leaves this host.\n{line}    secret-key = "{pair.secret}"\n'
    made: list[Path] = []
    for name, mode, text in (
        (secret, 0o600, private),
        (public, 0o644, f"# Public: for the ec_peer_keys of others.\n{line}"),
    ):
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            made.append(name)
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(text)
        except OSError as exc:
            for half in made:
                half.unlink(missing_ok=True)
            why = exc.strerror or str(exc)
            fix = "choose another name, or remove it: whoever has its keys loses access then"
            raise _unusable("keygen", str(name), why, fix) from exc
    return public, secret


_MAKE: Final = "make one with `ec-connector keygen`, and give the path of its .key_secret"


class KeyList:
    """The public keys of those whom we talk to: one file, or a folder of ``*.key``.

    It is looked at again while it is used, at most every second: a key that is added or
    removed counts from then on (EC-15.2). What cannot be read then, or could have been
    written by others, counts as not listed, and the log says so once.

    Args:
        path: Of the file or folder.
        setting: The setting that named it, for messages.
        clock: Seconds, monotonic.

    Raises:
        KeyFileError: It cannot be used as it is now.
    """

    def __init__(
        self,
        path: str,
        setting: str = "ec_peer_keys",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._setting = setting
        self._clock = clock
        self._seen = self._look()
        self._keys = self._load(strict=True)
        self._looked_at = clock()

    def __len__(self) -> int:
        return len(self._keys)

    def knows(self, key: str) -> bool:
        """Whether a public key is in the list, as it is now or was a second ago."""
        now = self._clock()
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._keys = self._load(strict=False)
                logger.info("%s=%r has changed: %d keys", self._setting, self._path, len(self))
        return key in self._keys

    # --------------------------------------------------------------------- internals
    def _files(self) -> list[str]:
        """The files that make the list up."""
        if not os.path.isdir(self._path):
            return [self._path]
        with os.scandir(self._path) as entries:
            names = sorted(entry.path for entry in entries if entry.name.endswith(PUBLIC))
        if len(names) > _MAX_FILES:
            raise _unusable(self._setting, self._path, f"{len(names)} files", "put keys together")
        return names

    def _look(self) -> dict[str, _Seen]:
        """What tells this version of the list from any other."""
        seen: dict[str, _Seen] = {}
        try:
            files = self._files()
        except (OSError, KeyFileError) as exc:
            seen[str(exc)] = ()
            files = []
        for path in (self._path, *files):
            try:
                found = os.stat(path)
            except OSError:
                seen[path] = ()  # which hides no change of the others
                continue
            seen[path] = (
                found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_uid,
            )  # fmt: skip
        return seen

    def _load(self, *, strict: bool) -> frozenset[str]:
        keys: set[str] = set()
        try:
            if os.path.isdir(self._path):
                _check_writers(self._setting, self._path, self._path)
            files = self._files()
        except (OSError, KeyFileError) as exc:
            self._refuse(self._path, exc, strict=strict)
            return frozenset()
        for path in files:
            try:
                keys |= self._load_file(path)
            except KeyFileError as exc:
                self._refuse(path, exc, strict=strict)
        if strict and not keys:
            raise _unusable(self._setting, self._path, "there is no public key in it", _LIST)
        return frozenset(keys)

    def _load_file(self, path: str) -> set[str]:
        lines = _keys_in(
            _read(self._setting, path, _LIST, lambda fd: _check_writers(self._setting, path, fd))
        )
        keys = {value for _, value in lines}
        public = all(kind == "public" and is_public_key(value) for kind, value in lines)
        if not keys or not public:
            raise _unusable(self._setting, path, "it does not hold public keys alone", _LIST)
        return keys

    def _refuse(self, path: str, exc: Exception, *, strict: bool) -> None:
        if strict and isinstance(exc, KeyFileError):
            raise exc
        if strict:
            raise _unusable(self._setting, path, str(exc), _LIST) from exc
        logger.error("keys that cannot be read count as not listed: %s", exc)


_LIST: Final = "give a folder with the .key files of your peers, or one file of all of them"


def _keys_in(text: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in map(_LINE.match, text.splitlines()) if m is not None]


def _read(setting: str, path: str, fix: str, check: Callable[[int], None]) -> str:
    """A file's text; who may do what with it is checked of the very file that is read."""
    try:
        # Not to hang on a pipe that somebody has put there.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
                raise _unusable(setting, path, "it is no file with keys", fix)
            check(fd)
            return os.read(fd, _MAX_BYTES).decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError as exc:
        raise _unusable(setting, path, exc.strerror or str(exc), fix) from exc


def _check_secret(setting: str, path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(setting, path, "it is no file with keys", _MAKE)
    _check_owner(setting, path, found)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise _unusable(setting, path, f"mode {mode:04o} lets others at it", f"chmod 600 {path}")


def _check_writers(setting: str, path: str, what: str | int) -> None:
    """Whoever can write a list of keys is on it.

    Raises:
        OSError: A path that is not there any more; a descriptor always is.
    """
    if os.statvfs(what).f_flag & os.ST_RDONLY:
        return  # as Kubernetes mounts what it manages, for everybody to write
    found = os.stat(what)
    _check_owner(setting, path, found)
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise _unusable(
            setting, path, f"mode {mode:04o} lets others write it", f"chmod go-w {path}"
        )


def _check_owner(setting: str, path: str, found: os.stat_result) -> None:
    if found.st_uid not in (_ROOT, os.geteuid()):
        why = f"it belongs to user {found.st_uid}, and we are {os.geteuid()}"
        raise _unusable(setting, path, why, f"chown {os.geteuid()} {path}")


def _unusable(setting: str, path: str, why: str, fix: str) -> KeyFileError:
    return KeyFileError(f"{setting}={path!r}: {why}; {fix}")
