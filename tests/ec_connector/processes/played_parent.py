# SPDX-License-Identifier: Apache-2.0
"""An instance whose parent is the test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.processes import engine as engine_end
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_protocol.p2p import words
from tests.world.instance import Instance, Node
from tests.world.processes import Child


class Played(Node):
    """An instance whose parent is the test; data processes are programs that sleep.

    Attributes:
        kills: When the engine has had the parent killed.
    """

    def __init__(self, role: str = "ec_producer") -> None:
        self.now = 1000.0
        self.sleepers: list[Child] = []
        self.ends: list[Channel] = []
        self.kills: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_end.DataProcesses, "start", lambda self: None)
            super().__init__(role, clock=lambda: self.now)
        Instance.running.remove(self)
        self.raise_parent()

    def raise_parent(self) -> None:
        """A parent, as far as the engine has it."""
        data, parent = self.data, self.data._parent
        ours, theirs = channel_pair()
        data._channel = Channel(ours, words.FromParent)
        data._poll.register(ours.fileno(), 1)
        parent._popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        kill = parent._popen.kill
        parent._popen.kill = lambda: self.kills.append(self.now) or kill()
        parent._close_status()
        parent._status = StatusPage(Shared.create("ec-test", STATUS_BYTES))
        parent._started_at = parent._looked_at = self.now
        parent._beat_at = parent._silent_s = 0.0
        data._watch_at = self.now
        self.parent = Channel(theirs, words.ToParent)

    def beats(self) -> None:
        """The parent gives a sign of life."""
        assert self.data._parent._status is not None
        self.data._parent._status.beat(self.now)

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        assert self.data._parent._popen is not None
        return self.data._parent._popen

    def parent_dies(self) -> None:
        self.popen.kill()
        self.popen.communicate()
        self.parent.close()

    def steps(self, seconds: float, each: float = 0.5) -> None:
        """The engine takes steps meanwhile."""
        for _ in range(round(seconds / each)):
            self.now += each
            self.turn()

    def comes(self, number: int, kind: str = "server", port: int = 5601) -> Child:
        """A data process takes its place."""
        child = Child("-c", "import json, sys; print(1, flush=True); sys.stdin.read()", greets=True)
        self.sleepers.append(child)
        ours, theirs = channel_pair()
        status = Shared.create("ec-test", STATUS_BYTES)
        StatusPage(status).write({"grants": {"granted": number}})
        pidfd = os.pidfd_open(child.pid)
        where = ("127.0.0.1", port, port) if kind == "server" else ("", 0, 0)
        up = words.Up(number, kind, child.pid, *where)
        assert self.parent.say(up, (ours.fileno(), pidfd, status.fd))
        os.close(pidfd)
        ours.close()
        status.close()
        self.ends.append(Channel(theirs, words.ToServer if kind == "server" else words.ToReader))
        return child

    def close(self) -> None:
        for child in self.sleepers:
            child.kill()
        self.parent_dies()
        for end in self.ends:
            end.close()
        super().close()
