# SPDX-License-Identifier: Apache-2.0
"""Integrity in the data processes: answers that wait for a checksum, READs that are compared.

Each is a queue that does a bounded piece of work whenever its process turns, between the
answers to others (EC-8.11). Neither has a thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ec_connector.network.checksum import Digest
from ec_protocol.p2p import wire
from ec_protocol.p2p.commands import PrepareRead
from ec_protocol.p2p.grants import MAX_GRANTS, ProducerGrants
from ec_protocol.p2p.shelf import Found
from ec_protocol.p2p.wire import XferAck

#: Answers that wait at once: no more than there may be grants.
MAX_WAITING: Final = MAX_GRANTS


@dataclass(slots=True, eq=False)
class _Job:
    """The checksum of one granted entry.

    Attributes:
        found: The entry.
        since: Since which grant it has been kept without a gap.
        digest: What was looked at so far.
        answers: Acks that wait for it, by who and for which attempt.
    """

    found: Found
    since: int
    digest: Digest
    answers: dict[tuple[bytes, str], XferAck] = field(default_factory=dict)


class Answers:
    """A producer's acks that wait for a checksum.

    Peers take turns, so that one that asks for much delays itself.

    Args:
        grants: Whose acks they are.
        memory: The region; read only.
    """

    def __init__(self, grants: ProducerGrants, memory: memoryview) -> None:
        self._grants = grants
        self._memory = memory
        self._peers: OrderedDict[bytes, OrderedDict[tuple[int, int], _Job]] = OrderedDict()
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Answers that wait."""
        return self._waiting

    def wait(self, socket: bytes, who: bytes, found: Found, ack: XferAck) -> None:
        """An ack is sent once the checksum of its entry is known.

        Args:
            socket: Where to.
            who: The peer, as its connection proves.
            found: The entry; a grant keeps it.
            ack: The ack without its checksum.
        """
        since = self._grants.kept_since(found)
        if since is None or self._waiting >= MAX_WAITING:
            self._grants.counters["checksums_dropped"] += 1
            return
        key = (found.entry_id, since)
        job = self._jobs.get(key)
        if job is None:
            size = self._grants.shelf.block_size_bytes
            pieces = wire.local_pieces(found.extents, found.nbytes, size)
            job = self._jobs[key] = _Job(found, since, Digest(self._memory, pieces))
            self._peers.setdefault(who, OrderedDict())[key] = job
        waits = (socket, ack.session_id)
        self._waiting += waits not in job.answers
        job.answers[waits] = ack

    def turn(self) -> Iterator[tuple[bytes, XferAck]]:
        """Look at a piece of what waits longest; answers that are complete by that."""
        if not self._peers:
            return
        who, jobs = self._peers.popitem(last=False)
        key, job = next(iter(jobs.items()))
        gone = self._grants.kept_since(job.found) != job.since
        over = gone or job.digest.step()
        if over:
            del jobs[key], self._jobs[key]
            self._waiting -= len(job.answers)
        if jobs:
            self._peers[who] = jobs
        if gone or (over and not self._grants.hashed(job.found, job.since, job.digest.text)):
            # Who had the grant has let it go, or it is over: nobody waits for this.
            self._grants.counters["checksums_dropped"] += 1
        elif over:
            self._grants.counters["checksums_made"] += 1
            for (socket, _), ack in job.answers.items():
                yield socket, msgspec.structs.replace(ack, checksum=job.digest.text)


@dataclass(slots=True, eq=False)
class _Read:
    """A READ that is compared.

    Attributes:
        attempt_id: Its attempt.
        done_at: When it was seen done.
        digest: What was looked at so far.
        wanted: What it must be.
    """

    attempt_id: int
    done_at: float
    digest: Digest
    wanted: str


class Comparing:
    """A consumer's READs whose bytes do not count before they are compared.

    Args:
        memory: The region.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._posted: dict[int, PrepareRead] = {}
        self._ended: deque[_Read] = deque()

    def posted(self, command: PrepareRead) -> None:
        """A READ that has a checksum was posted."""
        self._posted[command.attempt_id] = command

    def done(self, attempt_id: int, now: float) -> bool:
        """The READ is complete; whether it is compared before it counts."""
        command = self._posted.pop(attempt_id, None)
        if command is not None:
            digest = Digest(self._memory, command.local)
            self._ended.append(_Read(attempt_id, now, digest, command.checksum))
        return command is not None

    def forget(self, attempt_id: int) -> None:
        """The READ is over, or failed."""
        self._posted.pop(attempt_id, None)

    def turn(self) -> tuple[int, float, bool] | None:
        """Look at a piece of what waits longest.

        Returns:
            The attempt that is decided by it, when its READ was done, and whether its bytes
            are right; None if none is.
        """
        if not self._ended or not self._ended[0].digest.step():
            return None
        read = self._ended.popleft()
        return read.attempt_id, read.done_at, read.digest.text == read.wanted

    def __len__(self) -> int:
        """READs that are compared at this moment."""
        return len(self._ended)
