# SPDX-License-Identifier: Apache-2.0
"""The engine's end, with a parent and data processes that the test plays."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_connector.processes import engine as engine_end
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_protocol.p2p import words
from tests.world.instance import Instance, Node, wait_for
from tests.world.processes import Child


class Played(Node):
    """An instance whose parent is the test; data processes are programs that sleep."""

    def __init__(self, role: str = "ec_producer") -> None:
        self.now = 1000.0
        self.sleepers: list[Child] = []
        self.ends: list[Channel] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_end.DataProcesses, "start", lambda self: None)
            super().__init__(role, clock=lambda: self.now)
        Instance.running.remove(self)
        self.raise_parent()

    def raise_parent(self) -> None:
        """A parent, as far as the engine has it."""
        data = self.data
        ours, theirs = channel_pair()
        data._channel = Channel(ours, words.FromParent)
        data._poll.register(ours.fileno(), 1)
        data._parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        status = Shared.create("ec-test", STATUS_BYTES)
        data._close_parent_status()
        data._parent_status = StatusPage(status)
        data._parent_started_at = data._looked_at = self.now
        self.parent = Channel(theirs, words.ToParent)

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
        parent = self.data._parent
        assert parent is not None
        parent.kill()
        parent.communicate()
        self.parent.close()
        for end in self.ends:
            end.close()
        super().close()


@pytest.fixture
def node() -> Iterator[Played]:
    with Played() as made:
        yield made


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_who_comes_is_known_and_who_exits_is_forgotten(node: Played) -> None:
    before = descriptors()
    child = node.comes(1)
    node.turn()
    assert node.address == ("127.0.0.1", 5601)
    assert node.data._spec.bind == ("127.0.0.1", 5601)
    child.kill()
    wait_for(lambda: node.turn() or not node.data._data, "the exit")  # type: ignore[func-returns-value]
    assert node.data.address is None
    assert node.data.figures.totals("grants") == {"granted": 1}
    node.ends.pop().close()
    node.sleepers.clear()
    assert descriptors() == before


def test_the_same_process_twice_leaves_no_descriptor(node: Played) -> None:
    node.comes(1)
    node.turn()
    first = node.data._data[1]
    before = descriptors()
    child = node.comes(1)
    node.turn()
    assert node.data._data[1] is first
    child.kill()
    node.sleepers.pop()
    node.ends.pop().close()
    assert descriptors() == before


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_another_number_of_descriptors_is_not_taken(node: Played, count: int) -> None:
    before = descriptors()
    node.parent.say(words.Up(1, "server", 1, "h", 1, 1), (0,) * count)
    node.parent.say(words.Leaving(4), (0,))
    node.turn()
    assert node.data._data == {}
    assert descriptors() == before


@pytest.mark.clause("EC-14.4")
@pytest.mark.parametrize("how", ["garbage", "closed", "empty"])
def test_one_that_is_not_understood_is_replaced_at_the_second_look(node: Played, how: str) -> None:
    node.comes(1)
    node.turn()
    if how == "closed":
        node.ends[0].close()
    else:
        node.ends[0]._sock.send(b"\xc1" if how == "garbage" else b"")
    node.now += 1.0
    node.turn()
    node.turn()
    assert node.parent.hear() == []
    node.now += 1.0
    node.turn()
    assert node.parent.hear() == [words.Replace(1, "server 1 is not understood")]
    assert node.data._data, "it has not exited yet"


def test_a_pidfd_is_never_taken_for_another_ones(node: Played, monkeypatch) -> None:
    """A number that was closed in this turn, and came again as another's pidfd."""
    child = node.comes(1)
    node.turn()
    first = node.data._data[1]
    stale = first.pidfd
    child.kill()
    wait_for(lambda: node.data._poll.poll(0) != [], "the exit")

    class Twice:
        def __init__(self, poll: Any) -> None:
            self._poll = poll

        def poll(self, timeout: int) -> list[tuple[int, int]]:
            return [(stale, 1), (stale, 1)]

        def __getattr__(self, name: str) -> Any:
            return getattr(self._poll, name)

    exited = node.data._exited

    def reuse(data: Any, now: float) -> None:
        exited(data, now)
        other = node.comes(2)
        node.data._hear_parent(now)
        late = node.data._data[2]
        node.data._by_fd[stale] = late  # as if the kernel had given it that number
        late.pidfd, spare = stale, late.pidfd
        os.close(spare)
        assert other.process.poll() is None

    monkeypatch.setattr(node.data, "_poll", Twice(node.data._poll))
    monkeypatch.setattr(node.data, "_exited", reuse)
    node.turn()
    assert list(node.data._data) == [2], "only the kernel says that one has exited"
    monkeypatch.undo()
    node.data._data[2].pidfd = os.dup(0)


def test_troubles_are_logged_and_fatal_ones_stop_a_start_only(node: Played, caplog) -> None:
    with caplog.at_level(logging.DEBUG):
        for level in (10, 20, 40):
            node.parent.say(words.Trouble(level, f"at {level}", fatal=True))
        node.turn()
    assert [r.levelno for r in caplog.records if r.message.startswith("at ")] == [10, 20, 40]
    assert not node.data._fatal
    assert not node.data._troubles


@pytest.mark.clause("EC-14.4")
def test_a_parent_that_is_not_understood_is_replaced(node: Played, monkeypatch) -> None:
    node.parent._sock.send(b"\xc1")
    started = []
    monkeypatch.setattr(node.data, "_start_parent", lambda: started.append(node.now))
    node.turn()
    assert node.data._channel is None
    assert started == []
    parent = node.data._parent
    assert parent is not None
    parent.kill()
    parent.wait()
    node.now += 0.99
    node.turn()
    assert started == []
    node.now += 0.01
    node.turn()
    assert started == [node.now]


def test_parents_that_die_at_once_are_started_later_and_later(node: Played, monkeypatch) -> None:
    started: list[float] = []
    monkeypatch.setattr(node.data, "_start_parent", lambda: started.append(node.now))
    pauses = []
    for _ in range(8):
        parent = node.data._parent
        assert parent is not None
        parent.kill()
        parent.communicate()
        node.parent.close()
        node.turn()
        at, count = node.now, len(started)
        while len(started) == count:
            node.now += 0.5
            node.turn()
        pauses.append(node.now - at)
        node.raise_parent()
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]
    node.now += 60.0
    node.data._forget_parent(node.now)
    assert node.data._parent_again_at == node.now + 1.0


@pytest.mark.parametrize("asleep", [False, True])
def test_a_parent_that_gives_no_sign_is_killed_at_the_second_look(
    node: Played, asleep: bool
) -> None:
    status, parent = node.data._parent_status, node.data._parent
    assert status is not None
    assert parent is not None
    status.beat(node.now)
    stall = node.node.timing.stall_s
    node.now += stall - 0.01 if not asleep else 3600.0
    node.turn()
    if asleep:  # everything was; it goes on
        status.beat(node.now)
    node.now += 1.0
    node.turn()
    assert parent.poll() is None
    status.beat(node.now)
    node.now += stall + 0.01
    node.turn()
    assert parent.poll() is None, "one look is none"
    node.now += 1.0
    node.turn()
    assert parent.wait(60) == -9


def test_nothing_is_done_after_the_end(node: Played) -> None:
    node.data._stopped = True
    node.parent.close()
    node.turn()
    assert node.data._channel is not None
    node.data._stopped = False
