# SPDX-License-Identifier: Apache-2.0
"""A producer and a consumer with all their processes: what those are and hold, and their deaths.

Both are started once. A test leaves them complete again, whatever it has done to them.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs

needs("nixl", "zmq")

import zmq

from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferReq, XferStatus
from tests.ec_connector.processes.alive import (
    children,
    complete,
    everybody,
    gone,
    name,
    parent_of,
    standing,
    wait_complete,
    wait_gone,
    working,
)
from tests.world.instance import BLOCK, Instance, Node, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

#: A busy machine may take long to start a process, and must not take it for one that stands.
#: Here they die one after the other, and each death is to be as the first after a while.
PATIENT = {"data_start_s": 120.0, "data_stall_s": 4.0, "data_lived_s": 0.001}
#: A file that the engine holds open and that a careless start would pass on.
MARK = "ec-test-mark"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    mark = os.open(tmp_path_factory.mktemp("mark") / MARK, os.O_CREAT | os.O_RDWR)
    os.set_inheritable(mark, True)
    with Node("ec_producer", extra=PATIENT) as producer, Node("ec_consumer", extra=PATIENT) as c:
        wait_complete(producer)
        wait_complete(c)
        yield producer, c
    os.close(mark)


@pytest.fixture
def producer(pair: tuple[Node, Node]) -> Iterator[Node]:
    yield pair[0]
    wait_complete(pair[0])


@pytest.fixture
def consumer(pair: tuple[Node, Node]) -> Iterator[Node]:
    yield pair[1]
    wait_complete(pair[1])


_count = itertools.count()


def fresh(producer: Node, nbytes: int = 2 * BLOCK) -> tuple[str, bytes]:
    """A new encoding at the producer."""
    encoding, data = f"e{next(_count)}", os.urandom(nbytes)
    producer.save(encoding, data)
    return encoding, data


def served(producer: Node, consumer: Node) -> None:
    """A new encoding arrives."""
    arrives(*fresh(producer), producer, consumer)


def arrives(encoding: str, data: bytes, producer: Node, consumer: Node) -> None:
    """An encoding arrives, within the tries that an address that cools down takes.

    Not too many of them: each is recorded.
    """

    def arrived() -> bool:
        asked = f"r{next(_count)}"
        return consumer.fetch(encoding, producer.address, len(data), asked) == "ready"

    wait_for(arrived, "an encoding", 120.0, every_s=0.1)
    assert consumer.bytes_of(encoding) == data


# ----------------------------------------------------------------------- what they are
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


# ------------------------------------------------------------------------------ deaths
@pytest.mark.clause("EC-14.6")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_the_next_server_serves_where_it_did(
    producer: Node, consumer: Node, how: signal.Signals
) -> None:
    served(producer, consumer)
    address, (first,) = producer.address, working(producer, "server")
    readers = working(consumer, "reader")
    exits = producer.data.figures.exits["server"]
    os.kill(first, how)
    wait_for(lambda: first not in working(producer, "server"), "the exit")
    wait_for(lambda: producer.data.address is not None, "the next one")
    assert producer.address == address
    served(producer, consumer)
    assert producer.data.figures.exits["server"] == exits + 1
    assert working(consumer, "reader") == readers, "nobody else went"
    wait_gone(first)


@pytest.mark.clause("EC-14.2", "EC-14.6")
def test_a_grant_survives_its_server_in_the_ledger(producer: Node, consumer: Node) -> None:
    encoding, data = fresh(producer)
    entry = producer.tier.get(encoding)
    assert entry is not None
    offers = producer.link.offers
    assert offers is not None
    (server,) = working(producer, "server")
    # A peer that asks, and is never heard of again.
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.connect("tcp://{}:{}".format(*producer.address))
    request = XferReq(encoding, producer.data._spec.compat_hash, "s.1", 2, 1, "s")
    peer.send_multipart([b"", wire.encode(request)])
    wait_for(lambda: bool(peer.poll(0)), "the answer")
    granted = wire.decode_ack(peer.recv_multipart())
    context.destroy(linger=0)
    assert granted.status == XferStatus.OK
    slot = offers._offers[entry.entry_id].slot
    end = offers.ledger.needed_until(slot)
    assert producer.clock() < end <= producer.clock() + offers.lease_s
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: server not in working(producer, "server"), "the exit")
    wait_for(lambda: bool(working(producer, "server")), "the next one")
    arrives(encoding, data, producer, consumer)
    wait_for(lambda: not offers._needed(slot, end), "the end of what was granted after it")
    assert offers.ledger.needed_until(slot) == end, "nobody lowers what another one has promised"
    assert not offers.may_evict(entry)


@pytest.mark.clause("EC-14.8")
def test_a_fetch_whose_reader_is_killed_is_lent_to_another(producer: Node, consumer: Node) -> None:
    encoding, data = fresh(producer)
    loans = consumer.link.loans
    assert loans is not None
    before = loans.counters["relent"]
    (server,) = working(producer, "server")
    with standing(server):
        assert consumer.ask(encoding, producer.address, len(data), "mid") == "pending"
        (loan,) = loans._loans.values()
        pid = consumer.data._data[loan.reader].pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: loans.counters["relent"] == before + 1, "the next loan")
        (again,) = loans._loans.values()
        assert again.reader != loan.reader
        assert again.entry is not loan.entry
    assert consumer.fetch(encoding, producer.address, len(data), "mid") == "ready"
    assert consumer.bytes_of(encoding) == data
    wait_gone(pid)


@pytest.mark.clause("EC-14.5", "EC-14.9")
@pytest.mark.parametrize("kind", ["server", "reader"])
def test_one_that_stands_still_is_killed_and_replaced(
    producer: Node, consumer: Node, kind: str, caplog
) -> None:
    node = producer if kind == "server" else consumer
    pid = working(node, kind)[0]
    with standing(pid), caplog.at_level(logging.INFO):
        wait_for(lambda: pid not in working(node, kind), "its end")
    assert any(f"{kind} " in m and "killed: stalled" in m for m in caplog.messages)
    wait_complete(node)
    served(producer, consumer)
    wait_gone(pid)


@pytest.mark.clause("EC-14.5")
def test_a_spare_that_stands_still_is_replaced_and_nobody_else(producer: Node) -> None:
    (server,) = working(producer, "server")
    (spare,) = set(children(parent_of(producer))) - {server}
    with standing(spare):
        wait_gone(spare)
    wait_complete(producer)
    assert working(producer, "server") == [server]


@pytest.mark.clause("EC-14.1")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_parent_that_goes_takes_its_own_with_it_and_another_one_comes(
    producer: Node, consumer: Node, how: str
) -> None:
    address, old = producer.address, everybody(producer)
    numbers = set(producer.data._data)
    if how == "killed":
        os.kill(old[0], signal.SIGKILL)
    else:
        os.kill(old[0], signal.SIGSTOP)
    wait_for(lambda: parent_of(producer) != old[0], "another parent", 120.0)
    wait_gone(*old[1:])
    wait_complete(producer)
    assert producer.address == address
    assert min(producer.data._data) > max(numbers), "no number is used again (EC-9.2)"
    served(producer, consumer)


def test_a_storm_of_deaths_ends_with_everybody_there(producer: Node, consumer: Node) -> None:
    """Whoever works is killed again and again; what is asked for meanwhile is answered."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for round_ in range(6):
        for node, kind in ((producer, "server"), (consumer, "reader")):
            for pid in working(node, kind)[: 1 + round_ % 2]:
                os.kill(pid, signal.SIGKILL)
        encoding, data = fresh(producer)
        address = producer.data.address
        if address is not None:
            asked = f"storm{round_}"
            if consumer.fetch(encoding, address, len(data), asked) == "ready":
                assert consumer.bytes_of(encoding) == data
            consumer.node.leave(asked, consumer.clock())
        consumer.tier.check()
        producer.tier.check()
    wait_complete(producer)
    wait_complete(consumer)
    served(producer, consumer)
    loans = consumer.link.loans
    assert loans is not None
    wait_for(lambda: len(loans) == 0, "all loans")
    assert consumer.tier.quarantined_blocks == 0
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.clause("EC-14.4")
def test_while_an_engine_stands_still_nothing_grows_and_everything_goes_on(
    producer: Node, consumer: Node
) -> None:
    """Its data processes die and are replaced; what it is told of that has a bound."""
    served(producer, consumer)
    (first,) = working(producer, "server")
    parent = parent_of(producer)
    with producer.standing_still():
        for _ in range(3):
            servers = {pid for pid in children(parent) if name(pid) == "ec-server"}
            os.kill(min(servers), signal.SIGKILL)
            os.kill(max(servers), signal.SIGKILL)
            wait_for(lambda s=servers: not s & set(children(parent)), "their ends")
            wait_for(
                lambda: sum(name(pid) == "ec-server" for pid in children(parent)) == 2, "the next"
            )
        held = len(os.listdir(f"/proc/{parent}/fd"))
        assert held < 80
        assert working(producer, "server") == [first], "it does not know yet"
    wait_complete(producer)
    served(producer, consumer)
    wait_for(lambda: len(os.listdir(f"/proc/{parent}/fd")) <= held, "what waited for the engine")


@pytest.mark.clause("EC-14.10")
def test_an_idle_engine_whose_parent_died_has_another_one_after_its_next_step(
    producer: Node, consumer: Node
) -> None:
    """Nobody else starts one, and nobody serves until then."""
    address, old = producer.address, everybody(producer)
    with producer.standing_still():
        os.kill(old[0], signal.SIGKILL)
        wait_for(lambda: gone(*old[1:]), "the ends of its children")
        encoding = consumer.fetch("idle", address, BLOCK, "idle")
        assert encoding == "failed", "who asks meanwhile falls back"
    producer.turn()
    assert parent_of(producer) != old[0]
    wait_complete(producer)
    assert producer.address == address
    served(producer, consumer)


def test_the_engines_descriptors_and_processes_are_as_many_as_at_first(
    producer: Node, consumer: Node
) -> None:
    """After all of the above."""
    for node in (producer, consumer):
        wait_for(lambda n=node: complete(n), "all")
        assert len(node.data._by_fd) == 2 * len(node.data._data)
        assert len(children(parent_of(node))) == (2 if node is producer else 3)
    assert not [pid for pid in children(os.getpid()) if name(pid) == ""]
    assert Instance.running
    assert not gone(os.getpid())
