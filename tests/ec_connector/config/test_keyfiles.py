# SPDX-License-Identifier: Apache-2.0
"""Files with keys: who may read and write them, and when a change of them counts."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("zmq")

import zmq.auth

from ec_connector.config import keyfiles
from ec_connector.config.keyfiles import (
    KeyFileError,
    KeyList,
    check_key_file,
    read_key_pair,
    write_key_pair,
)
from ec_protocol.announcements import is_public_key
from tests.world.keys import Fleet, new_pair

pytestmark = pytest.mark.clause("EC-15.4")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


# ---------------------------------------------------------------------------- a pair
def test_what_is_written_is_read_and_the_library_reads_it_too(tmp_path: Path) -> None:
    pair = new_pair()
    public, secret = write_key_pair(str(tmp_path / "enc0"), pair)
    assert (public.name, secret.name) == ("enc0.key", "enc0.key_secret")
    assert read_key_pair(str(secret)) == pair
    assert zmq.auth.load_certificate(secret) == (pair.public.encode(), pair.secret.encode())
    assert pair.secret not in public.read_text()
    assert pair.secret not in repr(pair)


def test_the_secret_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        public, secret = write_key_pair(str(tmp_path / "enc0"), new_pair())
    finally:
        os.umask(old)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644


@pytest.mark.parametrize("half", ["enc0.key", "enc0.key_secret"])
def test_nothing_is_overwritten_and_no_half_is_left(tmp_path: Path, half: str) -> None:
    (tmp_path / half).write_text("mine")
    with pytest.raises(KeyFileError, match=f"{half}.*exists.*choose another name"):
        write_key_pair(str(tmp_path / "enc0"), new_pair())
    assert [path.name for path in tmp_path.iterdir()] == [half]
    assert (tmp_path / half).read_text() == "mine"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "enc0.key_secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="keygen="):
        write_key_pair(str(tmp_path / "enc0"), new_pair())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("look", [check_key_file, read_key_pair])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int, look: Any) -> None:
    _, secret = write_key_pair(str(tmp_path / "enc0"), new_pair())
    secret.chmod(mode)
    with pytest.raises(KeyFileError) as caught:
        look(str(secret))
    text = str(caught.value)
    assert f"ec_key_file={str(secret)!r}" in text
    assert f"mode {mode:04o}" in text
    assert f"chmod 600 {secret}" in text


@pytest.mark.parametrize("look", [check_key_file, read_key_pair])
def test_a_secret_that_is_not_there_or_no_file_is_refused(tmp_path: Path, look: Any) -> None:
    with pytest.raises(KeyFileError, match=r"none'.*No such file.*"):
        look(str(tmp_path / "none"))
    with pytest.raises(KeyFileError, match="it is no file with keys"):
        look(str(tmp_path))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyFileError, match="it is no file with keys"):
        look(str(tmp_path / "pipe"))


def test_somebody_elses_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = write_key_pair(str(tmp_path / "enc0"), new_pair())
    owner = secret.stat().st_uid
    monkeypatch.setattr(keyfiles.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(keyfiles, "_ROOT", -1)
    with pytest.raises(KeyFileError, match=f"it belongs to user {owner}"):
        check_key_file(str(secret))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "public-key = x",
        'public-key = "{public}"',
        'secret-key = "{secret}"',
        'public-key = "{public}"\nsecret-key = "short"',
        'public-key = "{public}"\nsecret-key = "' + "#" * 40 + '"',
        "\0" * 100,
    ],
)
def test_a_secret_file_without_both_keys_is_refused(tmp_path: Path, text: str) -> None:
    pair = new_pair()
    path = tmp_path / "a.key_secret"
    path.write_text(text.replace("{public}", pair.public).replace("{secret}", pair.secret))
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="does not hold a public and a secret key") as caught:
        read_key_pair(str(path))
    assert pair.secret not in str(caught.value)


def test_a_public_key_is_told_from_what_is_none() -> None:
    assert is_public_key(new_pair().public)
    assert not any(map(is_public_key, ["", "0" * 39, "0" * 41, "é" * 40, "#" * 40, b"0" * 40, 5]))


# ---------------------------------------------------------------------------- a list
def test_a_folder_and_a_file_of_all_are_the_same_list(fleet: Fleet, tmp_path: Path) -> None:
    fleet.member("a")
    fleet.member("b")
    fleet.member("stranger", listed=False)
    (fleet.peers / "notes.txt").write_text("no key")
    together = tmp_path / "all"
    together.write_text("".join(f.read_text() for f in fleet.peers.glob("*.key")))
    for path in (fleet.peers, together):
        listed = KeyList(str(path))
        known = {name for name, pair in fleet.pairs.items() if listed.knows(pair.public)}
        assert known == {"a", "b"}
        assert len(listed) == 2


@pytest.mark.clause("EC-15.2")
def test_a_key_that_is_added_or_removed_counts_within_a_second(fleet: Fleet) -> None:
    clock = Clock()
    fleet.member("a")
    fleet.member("b", listed=False)
    listed = KeyList(str(fleet.peers), clock=clock)
    a, b = fleet.pairs["a"].public, fleet.pairs["b"].public
    fleet.admit("b")
    fleet.remove("a")
    assert (listed.knows(a), listed.knows(b)) == (True, False)
    clock.now += 1.0
    assert (listed.knows(a), listed.knows(b)) == (False, True)


@pytest.mark.clause("EC-15.2")
def test_a_file_that_is_written_in_place_counts_too(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "all"
    first, second = new_pair().public, new_pair().public
    path.write_text(f'public-key = "{first}"\n')
    listed = KeyList(str(path), clock=clock)
    path.write_text(f'public-key = "{second}"\n')
    os.utime(path, ns=(1, 1))
    clock.now += 1.0
    assert (listed.knows(first), listed.knows(second)) == (False, True)


@pytest.mark.clause("EC-15.2")
def test_what_cannot_be_read_any_more_counts_as_not_listed_and_is_said_once(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fleet.member("a")
    fleet.member("b")
    listed = KeyList(str(fleet.peers), clock=clock)
    a, b = fleet.pairs["a"].public, fleet.pairs["b"].public
    (fleet.peers / "a.key").write_text("public-key = garbage\n")
    for _ in range(3):
        clock.now += 1.0
        assert (listed.knows(a), listed.knows(b)) == (False, True)
    assert caplog.text.count("count as not listed") == 1
    (fleet.peers / "b.key").chmod(0o666)
    clock.now += 1.0
    assert not listed.knows(b)
    fleet.admit("a")
    (fleet.peers / "b.key").chmod(0o644)
    fleet.peers.chmod(0o777)
    clock.now += 1.0
    assert (listed.knows(a), listed.knows(b)) == (False, False)
    fleet.peers.chmod(0o755)
    clock.now += 1.0
    assert (listed.knows(a), listed.knows(b)) == (True, True)
    for path in fleet.peers.iterdir():
        path.unlink()
    fleet.peers.rmdir()
    clock.now += 1.0
    assert (listed.knows(a), listed.knows(b)) == (False, False)


@pytest.mark.clause("EC-15.2")
def test_a_file_that_cannot_be_looked_at_hides_no_change_of_the_others(fleet: Fleet) -> None:
    clock = Clock()
    fleet.member("b")
    listed = KeyList(str(fleet.peers), clock=clock)
    b = fleet.pairs["b"].public
    (fleet.peers / "a.key").symlink_to("/nowhere/a.key")
    clock.now += 1.0
    assert listed.knows(b)
    # In place: the folder itself is as it was.
    (fleet.peers / "b.key").write_text(f'public-key = "{new_pair().public}"\n')
    clock.now += 1.0
    assert not listed.knows(b)


@pytest.mark.clause("EC-15.2")
def test_a_file_that_goes_while_it_is_read_stops_nobody(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is asked by engines and by servers, and a key may be removed at any moment."""
    clock = Clock()
    fleet.member("a")
    listed = KeyList(str(fleet.peers), clock=clock)
    fleet.member("b")
    opened = os.open

    def and_gone(path: str, *more: Any) -> int:
        fd = opened(path, *more)
        os.unlink(path)
        return fd

    monkeypatch.setattr(keyfiles.os, "open", and_gone)
    clock.now += 1.0
    assert listed.knows(fleet.pairs["b"].public), "it was there"
    clock.now += 1.0
    assert not listed.knows(fleet.pairs["b"].public)


