# SPDX-License-Identifier: Apache-2.0
"""Consumer side of the data plane: READs, and the proof that they are over.

A READ that is abandoned can only be stopped by destroying the agent that it was posted
through (see ``library`` for what does *not* stop it), and destroying an agent ends
every READ in it. So agents come in *generations*: an abandoned READ taints its
generation, new READs go to a fresh one, and the tainted one is destroyed once nothing
that anybody waits for is left in it.
"""

from __future__ import annotations

import itertools
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ec_connector.network.data.base import (
    BadAgentMetadata,
    DataPlaneBusy,
    DataPlaneError,
    DataPlaneReader,
    Pieces,
    ReadEvent,
)
from ec_connector.network.data.generation import Generation, Read
from ec_connector.network.data.library import Agent
from ec_connector.network.data.metadata import AgentMetadata, parse_agent_metadata
from ec_protocol.errors import LocalProtocolError, RemoteProtocolError

logger = logging.getLogger(__name__)

#: Generations alive at once; a further one would have to wait for an end.
MAX_GENERATIONS: Final = 4
#: Half of the default ``quarantine_s``: a sleeper gets its chance, and the proof still
#: comes before the blocks are retired.
GRACE_S: Final = 30.0
#: How long a notice may take to leave: it needs a few round trips to connect.
_NOTICE_S: Final = 1.0
#: Parsed metadata that is remembered, so that each producer is parsed once.
_MAX_PARSED: Final = 64


@dataclass(slots=True)
class _Unproven:
    """A destroyed generation whose destructor has not been seen to run."""

    gone: weakref.ref[Any]
    attempts: list[int]


