# SPDX-License-Identifier: Apache-2.0
"""Channels: whole messages, bounded both ways, and nothing that comes does harm."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs

needs("msgspec")

from ec_connector.processes import channel as channel_module
from ec_connector.processes.channel import Channel, channel_pair
from ec_protocol.p2p import words

pytestmark = pytest.mark.clause("EC-14.4")


class Pair:
    """The engine's end, and the raw socket of the other process."""

    def __init__(self) -> None:
        ours, self.raw = channel_pair()
        self.channel = Channel(ours, words.FromData)
        self.raw.setblocking(False)

    def fill(self) -> int:
        """Say something until it is not taken any more; how often it was."""
        said = 0
        while self.channel.say(words.Stop()):
            said += 1
            assert said < 100_000
        return said


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.channel.close()
    made.raw.close()


def descriptors() -> set[str]:
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def test_a_message_arrives_whole_and_in_order(pair: Pair) -> None:
    other = Channel(pair.raw, words.ToData)
    for number in range(10):
        assert other.say(words.Hello(number))
    assert pair.channel.hear() == [words.Hello(number) for number in range(10)]
    assert pair.channel.hear() == []
    assert pair.channel.open


def test_a_full_channel_refuses_and_goes_on_when_it_has_room(pair: Pair) -> None:
    assert pair.fill() > 10
    assert pair.channel.open
    assert not pair.channel.say(words.Stop())
    while True:
        try:
            pair.raw.recv(words.MAX_BYTES)
        except BlockingIOError:
            break
    assert pair.channel.say(words.Stop())


def test_what_is_too_long_is_not_said_and_the_next_is(pair: Pair) -> None:
    assert not pair.channel.say(words.Failing("x" * words.MAX_BYTES))
    assert pair.channel.say(words.Failing("x" * (words.MAX_BYTES - 100)))
    assert pair.channel.open
    assert len(pair.raw.recv(1 << 20)) <= words.MAX_BYTES
    with pytest.raises(BlockingIOError):
        pair.raw.recv(1 << 20)


def test_a_kernel_with_smaller_buffers_refuses_the_message_only(pair: Pair) -> None:
    pair.channel._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    assert not pair.channel.say(words.Failing("x" * 60_000))
    assert pair.channel.open
    assert pair.channel.say(words.Stop())


@pytest.mark.parametrize("number", sorted(channel_module._NOT_NOW - {errno.EAGAIN}))
def test_a_kernel_short_of_something_ends_nothing(pair: Pair, number: int, monkeypatch) -> None:
    class Short:
        def __getattr__(self, name: str) -> Any:
            raise OSError(number, "short")

    sock, pair.channel._sock = pair.channel._sock, Short()  # type: ignore[assignment]
    assert not pair.channel.say(words.Stop())
    assert pair.channel.hear() == []
    assert pair.channel.open
    pair.channel._sock = sock


@pytest.mark.parametrize(
    "raw",
    [b"\xc1", b"\x80", b"x", b"\x91" * 60_000, b"\x81\xa4type\xa4Lend", os.urandom(500)],
    ids=["reserved", "no type", "no map", "deep", "another's", "noise"],
)
def test_garbage_is_counted_and_the_next_message_heard(pair: Pair, raw: bytes) -> None:
    pair.raw.send(raw)
    pair.raw.send(words.encode(words.Hello(1)))
    assert pair.channel.hear() == [words.Hello(1)]
    assert pair.channel.garbage == 1
    assert pair.channel.open


def test_a_message_that_is_cut_off_is_garbage(pair: Pair) -> None:
    pair.raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    whole = words.encode(words.Failing("x" * (words.MAX_BYTES + 10)))
    pair.raw.send(whole)
    pair.raw.send(whole[:-5000])
    assert pair.channel.hear() == []
    assert pair.channel.garbage == 2
    # What is left of it may make sense.
    around = len(words.encode(words.Failing("x" * 60_000))) - 60_000
    full = words.encode(words.Failing("x" * (words.MAX_BYTES - around)))
    assert len(full) == words.MAX_BYTES
    pair.raw.send(full + b"!")
    assert pair.channel.hear() == []
    assert pair.channel.garbage == 3


