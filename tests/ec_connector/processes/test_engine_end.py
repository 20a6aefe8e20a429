# SPDX-License-Identifier: Apache-2.0
"""The engine's end, with a parent and data processes that the test plays."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("nixl", "zmq")

from ec_protocol.p2p import words
from tests.ec_connector.processes.played_parent import Played
from tests.world.instance import wait_for


@pytest.fixture
def node() -> Iterator[Played]:
    with Played() as made:
        yield made


@pytest.fixture
def consumer() -> Iterator[Played]:
    with Played("ec_consumer") as made:
        yield made


def descriptors() -> int:
    gc.collect()  # what others have left goes before it is counted
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


@pytest.mark.clause("EC-14.8")
def test_what_was_lent_to_one_who_exits_comes_back(consumer: Played) -> None:
    child = consumer.comes(1, "reader")
    consumer.turn()
    consumer.ask("h", ("127.0.0.1", 5601), 100)
    consumer.turn()
    loans = consumer.link.loans
    assert loans is not None
    assert len(loans) == 1
    child.kill()
    wait_for(lambda: consumer.turn() or len(loans) == 0, "the exit")  # type: ignore[func-returns-value]
    assert consumer.tier.free_blocks == consumer.tier.num_blocks


@pytest.mark.clause("EC-14.8")
def test_exits_that_nobody_looked_for_any_more_are_proofs_too(consumer: Played) -> None:
    child = consumer.comes(1, "reader")
    consumer.turn()
    consumer.ask("h", ("127.0.0.1", 5601), 100)
    consumer.turn()
    loans = consumer.link.loans
    assert loans is not None
    assert len(loans) == 1
    child.kill()
    consumer.parent_dies()
    consumer.data.shutdown()
    assert len(loans) == 0
    assert consumer.tier.free_blocks == consumer.tier.num_blocks


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
            node.parent.say(words.Trouble(level, f"at {level}", fatal=True, who="ec-server 3"))
        node.turn()
    said = [r for r in caplog.records if r.message.startswith("ec-server 3: at ")]
    assert [r.levelno for r in said] == [10, 20, 40]
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
    assert node.popen.wait(60) == -9
    node.now += 0.99
    node.turn()
    assert started == []
    node.now += 0.01
    node.turn()
    assert started == [node.now]


@pytest.fixture
def started(node: Played, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When another parent was started; the test plays it."""
    times: list[float] = []

    def start() -> None:
        times.append(node.now)
        node.raise_parent()

    monkeypatch.setattr(node.data, "_start_parent", start)
    return times


@pytest.mark.clause("EC-14.12")
def test_parents_that_die_at_once_are_started_later_and_later(
    node: Played, started: list[float]
) -> None:
    pauses = []
    for _ in range(8):
        node.parent_dies()
        node.turn()
        at, count = node.now, len(started)
        while len(started) == count:
            node.steps(0.5)
        pauses.append(node.now - at)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]


@pytest.mark.clause("EC-14.10")
def test_an_idle_engine_starts_another_parent_in_its_first_hook(
    node: Played, started: list[float]
) -> None:
    """It was told of nothing: the parent and its children have been gone for an hour."""
    child = node.comes(1)
    node.turn()
    node.now += node.node.timing.lived_s
    node.beats()
    child.kill()
    wait_for(lambda: node.data._poll.poll(0) != [], "the exit")
    node.parent_dies()
    node.now += 3600.0
    node.turn()
    assert started == [node.now]
    assert node.data.figures.exits == {"server": 1}


@pytest.mark.clause("EC-14.6", "EC-14.10")
def test_not_before_the_children_of_the_old_one_are_gone(
    node: Played, started: list[float]
) -> None:
    child = node.comes(1)
    node.turn()
    node.now += node.node.timing.lived_s
    node.beats()
    node.parent_dies()
    node.steps(node.node.timing.stall_s - 0.5)
    assert started == []
    child.kill()
    wait_for(lambda: node.turn() or started != [], "the exit")  # type: ignore[func-returns-value]
    assert started == [node.now]


