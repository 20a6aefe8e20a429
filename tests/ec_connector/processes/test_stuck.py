# SPDX-License-Identifier: Apache-2.0
"""Data processes that the kernel really does not end.

A tracer may hold a process at the very end of its life: it was killed, it runs no code any
more, and it has not exited. To everybody else that is what a process looks like that hangs
in a call which cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.needs import needs, optional

needs("nixl", "zmq")

from tests.ec_connector.processes.alive import standing, wait_complete, wait_gone, working
from tests.world.instance import BLOCK, Node, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.clause("EC-14.13")]

PATIENT = {"data_start_s": 120.0, "data_stall_s": 3.0, "data_lived_s": 0.001}

_SEIZE, _DETACH, _TRACE_EXIT = 0x4206, 17, 0x40


@contextlib.contextmanager
def never_exits(pid: int) -> Iterator[None]:
    """It does not exit meanwhile, whatever signal it is sent."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_SEIZE, pid, None, ctypes.c_void_p(_TRACE_EXIT)) != 0:
        why = os.strerror(ctypes.get_errno())
        optional(False, f"processes cannot be traced here: {why}")
    try:
        yield
    finally:
        libc.ptrace(_DETACH, pid, None, None)


@pytest.fixture
def producer() -> Iterator[Node]:
    with Node("ec_producer", extra=PATIENT) as made:
        wait_complete(made)
        yield made


@pytest.fixture
def consumer() -> Iterator[Node]:
    with Node("ec_consumer", extra=PATIENT) as made:
        wait_complete(made)
        yield made


def killed(node: Node, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: node.turn() or node.data.stuck == 1, "the figure", 60.0)  # type: ignore[func-returns-value]


def test_a_reader_that_never_exits_keeps_its_blocks_and_nobody_waits(
    producer: Node, consumer: Node, caplog: pytest.LogCaptureFixture
) -> None:
    data = {name: os.urandom(2 * BLOCK) for name in ("held", "next")}
    for name, content in data.items():
        producer.save(name, content)
    address, loans = producer.address, consumer.link.loans
    assert loans is not None
    (server,) = working(producer, "server")
    with contextlib.ExitStack() as held, caplog.at_level(logging.WARNING):
        with standing(server):
            assert consumer.ask("held", address, 2 * BLOCK, "mid") == "pending"
            (loan,) = loans._loans.values()
            pid = consumer.data._data[loan.reader].pid
            held.enter_context(never_exits(pid))
            killed(consumer, pid)
            wait_for(lambda: consumer.ask("held", address, 2 * BLOCK, "mid") == "failed", "the end")
        assert (loan.state, consumer.tier.quarantined_blocks) == ("lost", 2)
        # Its place is taken, and what it kept back can be fetched into other blocks.
        for name, content in data.items():

            def arrived(name: str = name) -> bool:
                asked = f"r-{name}-{time.monotonic()}"
                return consumer.fetch(name, address, 2 * BLOCK, asked) == "ready"

            wait_for(arrived, f"{name} by another reader", 100.0, every_s=0.1)
            assert consumer.bytes_of(name) == content
        assert (loan.state, consumer.tier.quarantined_blocks) == ("lost", 2)
        said = [m for m in caplog.messages if f"(pid {pid}) was killed and does not exit" in m]
        assert len(said) == 1
    wait_for(lambda: consumer.turn() or loan.state == "returned", "the exit")  # type: ignore[func-returns-value]
    assert (consumer.data.stuck, consumer.tier.quarantined_blocks) == (0, 0)
    wait_gone(pid)


@pytest.mark.clause("EC-14.6")
def test_behind_a_server_that_never_exits_nobody_serves_and_the_engine_goes_on(
    producer: Node,
) -> None:
    producer.save("a", os.urandom(BLOCK))
    address = producer.address
    (server,) = working(producer, "server")
    with never_exits(server):
        killed(producer, server)
        assert producer.data.address is None
        producer.save("b", os.urandom(BLOCK))
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            producer.turn()
            assert working(producer, "server") == [server], "two would have the ledger"
    wait_gone(server)
    wait_complete(producer)
    assert producer.address == address


def test_the_end_of_an_instance_does_not_wait_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with Node("ec_consumer", extra=PATIENT) as consumer:
        wait_complete(consumer)
        pid = working(consumer, "reader")[0]
        with never_exits(pid):
            killed(consumer, pid)
            began = time.monotonic()
            consumer.close()
            assert time.monotonic() - began < 60.0
            assert f"(pid {pid}) does not end" in "".join(caplog.messages)
    wait_gone(pid)
