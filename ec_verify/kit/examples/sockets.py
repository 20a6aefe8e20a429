# SPDX-License-Identifier: Apache-2.0
"""TCP without waiting, for ``connector`` beside it. Knows nothing of the protocol."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterable
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector

Address = tuple[str, int]
Call = Callable[[], None]


class Wire:
    """One connection. In the selector's map it stands as what is to be called.

    Args:
        selector: Says when it can be written or read.
        sock: Connected, or about to be.
        served: Whether the other end made it: then nothing is read from who does not
            take his answers, which could otherwise become any number.

    Attributes:
        opened: Called once there is a connection.
        sent: Called when nothing is left to be sent.
        full: Called when all has come that was expected.
        ended: Called when the connection broke or was never made; not after ``close``.
    """

    def __init__(
        self, selector: BaseSelector, sock: socket.socket, *, served: bool = False
    ) -> None:
        sock.setblocking(False)
        self.opened: Call = nothing
        self.sent: Call = nothing
        self.ended: Call = nothing
        self.full: Call = nothing
        self._selector, self._sock = selector, sock
        self._while_sending = EVENT_WRITE if served else EVENT_WRITE | EVENT_READ
        self._connected = False
        self._out: deque[memoryview] = deque()
        self._into: deque[memoryview] = deque()
        selector.register(sock, EVENT_READ | EVENT_WRITE, self._ready)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send the parts, in time; they must not be changed before ``sent``."""
        if self._sock.fileno() >= 0:
            self._out.extend(memoryview(part) for part in parts if len(part))
            self._selector.modify(self._sock, self._while_sending, self._ready)

    def send_frame(self, frame: bytes) -> None:
        """Send a message, with its length before it."""
        self.send(len(frame).to_bytes(4, "big"), frame)

    def expect(self, parts: Iterable[memoryview], full: Call) -> None:
        """What comes goes straight into ``parts``; then ``full`` is called."""
        self._into, self.full = deque(parts), full

    def expect_frames(self, limit: int, handle: Callable[[bytes], None]) -> None:
        """``handle`` gets every message; a longer one than ``limit`` ends the connection."""
        size = bytearray(4)

        def sized() -> None:
            length = int.from_bytes(size, "big")
            if not 0 < length <= limit:
                raise ConnectionError(f"a message of {length} bytes")
            frame = bytearray(length)
            self.expect([memoryview(frame)], lambda: came(bytes(frame)))

        def came(frame: bytes) -> None:
            self.expect_frames(limit, handle)
            handle(frame)

        self.expect([memoryview(size)], sized)

    def close(self) -> None:
        """End it: from now on nothing is sent, and nothing is written into any part."""
        if self._sock.fileno() >= 0:
            self._selector.unregister(self._sock)
            self._sock.close()

    def _ready(self, events: int) -> None:
        if self._sock.fileno() < 0:
            return  # closed by whoever was ready before it
        try:
            if events & EVENT_WRITE:
                self._write()
            else:
                self._read()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            self.ended()

    def _write(self) -> None:
        if not self._connected:
            self._sock.getpeername()  # raises if the connection could not be made
            self._connected = True
            self.opened()
        elif self._out:
            self._out[0] = self._out[0][self._sock.send(self._out[0]) :]
            if not self._out[0]:
                self._out.popleft()
        if not self._out and self._sock.fileno() >= 0:
            self._selector.modify(self._sock, EVENT_READ, self._ready)
            self.sent()

    def _read(self) -> None:
        count = self._sock.recv_into(self._into[0]) if self._into else 0
        if not count:
            raise ConnectionError("it ended, or said what nobody asked for")
        self._into[0] = self._into[0][count:]
        if not self._into[0]:
            self._into.popleft()
        if not self._into:
            self.full()


def nothing() -> None:
    """Nobody wants to know."""


def listen(
    selector: BaseSelector, address: Address, serve: Callable[[Wire, bytes], None]
) -> Address:
    """Accept connections: ``serve`` gets each, and the address of the host it comes from."""
    listener = socket.create_server(address)
    listener.setblocking(False)

    def accept(_: int) -> None:
        with contextlib.suppress(OSError):  # who knocked is gone already
            sock, other_end = listener.accept()
            serve(Wire(selector, sock, served=True), str(other_end[0]).encode())

    selector.register(listener, EVENT_READ, accept)
    return address[0], listener.getsockname()[1]


def dial(selector: BaseSelector, address: Address, interval_s: float, timeout_s: float) -> Wire:
    """A connection that is being made. Its heartbeats are TCP's own.

    Args:
        selector: For the connection.
        address: Where to.
        interval_s: Time between two heartbeats.
        timeout_s: After so long without an answer the connection has ended.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, interval_s),
        (socket.TCP_KEEPINTVL, interval_s),
        (socket.TCP_USER_TIMEOUT, 1000 * timeout_s),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))
    wire = Wire(selector, sock)
    # Whether it is under way or cannot be made at all, the selector will say.
    with contextlib.suppress(OSError, OverflowError, ValueError):
        sock.connect(address)
    return wire


def close_all(selector: BaseSelector) -> None:
    """Close what the selector knows, and the selector. May be called twice."""
    for key in list((selector.get_map() or {}).values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
    selector.close()
