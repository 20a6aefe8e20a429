# SPDX-License-Identifier: Apache-2.0
"""Starts that cannot be, and ends of every kind: a typed error, and nothing left."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.network.addresses import BindError
from ec_connector.processes import engine as engine_end
from ec_connector.processes import parent_process
from ec_connector.processes.engine import DataProcessError
from ec_protocol.errors import ECError
from ec_protocol.p2p import words
from tests import ROOT
from tests.ec_connector.processes.alive import (
    children,
    everybody,
    name,
    parent_of,
    wait_complete,
    wait_gone,
)
from tests.leftovers import SHM
from tests.world.instance import BLOCK, Instance, Node, Producer, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENT = {"data_start_s": 120.0, "data_stall_s": 4.0}


def ours() -> set[int]:
    """Processes of ours that this one has started."""
    return {pid for pid in children(os.getpid()) if name(pid).startswith("ec-")}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    gc.collect()
    files, descriptors = set(os.listdir(SHM)), len(os.listdir("/proc/self/fd"))
    before = ours()
    yield
    assert ours() <= before
    assert not {f for f in set(os.listdir(SHM)) - files if f"_test-{os.getpid()}-" in f}
    assert not Instance.running
    gc.collect()  # what is mapped goes with the last view of it
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# -------------------------------------------------------------------- what cannot be started
def refused(*said: str, role: str = "ec_producer", **arguments: Any) -> None:
    started = time.monotonic()
    with pytest.raises((DataProcessError, BindError)) as caught:
        Node(role, **arguments)
    text = str(caught.value)
    for part in said:
        assert part in text
    assert "\n" not in text
    assert isinstance(caught.value, ECError)
    assert time.monotonic() - started < 100, "at once, and not when the patience is over"


def test_a_port_that_is_taken_names_it_and_the_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(
            f"127.0.0.1:{port}",
            "VLLM_EC_SIDE_CHANNEL_PORT to a port that is free",
            bind=("127.0.0.1", port),
            extra=PATIENT,
        )


def test_a_host_that_is_none_names_it_and_the_setting() -> None:
    refused(
        "no.such.host.invalid",
        "VLLM_EC_SIDE_CHANNEL_HOST",
        bind=("no.such.host.invalid", 0),
        extra=PATIENT,
    )


@pytest.mark.parametrize("role", ["ec_producer", "ec_consumer"])
def test_a_backend_that_is_none_names_it_and_the_setting(role: str) -> None:
    extra = {**PATIENT, "ec_nixl_backends": ["NOPE"]}
    refused("NOPE", "ec_nixl_backends", role=role, extra=extra)


@pytest.mark.clause("EC-14.4")
def test_an_engine_that_is_older_than_what_is_installed_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(words, "VERSION", 99)
    refused("the engine speaks version 99", "restart the instance", extra=PATIENT)


def test_without_nixl_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ec_connector.network.data import library

    monkeypatch.setattr(library, "which_nixl", lambda: "no_such_nixl")
    refused("no_such_nixl", role="ec_consumer", extra=PATIENT)


@pytest.mark.parametrize("room", range(0, 12, 3))
def test_without_descriptors_it_says_so(room: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = Unstarted("ec_producer")
    in_use = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 16, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(room):
            os.close(taken.pop())
        with pytest.raises(DataProcessError, match="Too many open files"):
            made.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
        made.close()


def test_a_program_that_cannot_be_run_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_process, "command", lambda *a: ["/no/such/python"])
    refused("parent cannot be started", "/no/such/python", extra=PATIENT)


def test_a_parent_that_dies_at_once_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        parent_process, "command", lambda *a: [sys.executable, "-c", "raise SystemExit"]
    )
    refused("cannot be started", extra=PATIENT)


class Unstarted(Node):
    """One whose data processes are started later."""

    def __init__(self, role: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_end.DataProcesses, "start", lambda self: None)
            super().__init__(role, extra=PATIENT)

    def start(self) -> None:
        self.data.start()


def test_an_interrupt_during_the_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(self: Any) -> None:
        raise Interrupted

    made = Unstarted("ec_consumer")
    monkeypatch.setattr(engine_end.DataProcesses, "turn", interrupt)
    with pytest.raises(Interrupted):
        made.start()
    assert made.data._parent.pid is not None
    assert not made.data._parent.runs
    monkeypatch.undo()
    made.close()


# ------------------------------------------------------------------------------ the end
def test_the_orderly_end_leaves_no_process_no_port_and_no_file(tmp_path: Path) -> None:
    places = {"ec_events_endpoint": f"ipc://{tmp_path}/e"}
    with Node("ec_both", extra={**PATIENT, **places}) as node:
        wait_complete(node)
        processes, address = everybody(node), node.address
        region = node.region.path
        assert len(processes) == 6
    wait_gone(*processes)
    assert not Path(region).exists()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)
    assert node.data.address is None
    # What a host still calls by mistake does nothing.
    node.turn()
    node.close()
    assert node.data.read_figures().exits == {"server": 1, "reader": 2}


def test_a_parent_that_does_not_listen_ends_with_its_engine_all_the_same() -> None:
    with Node("ec_producer", extra=PATIENT) as node:
        wait_complete(node)
        processes = everybody(node)
        os.kill(parent_of(node), signal.SIGSTOP)
    wait_gone(*processes)


@pytest.fixture
def other() -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def go(**settings: Any) -> Producer:
        made.append(Producer(**{**PATIENT, **settings}))
        return made[-1]

    yield go
    for producer in made:
        if producer.process.poll() is None:
            producer.kill()


@pytest.mark.clause("EC-14.1")
@pytest.mark.parametrize("first", ["engine", "parent", "both"])
def test_however_the_engine_ends_its_processes_end(other: Any, first: str) -> None:
    producer = other()
    pids = producer.tell("pids")
    processes = [pids["parent"], *children(pids["parent"])]
    assert len(processes) == 3
    if first == "parent":
        # In mid-restart: the next parent may be there or not when the engine goes.
        os.kill(pids["parent"], signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{processes[1]}").exists(), "the first child's end")
        processes += children(producer.pid)
    if first == "both":
        producer.process.send_signal(signal.SIGSTOP)
        os.kill(pids["parent"], signal.SIGSTOP)
        os.kill(pids["parent"], signal.SIGKILL)
    producer.kill()
    wait_gone(*processes)


@pytest.mark.clause("EC-14.1")
def test_an_engine_whose_children_keep_its_descriptors_ends_its_processes_too(tmp_path) -> None:
    """A host that forks: its child has the engine's end of every channel, and lives on."""
    program = tmp_path / "forks.py"
    program.write_text(_FORKS)
    host = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "EC_TEST_TRACES": "off"},
        text=True,
    )
    assert host.stdout is not None
    try:
        *processes, fork = map(int, host.stdout.readline().split())
        host.kill()
        host.wait()
        wait_gone(*processes)
        assert Path(f"/proc/{fork}").exists()
    finally:
        host.kill()
        os.kill(fork, signal.SIGKILL)
        host.communicate()