@pytest.mark.clause("EC-14.12")
def test_how_long_a_parent_has_lived_is_not_how_long_ago_it_was_started(
    node: Played, started: list[float]
) -> None:
    """An engine without steps learns late that its parent has died at once."""
    node.parent_dies()
    node.now += 3600.0
    node.turn()
    assert started == []
    node.steps(1.0)
    assert len(started) == 1
    node.beats()
    node.now += node.node.timing.lived_s - 0.01
    node.beats()
    node.parent_dies()
    node.turn()
    assert len(started) == 1
    node.steps(2.0)
    assert len(started) == 2


@pytest.mark.clause("EC-14.12")
def test_a_parent_that_has_lived_ends_the_pauses(node: Played, started: list[float]) -> None:
    for _ in range(3):
        node.parent_dies()
        node.turn()
        count = len(started)
        while len(started) == count:
            node.steps(0.5)
    node.now += node.node.timing.lived_s
    node.beats()
    node.parent_dies()
    node.turn()
    assert started[-1] == node.now
    node.parent_dies()
    node.turn()
    node.steps(1.0)
    assert started[-1] == node.now, "and the next pause is the first again"


# ------------------------------------------------------------- one that does not exit
@pytest.mark.clause("EC-14.13")
def test_a_server_that_was_killed_and_does_not_exit_is_counted_and_not_announced(
    node: Played,
) -> None:
    child = node.comes(1)
    node.turn()
    node.parent.say(words.Leaving(1, killed=True))
    node.parent.say(words.Leaving(99, killed=True))  # gone before that was heard
    stall = node.node.timing.stall_s
    node.turn()
    node.now += stall - 0.001
    assert node.data.stuck == 0
    assert node.data.address == ("127.0.0.1", 5601), "the next is found there"
    node.now += 0.001
    assert (node.data.stuck, node.data.address) == (1, None)
    child.kill()
    wait_for(lambda: node.turn() or not node.data._data, "the exit")  # type: ignore[func-returns-value]
    assert node.data.stuck == 0


@pytest.mark.clause("EC-14.13")
@pytest.mark.parametrize("kind", ["server", "reader"])
def test_another_parent_is_started_beside_one_that_does_not_exit(
    node: Played, started: list[float], kind: str
) -> None:
    """It was to go with its parent. A server keeps the ledger's lock and others away."""
    node.comes(1, kind)
    node.turn()
    node.parent_dies()
    node.steps(node.node.timing.stall_s - 0.5)
    assert started == []
    node.steps(1.0)
    assert len(started) == 1
    assert node.data.stuck == 1


# ------------------------------------------------------------- a parent that stands still
@pytest.mark.clause("EC-14.11")
def test_a_parent_that_gives_no_sign_is_killed(node: Played, caplog) -> None:
    stall = node.node.timing.stall_s
    node.steps(2.0)
    node.beats()
    node.turn()
    node.steps(stall)
    assert node.kills == []
    node.steps(1.0)
    assert node.popen.wait(60) == -9
    assert "ec-parent: it stands still and is killed" in caplog.messages


@pytest.mark.clause("EC-14.11")
def test_a_parent_that_never_gives_one_is_killed_when_its_start_is_over(node: Played) -> None:
    start = node.node.timing.start_s
    node.steps(start - 1.0)
    assert node.kills == []
    node.steps(2.0)
    assert node.popen.wait(60) == -9


@pytest.mark.clause("EC-14.11")
@pytest.mark.parametrize("looks", range(6))
def test_time_without_steps_is_nobodys_fault(node: Played, looks: int) -> None:
    """The machine slept, or all were stopped, or the engine was idle; at any moment."""
    node.beats()
    node.turn()
    node.steps(0.5 * looks)
    node.now += 3600.0
    node.turn()
    node.steps(0.5)
    assert node.kills == [], "it has had no time to give one since"
    node.beats()
    node.steps(3.0)
    assert node.kills == []


@pytest.mark.clause("EC-14.11")
def test_one_that_gives_signs_lives(node: Played) -> None:
    """Now and then: between two of them there are looks at which it had given none."""
    silence = node.node.timing.stall_s / 2
    for _ in range(5):
        node.beats()
        node.steps(silence)
    assert node.kills == []


def test_nothing_is_done_after_the_end(node: Played) -> None:
    node.data._stopped = True
    node.parent.close()
    node.turn()
    assert node.data._channel is not None
    node.data._stopped = False
