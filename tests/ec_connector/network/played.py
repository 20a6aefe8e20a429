# SPDX-License-Identifier: Apache-2.0
"""Ends and planes that do what a test says, for the work of one data process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ec_connector.network.control import Arrived
from ec_connector.network.data.base import DataPlaneReader, DataPlaneServer, Pieces, ReadEvent
from ec_connector.processes.spec import DataSpec, InstanceSpec
from ec_protocol.p2p import wire
from ec_protocol.p2p.wire import XferAck, XferReq
from ec_protocol.tables.timing import Timing

BLOCK = 64
PEER = ("producer", 5601)


def data_spec(kind: str, timing: Timing | None = None, **instance: Any) -> DataSpec:
    """What a process of this kind is started with, as number 7."""
    timing = timing or Timing()
    facts: dict[str, Any] = {
        "engine_id": "engine",
        "incarnation": "i",
        "engine_pid": 0,
        "num_blocks": 16,
        "block_size_bytes": BLOCK,
        "compat_hash": "compat",
        "timing": {field.name: getattr(timing, field.name) for field in fields(timing)},
        "nixl": "nixl",
        "backends": ("UCX",),
    }
    fds = dict.fromkeys(("parent", "engine", "status", "region"), -1)
    spec = InstanceSpec(**{**facts, **instance})
    return DataSpec(instance=spec, kind=kind, process=7, parent_pid=0, **fds)


class End:
    """A channel: what it hears is put in, what it takes is kept, unless it is full."""

    def __init__(self) -> None:
        self.coming: list[Any] = []
        self.said: list[Any] = []
        self.full = False

    def hear(self) -> list[Any]:
        heard, self.coming = self.coming, []
        return heard

    def say(self, message: Any) -> bool:
        if not self.full:
            self.said.append(message)
        return not self.full


class Client:
    """A reader's connections: answers and changes are put in, in whatever order."""

    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self.requests: list[XferReq] = []
        self.answers: list[Arrived] = []
        self.refused = 0
        self.changed: list[tuple[Any, bool]] = []
        self.closed: list[Any] = []
        self.ended = False
        self.refused = 0

    def open(self, peer: Any, now: float) -> None:
        pass

    def send(self, peer: Any, payload: bytes) -> bool:
        self.requests.append(wire.decode_request([b"", payload]))
        return True

    def receive(self) -> list[Arrived]:
        answers, self.answers = self.answers, []
        return answers

    def changes(self, now: float) -> list[tuple[Any, bool]]:
        changed, self.changed = self.changed, []
        return changed

    def close(self, peer: Any) -> None:
        self.closed.append(peer)

    def close_all(self) -> None:
        self.ended = True

    def next_deadline(self) -> float | None:
        return None

    def answer(self, request: XferReq, status: int = 0, **fields: Any) -> None:
        """The producer answers; with a grant of as many blocks as it likes if it is OK."""
        ack = XferAck(request.mm_hash, status, request.session_id, **fields)
        self.answers.append(Arrived(PEER, [b"", wire.encode(ack)]))

    def grant(self, request: XferReq, nbytes: int = BLOCK) -> None:
        self.answer(
            request,
            agent_metadata=b"agent",
            attempt_id=request.attempt_id,
            lease_s=30.0,
            incarnation="p",
            base_addr=1 << 32,
            block_size=BLOCK,
            extents=[(0, -(-nbytes // BLOCK))],
            nbytes=nbytes,
        )


class ReaderPlane(DataPlaneReader):
    """READs end when a test says so; what is called is kept.

    Attributes:
        meanwhile: Called during ``prepare``.
        errors: What to raise, by method.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []
        self.events: list[ReadEvent] = []
        self.errors: dict[str, Exception] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        self.polls = 0
        self.is_sending = False
        self._reads = 0

    def _called(self, what: str, about: Any) -> None:
        self.calls.append((what, about))
        if what in self.errors:
            raise self.errors[what]

    def prepare(
        self,
        attempt_id: int,
        agent_metadata: bytes,
        local: Pieces,
        remote: Pieces,
        device_id: int,
        notice: bytes,
    ) -> None:
        self._called("prepare", attempt_id)
        self.meanwhile()

    def post(self, attempt_id: int) -> None:
        self._reads += 1
        self._called("post", attempt_id)

    def discard(self, attempt_id: int) -> None:
        self._called("discard", attempt_id)

    def poll(self) -> list[ReadEvent]:
        self.polls += 1
        events, self.events = self.events, []
        return events

    def release(self, attempt_id: int) -> None:
        self._called("release", attempt_id)

    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        self._called("notify", notice)

    def abandon(self, attempt_id: int) -> None:
        self._called("abandon", attempt_id)

    def close(self) -> None:
        self._called("close", None)

    @property
    def reads(self) -> int:
        return self._reads

    @property
    def sending(self) -> bool:
        return self.is_sending


class ServerPlane(DataPlaneServer):
    """Memory that is offered; notices and errors are put in.

    Attributes:
        at_close: Called when the memory is withdrawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[bytes] = []
        self.error: Exception | None = None
        self.polls = 0
        self.at_close: Callable[[], object] = lambda: None

    @property
    def agent_metadata(self) -> bytes:
        return b"agent"

    def poll_notices(self) -> list[bytes]:
        self.polls += 1
        if self.error is not None:
            raise self.error
        notices, self.notices = self.notices, []
        return notices

    def close(self) -> None:
        self.at_close()
