# SPDX-License-Identifier: Apache-2.0
"""One consumer-side NIXL agent with the peers it knows and the READs it carries."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ec_connector.network.data.base import BadAgentMetadata, DataPlaneError, Pieces
from ec_connector.network.data.library import Agent, attempt
from ec_connector.network.data.metadata import AgentMetadata

#: Peers that an agent keeps connected without any READ; the oldest goes first.
_MAX_IDLE_PEERS: Final = 64


@dataclass(slots=True, eq=False)
class Read:
    """One READ.

    Attributes:
        attempt_id: Its name.
        generation: The agent that it goes through.
        peer: The producer's agent name.
        handle: NIXL's handle.
        state: ``prepared``, ``posted``, ``done`` (seen complete) or ``failed`` (an error
            was reported: its bytes may or may not be under way).
        abandoned_at: Since when nobody waits for it; None while somebody does.
    """

    attempt_id: int
    generation: Generation
    peer: str
    handle: Any
    state: Literal["prepared", "posted", "done", "failed"] = "prepared"
    abandoned_at: float | None = None

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it."""
        return self.abandoned_at is not None


@dataclass(slots=True)
class _Peer:
    metadata: bytes
    reads: int = 0
    broken: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """One agent. Everything in it ends together.

    Attributes:
        agent: The NIXL agent.
        reads: READs that were not dropped.
        tainted: An abandoned READ went through it.
        retiring: It cannot serve some peer any more, so a fresh one takes over.
    """

    agent: Agent
    reads: dict[int, Read] = field(default_factory=dict)
    tainted: bool = False
    retiring: bool = False
    _peers: dict[str, _Peer] = field(default_factory=dict)

    @property
    def leaving(self) -> bool:
        """Whether new READs must go elsewhere."""
        return self.tainted or self.retiring

    @property
    def abandoned(self) -> bool:
        """Whether a READ in it has an end that nobody knows."""
        return any(r.abandoned and r.state != "done" for r in self.reads.values())

    def may_end(self, now: float, grace_s: float) -> bool:
        """Whether nobody needs the agent any more, the peers of its READs included.

        A READ that failed has no peer to be considerate of. Any other abandoned one may
        belong to a producer that only sleeps, and that a teardown could kill.
        """
        for read in self.reads.values():
            if read.state == "done" or (read.state == "failed" and read.abandoned):
                continue
            if read.abandoned_at is None or now < read.abandoned_at + grace_s:
                return False
        return self.leaving

    def connect(self, blob: bytes, metadata: AgentMetadata | None) -> str | None:
        """Make a peer known to the agent.

        Args:
            blob: Its metadata; identifies the peer.
            metadata: The same parsed, or None if it could not be checked.

        Returns:
            The peer's name; None if this agent cannot reach it and is now retiring: it
            knows another process by that name, or its endpoint broke, and READs that
            cannot be disturbed go through the old one.

        Raises:
            BadAgentMetadata: NIXL refused the metadata.
        """
        name = metadata.name if metadata is not None else self._name_of(blob)
        known = self._peers.get(name) if name else None
        if known is not None and known.metadata == blob and not known.broken:
            self._peers[name] = self._peers.pop(name)
            return name
        if known is not None:
            if known.reads:
                # Removing it would make the state of its READs unknowable.
                self.retiring = True
                return None
            self._remove(name)
        self._make_room()
        try:
            added = attempt("agent metadata", self.agent.nixl.add_remote_agent, blob)
        except DataPlaneError as exc:
            # NIXL keeps half of what it refused, under that name.
            self.retiring = True
            raise BadAgentMetadata(str(exc)) from None
        name = added.decode(errors="replace") if isinstance(added, bytes) else str(added)
        self._peers[name] = _Peer(blob)
        return name

    def prepare(
        self, peer: str, local: Pieces, remote: Pieces, device_id: int, notice: bytes
    ) -> Any:
        """A handle for a READ; ``local`` are addresses here.

        Raises:
            DataPlaneError: NIXL refused it.
        """
        nixl = self.agent.nixl
        here = [(address, nbytes, 0) for address, nbytes in local]
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
        return handle

    def post(self, read: Read) -> None:
        """Start a READ.

        Raises:
            DataPlaneError: The peer is gone, or the backend failed.
        """
        self._ask(read, "posting a READ", self.agent.nixl.transfer)

    def is_done(self, read: Read) -> bool:
        """Progress a READ and say whether it is complete.

        Raises:
            DataPlaneError: It failed.
        """
        return self._ask(read, "READ", self.agent.nixl.check_xfer_state) == "DONE"

    def _ask(self, read: Read, what: str, call: Callable[[Any], Any]) -> str:
        try:
            state = str(attempt(what, call, read.handle))
            if state not in ("DONE", "PROC"):
                raise DataPlaneError(f"{what}: the backend reports {state}")
        except DataPlaneError:
            # NIXL never revives an endpoint that failed once.
            self._peers[read.peer].broken = True
            raise
        return state

    def notify(self, peer: str, notice: bytes) -> None:
        """Queue a notice for a peer.

        Raises:
            DataPlaneError: The peer is gone.
        """
        try:
            attempt("sending a notice", self.agent.nixl.send_notif, peer, notice)
        except DataPlaneError:
            self._peers[peer].broken = True
            raise

    def progress(self) -> None:
        """Let the agent's connections move; what others send us is dropped."""
        attempt("progress", self.agent.nixl.get_new_notifs)

    def free(self, read: Read) -> None:
        """Release the handle of a READ that is over or was never posted."""
        self._peers[read.peer].reads -= 1
        handle, read.handle = read.handle, None
        attempt("releasing a READ", handle.release)

    def destroy(self) -> weakref.ref[Any]:
        """End the agent and everything in it; see ``Agent.destroy``."""
        for read in self.reads.values():
            handle, read.handle = read.handle, None
            # What fails here is tried again by the handle's finaliser and the agent's.
            with contextlib.suppress(Exception):
                handle.release()
            del handle
        self.reads.clear()
        self._peers.clear()
        return self.agent.destroy()

    def _remove(self, name: str) -> None:
        del self._peers[name]
        attempt("forgetting a peer", self.agent.nixl.remove_remote_agent, name)

    def _make_room(self) -> None:
        idle = [name for name, peer in self._peers.items() if not peer.reads]
        for name in idle[: max(0, len(idle) - _MAX_IDLE_PEERS + 1)]:
            self._remove(name)

    def _name_of(self, blob: bytes) -> str:
        for name, peer in self._peers.items():
            if peer.metadata == blob:
                return name
        return ""
