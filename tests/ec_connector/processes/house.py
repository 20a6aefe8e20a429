# SPDX-License-Identifier: Apache-2.0
"""A parent in this process, over real processes that do what a test wants them to do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from ec_connector.processes import parent as parent_module
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.memory import STATUS_BYTES, Shared
from ec_connector.processes.spec import InstanceSpec, ParentSpec
from ec_protocol.p2p import words
from ec_protocol.tables.timing import Timing
from tests.ec_connector.processes.alive import children

_CHILD = """
import math, os, signal, sys, time
sys.path.insert(0, {root!r})
from ec_connector.processes.channel import Channel
from ec_connector.processes.memory import Shared, StatusPage
from ec_connector.processes.spec import DataSpec, read_spec
from ec_protocol.p2p import words
spec = read_spec(int(sys.argv[1]), DataSpec)
signal.signal(signal.SIGINT, signal.SIG_IGN)
parent = Channel.from_fd(spec.parent, words.ToData)
status = StatusPage(Shared(spec.status, writable=True))
def wait(kind):
    import select
    while parent.open:
        status.beat(time.clock_gettime(time.CLOCK_BOOTTIME))
        select.select([parent], [], [], 0.05)
        for message in parent.hear():
            if isinstance(message, kind):
                return message
    os._exit(0)
def ready():
    parent.say(words.Hello(words.VERSION))
    return wait(words.Take)
{body}
wait(words.Stop)
"""


class House:
    """A parent in this process; its children run a test's program."""

    def __init__(self, body: str, monkeypatch: pytest.MonkeyPatch, **instance: Any) -> None:
        from tests import ROOT

        program = _CHILD.format(root=str(ROOT), body=body)
        monkeypatch.setattr(
            parent_module, "command", lambda _, fd, title: [sys.executable, "-c", program, str(fd)]
        )
        ours, theirs = channel_pair()
        self.engine = Channel(ours, words.FromParent)
        self.heard: list[Any] = []
        self.fds: list[int] = []
        self.memory = [Shared.create("ec-test", STATUS_BYTES) for _ in range(4)]
        region, table, ledger, status = (os.dup(shared.fd) for shared in self.memory)
        settings: dict[str, Any] = {"bind": ("127.0.0.1", 0), **instance}
        timing = Timing(start_s=60.0, stall_s=20.0)
        self.spec = ParentSpec(
            version=words.VERSION,
            instance=InstanceSpec(
                engine_id="engine",
                incarnation="i",
                engine_pid=os.getpid(),
                num_blocks=4,
                block_size_bytes=64,
                compat_hash="c",
                timing={field.name: getattr(timing, field.name) for field in fields(timing)},
                nixl="nixl",
                backends=("UCX",),
                **settings,
            ),
            engine=theirs.detach(),
            region=region,
            region_for_server=region,
            table=table,
            ledger=ledger,
            status=status,
        )
        self.parent = parent_module._Parent(self.spec)
        self.ended = False
        self.others: set[int] = set()

    def turn(self) -> None:
        self.parent._look()
        self.parent._tell_engine()
        for message, fds in self.engine.hear_with_fds():
            self.heard.append(message)
            self.fds += fds

    def until(
        self, condition: Callable[[], object], what: str, turn: Callable[[], object] | None = None
    ) -> None:
        deadline = time.monotonic() + 100
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.heard}"
            (turn or self.turn)()
            time.sleep(0.001)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    def troubles(self) -> list[str]:
        return [message.text for message in self.of(words.Trouble)]

    def close(self) -> None:
        if not self.ended:
            for child in self.parent._children.values():
                child.kill()
            self.parent._end()
        self.parent.engine.close()
        self.engine.close()
        os.close(self.parent._engine_pidfd)
        for fd in (*self.fds, self.spec.region, self.spec.table, self.spec.ledger):
            os.close(fd)
        self.parent._status.shared.close()
        for shared in self.memory:
            shared.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., House]]:
    made: list[House] = []
    # Others of this process are none of ours: multiprocessing keeps helpers until its end.
    others = set(children(os.getpid()))

    def go(body: str, **instance: Any) -> House:
        made.append(House(body, monkeypatch, **instance))
        made[-1].others = others
        return made[-1]

    yield go
    for one in made:
        one.close()
    assert set(children(os.getpid())) <= others
