# SPDX-License-Identifier: Apache-2.0
"""Data processes beside an engine that copies to and from a device.

With CUDA the engine page-locks the region that its server reads from and its readers write
to, and has a context and streams while they are started, killed and started again. The
same tests run on host memory, where nothing is page-locked.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.needs import needs, optional

needs("nixl", "zmq")

from ec_connector.copies.cuda import CudaCopyEngine
from tests.ec_connector.copies.cuda_kit import busy
from tests.ec_connector.processes.alive import everybody, wait_complete, wait_gone, working
from tests.ec_connector.processes.on_device import DeviceNode, DeviceProducer, encoding
from tests.world.instance import BLOCK, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENT = {"data_start_s": 120.0, "data_stall_s": 4.0}
SIZES = (1, BLOCK, 7 * BLOCK + 3, 400 * BLOCK + 17)

_count = itertools.count(1)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def consumer(device: str) -> Iterator[DeviceNode]:
    with DeviceNode("ec_consumer", device, PATIENT) as node:
        wait_complete(node)
        yield node


@pytest.fixture(scope="module")
def pool() -> Iterator[list[DeviceProducer]]:
    made: list[DeviceProducer] = []
    yield made
    for producer in made:
        producer.kill()


@pytest.fixture
def producer(device: str, pool: list[DeviceProducer]) -> DeviceProducer:
    """One that lives."""
    if not pool:
        pool.append(DeviceProducer(device, PATIENT))
    return pool[-1]


def save(producer: DeviceProducer, *sizes: int) -> dict[str, tuple[int, int]]:
    """New encodings at the producer: name to seed and size."""
    made = {f"h{seed}": (seed, size) for size in sizes for seed in (next(_count),)}
    told = [f"{name} {size} {seed}" for name, (seed, size) in made.items()]
    assert producer.tell(" ".join(told)) == sorted(made)
    return made


def arrives(node: DeviceNode, producer: DeviceProducer, name: str, nbytes: int) -> None:
    """An encoding arrives, within the tries that an address that cools down takes."""

    def arrived() -> bool:
        return node.fetch(name, producer.address, nbytes, f"r{next(_count)}") == "ready"

    wait_for(arrived, name, 120.0)


def right(node: DeviceNode, name: str, seed: int, nbytes: int) -> None:
    """It is on the device what the encoder has made."""
    assert torch.equal(node.load(name, nbytes).cpu(), encoding(seed, nbytes)), name
    node.finish()


def occupied(device: str) -> None:
    """The device has something else to do for a while."""
    if device == "cuda":
        busy()


def test_encodings_go_from_device_to_device(
    device: str, producer: DeviceProducer, consumer: DeviceNode
) -> None:
    made = save(producer, *SIZES)
    for name, (seed, nbytes) in made.items():
        occupied(device)
        arrives(consumer, producer, name, nbytes)
        right(consumer, name, seed, nbytes)
    if isinstance(consumer.copies, CudaCopyEngine):
        assert consumer.copies.pinning.whole, "the region is not page-locked"


def test_reads_land_while_the_device_copies(
    device: str, producer: DeviceProducer, consumer: DeviceNode
) -> None:
    """Loads of what is there, in every turn in which one more is being read."""
    (known,) = save(producer, SIZES[-1]).items()
    arrives(consumer, producer, known[0], known[1][1])
    for name, (seed, nbytes) in save(producer, *SIZES * 2).items():
        loaded = []
        while consumer.ask(name, producer.address, nbytes, f"r-{name}") == "pending":
            occupied(device)
            loaded.append(consumer.load(known[0], known[1][1]))
            consumer.finish()
        assert all(torch.equal(tensor.cpu(), encoding(*known[1])) for tensor in loaded)
        assert loaded, "it was there before anything could be copied"
        right(consumer, name, seed, nbytes)


def test_data_processes_die_and_the_device_copies_on(
    device: str, producer: DeviceProducer, consumer: DeviceNode
) -> None:
    (known,) = save(producer, SIZES[-1]).items()
    arrives(consumer, producer, known[0], known[1][1])
    victims = [
        lambda: producer.data()[1],
        lambda: working(consumer, "reader")[0],
        lambda: producer.data()[0],
        lambda: everybody(consumer)[0],
    ]
    for victim in victims:
        made = save(producer, *SIZES)
        os.kill(victim(), signal.SIGKILL)
        occupied(device)
        right(consumer, known[0], *known[1])
        for name, (seed, nbytes) in made.items():
            arrives(consumer, producer, name, nbytes)
            right(consumer, name, seed, nbytes)
        wait_complete(consumer)


def test_data_processes_have_nothing_of_the_device(
    device: str, producer: DeviceProducer, consumer: DeviceNode
) -> None:
    """The driver is the engine's: a context of theirs would take hundreds of MB each."""
    optional(device == "cuda", "needs a CUDA device")
    wait_complete(consumer)
    assert device_files(os.getpid()), "the engine has none itself: this test sees nothing"
    for pid in (*everybody(consumer), *producer.data()):
        assert device_files(pid) == set(), Path(f"/proc/{pid}/comm").read_text()


def device_files(pid: int) -> set[str]:
    """Device files of the driver that a process has open or mapped."""
    links = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    links |= set(Path(f"/proc/{pid}/maps").read_text().split())
    return {link for link in links if re.match(r"/dev/nvidia", link)}


def test_an_engine_dies_with_its_device(
    device: str, producer: DeviceProducer, pool: list[DeviceProducer], consumer: DeviceNode
) -> None:
    """SIGKILL in the middle of saves: its data processes end, others go on."""
    (known,) = save(producer, SIZES[-1]).items()
    arrives(consumer, producer, known[0], known[1][1])
    theirs = producer.data()
    assert len(theirs) == 3, "its parent, one that serves, one that stands by"
    # Nobody waits for the answer: it is killed while it encodes or copies.
    producer.say(" ".join(f"gone{n} {SIZES[-1]} {n}" for n in range(8)))
    pool.remove(producer)
    producer.kill()
    wait_gone(*theirs)
    assert consumer.fetch("gone0", producer.address, SIZES[-1]) == "failed"
    right(consumer, known[0], *known[1])

    following = DeviceProducer(device, PATIENT)
    pool.append(following)
    for name, (seed, nbytes) in save(following, *SIZES).items():
        arrives(consumer, following, name, nbytes)
        right(consumer, name, seed, nbytes)
