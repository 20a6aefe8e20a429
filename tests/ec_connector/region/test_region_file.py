# SPDX-License-Identifier: Apache-2.0
"""Foreign files are left alone, orphans are reaped, live files are never touched."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any

import pytest

from ec_connector.region import file as region_file
from ec_connector.region import header as region_header
from ec_connector.region.errors import (
    RegionBusyError,
    RegionError,
    RegionForeignError,
    RegionMissingError,
)
from ec_connector.region.header import TRAILER_BYTES, RegionHeader
from ec_connector.region.shared import reap_orphans
from ec_protocol.tables.dispatch import REGION, Dispatcher
from tests.ec_connector.region.region_driver import NAME, open_region

BLOCKS, BLOCK = 7, 5120


# --------------------------------------------------------------------------- foreign
def _region_bytes() -> bytes:
    header = RegionHeader("t", 0, BLOCKS, BLOCK, bytes(16), bytes(16), 1, region_header.boot_id())
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
def test_a_foreign_or_truncated_file_is_left_alone(folder, kind):
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
def test_what_is_not_a_file_is_left_alone(folder, kind):
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


def test_an_orphan_of_another_release_is_reaped_and_a_live_one_is_not_joined(folder):
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


# --------------------------------------------------------------------------- reaping
@pytest.mark.clause("EC-10.3", "EC-10.4")
def test_the_sweep_takes_orphans_only(folder):
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


def test_an_orphan_at_the_path_is_replaced_not_joined(folder):
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


def test_an_orphan_of_other_geometry_is_replaced(folder):
    open_region(folder, num_blocks=3).close(unlink=False)
    with open_region(folder) as region:
        assert region.num_blocks == BLOCKS


@pytest.mark.clause("EC-1.1")
def test_every_edge_of_the_region_table_is_taken(folder, monkeypatch):
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
