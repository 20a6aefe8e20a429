# SPDX-License-Identifier: Apache-2.0
"""Consumer side of the data plane: READs through one NIXL agent.

Nothing stops a READ but the end of its process (see ``library`` for what does not), so
there is no attempt here to end one. A READ that is abandoned is still asked about, since
it may end well; its reader is replaced meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ec_connector.clock import boottime
from ec_connector.network.data.base import (
    BadAgentMetadata,
    DataPlaneError,
    DataPlaneReader,
    Pieces,
    ReadEvent,
)
from ec_connector.network.data.library import Agent, attempt
from ec_connector.network.data.metadata import AgentMetadata, parse_agent_metadata
from ec_protocol.errors import LocalProtocolError, RemoteProtocolError

logger = logging.getLogger(__name__)

#: How long a notice may take to leave: it needs a few round trips to connect.
_NOTICE_S: Final = 1.0
#: Parsed metadata that is remembered, so that each producer is parsed once.
_MAX_PARSED: Final = 64
#: Producers that stay connected without any READ; the oldest goes first.
_MAX_IDLE_PEERS: Final = 64


@dataclass(slots=True, eq=False)
class _Read:
    """One READ.

    Attributes:
        attempt_id: Its name.
        peer: The producer's agent name.
        handle: NIXL's handle.
        state: ``prepared``, ``posted``, ``done`` (seen complete) or ``failed`` (an error
            was reported: its bytes may or may not be under way).
        abandoned: Whether nobody waits for it.
    """

    attempt_id: int
    peer: str
    handle: Any
    state: Literal["prepared", "posted", "done", "failed"] = "prepared"
    abandoned: bool = False


@dataclass(slots=True)
class _Peer:
    """A producer's agent that ours knows.

    Attributes:
        metadata: By which it was made known.
        reads: READs through it that were not dropped.
        broken: Its endpoint failed once, and NIXL never revives one.
    """

    metadata: bytes
    reads: int = 0
    broken: bool = False


class NixlReader(DataPlaneReader):
    """READs into one region, over NIXL. One thread only.

    Args:
        name: Unique per process incarnation.
        address: First byte of the region.
        nbytes: Its length.
        backends: NIXL backends, in order of preference.
        package: See ``library.which_nixl``.
        clock: Seconds of the common clock.

    Raises:
        DataPlaneConfigError: A backend is unknown, or nixl is missing.
        DataPlaneError: The region cannot be registered.
    """

    def __init__(
        self,
        name: str,
        address: int,
        nbytes: int,
        backends: Sequence[str] = ("UCX",),
        package: str = "nixl",
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        super().__init__()
        self._address = address
        self._nbytes = nbytes
        self._clock = clock
        self._reads: dict[int, _Read] = {}
        self._peers: dict[str, _Peer] = {}
        self._parsed: dict[bytes, AgentMetadata] = {}
        self._sending_until = 0.0
        self.counters: Counter[str] = Counter()
        self._agent: Agent | None = Agent(f"{name}.read", backends, address, nbytes, package)
        self._strict = self._understands(self._agent)

    def _understands(self, agent: Agent) -> bool:
        """Whether this NIXL writes the metadata layout that we check."""
        try:
            parse_agent_metadata(agent.metadata())
        except BadAgentMetadata as exc:
            logger.warning("agent metadata of this NIXL has another layout, not checked: %s", exc)
            return False
        return True

    @property
    def _nixl(self) -> Any:
        if self._agent is None:
            raise DataPlaneError("the data plane's reader is closed")
        return self._agent.nixl

    # ------------------------------------------------------------------------ READs
    def prepare(
        self,
        attempt_id: int,
        agent_metadata: bytes,
        local: Pieces,
        remote: Pieces,
        device_id: int,
        notice: bytes,
    ) -> None:
        """Get a READ ready: one descriptor per piece (EC-9.3)."""
        self._check_thread()
        if attempt_id in self._reads:
            raise LocalProtocolError(f"READ {attempt_id} was prepared already")
        self._check_local(local, remote)
        metadata = self._metadata(agent_metadata)
        if metadata is not None:
            for address, nbytes in remote:
                metadata.check_covers(address, nbytes, device_id)
        peer = self._connect(agent_metadata, metadata)
        nixl = self._nixl
        here = [(self._address + offset, nbytes, 0) for offset, nbytes in local]
        there = [(address, nbytes, device_id) for address, nbytes in remote]
        handle = attempt(
            "preparing a READ",
            lambda: nixl.initialize_xfer(
                "READ",
                nixl.get_xfer_descs(here, "DRAM"),
                nixl.get_xfer_descs(there, "DRAM"),
                peer,
                notice,
            ),
        )
        self._peers[peer].reads += 1
        self._reads[attempt_id] = _Read(attempt_id, peer, handle)

    def post(self, attempt_id: int) -> None:
        """Start a prepared READ; the library may copy some bytes before it returns."""
        self._check_thread()
        read = self._known(attempt_id, "prepared")
        read.state = "posted"
        try:
            self._ask(read, "posting a READ", self._nixl.transfer)
        except DataPlaneError:
            read.state = "failed"
            raise

    def discard(self, attempt_id: int) -> None:
        """Forget a READ that was prepared and never posted."""
        self._check_thread()
        self._drop(self._known(attempt_id, "prepared"))

    def poll(self) -> list[ReadEvent]:
        """Progress the agent and collect what ended."""
        self._check_thread()
        events: list[ReadEvent] = []
        for read in list(self._reads.values()):
            if read.state == "posted":
                self._poll_one(read, events)
        if self.sending:
            try:
                attempt("progress", self._nixl.get_new_notifs)
            except DataPlaneError:
                self.counters["progress_errors"] += 1
        return events

    def _poll_one(self, read: _Read, events: list[ReadEvent]) -> None:
        try:
            done = self._ask(read, "READ", self._nixl.check_xfer_state) == "DONE"
        except DataPlaneError as exc:
            read.state = "failed"
            self.counters["read_failures"] += 1
            if not read.abandoned:
                events.append(ReadEvent(read.attempt_id, "error", str(exc)))
            return
        if done:
            read.state = "done"
            events.append(ReadEvent(read.attempt_id, "done", ""))

    def _ask(self, read: _Read, what: str, call: Callable[[Any], Any]) -> str:
        try:
            state = str(attempt(what, call, read.handle))
            if state not in ("DONE", "PROC"):
                raise DataPlaneError(f"{what}: the backend reports {state}")
        except DataPlaneError:
            self._peers[read.peer].broken = True
            raise
        return state

    def release(self, attempt_id: int) -> None:
        """Free what is left of a READ that is over."""
        self._check_thread()
        read = self._reads.get(attempt_id)
        if read is None:
            return
        if read.state in ("posted", "failed"):
            raise LocalProtocolError(
                f"READ {attempt_id} is {read.state}: its handle is kept until there is a proof",
                clause="EC-6.4",
            )
        self._drop(read)

    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        """Send a notice without a READ (EC-5.11)."""
        self._check_thread()
        peer = self._connect(agent_metadata, self._metadata(agent_metadata))
        try:
            attempt("sending a notice", self._nixl.send_notif, peer, notice)
        except DataPlaneError:
            self._peers[peer].broken = True
            raise
        self._sending_until = self._clock() + _NOTICE_S

    def abandon(self, attempt_id: int) -> None:
        """Nobody waits for the READ any more (EC-6.4)."""
        self._check_thread()
        read = self._reads.get(attempt_id)
        if read is not None and read.state != "done":
            read.abandoned = True
            if read.state == "prepared":
                # Whoever abandons it believes that it was posted.
                read.state = "failed"

    def close(self) -> None:
        """Destroy the agent; nothing can be prepared any more."""
        self._check_thread()
        for read in self._reads.values():
            handle, read.handle = read.handle, None
            # What fails here is tried again by the handle's finaliser and the agent's.
            with contextlib.suppress(Exception):
                handle.release()
            del handle
        self._reads.clear()
        self._peers.clear()
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.destroy()

    @property
    def reads(self) -> int:
        """READs that are posted and whose end was not seen."""
        return sum(read.state == "posted" for read in self._reads.values())

    @property
    def sending(self) -> bool:
        """Whether a notice was sent so recently that it may still need progress."""
        return self._clock() < self._sending_until

    # ------------------------------------------------------------------------ helpers
    def _connect(self, blob: bytes, metadata: AgentMetadata | None) -> str:
        """Make a producer's agent known to ours.

        Args:
            blob: Its metadata; identifies it.
            metadata: The same parsed, or None if it could not be checked.

        Returns:
            Its name.

        Raises:
            BadAgentMetadata: NIXL refused the metadata.
            DataPlaneError: It is known as something else, or its endpoint broke, and
                READs that must not be disturbed go through the old one.
        """
        name = metadata.name if metadata is not None else self._name_of(blob)
        known = self._peers.get(name) if name else None
        if known is not None and known.metadata == blob and not known.broken:
            self._peers[name] = self._peers.pop(name)
            return name
        if known is not None:
            if known.reads:
                # Removing it would make the state of its READs unknowable.
                raise DataPlaneError(f"READs of the former {name} are not over")
            self._remove(name)
        idle = [name for name, peer in self._peers.items() if not peer.reads]
        for other in idle[: max(0, len(idle) - _MAX_IDLE_PEERS + 1)]:
            self._remove(other)
        try:
            added = attempt("agent metadata", self._nixl.add_remote_agent, blob)
        except DataPlaneError as exc:
            # What NIXL took of it before it gave up would stand in the way of the true one.
            if name:
                with contextlib.suppress(DataPlaneError):
                    attempt("forgetting a peer", self._nixl.remove_remote_agent, name)
            raise BadAgentMetadata(str(exc)) from None
        name = added.decode(errors="replace") if isinstance(added, bytes) else str(added)
        self._peers[name] = _Peer(blob)
        return name

    def _remove(self, name: str) -> None:
        del self._peers[name]
        attempt("forgetting a peer", self._nixl.remove_remote_agent, name)

    def _name_of(self, blob: bytes) -> str:
        return next((n for n, peer in self._peers.items() if peer.metadata == blob), "")

    def _metadata(self, blob: bytes) -> AgentMetadata | None:
        """The parsed metadata; None if this NIXL's layout is not known."""
        if not self._strict:
            return None
        found = self._parsed.get(blob)
        if found is None:
            found = parse_agent_metadata(blob)
            while len(self._parsed) >= _MAX_PARSED:
                del self._parsed[next(iter(self._parsed))]
            self._parsed[blob] = found
        return found

    def _check_local(self, local: Pieces, remote: Pieces) -> None:
        if not local or [size for _, size in local] != [size for _, size in remote]:
            raise LocalProtocolError("READ: local and remote pieces must pair up")
        for offset, nbytes in local:
            if offset < 0 or nbytes <= 0 or offset + nbytes > self._nbytes:
                raise LocalProtocolError(
                    f"READ: [{offset}, {offset + nbytes}) is outside the region of "
                    f"{self._nbytes} bytes"
                )
        for address, nbytes in remote:
            if address <= 0 or address + nbytes > 1 << 63:
                raise RemoteProtocolError(f"READ: {nbytes} bytes at {address:#x}")

    def _known(self, attempt_id: int, state: str) -> _Read:
        read = self._reads.get(attempt_id)
        if read is None or read.state != state:
            found = "unknown" if read is None else read.state
            raise LocalProtocolError(f"READ {attempt_id} is {found}, not {state}")
        return read

    def _drop(self, read: _Read) -> None:
        del self._reads[read.attempt_id]
        self._peers[read.peer].reads -= 1
        handle, read.handle = read.handle, None
        try:
            attempt("releasing a READ", handle.release)
        except DataPlaneError:
            # The READ is over; the handle's finaliser tries again.
            self.counters["release_errors"] += 1
