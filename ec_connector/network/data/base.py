# SPDX-License-Identifier: Apache-2.0
"""The data plane as data processes see it: one reader, one server, typed errors.

Tests run on an in-memory implementation of these two classes; a process
runs on ``NixlReader`` and ``NixlServer``. Neither is thread-safe: the thread that
made an object is the only one that may use it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ec_protocol.errors import ConfigError, ECError, LocalProtocolError, RemoteProtocolError

#: ``(byte offset in our region, bytes)`` or ``(address in the producer, bytes)``.
Pieces = Sequence[tuple[int, int]]

#: Longest remote name that is kept; NIXL's own names are a few dozen characters.
MAX_AGENT_NAME_BYTES: Final = 256


class DataPlaneError(ECError):
    """The data plane refused or failed an operation."""


class DataPlaneConfigError(DataPlaneError, ConfigError):
    """The data plane cannot be set up as configured: the message names key, value and fix."""


class BadAgentMetadata(DataPlaneError, RemoteProtocolError):
    """A peer's agent metadata, or an address it sent, that must not reach the library."""

    def __init__(self, message: str) -> None:
        super().__init__(message, clause="EC-9.3")


class ReadEvent(NamedTuple):
    """What ``poll`` has to say about one READ, once.

    Attributes:
        attempt_id: The attempt.
        outcome: ``done``: every byte is in place and nothing touches the blocks any
            more. ``error``: the READ failed, which proves nothing about its bytes.
        reason: For people; empty for ``done``.
    """

    attempt_id: int
    outcome: Literal["done", "error"]
    reason: str


class _OneThread:
    """Remembers the thread that made the object and refuses any other."""

    def __init__(self) -> None:
        self._owner = threading.get_ident()

    def _check_thread(self) -> None:
        if __debug__ and threading.get_ident() != self._owner:
            raise LocalProtocolError(
                f"{type(self).__name__} belongs to the thread that made it "
                f"({self._owner}), called from {threading.current_thread().name!r}"
            )


class DataPlaneServer(_OneThread, ABC):
    """Producer side: offers the region's memory and hears completion notices."""

    @property
    @abstractmethod
    def agent_metadata(self) -> bytes:
        """What a consumer needs to READ from us; the same for the object's life."""

    @abstractmethod
    def poll_notices(self) -> list[bytes]:
        """Completion notices that came since the last call.

        Also *progresses* the agent: without these calls READs from us do not move.

        Raises:
            DataPlaneError: The agent reported an error.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop offering the memory. Idempotent."""


class DataPlaneReader(_OneThread, ABC):
    """Consumer side: READs from producers into the region.

    A READ is *prepared*, *posted*, and then done, failed, or *abandoned*: nobody waits
    for it and nobody knows its end. Nothing here can stop one: that it is over is proven
    by its completion, or by the end of the process that posted it (EC-14.8).
    """

    @abstractmethod
    def prepare(
        self,
        attempt_id: int,
        agent_metadata: bytes,
        local: Pieces,
        remote: Pieces,
        device_id: int,
        notice: bytes,
    ) -> None:
        """Get a READ ready without starting it.

        Args:
            attempt_id: Names the READ from here on.
            agent_metadata: NIXL metadata of the producer's agent.
            local: Where the bytes go, offsets in our region.
            remote: Where they are, addresses in the producer; as many pieces as
                ``local``, of pairwise equal size.
            device_id: NIXL device id of the remote memory.
            notice: Delivered to the producer when the READ has completed.

        Raises:
            BadAgentMetadata: The metadata is malformed, or does not cover ``remote``.
            DataPlaneError: Anything else. Nothing was posted in any of these cases.
        """

    @abstractmethod
    def post(self, attempt_id: int) -> None:
        """Start a prepared READ.

        Raises:
            DataPlaneError: It failed. It counts as posted all the same: whether any
                byte is under way is not known, so ``abandon`` it.
        """

    @abstractmethod
    def discard(self, attempt_id: int) -> None:
        """Forget a READ that was prepared and never posted."""

    @abstractmethod
    def poll(self) -> list[ReadEvent]:
        """Progress everything and report READs that ended since the last call.

        An abandoned READ is still reported when it is done, not when it fails.
        """

    @abstractmethod
    def release(self, attempt_id: int) -> None:
        """Free what is left of a READ that is over; unknown attempts are ignored.

        Raises:
            LocalProtocolError: The READ may still be under way (EC-6.4).
        """

    @abstractmethod
    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        """Send a notice without a READ; it leaves while ``poll`` is being called.

        Raises:
            DataPlaneError: As for ``prepare``, or the peer is gone.
        """

    @abstractmethod
    def abandon(self, attempt_id: int) -> None:
        """Nobody waits for the READ any more; it is reported if it is done after all."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Idempotent."""

    @property
    @abstractmethod
    def reads(self) -> int:
        """READs that are posted and whose end was not seen, abandoned ones included."""

    @property
    @abstractmethod
    def sending(self) -> bool:
        """Whether a notice may still be on its way out, so that ``poll`` matters."""
