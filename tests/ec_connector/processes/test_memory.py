# SPDX-License-Identifier: Apache-2.0
"""Memory and locks that processes share, and what a hostile one writes there."""

from __future__ import annotations

import math
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest

from ec_connector.processes import memory
from ec_connector.processes.locks import KernelSlotLocks
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_protocol.offers.table import format_ledger, format_table, ledger_bytes, table_bytes
from tests import ROOT
from tests.needs import needs
from tests.world.processes import Child


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared.create("ec-test", STATUS_BYTES)
    yield made
    made.close()


# --------------------------------------------------------------------------- the memory
def test_one_process_writes_and_another_reads(shared: Shared) -> None:
    other = Shared(shared.read_only(), writable=False)
    shared.view[100:105] = b"hello"
    assert bytes(other.view[100:105]) == b"hello"
    assert bytes(other.view[:100]) == bytes(100)
    other.close()


def test_a_reader_cannot_write_in_any_way(shared: Shared) -> None:
    fd = shared.read_only()
    other = Shared(fd, writable=False)
    with pytest.raises(TypeError):
        other.view[0] = 1
    with pytest.raises(PermissionError):
        mmap.mmap(fd, STATUS_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        Shared(os.dup(fd), writable=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    other.close()


_POKE = """
import ctypes, sys
from ec_connector.processes.spawn import Mapping
mapped = Mapping(int(sys.argv[1]), int(sys.argv[2]), writable=sys.argv[3] == "rw")
print("mapped", flush=True)
ctypes.c_char.from_address(mapped.address + 5).value = b"x"
"""


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_a_write_into_a_read_only_mapping_kills_and_changes_nothing(
    shared: Shared, access: str
) -> None:
    fd = shared.read_only() if access == "ro" else os.dup(shared.fd)
    done = subprocess.run(
        [sys.executable, "-c", _POKE, str(fd), str(STATUS_BYTES), access],
        pass_fds=[fd],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=None,
    )
    os.close(fd)
    assert done.stdout == "mapped\n"
    assert done.returncode == (-signal.SIGSEGV if access == "ro" else 0), done.stderr
    assert bytes(shared.view[5:6]) == (b"\0" if access == "ro" else b"x")


def test_a_mapping_that_cannot_be_is_an_os_error_that_says_so() -> None:
    from ec_connector.processes.spawn import Mapping

    with pytest.raises(OSError, match="mapping 4096 bytes of the region"):
        Mapping(0 if not os.isatty(0) else 1, 4096, writable=True)


def test_nobody_can_change_its_size(shared: Shared) -> None:
    for size in (0, STATUS_BYTES - 1, STATUS_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fd, size)


def test_closing_frees_the_descriptor_although_somebody_still_looks(shared: Shared) -> None:
    fd = shared.fd
    part = shared.view[8:16].cast("d")
    shared.close()
    shared.close()
    assert shared.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert part[0] == 0.0


def test_what_cannot_be_mapped_leaves_no_descriptor(monkeypatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no memory")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(OSError, match="no memory"):
        Shared.create("ec-test", 4096)
    assert os.listdir("/proc/self/fd") == before


# ---------------------------------------------------------------------- the status page
def test_a_page_says_when_it_turned_and_how_things_are(shared: Shared) -> None:
    page, reader = StatusPage(shared), StatusPage(Shared(shared.read_only(), writable=False))
    assert reader.beat_at == 0.0
    assert reader.read() == {}
    page.beat(12.5)
    assert page.write({"stats": {"a": 1}})
    assert (reader.beat_at, reader.read()) == (12.5, {"stats": {"a": 1}})
    assert page.write({"b": 2})
    assert reader.read() == {"b": 2}
    reader.shared.close()


def test_too_much_is_not_said_and_leaves_what_was(shared: Shared) -> None:
    page = StatusPage(shared)
    assert page.write({"a": 1})
    assert not page.write({"a": "x" * STATUS_BYTES})
    assert page.read() == {"a": 1}
    room = STATUS_BYTES - memory._STATUS_AT - memory._SIZE.size
    overhead = len(msgspec.msgpack.encode({"a": "x" * 1000})) - 1000
    assert page.write({"a": "x" * (room - overhead)})
    assert not page.write({"a": "x" * (room - overhead + 1)})


def test_a_page_that_is_being_written_says_nothing(shared: Shared) -> None:
    page = StatusPage(shared)
    page.write({"a": 1})
    number, size = memory._SIZE.unpack_from(shared.view, memory._STATUS_AT)
    memory._SIZE.pack_into(shared.view, memory._STATUS_AT, number + 1, size)
    assert page.read() == {}


def test_a_page_that_changes_while_it_is_read_says_nothing(shared: Shared, monkeypatch) -> None:
    page = StatusPage(shared)
    page.write({"a": 1})

    class Torn:
        size = memory._SIZE.size

        def __init__(self) -> None:
            self.looks = 0

        def unpack_from(self, view: memoryview, at: int) -> tuple[int, int]:
            self.looks += 1
            if self.looks == 2:
                StatusPage(shared).write({"a": 2})
                return memory_size.unpack_from(view, at)[0] + 2, 4
            return memory_size.unpack_from(view, at)

        def pack_into(self, *args: object) -> None:
            memory_size.pack_into(*args)  # type: ignore[arg-type]

    memory_size = memory._SIZE
    monkeypatch.setattr(memory, "_SIZE", Torn())
    assert page.read() == {}


def write_raw(shared: Shared, raw: bytes, *, size: int | None = None, number: int = 2) -> None:
    at = memory._STATUS_AT
    memory._SIZE.pack_into(shared.view, at, number, len(raw) if size is None else size)
    shared.view[at + memory._SIZE.size : at + memory._SIZE.size + len(raw)] = raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x81\xa1a" + b"\x91" * 15_000,
        b"\x81\xa1a" + b"\x81\xa1a" * 5_000,
        b"\x81\xa1\xff\x01",
        b"\x81\x90\x01",
        b"\x81\xa1a\x81\x90\x01",
        b"\x81\xa1a\xd4\xff\x00",
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_a_hostile_page_is_data_and_raises_nothing(shared: Shared, raw: bytes) -> None:
    write_raw(shared, raw)
    assert StatusPage(shared).read() in ({}, {"a": {(): 1}})


def test_a_size_beyond_the_page_is_not_followed(shared: Shared) -> None:
    for size in (STATUS_BYTES, 1 << 31, (1 << 32) - 1):
        write_raw(shared, b"\x80", size=size)
        assert StatusPage(shared).read() == {}
    # What lies on the page may make sense up to its end.
    room = STATUS_BYTES - memory._STATUS_AT - memory._SIZE.size
    text = b"x" * (room - 6)
    write_raw(shared, b"\x81\xa1a\xda" + len(text).to_bytes(2, "big") + text, size=room + 1)
    assert StatusPage(shared).read() == {}


def test_no_bytes_at_all_raise_anything(shared: Shared) -> None:
    rng = random.Random(3)
    page = StatusPage(shared)
    page.write({"stats": {"a": 1, "b": [1.5, "x"]}, "c": {"d": None}})
    good = bytes(shared.view[:80])
    for _ in range(3000):
        broken = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        shared.view[:80] = broken
        assert isinstance(page.read(), dict)
        assert isinstance(page.beat_at, float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_beat_may_be_any_number(shared: Shared, value: float) -> None:
    shared.view[:8] = struct.pack("<d", value)
    assert str(StatusPage(shared).beat_at) == str(value)


# -------------------------------------------------------------------------- the locks
@pytest.mark.clause("EC-14.3")
def test_two_openings_exclude_each_other_slot_by_slot(shared: Shared) -> None:
    engine, server = KernelSlotLocks(shared.fd), KernelSlotLocks(shared.fd)
    assert engine.acquire(3)
    assert not server.acquire(3)
    assert server.acquire(2)
    assert server.acquire(4)
    assert engine.acquire(3), "its own"
    engine.release(3)
    assert server.acquire(3)
    assert not engine.acquire(3)
    server.close()
    server.close()
    assert engine.acquire(3)
    engine.close()


def test_who_has_closed_gets_no_lock(shared: Shared) -> None:
    locks = KernelSlotLocks(shared.fd)
    locks.close()
    assert not locks.acquire(1)


def test_what_is_wrong_with_a_lock_is_not_taken_for_a_busy_one(shared: Shared) -> None:
    read_only = shared.read_only()
    locks = KernelSlotLocks(shared.fd)
    os.dup2(read_only, locks._fd)
    os.close(read_only)
    with pytest.raises(OSError, match="Bad file descriptor"):
        locks.acquire(1)
    locks.close()


_LOCKER = """
import json, os, sys
from ec_connector.processes.locks import KernelSlotLocks
inherited, how = int(sys.argv[1]), sys.argv[2]
if how == "inherits":
    import fcntl
    from ec_connector.processes import locks
    fcntl.fcntl(inherited, locks._SETLK, locks._FLOCK.pack(fcntl.F_WRLCK, 0, 7, 1, 0))
    print(json.dumps(True), flush=True)
else:
    print(json.dumps(KernelSlotLocks(inherited).acquire(7)), flush=True)
sys.stdin.read()
"""


@pytest.mark.clause("EC-14.3")
def test_the_lock_of_a_process_that_is_killed_is_free(shared: Shared) -> None:
    locks = KernelSlotLocks(shared.fd)
    assert locks.acquire(8), "another slot is in nobody's way"
    child = Child("-c", _LOCKER, str(shared.fd), "opens", pass_fds=[shared.fd], greets=True)
    try:
        assert child.hello is True
        assert not locks.acquire(7)
        child.stop()
        assert not locks.acquire(7), "one that stands still keeps its lock"
    finally:
        child.kill()
    assert locks.acquire(7)
    locks.close()


@pytest.mark.clause("EC-14.3")
def test_an_inherited_descriptor_is_the_same_opening(shared: Shared) -> None:
    """So each process opens it anew: a lock belongs to the opening and not to the process."""
    locks = KernelSlotLocks(shared.fd)
    assert locks.acquire(7)
    os.set_inheritable(locks._fd, True)
    child = Child("-c", _LOCKER, str(locks._fd), "inherits", pass_fds=[locks._fd], greets=True)
    assert child.hello is True, "it does not exclude"
    child.kill()
    other = Child("-c", _LOCKER, str(shared.fd), "opens", pass_fds=[shared.fd], greets=True)
    assert other.hello is False
    other.kill()
    locks.close()


def test_a_lock_is_not_inherited_by_exec(shared: Shared) -> None:
    locks = KernelSlotLocks(shared.fd)
    assert not os.get_inheritable(locks._fd)
    locks.close()


@pytest.mark.clause("EC-14.6")
def test_a_ledger_has_one_server_whatever_its_parent_knows() -> None:
    """Another parent knows nothing of a server that outlives the one before."""
    needs("zmq", "msgspec")
    from ec_connector.processes import server

    table = Shared.create("ec-table", table_bytes(64))
    ledger = Shared.create("ec-ledger", ledger_bytes(64))
    format_table(table.view, 64, b"k" * 16)
    format_ledger(ledger.view, 64)
    fds = [os.dup(fd) for fd in (table.fd, ledger.fd)]
    spec = SimpleNamespace(table=fds[0], ledger=fds[1])
    program = _LOCKER.replace("acquire(7)", "acquire_for_life()")
    child = Child("-c", program, str(ledger.fd), "opens", pass_fds=[ledger.fd], greets=True)
    try:
        assert child.hello is True
        with pytest.raises(server.DataProcessError, match="another server still has the ledger"):
            server._map_offered(spec)
    finally:
        child.kill()
    server._map_offered(spec)[2].close()
    for fd in fds:
        os.close(fd)
    table.close()
    ledger.close()