def test_at_the_start_a_list_that_is_none_is_an_error(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"ec_peer_keys=.*no public key in it"):
        KeyList(str(fleet.peers))
    with pytest.raises(KeyFileError, match="No such file"):
        KeyList(str(tmp_path / "none"))
    fleet.member("a")
    (fleet.peers / "a.key").chmod(0o664)
    with pytest.raises(KeyFileError, match=r"mode 0664 lets others write it; chmod go-w .*a\.key"):
        KeyList(str(fleet.peers))
    (fleet.peers / "a.key").chmod(0o644)
    fleet.peers.chmod(0o775)
    with pytest.raises(KeyFileError, match="mode 0775 lets others write it"):
        KeyList(str(fleet.peers))


def test_a_list_that_somebody_else_owns_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it can write it, whatever its mode is now."""
    fleet.member("a")
    owner = fleet.peers.stat().st_uid
    monkeypatch.setattr(keyfiles.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(keyfiles, "_ROOT", -1)
    for path in (fleet.peers, fleet.peers / "a.key"):
        with pytest.raises(KeyFileError, match=f"it belongs to user {owner}"):
            KeyList(str(path))


def test_a_secret_among_the_public_ones_is_noticed(fleet: Fleet) -> None:
    fleet.member("a")
    secret = fleet.own / "a.key_secret"
    (fleet.peers / "a.key").write_bytes(secret.read_bytes())
    with pytest.raises(KeyFileError, match="does not hold public keys alone"):
        KeyList(str(fleet.peers))


def test_what_is_mounted_for_reading_only_may_have_any_mode(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes mounts a config map."""
    fleet.member("a")
    fleet.peers.chmod(0o777)
    monkeypatch.setattr(
        keyfiles.os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_RDONLY, 0, 0))
    )
    assert KeyList(str(fleet.peers)).knows(fleet.pairs["a"].public)


def test_a_pipe_in_place_of_a_list_is_no_list(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KeyFileError, match="it is no file with keys"):
        KeyList(str(tmp_path / "pipe"))


def test_too_many_or_too_long_files_are_none(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.member("a")
    fleet.member("b")
    monkeypatch.setattr(keyfiles, "_MAX_FILES", 1)
    with pytest.raises(KeyFileError, match="2 files; put keys together"):
        KeyList(str(fleet.peers))
    monkeypatch.setattr(keyfiles, "_MAX_FILES", 2)
    monkeypatch.setattr(keyfiles, "_MAX_BYTES", 10)
    with pytest.raises(KeyFileError, match="it is no file with keys"):
        KeyList(str(fleet.peers))