def test_messages_of_the_other_direction_are_garbage(pair: Pair) -> None:
    for message in (words.Take(), words.Lend(1, "a", "h", 1, 1, [(0, 1)], 1.0)):
        pair.raw.send(words.encode(message))
    assert pair.channel.hear() == []
    assert pair.channel.garbage == 2


def test_descriptors_travel_with_a_message_and_are_closed_on_exec(pair: Pair) -> None:
    other = Channel(pair.raw, words.ToData)
    read, write = os.pipe()
    try:
        assert other.say(words.Hello(1), (read, write))
    finally:
        os.close(read)
        os.close(write)
    ((message, fds),) = pair.channel.hear_with_fds()
    assert message == words.Hello(1)
    assert len(fds) == 2
    for fd in fds:
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.write(fds[1], b"x")
    assert os.read(fds[0], 1) == b"x"
    for fd in fds:
        os.close(fd)


def test_the_kernel_itself_makes_them_closed_on_exec(pair: Pair) -> None:
    """Between two calls of ours another thread may start a process."""
    socket.send_fds(pair.raw, [words.encode(words.Hello(1))], [0])
    ((_, (fd,)),) = pair.channel.hear_with_fds()
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)


@pytest.mark.parametrize("count", [1, 4, 5, 200])
@pytest.mark.parametrize("raw", [b"\xc1", words.encode(words.Hello(1))])
def test_descriptors_that_nobody_asked_for_are_closed(pair: Pair, count: int, raw: bytes) -> None:
    before = descriptors()
    socket.send_fds(pair.raw, [raw], [0] * count)
    heard = pair.channel.hear()
    assert descriptors() == before
    expected = raw != b"\xc1" and count <= channel_module._MAX_FDS
    assert bool(heard) is expected
    assert pair.channel.garbage == (0 if expected else 1)


def test_an_end_that_is_closed_is_seen_after_its_last_words(pair: Pair) -> None:
    pair.raw.send(words.encode(words.Failing("why")))
    pair.raw.close()
    assert pair.channel.hear() == [words.Failing("why")]
    assert not pair.channel.open
    assert not pair.channel.say(words.Stop())
    assert pair.channel.hear() == []


def test_saying_something_to_who_is_gone_is_seen_and_raises_nothing(pair: Pair) -> None:
    pair.raw.close()
    assert not pair.channel.say(words.Stop())
    assert not pair.channel.open
    other = Pair()
    other.raw.close()
    assert not other.channel.say(words.Stop(), (0,))
    assert not other.channel.open
    other.channel.close()


def test_one_look_takes_so_much_and_no_more(pair: Pair) -> None:
    pair.raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    raw = words.encode(words.Hello(1))
    sent = 0
    for _ in range(3 * channel_module._BURST):
        try:
            sent += bool(pair.raw.send(raw))
        except BlockingIOError:
            break
    first = len(pair.channel.hear())
    assert first <= channel_module._BURST
    heard = first
    while found := len(pair.channel.hear()):
        heard += found
    assert heard == sent


def test_one_look_takes_so_many_bytes_and_no_more(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(channel_module, "_BURST_BYTES", 100_000)
    raw = words.encode(words.Failing("x" * 30_000))
    for _ in range(5):
        pair.raw.send(raw)
    assert len(pair.channel.hear()) == 4
    assert len(pair.channel.hear()) == 1


def test_a_closed_end_says_and_hears_nothing(pair: Pair) -> None:
    pair.channel.close()
    pair.channel.close()
    assert pair.channel.fileno() == -1
    assert not pair.channel.say(words.Stop())
    assert pair.channel.hear() == []


def test_both_ends_are_closed_on_exec() -> None:
    for end in channel_pair():
        assert fcntl.fcntl(end.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        end.close()
