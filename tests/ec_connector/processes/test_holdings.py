# SPDX-License-Identifier: Apache-2.0
"""What data processes are and hold: names, descriptors, memory, locks, privileges, little time."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.needs import needs

needs("nixl", "zmq")


from tests.ec_connector.processes.alive import (
    children,
    everybody,
    name,
    parent_of,
)
from tests.ec_connector.processes.arriving import MARK, fresh
from tests.world.instance import BLOCK, Node, wait_for

pytest_plugins = ["tests.ec_connector.processes.complete_pair"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_bytes_arrive(producer: Node, consumer: Node) -> None:
    for nbytes in (1, BLOCK, 7 * BLOCK + 3):
        encoding, data = fresh(producer, nbytes)
        assert consumer.fetch(encoding, producer.address, nbytes) == "ready"
        assert consumer.bytes_of(encoding) == data
    producer.wait_count("completed")
    consumer.wait_count("bytes_read", 8 * BLOCK)
    assert consumer.data.figures.take_samples("read")


def test_their_names_say_what_they_are(producer: Node, consumer: Node) -> None:
    for node, kind in ((producer, "ec-server"), (consumer, "ec-reader")):
        assert name(parent_of(node)) == "ec-parent"
        assert {name(pid) for pid in children(parent_of(node))} == {kind}
        for pid in everybody(node):
            assert node.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert os.getsid(pid) == os.getsid(0), "a terminal's hang-up reaches them"
    assert len(children(parent_of(producer))) == 2, "one serves, one stands by"
    assert len(children(parent_of(consumer))) == 3


#: What a data process may hold, and at most how often; ``mmap`` keeps a descriptor of its own.
_HELD = {
    r"/dev/null": 3,
    r"(/dev/shm/#\d+|/dev/shm/vllm_ec_\S+) ?(\(deleted\))?": 1,
    r"/memfd:ec-(status-\d+|ledger|offers) \(deleted\)": 8,
    r"/dev/shm/ec_ucx_vllm_ec_[\w.-]+/\d+/ucx_shm_posix_\w+ \(deleted\)": 8,
    r"anon_inode:\[(eventfd|eventpoll)\]": 16,
    r"socket:\[\d+\]": 32,
    r"pipe:\[\d+\]": 8,
    r".*\.ndjson": 1,
}


@pytest.mark.clause("EC-14.1")
def test_every_descriptor_of_theirs_is_accounted_for(producer: Node, consumer: Node) -> None:
    ours = {link for fd in os.listdir("/proc/self/fd") for link in links(os.getpid(), fd)}
    shared = {link for link in ours if link.startswith("socket:")}
    for node in (producer, consumer):
        for pid in children(parent_of(node)):
            standard = {link for fd in "12" for link in links(pid, fd)}
            counts = dict.fromkeys(_HELD, 0)
            for fd in os.listdir(f"/proc/{pid}/fd"):
                for link in links(pid, fd):
                    assert MARK not in link
                    assert link not in shared, "an end of a channel that is the engine's"
                    known = [held for held in _HELD if re.fullmatch(held, link)]
                    assert known or link in standard, f"{name(pid)}: {fd} is {link}"
                    for held in known:
                        counts[held] += link not in standard
            assert all(counts[held] <= most for held, most in _HELD.items()), counts
        parents = {
            link for fd in os.listdir(f"/proc/{parent_of(node)}/fd")
            for link in links(parent_of(node), fd)
        }  # fmt: skip
        assert not any(MARK in link for link in parents)
        # What it was handed is not an end of the engine's own.
        sockets = {link for link in parents if link.startswith("socket:")}
        assert not sockets & {link for link in links_of(node) if link in shared}


def links_of(node: Node) -> list[str]:
    """The engine's end of the channel to its parent."""
    channel = node.data._channel
    assert channel is not None
    return links(os.getpid(), str(channel.fileno()))


def links(pid: int, fd: str) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{fd}")]
    except OSError:  # closed meanwhile
        return []


@pytest.mark.clause("EC-14.1")
def test_a_server_cannot_write_what_it_maps_and_nobody_can_write_its_table(
    producer: Node, consumer: Node
) -> None:
    for pid in children(parent_of(producer)):
        region = regions(pid)
        assert region == ["r--s"], "the region, read-only"
        assert mapped(pid, "memfd:ec-offers") in ([], ["r--s"])
    for pid in children(parent_of(consumer)):
        assert regions(pid) == ["rw-s"]
        assert not mapped(pid, "memfd:ec-offers")
    for pid in (parent_of(producer), parent_of(consumer)):
        assert regions(pid) == [], "a parent maps none of it"
    for pid in everybody(producer):
        assert not writable(pid, "memfd:ec-offers")
    for pid in children(parent_of(producer)):
        assert not writable(pid, "/dev/shm/#") + writable(pid, ".mmap")


def writable(pid: int, what: str) -> list[str]:
    """Descriptors of it through which somebody could write."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        for link in links(pid, fd):
            said = Path(f"/proc/{pid}/fdinfo/{fd}").read_text() if what in link else ""
            flags = re.search(r"^flags:\s*(\d+)", said, re.MULTILINE)
            if flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                found.append(link)
    return found


@pytest.mark.clause("EC-10.2")
def test_whoever_maps_the_region_holds_its_lock(producer: Node) -> None:
    """Servers have opened it anew, so the engine's lock is not theirs."""
    inode = f":{os.fstat(producer.region.fileno()).st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    assert sum("FLOCK" in line and " READ " in line and inode in line for line in lines) == 2


def mapped(pid: int, what: str) -> list[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if what in line]


def regions(pid: int) -> list[str]:
    return mapped(pid, "/dev/shm/#") + mapped(pid, "/dev/shm/vllm_ec_")


@pytest.mark.clause("EC-14.1")
def test_they_have_no_torch_no_privileges_no_secrets_and_dump_no_core(
    producer: Node, consumer: Node, monkeypatch
) -> None:
    for pid in (*everybody(producer), *everybody(consumer)):
        proc = Path(f"/proc/{pid}")
        maps = proc.joinpath("maps").read_text()
        assert "libtorch" not in maps
        assert "vllm/" not in maps
        assert "NoNewPrivs:\t1" in proc.joinpath("status").read_text()
        limits = proc.joinpath("limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0\s", limits)
        found = re.search(r"Max open files\s+(\d+)", limits)
        assert found is not None
        assert int(found[1]) <= 16384
        assert proc.joinpath("oom_score_adj").read_text().strip() == "500"
        environ = proc.joinpath("environ").read_bytes()
        assert b"EC_TEST_TRACES" not in environ
        assert b"UCX_MODULES=^cuda" in environ.split(b"\0"), "it would open the devices"
        ignored = re.search(r"SigIgn:\t(\w+)", proc.joinpath("status").read_text())
        assert ignored is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            assert int(ignored[1], 16) >> (number - 1) & 1, f"{number.name} is the engine's"


def test_they_idle_at_next_to_no_cost(producer: Node, consumer: Node) -> None:
    """By switches of theirs and not by time: a second of sleep at a time."""
    for pid in everybody(producer):
        before = switches(pid)
        wait_for(lambda p=pid, b=before: switches(p) > b, "a sign of life")
        assert switches(pid) - before < 60


def switches(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:\t")[2].split()[0])
