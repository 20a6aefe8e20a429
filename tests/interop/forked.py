# SPDX-License-Identifier: Apache-2.0
"""What a forked process does; ``driver`` asks the fork server for one."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

#: What the fork server imports once, before it forks: half a minute on a busy host.
PRELOAD = ["tests.interop.builtin_host"]

_STEP_S = 0.001


def own_output(path: str, *descriptors: int) -> None:
    """From here on what is printed goes into a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    os.close(file)


def serve(pipe: Connection, log: str, *host: Any, **options: Any) -> None:
    """Make a ``Host``; answer commands, and take engine steps in between, until it closes."""
    own_output(log, 1, 2)
    from tests.interop.builtin_host import Host

    made = Host(*host, **options)
    try:
        pipe.send(made.hello())
        due = 0.0
        while True:
            # Not only when nobody asks: whoever asks every half a millisecond whether
            # something has happened would keep it from happening.
            if made.running and time.monotonic() >= due:
                made.step()
                due = time.monotonic() + _STEP_S
            if not pipe.poll(max(0.0, due - time.monotonic()) if made.running else None):
                continue
            command = pipe.recv()
            pipe.send(getattr(made, "do_" + command.pop("do"))(**command))
    except EOFError:
        return
    finally:
        made.connector.shutdown()


def command_line(output: str, words: list[str], *, heartbeats_in_time: bool = False) -> None:
    """Run ``ec-protocol`` where vLLM is imported already.

    Args:
        output: File for what it prints.
        words: Its arguments.
        heartbeats_in_time: Let vLLM's client set the options of its heartbeats before it
            connects, instead of afterwards.
    """
    own_output(output, 1)
    from ec_verify.cli import main

    if heartbeats_in_time:
        _set_heartbeats_in_time()
    sys.argv = ["ec-protocol", *words]
    main()


def _set_heartbeats_in_time() -> None:
    import zmq

    from ec_verify.adapters.builtin import stage as vllm_stage

    control = vllm_stage.install()["control"]

    def make(ctx: Any, path: str, socket_type: int, bind: bool) -> Any:
        socket = ctx.socket(socket_type)
        socket.setsockopt(zmq.HEARTBEAT_IVL, control._HEARTBEAT_IVL_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, control._HEARTBEAT_TIMEOUT_MS)
        (socket.bind if bind else socket.connect)(path)
        return socket

    control.make_zmq_socket = make
