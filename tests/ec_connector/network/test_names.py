# SPDX-License-Identifier: Apache-2.0
"""Host names: looked up off the loop, bounded in time and number, and remembered."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from ec_connector.network import names as names_module
from ec_connector.network.names import (
    KNOWN_FOR_S,
    MAX_KNOWN,
    MAX_WAITING,
    THREADS,
    UNKNOWN_FOR_S,
    Addresses,
    Names,
    is_address,
    look_up,
)
from tests.world.instance import wait_for

# A thread that dies of an exception is a failure, whoever waits for it.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

HERE: Addresses = ("127.0.0.1",)


class Resolver:
    """A resolver that answers when it is told to, name by name; others at once."""

    def __init__(self) -> None:
        self.slow: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.fails: set[str] = set()

    def __call__(self, name: str) -> Addresses:
        self.asked.append(name)
        if name in self.slow:
            assert self.slow[name].wait(100)
        if name in self.fails:
            raise RuntimeError(name)
        return () if name.startswith("no-") else HERE

    def hold(self, *names: str) -> None:
        for name in names:
            self.slow[name] = threading.Event()

    def let_go(self) -> None:
        for event in self.slow.values():
            event.set()


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.let_go()


@pytest.fixture
def make(resolver: Resolver) -> Iterator[Callable[[], Names]]:
    made: list[Names] = []

    def go() -> Names:
        made.append(Names(resolver))
        return made[-1]

    yield go
    resolver.let_go()
    for names in made:
        names.close()
    wait_for(lambda: threads() == 0, "the threads")


def threads() -> int:
    return sum(thread.name == "ec-names" for thread in threading.enumerate())


def told(names: Names, *wanted: str, now: float = 0.0) -> None:
    """Wait until these are known."""
    heard: set[str] = set()
    wait_for(lambda: heard.update(names.news(now)) or set(wanted) <= heard, f"{wanted}")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7"])
def test_an_address_needs_no_looking_up(make, resolver: Resolver, address: str) -> None:
    assert is_address(address)
    assert make().get(address, 0.0) == (address,)
    assert resolver.asked == []


def test_a_name_is_news_once_and_known_then(make, resolver: Resolver) -> None:
    names = make()
    assert names.get("a", 0.0) is None
    assert names.get("a", 0.0) is None
    wait_for(lambda: bool(select.select([names.fd], [], [], 0)[0]), "the descriptor")
    told(names, "a")
    assert names.news(0.0) == []
    assert names.get("a", 0.0) == HERE
    assert resolver.asked == ["a"]


def test_it_is_known_for_a_while_and_its_lack_for_a_shorter_one(make, resolver: Resolver) -> None:
    names = make()
    for name in ("a", "no-b"):
        assert names.get(name, 100.0) is None
    told(names, "a", "no-b", now=100.0)
    assert names.get("no-b", 100.0 + UNKNOWN_FOR_S - 0.01) == ()
    assert names.get("no-b", 100.0 + UNKNOWN_FOR_S) is None
    assert names.get("a", 100.0 + KNOWN_FOR_S - 0.01) == HERE
    assert names.get("a", 100.0 + KNOWN_FOR_S) is None
    assert UNKNOWN_FOR_S < KNOWN_FOR_S
    told(names, "a", "no-b", now=200.0)
    assert sorted(resolver.asked) == ["a", "a", "no-b", "no-b"]


def test_slow_names_do_not_delay_a_quick_one(make, resolver: Resolver) -> None:
    names = make()
    slow = [f"slow{n}" for n in range(THREADS - 1)]
    resolver.hold(*slow)
    for name in slow:
        assert names.get(name, 0.0) is None
        # Each alone: none of them may be queued behind another.
        wait_for(lambda n=name: n in resolver.asked, "its being asked")
    assert names.get("quick", 0.0) is None
    told(names, "quick")


@pytest.mark.parametrize("round_", range(20))
def test_a_thread_that_has_just_taken_a_name_is_not_idle(make, resolver, round_) -> None:
    """Two names at once when one thread is idle: the second needs a thread of its own."""
    names = make()
    assert names.get("first", 0.0) is None
    told(names, "first")
    resolver.hold("slow")
    assert names.get("slow", 0.0) is None
    assert names.get("quick", 0.0) is None
    told(names, "quick")


def test_threads_and_waiting_names_are_bounded(make, resolver: Resolver) -> None:
    names = make()
    before = threads()
    slow = [f"slow{n}" for n in range(MAX_WAITING)]
    resolver.hold(*slow)
    for name in slow:
        assert names.get(name, 0.0) is None
    assert threads() - before == THREADS
    assert names.get("one-more", 0.0) == ()
    assert names.refused == 1
    assert names.get(slow[0], 0.0) is None, "who waits already waits on"
    resolver.let_go()
    told(names, *slow)
    assert names.get("one-more", 0.0) is None
    told(names, "one-more")
    assert threads() - before == THREADS


def test_threads_are_made_as_they_are_needed(make, resolver: Resolver) -> None:
    names = make()
    before = threads()
    for number in range(20):
        names.get(f"n{number}", 0.0)
        told(names, f"n{number}")
        wait_for(lambda: names._unanswered == 0, "its thread")
    assert threads() - before == 1


def test_what_is_known_is_bounded(make, monkeypatch) -> None:
    monkeypatch.setattr(names_module, "MAX_KNOWN", 5)
    assert MAX_KNOWN == 1024
    names = make()
    for number in range(8):
        names.get(f"n{number}", 0.0)
        told(names, f"n{number}")
    assert len(names._known) == 5
    assert names.get("n7", 0.0) == HERE
    assert names.get("n0", 0.0) is None, "the oldest went"


def test_a_resolver_that_raises_means_no_address_and_its_thread_lives(make, resolver) -> None:
    names = make()
    resolver.fails.add("bad")
    for now in (0.0, 10.0, 20.0):
        assert names.get("bad", now) is None
        told(names, "bad", now=now)
        assert names.get("bad", now) == ()
    assert names.get("good", 0.0) is None
    told(names, "good")


def test_a_system_without_threads_refuses(make, monkeypatch) -> None:
    class NoThread:
        def __init__(self, **kw: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    names = make()
    monkeypatch.setattr(threading, "Thread", NoThread)
    assert names.get("a", 0.0) == ()
    assert names.refused == 1
    monkeypatch.undo()
    assert names.get("a", 0.0) is None
    told(names, "a")


def test_with_one_thread_and_no_more_to_be_had_names_wait_for_it(
    make, resolver, monkeypatch
) -> None:
    names = make()
    names.get("a", 0.0)
    told(names, "a")

    class NoMore(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", NoMore)
    resolver.hold("slow")
    assert names.get("slow", 0.0) is None
    assert names.get("b", 0.0) is None
    resolver.let_go()
    told(names, "b", "slow")


def test_closing_ends_the_threads_and_the_descriptor(resolver: Resolver) -> None:
    before = threads()
    names = Names(resolver)
    resolver.hold("slow")
    for name in ("slow", "quick"):
        names.get(name, 0.0)
    told(names, "quick")
    fd = names.fd
    names.close()
    names.close()
    assert names.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert names.news(0.0) == []
    assert names.get("new", 0.0) == ()
    # A descriptor that has its number now is not written to by whoever is late.
    other = os.eventfd(0, os.EFD_NONBLOCK)
    if other != fd:
        os.dup2(other, fd)
        os.close(other)
    resolver.let_go()
    wait_for(lambda: threads() == before, "the threads")
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)


def test_the_descriptor_is_closed_on_exec() -> None:
    names = Names()
    assert not os.get_inheritable(names.fd)
    names.close()


def test_the_system_is_asked_for_ipv4_first(monkeypatch) -> None:
    found = [(0, 0, 0, "", ("::1", 0, 0, 0)), (0, 0, 0, "", ("127.0.0.1", 0))] * 2
    monkeypatch.setattr(names_module.socket, "getaddrinfo", lambda *a, **k: found)
    assert look_up("both.example") == ("127.0.0.1", "::1")


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_the_system_does_not_know_has_no_address(monkeypatch, error) -> None:
    def fail(*args: object, **kw: object) -> None:
        raise error

    monkeypatch.setattr(names_module.socket, "getaddrinfo", fail)
    assert look_up("x" * 255) == ()
