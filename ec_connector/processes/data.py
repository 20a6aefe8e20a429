# SPDX-License-Identifier: Apache-2.0
"""A data process: ``python -m ec_connector.processes.data SPEC``.

It maps and registers its memory, says that it is ready, and waits. When it is told to
take its place it does what its kind does (``serving``, ``reading``) until its parent or
the engine is gone, or it is killed. It has one thread, beside those that look names up.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from ec_connector.clock import boottime
from ec_connector.network.data.library import load_nixl
from ec_connector.processes.channel import Channel
from ec_connector.processes.loop import Loop
from ec_connector.processes.memory import Shared, StatusPage
from ec_connector.processes.reader import ReaderWork
from ec_connector.processes.server import Server
from ec_connector.processes.spawn import Mapping, settle
from ec_connector.processes.spec import DataSpec, read_spec
from ec_protocol.errors import ECError
from ec_protocol.p2p import words
from ec_protocol.processes import beat_interval
from ec_protocol.trace import NdjsonSink, Trace

logger = logging.getLogger("ec_connector.data")


class LogToParent(logging.Handler):
    """What is logged here is told to the parent, which tells the engine's logger.

    What it has no room for is dropped: nothing may wait for somebody who reads the log.
    """

    def __init__(self, parent: Channel) -> None:
        super().__init__()
        self._parent = parent
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises."""
        try:
            text = self.format(record)
            self._parent.say(words.Trouble(record.levelno, text[:_LINE]))
        except Exception:
            self.handleError(record)


def log_to(parent: Channel) -> None:
    """Have everything that is logged in this process told to the parent, and nobody else."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [LogToParent(parent)]
    logging.captureWarnings(True)


def _load_nixl(package: str) -> None:
    """Load it, and take its log over, which goes to standard output in a format of its own."""
    load_nixl(package)
    nixl = logging.getLogger("nixl")
    nixl.handlers.clear()
    nixl.propagate = True


#: Longest text of a log record that is passed on.
_LINE: Final = 4000


def _trace(spec: DataSpec, clock: Callable[[], float] = boottime) -> Trace | None:
    path = spec.instance.trace_file
    if path is None:
        return None
    node = f"{spec.instance.engine_id}.{spec.kind}-{spec.process}"
    stem, dot, suffix = path.partition(".ndjson")
    own = f"{stem}.{spec.kind}-{spec.process}{dot}{suffix}" if dot else f"{path}.{spec.process}"
    trace = Trace(node, clock, NdjsonSink(own))
    trace.facts("instance", name=spec.instance.incarnation, process=spec.process)
    return trace


def _work(spec: DataSpec, loop: Loop, parent: Channel, engine: Channel) -> None:
    """Register, stand by, take the place, work."""
    from ec_connector.network.data import NixlReader, NixlServer

    instance = spec.instance
    serves = spec.kind == "server"
    if not serves or instance.bind is not None:
        _load_nixl(instance.nixl)
    memory = Mapping(
        spec.region, instance.region_bytes, writable=instance.writable if serves else True
    )
    agent = f"{instance.engine_id}-{instance.incarnation}-{spec.process}"
    where = (agent, memory.address, instance.region_bytes, instance.backends, instance.nixl)
    server = NixlServer(*where) if serves and instance.bind is not None else None
    reader = None if serves else NixlReader(*where)
    parent.say(words.Hello(words.VERSION))
    told = loop.wait_for_place()
    if told is None:
        return
    if told.port and instance.bind is not None:
        # It was started before the one before it had a port.
        bind = (instance.bind[0], told.port)
        spec = msgspec.structs.replace(spec, instance=msgspec.structs.replace(instance, bind=bind))
    work: Server | ReaderWork
    if reader is not None:
        work = ReaderWork(spec, engine, parent, reader, trace=_trace(spec), memory=memory.view())
        parent.say(words.Working())
    else:
        work = Server(
            spec, engine, server, memory.address, trace=_trace(spec), memory=memory.view()
        )
        host, port = work.address or ("", 0)
        parent.say(words.Working(host, port, work.bound, work.key))
    loop.run(work)
    work.goodbye()


def main(argv: list[str]) -> None:
    """Entry point of the process."""
    spec: DataSpec = read_spec(int(argv[1]), DataSpec)
    settle(f"ec-{spec.kind}", spec.parent_pid, dies_with_parent=True)
    parent = Channel.from_fd(spec.parent, words.ToData)
    log_to(parent)
    kinds = words.ToServer if spec.kind == "server" else words.ToReader
    engine = Channel.from_fd(spec.engine, kinds)
    beat_s = beat_interval(spec.instance.timers())
    loop = Loop(parent, engine, StatusPage(Shared(spec.status, writable=True)), beat_s)
    try:
        _work(spec, loop, parent, engine)
        code = 0
    except (ECError, OSError) as exc:
        parent.say(words.Failing(str(exc)))
        code = 1
    # Not through NIXL's and ZMQ's own ends, which may wait, or abort: ours is the process's.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv)
