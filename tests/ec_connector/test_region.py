# SPDX-License-Identifier: Apache-2.0
"""The shared region in one process: layout, access, errors, reaping. Crashes: test_region_crash."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ec_connector import region as region_module
from ec_connector import region_file, region_header, region_open
from ec_connector.region import SharedRegion, reap_orphans
from ec_connector.region_errors import (
    RegionArgumentError,
    RegionBusyError,
    RegionClosedError,
    RegionError,
    RegionForeignError,
    RegionMissingError,
)
from ec_connector.region_header import TRAILER_BYTES, RegionHeader
from ec_protocol.dispatch import REGION, Dispatcher

BLOCKS, BLOCK = 7, 5120
NAME = "vllm_ec_t_dp0.mmap"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder on the tmpfs that regions are made for."""
    path = Path(tempfile.mkdtemp(prefix="ec-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def open_region(folder: Path, **more: Any) -> SharedRegion:
    arguments: dict[str, Any] = {
        "instance_id": "t",
        "dp_rank": 0,
        "num_blocks": BLOCKS,
        "block_size_bytes": BLOCK,
        "directory": str(folder),
        "guard": False,
        "timeout_s": 0.0,
    }
    return SharedRegion.open(**(arguments | more))


# ----------------------------------------------------------------------- layout
@pytest.mark.clause("EC-10.1")
def test_the_file_has_the_documented_name_mode_and_layout(folder: Path) -> None:
    old = os.umask(0o777)
    try:
        region = open_region(folder)
    finally:
        os.umask(old)
    with region:
        path = folder / NAME
        assert region.path == str(path)
        info = path.stat()
        assert stat.S_IMODE(info.st_mode) == 0o600
        assert info.st_size == -(-BLOCKS * BLOCK // 4096) * 4096 + TRAILER_BYTES
        region.view((0, 1))[:3] = b"abc"
        region.view((BLOCKS - 1, 1))[-3:] = b"xyz"
        raw = path.read_bytes()
        assert raw.startswith(b"abc")
        assert raw[BLOCKS * BLOCK - 3 : BLOCKS * BLOCK] == b"xyz"
        assert raw[-TRAILER_BYTES:].startswith(region_header.MAGIC)
    assert not path.exists()


def test_the_default_folder_is_dev_shm() -> None:
    name = f"test-{os.getpid()}"
    with SharedRegion.open(name, 3, 1, 64) as region:
        assert region.path == f"/dev/shm/vllm_ec_{name}_dp3.mmap"
        assert os.path.exists(region.path)
    assert not os.path.exists(region.path)


def test_every_page_has_memory_before_the_first_access(folder: Path) -> None:
    with open_region(folder, prefault=False) as region:
        info = os.stat(region.path)
        assert info.st_blocks * 512 >= info.st_size


def test_buffer_view_tensor_and_address_are_the_same_bytes(folder: Path) -> None:
    import ctypes

    with open_region(folder) as region:
        assert region.nbytes == len(region.buffer) == region.tensor.numel() == BLOCKS * BLOCK
        assert region.tensor.dtype == torch.uint8
        assert region.address % 4096 == 0
        assert region.tensor.data_ptr() == region.address
        region.view((2, 3))[0] = 201
        assert region.buffer[2 * BLOCK] == 201
        assert region.tensor[2 * BLOCK] == 201
        assert ctypes.c_uint8.from_address(region.address + 2 * BLOCK).value == 201
        assert len(region.view((2, 3))) == 3 * BLOCK


@pytest.mark.parametrize("extent", [(-1, 1), (0, 0), (0, -1), (0, BLOCKS + 1), (BLOCKS, 1)])
def test_an_extent_outside_the_region_is_refused(folder: Path, extent: tuple[int, int]) -> None:
    with (
        open_region(folder) as region,
        pytest.raises(RegionArgumentError, match="not inside its 7"),
    ):
        region.view(extent)


def test_the_trailer_cannot_be_reached_through_the_blocks(folder: Path) -> None:
    with open_region(folder) as region:
        region.buffer[:] = b"\xff" * region.nbytes
        with open_region(folder) as other:
            assert not other.created


# -------------------------------------------------------------------- arguments
@pytest.mark.clause("EC-10.1")
@pytest.mark.parametrize("bad", ["", "a/b", "..", "a b", "ä", "a\n", "a\0", "x" * 129, "a*", None])
def test_an_instance_id_that_is_unsafe_in_a_path_is_refused(folder: Path, bad: Any) -> None:
    if bad == "..":  # dots are fine inside the name, which never is a path of its own
        with open_region(folder, instance_id=bad) as region:
            assert Path(region.path).name == "vllm_ec_.._dp0.mmap"
        return
    with pytest.raises(RegionArgumentError, match="instance_id"):
        open_region(folder, instance_id=bad)
    assert not list(folder.iterdir())


def test_the_longest_instance_id_works(folder: Path) -> None:
    with open_region(folder, instance_id="x" * 128) as region:
        assert region.header.instance_id == "x" * 128
        with open_region(folder, instance_id="x" * 128) as other:
            assert other.header == region.header


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dp_rank", -1),
        ("dp_rank", True),
        ("dp_rank", "0"),
        ("num_blocks", 0),
        ("num_blocks", 1.5),
        ("block_size_bytes", 0),
        ("block_size_bytes", -4096),
        ("num_blocks", 1 << 60),
        ("nonce", b"short"),
    ],
)
def test_bad_arguments_are_named(folder: Path, key: str, value: Any) -> None:
    with pytest.raises(RegionArgumentError, match=key) as caught:
        open_region(folder, **{key: value})
    assert isinstance(caught.value, ValueError)


def test_a_missing_folder_is_a_typed_error(folder: Path) -> None:
    with pytest.raises(RegionError, match="mount a tmpfs there"):
        open_region(folder / "nowhere")


# ---------------------------------------------------------------------- joining
def test_the_second_opening_joins_the_first(folder: Path) -> None:
    with open_region(folder) as first, open_region(folder) as second:
        assert (first.created, second.created) == (True, False)
        assert second.header == first.header
        first.view((1, 1))[0] = 77
        assert second.view((1, 1))[0] == 77


def test_insisting_on_creating_does_not_join(folder: Path) -> None:
    with open_region(folder), pytest.raises(RegionBusyError, match="exists already") as caught:
        open_region(folder, create=True)
    assert f"pids: {os.getpid()}" in str(caught.value)


def test_insisting_on_joining_does_not_create(folder: Path) -> None:
    with pytest.raises(RegionMissingError, match="nobody created"):
        open_region(folder, create=False)
    assert not list(folder.iterdir())


def test_another_geometry_is_not_joined(folder: Path) -> None:
    with open_region(folder) as first:
        with pytest.raises(RegionBusyError, match=r"7 blocks of 5120 bytes, wanted 8 of 5120"):
            open_region(folder, num_blocks=8)
        assert os.path.exists(first.path)


def test_processes_of_one_start_find_each_other_by_nonce(folder: Path) -> None:
    nonce = bytes(range(16))
    with open_region(folder, nonce=nonce) as first:
        with open_region(folder, nonce=nonce) as second:
            assert not second.created
        with pytest.raises(RegionBusyError, match="another start"):
            open_region(folder, nonce=bytes(16))
        assert os.path.exists(first.path)


def test_instances_and_ranks_do_not_share(folder: Path) -> None:
    with (
        open_region(folder) as a,
        open_region(folder, dp_rank=1) as b,
        open_region(folder, instance_id="u") as c,
    ):
        assert a.created
        assert b.created
        assert c.created


def test_a_file_under_the_name_of_another_region_is_not_joined(folder: Path) -> None:
    with open_region(folder, instance_id="other") as other:
        os.link(other.path, folder / NAME)
        with pytest.raises(RegionBusyError, match="calls itself 'other' dp0"):
            open_region(folder)


def test_a_draining_region_is_not_joined(folder: Path) -> None:
    with open_region(folder) as first:
        first.drain()
        assert first.state == "draining"
        with pytest.raises(RegionBusyError, match="shutting down"):
            open_region(folder)
        first.drain()  # again: nothing to do


def test_a_drain_between_look_and_lock_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_region(folder) as first:
        real = region_file.try_lock

        def lock(fd: int, how: int) -> bool:
            if how == fcntl.LOCK_SH:
                first.drain()
            return real(fd, how)

        monkeypatch.setattr(region_file, "try_lock", lock)
        with pytest.raises(RegionError):
            open_region(folder)


def test_an_unlink_between_look_and_lock_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_region(folder)
    inode = os.stat(first.path).st_ino
    real = region_file.try_lock

    def lock(fd: int, how: int) -> bool:
        if how == fcntl.LOCK_SH and not first.closed:
            first.close(unlink=True)
        return real(fd, how)

    monkeypatch.setattr(region_file, "try_lock", lock)
    with open_region(folder, timeout_s=30.0) as second:
        assert second.created
        assert os.stat(second.path).st_ino != inode


# ---------------------------------------------------------------------- closing
def test_close_is_idempotent_and_closed_regions_say_so(folder: Path) -> None:
    region = open_region(folder)
    region.close(unlink=True)
    region.close(unlink=True)
    assert region.closed
    assert region.state == "unlinked"
    for use in (
        lambda: region.buffer,
        lambda: region.tensor,
        lambda: region.address,
        lambda: region.view((0, 1)),
        region.drain,
    ):
        with pytest.raises(RegionClosedError):
            use()


def test_closing_without_unlink_leaves_the_region_to_the_others(folder: Path) -> None:
    with open_region(folder) as first:
        second = open_region(folder)
        second.close(unlink=False)
        assert os.path.exists(first.path)
        first.view((0, 1))[0] = 1


def test_only_the_creator_unlinks_at_the_end_of_with(folder: Path) -> None:
    first = open_region(folder)
    with open_region(folder):
        pass
    assert os.path.exists(first.path)
    with first:
        pass
    assert not os.path.exists(first.path)


def test_unlinking_leaves_the_mapping_of_others_alone(folder: Path) -> None:
    first, second = open_region(folder), open_region(folder)
    first.view((0, 1))[0] = 9
    first.close(unlink=True)
    assert not os.path.exists(second.path)
    assert second.view((0, 1))[0] == 9
    second.close(unlink=True)


@pytest.mark.clause("EC-10.3")
def test_a_file_that_took_the_name_since_is_not_unlinked(folder: Path) -> None:
    old, late = open_region(folder), open_region(folder)
    old.close(unlink=True)
    with open_region(folder) as new:
        late.close(unlink=True)
        assert os.path.exists(new.path)


def test_two_processes_that_unlink_at_once_remove_one_name(folder: Path) -> None:
    first, second = open_region(folder), open_region(folder)
    lock = region_file._FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(second._file.fileno(), fcntl.F_OFD_SETLK, lock)  # second is at it
    first.close(unlink=True)
    assert os.path.exists(second.path)
    second.close(unlink=True)
    assert not os.path.exists(second.path)


@pytest.mark.clause("EC-10.2")
def test_views_and_tensors_outlive_close_and_keep_the_lock(folder: Path) -> None:
    region = open_region(folder)
    tensor = region.tensor
    tensor[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    region.close(unlink=False)
    assert reap_orphans(str(folder)).live == 1
    assert tensor[:4].tolist() == [1, 2, 3, 4]
    del tensor
    gc.collect()
    assert reap_orphans(str(folder)).names == (NAME,)


def test_a_dropped_region_gives_its_lock_back(folder: Path) -> None:
    region = open_region(folder)
    with pytest.warns(ResourceWarning):
        del region
    assert reap_orphans(str(folder)).names == (NAME,)


def test_descriptors_are_not_leaked(folder: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with open_region(folder), open_region(folder) as joined:
            joined.tensor.sum()
            with pytest.raises(RegionBusyError):
                open_region(folder, create=True)
    assert len(os.listdir("/proc/self/fd")) == len(before)


# ---------------------------------------------------------------------- foreign
def _region_bytes() -> bytes:
    header = RegionHeader("t", 0, BLOCKS, BLOCK, bytes(16), 1, region_header.boot_id())
    return bytes(header.trailer_at) + header.pack()


def _damaged() -> bytes:
    raw = bytearray(_region_bytes())
    raw[-TRAILER_BYTES + 40] ^= 1
    return bytes(raw)


FOREIGN_FILES = {
    "empty": (b"", "0 bytes, too short"),
    "text": (b"hello\n" * 4000, "without a region trailer"),
    "truncated": (_region_bytes()[:-1], "without a region trailer"),
    "cut to the blocks": (_region_bytes()[:-TRAILER_BYTES], "without a region trailer"),
    "extended": (_region_bytes() + bytes(4096), "without a region trailer"),
    "blocks missing": (_region_bytes()[4096:], "trailer for 40960 bytes at the end of 36864"),
    "damaged": (_damaged(), "damaged"),
}


@pytest.mark.clause("EC-10.4")
@pytest.mark.parametrize("kind", FOREIGN_FILES)
def test_a_foreign_or_truncated_file_is_left_alone(folder: Path, kind: str) -> None:
    content, found = FOREIGN_FILES[kind]
    path = folder / NAME
    path.write_bytes(content)
    with pytest.raises(RegionForeignError, match=found) as caught:
        open_region(folder)
    assert "left alone" in str(caught.value)
    assert str(path) in str(caught.value)
    assert reap_orphans(str(folder)).foreign == 1
    assert path.read_bytes() == content


@pytest.mark.clause("EC-10.4")
@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo", "socket"])
def test_what_is_not_a_file_is_left_alone(folder: Path, kind: str) -> None:
    path = folder / NAME
    if kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("elsewhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    with pytest.raises(RegionForeignError):
        open_region(folder)
    assert reap_orphans(str(folder)).foreign == 1
    assert os.path.lexists(path)


def test_an_orphan_of_another_release_is_reaped_and_a_live_one_is_not_joined(folder: Path) -> None:
    path = folder / NAME
    raw = bytearray(_region_bytes())
    raw[-TRAILER_BYTES + 16] = 99
    path.write_bytes(raw)
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_SH)
        with pytest.raises(RegionBusyError, match="layout version 99"):
            open_region(folder)
    with open_region(folder) as region:
        assert region.created


# ---------------------------------------------------------------------- reaping
@pytest.mark.clause("EC-10.3")
@pytest.mark.clause("EC-10.4")
def test_the_sweep_takes_orphans_only(folder: Path) -> None:
    dead = [open_region(folder, instance_id="dead", dp_rank=rank) for rank in (0, 1)]
    for region in dead:
        region.close(unlink=False)
    foreign = folder / "vllm_ec_foreign_dp0.mmap"
    foreign.write_bytes(b"not ours")
    other = folder / "something.else"
    other.write_bytes(_region_bytes())
    with open_region(folder, instance_id="alive") as alive:
        # creation sweeps by itself
        assert alive.reaped.names == ("vllm_ec_dead_dp0.mmap", "vllm_ec_dead_dp1.mmap")
        size = alive.header.file_bytes
        assert alive.reaped.nbytes == 2 * size
        again = reap_orphans(str(folder))
        assert (again.names, again.live, again.foreign) == ((), 1, 1)
        assert alive.view((0, 1))[0] == 0
        assert os.path.exists(alive.path)
    assert sorted(p.name for p in folder.iterdir()) == sorted((foreign.name, other.name))


def test_an_orphan_at_the_path_is_replaced_not_joined(folder: Path) -> None:
    dead = open_region(folder)
    dead.view((0, 1))[0] = 1
    dead.close(unlink=False)
    with open_region(folder) as region:
        assert region.created
        assert region.view((0, 1))[0] == 0
    dead = open_region(folder)
    dead.close(unlink=False)
    with pytest.raises(RegionMissingError):
        open_region(folder, create=False)


def test_an_orphan_of_other_geometry_is_replaced(folder: Path) -> None:
    open_region(folder, num_blocks=3).close(unlink=False)
    with open_region(folder) as region:
        assert region.num_blocks == BLOCKS


@pytest.mark.clause("EC-1.1")
def test_every_edge_of_the_region_table_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[tuple[str, str, str]] = set()
    real = Dispatcher.fire

    def fire(self: Dispatcher, state: str, event: str, guards: int = 0) -> Any:
        step = real(self, state, event, guards)
        if self is REGION:
            taken.add((state, event, step.state))
        return step

    monkeypatch.setattr(Dispatcher, "fire", fire)
    open_region(folder).close(unlink=False)  # publish, then orphan by death
    open_region(folder).close(unlink=True)  # reap, then drain and unlink
    dying = open_region(folder)
    dying.drain()
    dying.close(unlink=False)
    reap_orphans(str(folder))  # died while draining
    (folder / f".{NAME}.{'0' * 32}.tmp").write_bytes(b"")
    reap_orphans(str(folder))  # died while creating
    monkeypatch.setattr(region_file, "_link", lambda *_: False)
    with pytest.raises(RegionError):
        open_region(folder)  # abandon
    table = {(e.source, e.event, e.dest) for e in REGION.lifecycle.edges}
    assert taken == table


# --------------------------------------------------------- without unnamed files
@pytest.fixture
def no_tmpfile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda p: p != "/proc/self/fd" and real(p))


@pytest.mark.usefixtures("no_tmpfile")
def test_named_temporaries_work_and_leave_nothing(folder: Path) -> None:
    seen: list[str] = []
    real = region_file.allocate

    def allocate(*args: Any) -> None:
        seen.extend(os.listdir(folder))
        assert reap_orphans(str(folder)).live == 1  # one under construction is in use
        real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_file, "allocate", allocate)
        with open_region(folder) as region, open_region(folder) as second:
            assert region.created
            assert not second.created
            assert [p.name for p in folder.iterdir()] == [NAME]
    assert len(seen) == 1
    assert seen[0].startswith(f".{NAME}.")
    assert not list(folder.iterdir())


@pytest.mark.usefixtures("no_tmpfile")
def test_a_sweep_that_takes_a_fresh_temporary_is_survived(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = region_file.try_lock
    swept: list[tuple[str, ...]] = []

    def lock(fd: int, how: int) -> bool:
        if not swept and how == fcntl.LOCK_SH:
            swept.append(())  # the sweep below locks as well
            swept[0] = reap_orphans(str(folder)).names
        return real(fd, how)

    monkeypatch.setattr(region_file, "try_lock", lock)
    with open_region(folder) as region:
        assert region.created
    assert len(swept[0]) == 1


@pytest.mark.usefixtures("no_tmpfile")
def test_errors_drop_the_temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(region_file, "allocate", fail)
    with pytest.raises(KeyboardInterrupt):
        open_region(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("code", region_file._NO_TMPFILE)
def test_o_tmpfile_refused_by_the_file_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)
    with open_region(folder) as region:
        assert region.created


def test_without_abstract_sockets_the_name_still_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(socket.socket):
        def bind(self, *_: Any) -> None:
            raise PermissionError(1, "no")

    monkeypatch.setattr(region_file.socket, "socket", Refused)
    with open_region(folder) as first, open_region(folder) as second:
        assert first.created
        assert not second.created


def test_a_creator_that_takes_for_ever_is_named(folder: Path) -> None:
    with region_file.Directory(str(folder)) as directory:
        with region_file.creation_turn(directory, NAME) as ours:
            assert ours
            with pytest.raises(RegionBusyError, match="has been creating it for too long"):
                open_region(folder)
        with open_region(folder) as region:
            assert region.created


def test_losing_the_name_at_the_last_moment_joins_the_winner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = region_file._link
    winners: list[SharedRegion] = []

    def link(*args: Any) -> bool:
        if not winners:
            monkeypatch.setattr(region_file, "_link", real)
            turn = region_open.region_file.creation_turn
            with pytest.MonkeyPatch.context() as patch:
                # as if the other process could not see our turn
                patch.setattr(
                    region_file, "creation_turn", lambda d, _: turn(d, "another namespace")
                )
                winners.append(open_region(folder))
        return real(*args)

    monkeypatch.setattr(region_file, "_link", link)
    with open_region(folder, timeout_s=30.0) as second:
        assert not second.created
        assert second.header == winners[0].header
    winners[0].close(unlink=True)
    assert not list(folder.iterdir())


# ---------------------------------------------------------------------- failures
def test_a_failed_populate_leaves_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(region_module, "populate", fail)
    with pytest.raises(RegionError, match="pages cannot be mapped"):
        open_region(folder)
    assert not list(folder.iterdir())


def test_a_failed_mapping_gives_the_lock_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_module.mmap, "mmap", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            open_region(folder)
    assert reap_orphans(str(folder)).names == (NAME,)