_FORKS = """
import os, sys, time
from tests.world.instance import Node
from tests.ec_connector.processes.alive import everybody, wait_complete
node = Node("ec_producer", extra={"data_start_s": 120.0})
wait_complete(node)
processes = everybody(node)
fork = os.fork()
if fork == 0:
    sys.stdin.read()
    time.sleep(600)
print(*processes, fork, flush=True)
while True:
    node.turn()
    time.sleep(0.01)
"""


@pytest.mark.clause("EC-10.6")
@pytest.mark.parametrize("everybody_at_once", [False, True])
def test_a_killed_instance_leaves_its_region_to_the_next_start(
    other: Any, everybody_at_once: bool
) -> None:
    from ec_connector.region.file import reap_orphans

    producer = other()
    pids = producer.tell("pids")
    processes = [pids["parent"], *children(pids["parent"])]

    def mine() -> list[str]:
        return [f for f in os.listdir(SHM) if f"_test-{producer.pid}-" in f]

    assert len(mine()) == 2, "the region, and a folder beside it"
    if everybody_at_once:  # the parent has no time to tidy up either
        os.kill(processes[0], signal.SIGKILL)
    producer.kill()
    wait_gone(*processes)
    wait_for(lambda: not mine() or reap(reap_orphans), "the end of both")


def reap(reap_orphans: Callable[[str], Any]) -> bool:
    reap_orphans(str(SHM))
    return False


def test_what_data_processes_import_has_no_torch_and_no_vllm() -> None:
    code = (
        "import sys\n"
        "import ec_connector.processes.parent, ec_connector.processes.data\n"
        "import ec_connector.network.publisher, ec_connector.network.names\n"
        "from ec_connector.network.data import NixlReader, NixlServer\n"
        "import ctypes\n"
        "memory = ctypes.create_string_buffer(8192)\n"
        "from ec_connector.network.data.library import which_nixl\n"
        "where = (ctypes.addressof(memory), 4096, ('UCX',), which_nixl())\n"
        "NixlServer('a', *where), NixlReader('b', *where)\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.stdout.write('FOUND ' + ' '.join(sorted(names & {'torch', 'vllm', 'numpy', 'ray'})))\n"
        "sys.stdout.flush()\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.partition("FOUND ")[2].split()
    assert not {"torch", "vllm", "ray"} & set(found)


def test_without_the_gate_there_is_nothing_of_it() -> None:
    code = (
        "import sys\n"
        "from ec_connector.config.settings import ECConfig\n"
        "from ec_connector.engine.facts import ModelFacts\n"
        "from ec_connector.instance import SchedulerInstance\n"
        "from ec_connector.region.shared import SharedRegion\n"
        f"region = SharedRegion.open('test-{os.getpid()}-gate', 0, 4, {BLOCK}, guard=False)\n"
        f"config = ECConfig.parse({{'ec_cpu_bytes': 4 * {BLOCK}}}, 'ec_both')\n"
        "facts = ModelFacts('t', 'm', 'bfloat16', 2)\n"
        "made = SchedulerInstance(config, facts, region, items=lambda r: [])\n"
        "region.close(unlink=True)\n"
        "bad = ('ec_connector.processes', 'ec_connector.network', 'zmq')\n"
        "sys.exit(made.data is not None or any(m.startswith(bad) for m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=200)
    assert done.returncode == 0