class NixlReader(DataPlaneReader):
    """READs into one region, over NIXL. Pump thread only.

    Args:
        name: Unique per process incarnation.
        address: First byte of the region.
        nbytes: Its length.
        backends: NIXL backends, in order of preference.
        max_generations: How many agents may be alive at once.
        grace_s: How long an abandoned READ that shows no error keeps its agent, seconds:
            its producer may only sleep. Should be well below ``quarantine_s``.
        clock: Monotonic seconds.

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
        *,
        max_generations: int = MAX_GENERATIONS,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._name = name
        self._address = address
        self._nbytes = nbytes
        self._backends = tuple(backends)
        self._max_generations = max_generations
        self._grace_s = grace_s
        self._clock = clock
        self._numbers = itertools.count(1)
        self._generations: list[Generation] = []
        self._unproven: list[_Unproven] = []
        self._reads: dict[int, Read] = {}
        self._parsed: dict[bytes, AgentMetadata] = {}
        self._sending_until = 0.0
        self._closed = False
        self.counters: Counter[str] = Counter()
        # The first generation at once: what is wrong with the setup shows at start-up.
        self._strict = self._understands(self._open_generation())

    def _understands(self, generation: Generation) -> bool:
        """Whether this NIXL writes the metadata layout that we check."""
        try:
            parse_agent_metadata(generation.agent.metadata())
        except BadAgentMetadata as exc:
            logger.warning("agent metadata of this NIXL has another layout, not checked: %s", exc)
            return False
        return True

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
        generation, peer = self._reach(agent_metadata, metadata)
        pieces = [(self._address + offset, nbytes) for offset, nbytes in local]
        handle = generation.prepare(peer, pieces, remote, device_id, notice)
        read = Read(attempt_id, generation, peer, handle)
        generation.reads[attempt_id] = read
        self._reads[attempt_id] = read

    def post(self, attempt_id: int) -> None:
        """Start a prepared READ; the library may copy some bytes before it returns."""
        self._check_thread()
        read = self._known(attempt_id, "prepared")
        read.state = "posted"
        try:
            read.generation.post(read)
        except DataPlaneError:
            read.state = "failed"
            raise

    def discard(self, attempt_id: int) -> None:
        """Forget a READ that was prepared and never posted."""
        self._check_thread()
        self._drop(self._known(attempt_id, "prepared"))

    def poll(self) -> list[ReadEvent]:
        """Progress all agents that matter and collect what ended."""
        self._check_thread()
        events: list[ReadEvent] = []
        if self._reads:
            for read in list(self._reads.values()):
                if read.state == "posted":
                    self._poll_one(read, events)
        if self.sending:
            for generation in self._generations:
                try:
                    generation.progress()
                except DataPlaneError:
                    self.counters["progress_errors"] += 1
        return events

    def _poll_one(self, read: Read, events: list[ReadEvent]) -> None:
        try:
            done = read.generation.is_done(read)
        except DataPlaneError as exc:
            read.state = "failed"
            self.counters["read_failures"] += 1
            if not read.abandoned:
                events.append(ReadEvent(read.attempt_id, "error", str(exc)))
            return
        if done:
            read.state = "done"
            events.append(ReadEvent(read.attempt_id, "done", ""))

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
        generation, peer = self._reach(agent_metadata, self._metadata(agent_metadata))
        generation.notify(peer, notice)
        self._sending_until = self._clock() + _NOTICE_S

    # ------------------------------------------------------------------- generations
    def abandon(self, attempt_id: int) -> None:
        """Taint the generation of a READ whose end cannot be waited for (EC-6.4)."""
        self._check_thread()
        read = self._reads.get(attempt_id)
        if read is None or read.state == "done" or read.abandoned:
            return
        read.abandoned_at = self._clock()
        if read.state == "prepared":
            # Whoever abandons it believes that it was posted.
            read.state = "failed"
        if not read.generation.tainted:
            self.counters["generations_tainted"] += 1
        read.generation.tainted = True

    def reap(self) -> list[int]:
        """Destroy generations in which nobody waits for anything (EC-6.2)."""
        self._check_thread()
        proven: list[int] = []
        now = self._clock()
        full = self.generations >= self._max_generations
        for generation in list(self._generations):
            if not generation.may_end(now, self._grace_s):
                continue
            # Without a proof to be had the agent is more use alive: a late DONE is one.
            if generation.agent.teardown_proves or full or not generation.abandoned:
                proven += self._destroy(generation)
        return proven + self._recheck()

    def close(self) -> list[int]:
        """Destroy every generation; nothing can be prepared any more."""
        self._check_thread()
        self._closed = True
        proven: list[int] = []
        for generation in list(self._generations):
            proven += self._destroy(generation)
        return proven + self._recheck()

    def _destroy(self, generation: Generation) -> list[int]:
        """End a generation.

        Returns:
            Posted READs that are thereby over; none if that is not certain.
        """
        self._generations.remove(generation)
        open_attempts = [
            read.attempt_id
            for read in generation.reads.values()
            if read.state in ("posted", "failed")
        ]
        for attempt_id in generation.reads:
            del self._reads[attempt_id]
        proves = generation.agent.teardown_proves
        gone = generation.destroy()
        self.counters["generations_destroyed"] += 1
        if not proves:
            self.counters["reads_unproven"] += len(open_attempts)
            return []
        if gone() is None:
            return open_attempts
        logger.warning(
            "NIXL agent %s is still referred to: %d READs stay unproven",
            generation.agent.name,
            len(open_attempts),
        )
        self._unproven.append(_Unproven(gone, open_attempts))
        return []

    def _recheck(self) -> list[int]:
        """Attempts of generations whose destructor has run in the meantime."""
        proven: list[int] = []
        for item in list(self._unproven):
            if item.gone() is None:
                self._unproven.remove(item)
                proven += item.attempts
        return proven

    @property
    def reads(self) -> int:
        """READs that are posted and whose end was not seen."""
        return sum(read.state == "posted" for read in self._reads.values())

    @property
    def sending(self) -> bool:
        """Whether a notice was sent so recently that it may still need progress."""
        return self._clock() < self._sending_until

    @property
    def tainted(self) -> bool:
        """Whether any generation waits for its end."""
        return bool(self._unproven) or any(g.leaving for g in self._generations)

    @property
    def generations(self) -> int:
        """Agents that are alive, as far as we know."""
        return len(self._generations) + len(self._unproven)

    # ------------------------------------------------------------------------ helpers
    def _open_generation(self) -> Generation:
        if self._closed:
            raise DataPlaneError("the data plane's reader is closed")
        if self.generations >= self._max_generations:
            self.counters["busy"] += 1
            raise DataPlaneBusy(
                f"{self.generations} endpoint generations wait for their end, at most "
                f"{self._max_generations} may be alive"
            )
        name = f"{self._name}.read{next(self._numbers)}"
        agent = Agent(name, self._backends, self._address, self._nbytes)
        generation = Generation(agent)
        self._generations.append(generation)
        return generation

    def _reach(
        self, agent_metadata: bytes, metadata: AgentMetadata | None
    ) -> tuple[Generation, str]:
        """A generation for new READs in which the peer is known, and its name there."""
        for generation in self._generations:
            if generation.leaving:
                continue
            peer = generation.connect(agent_metadata, metadata)
            if peer is not None:
                return generation, peer
        fresh = self._open_generation()
        peer = fresh.connect(agent_metadata, metadata)
        if peer is None:
            raise DataPlaneError("a fresh agent cannot know the peer by another address")
        return fresh, peer

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

    def _known(self, attempt_id: int, state: str) -> Read:
        read = self._reads.get(attempt_id)
        if read is None or read.state != state:
            found = "unknown" if read is None else read.state
            raise LocalProtocolError(f"READ {attempt_id} is {found}, not {state}")
        return read

    def _drop(self, read: Read) -> None:
        del self._reads[read.attempt_id]
        del read.generation.reads[read.attempt_id]
        try:
            read.generation.free(read)
        except DataPlaneError:
            # The READ is over; the handle's finaliser tries again.
            self.counters["release_errors"] += 1
