# SPDX-License-Identifier: Apache-2.0
"""The shared region as its users see it: layout, access, arguments, closing."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from ec_connector.region import file as region_file
from ec_connector.region import header as region_header
from ec_connector.region import shared as region_module
from ec_connector.region.errors import (
    RegionArgumentError,
    RegionBusyError,
    RegionClosedError,
    RegionError,
)
from ec_connector.region.header import TRAILER_BYTES
from ec_connector.region.shared import SharedRegion, reap_orphans
from tests.ec_connector.region.region_driver import NAME, open_region

BLOCKS, BLOCK = 7, 5120


# ---------------------------------------------------------------------------- layout
@pytest.mark.clause("EC-10.1")
def test_the_file_has_the_documented_name_mode_and_layout(folder):
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


def test_the_default_folder_is_dev_shm():
    name = f"test-{os.getpid()}"
    with SharedRegion.open(name, 3, 1, 64) as region:
        assert region.path == f"/dev/shm/vllm_ec_{name}_dp3.mmap"
        assert os.path.exists(region.path)
    assert not os.path.exists(region.path)


def test_every_page_has_memory_before_the_first_access(folder):
    with open_region(folder, prefault=False) as region:
        info = os.stat(region.path)
        assert info.st_blocks * 512 >= info.st_size


def test_buffer_view_tensor_and_address_are_the_same_bytes(folder):
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
def test_an_extent_outside_the_region_is_refused(folder, extent):
    with (
        open_region(folder) as region,
        pytest.raises(RegionArgumentError, match="not inside its 7"),
    ):
        region.view(extent)


def test_the_trailer_cannot_be_reached_through_the_blocks(folder):
    with open_region(folder) as region:
        region.buffer[:] = b"\xff" * region.nbytes
        with open_region(folder) as other:
            assert not other.created


# ------------------------------------------------------------------------- arguments
@pytest.mark.clause("EC-10.1")
@pytest.mark.parametrize("bad", ["", "a/b", "..", "a b", "ä", "a\n", "a\0", "x" * 129, "a*", None])
def test_an_instance_id_that_is_unsafe_in_a_path_is_refused(folder, bad):
    if bad == "..":  # dots are fine inside the name, which never is a path of its own
        with open_region(folder, instance_id=bad) as region:
            assert Path(region.path).name == "vllm_ec_.._dp0.mmap"
        return
    with pytest.raises(RegionArgumentError, match="instance_id"):
        open_region(folder, instance_id=bad)
    assert not list(folder.iterdir())


def test_the_longest_instance_id_works(folder):
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
def test_bad_arguments_are_named(folder, key, value):
    with pytest.raises(RegionArgumentError, match=key) as caught:
        open_region(folder, **{key: value})
    assert isinstance(caught.value, ValueError)


def test_a_missing_folder_is_a_typed_error(folder):
    with pytest.raises(RegionError, match="mount a tmpfs there"):
        open_region(folder / "nowhere")


# --------------------------------------------------------------------------- closing
def test_close_is_idempotent_and_closed_regions_say_so(folder):
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


def test_closing_without_unlink_leaves_the_region_to_the_others(folder):
    with open_region(folder) as first:
        second = open_region(folder)
        second.close(unlink=False)
        assert os.path.exists(first.path)
        first.view((0, 1))[0] = 1


def test_only_the_creator_unlinks_at_the_end_of_with(folder):
    first = open_region(folder)
    with open_region(folder):
        pass
    assert os.path.exists(first.path)
    with first:
        pass
    assert not os.path.exists(first.path)


def test_unlinking_leaves_the_mapping_of_others_alone(folder):
    first, second = open_region(folder), open_region(folder)
    first.view((0, 1))[0] = 9
    first.close(unlink=True)
    assert not os.path.exists(second.path)
    assert second.view((0, 1))[0] == 9
    second.close(unlink=True)


@pytest.mark.clause("EC-10.3")
def test_a_file_that_took_the_name_since_is_not_unlinked(folder):
    old, late = open_region(folder), open_region(folder)
    old.close(unlink=True)
    with open_region(folder) as new:
        late.close(unlink=True)
        assert os.path.exists(new.path)


def test_two_processes_that_unlink_at_once_remove_one_name(folder):
    first, second = open_region(folder), open_region(folder)
    lock = region_file.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(second._file.fileno(), fcntl.F_OFD_SETLK, lock)  # second is at it
    first.close(unlink=True)
    assert os.path.exists(second.path)
    second.close(unlink=True)
    assert not os.path.exists(second.path)


@pytest.mark.clause("EC-10.2")
def test_views_and_tensors_outlive_close_and_keep_the_lock(folder):
    region = open_region(folder)
    tensor = region.tensor
    tensor[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
    region.close(unlink=False)
    assert reap_orphans(str(folder)).live == 1
    assert tensor[:4].tolist() == [1, 2, 3, 4]
    del tensor
    gc.collect()
    assert reap_orphans(str(folder)).names == (NAME,)


def test_a_dropped_region_gives_its_lock_back(folder):
    region = open_region(folder)
    with pytest.warns(ResourceWarning):
        del region
    assert reap_orphans(str(folder)).names == (NAME,)


def test_descriptors_are_not_leaked(folder):
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with open_region(folder), open_region(folder) as joined:
            joined.tensor.sum()
            with pytest.raises(RegionBusyError):
                open_region(folder, create=True)
    assert len(os.listdir("/proc/self/fd")) == len(before)


# -------------------------------------------------------------------------- failures
def test_a_failed_populate_leaves_no_name(folder, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(region_module, "populate", fail)
    with pytest.raises(RegionError, match="pages cannot be mapped"):
        open_region(folder)
    assert not list(folder.iterdir())


def test_a_failed_mapping_gives_the_lock_back(folder, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_module.mmap, "mmap", fail)
        with pytest.raises(OSError, match="Cannot allocate"):
            open_region(folder)
    assert reap_orphans(str(folder)).names == (NAME,)
