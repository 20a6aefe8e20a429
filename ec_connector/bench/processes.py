# SPDX-License-Identifier: Apache-2.0
"""What data processes cost; what their deaths cost ``deaths`` says.

* The engine thread's time per step with peer-to-peer on, beside the same without: nobody
  asks, and a hundred peers ask a thousand times a second.
* Processor time of all data processes of a producer and a consumer that have nothing to
  do, beside one NIXL agent with its own progress thread.
* Their memory, beside the engine's process.
* The orderly end of an instance, beside its start.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Final

import zmq

from ec_connector.bench import peers
from ec_connector.bench.rows import Row
from ec_connector.config.settings import ECConfig
from ec_connector.instance import SchedulerInstance
from ec_connector.network.data.library import load_nixl, which_nixl
from ec_protocol.p2p import wire

_NBYTES: Final = 4 * peers.BLOCK
_PEERS: Final = 100
_ASKED_PER_S: Final = 1000


def run(quick: bool = False) -> list[Row]:
    """Rows of all of them."""
    steps = 2_000 if quick else 20_000
    seconds = 2.0 if quick else 30.0
    producer = peers.Node("ec_producer", 512)
    began = time.perf_counter()
    consumer = peers.Node("ec_consumer", 512)
    start_s = time.perf_counter() - began
    try:
        rows = [
            *_steps(producer, steps),
            *_idle(producer, consumer, seconds),
            *_memory(producer, consumer),
        ]
    finally:
        began = time.perf_counter()
        consumer.close()
        end_s = time.perf_counter() - began
        producer.close()
    case = "the end of a consumer's instance, beside its start"
    return [*rows, Row("processes", case, end_s * 1e3, start_s * 1e3, "ms")]


# ------------------------------------------------------------------- the engine's steps
def _steps(producer: peers.Node, steps: int) -> list[Row]:
    config = ECConfig.parse({"ec_cpu_bytes": 512 * peers.BLOCK}, "ec_producer")
    alone = SchedulerInstance(config, peers.FACTS, producer.region, items=lambda _: [])
    for number in range(64):
        producer.put(f"asked-{number}", _NBYTES, number)
    idle: dict[str, list[float]] = {"ours": [], "alone": []}
    asked: dict[str, list[float]] = {"ours": [], "alone": []}
    for where, samples in (("idle", idle), ("asked", asked)):
        stop = threading.Event()
        crowd = threading.Thread(target=_crowd, args=(producer.data.address, stop))
        if where == "asked":
            crowd.start()
        for _ in range(5):
            samples["ours"].append(_step_s(producer.instance, steps // 5))
            samples["alone"].append(_step_s(alone, steps // 5))
        stop.set()
        if where == "asked":
            crowd.join()
    return [
        Row(
            "processes",
            f"engine thread per step, {case}, beside no peer-to-peer",
            statistics.median(samples["ours"]) * 1e6,
            statistics.median(samples["alone"]) * 1e6,
            "us",
        )
        for case, samples in (
            ("nobody asks", idle),
            (f"{_PEERS} peers ask {_ASKED_PER_S} times a second", asked),
        )
    ]


def _step_s(instance: SchedulerInstance, steps: int) -> float:
    """Processor seconds of this thread for one step without requests."""
    scheduler = instance.scheduler
    before = time.thread_time()
    for _ in range(steps):
        scheduler.build_connector_meta()
        scheduler.update_connector_output(None)
    return (time.thread_time() - before) / steps


def _crowd(address: tuple[str, int] | None, stop: threading.Event) -> None:
    """Peers that ask for encodings and give each grant back by letting it be."""
    if address is None:
        raise RuntimeError("nobody serves")
    context: zmq.Context[Any] = zmq.Context()
    sockets = []
    for _ in range(_PEERS):
        sock = context.socket(zmq.DEALER)
        sock.connect(f"tcp://{address[0]}:{address[1]}")
        sockets.append(sock)
    number = 0
    while not stop.is_set():
        number += 1
        sock = sockets[number % _PEERS]
        sock.send_multipart([b"", wire.encode(peers.request("nobody-has-it", number))])
        while sock.poll(0):
            sock.recv_multipart()
        time.sleep(1 / _ASKED_PER_S)
    context.destroy(linger=0)


# ----------------------------------------------------------------------- idle, memory
def _children(pid: int | None = None) -> list[int]:
    """All processes below one, this one by default."""
    below: list[int] = []
    for tasks in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            below += [child, *_children(child)]
    return below


def _idle(producer: peers.Node, consumer: peers.Node, seconds: float) -> list[Row]:
    address = producer.data.address
    if address is None:
        raise RuntimeError("nobody serves")
    producer.put("idle", _NBYTES, 1)
    consumer.fetch("idle", address, _NBYTES)
    time.sleep(2.5)  # past the grant's linger, the notice's second and the last figures
    before = _cpu_s()
    time.sleep(seconds)
    ours = 100 * (_cpu_s() - before) / seconds
    api = load_nixl(which_nixl())
    agent = api.nixl_agent("bench", api.nixl_agent_config(enable_prog_thread=True))
    used = time.process_time()
    time.sleep(min(seconds, 3.0))
    spinning = 100 * (time.process_time() - used) / min(seconds, 3.0)
    del agent
    case = "all data processes of a producer and a consumer, idle, beside NIXL's progress thread"
    return [Row("processes", case, ours, spinning, "% of a core")]


def _cpu_s() -> float:
    ticks = 0
    for pid in _children():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory(producer: peers.Node, consumer: peers.Node) -> list[Row]:
    own = _private_mib(os.getpid())
    ours = sum(_private_mib(pid) for pid in _children())
    count = len(_children())
    case = f"memory of their own of {count} data processes, beside this process's"
    return [Row("processes", case, ours, own, "MiB")]


def _private_mib(pid: int) -> float:
    """Memory that nobody else has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
