# SPDX-License-Identifier: Apache-2.0
"""What parent and data processes are started with.

It comes in a piece of shared memory, whose descriptor is the one argument on the command
line, so that nothing of it shows in a list of processes. Descriptors in it are those that
the process was handed; a -1 means none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from ec_protocol.tables.timing import Timing
from ec_protocol.terms import Terms


class EventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """See ``config.EventSettings``."""

    endpoint: str
    replay_endpoint: str | None
    topic: str
    buffer: int
    queue: int


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all processes of an instance.

    Attributes:
        engine_id: Names it to others.
        incarnation: This start of it.
        engine_pid: The engine's process.
        num_blocks: Blocks of the region.
        block_size_bytes: Bytes of a block.
        compat_hash: See ``wire.compatibility_hash``.
        encoder_hash: See ``Terms``.
        encoder_required: Likewise.
        checksum: Likewise.
        timing: Timers by name.
        nixl: Module that has NIXL's bindings.
        backends: NIXL backends.
        writable: Whether the server maps the region writable, which some backends need.
        bind: Host and port of the control socket; None: the instance serves nobody.
        advertised: Host and port that are announced; a None means the bound one.
        peer_quota: Share of the region that one peer may keep.
        grant_quota: Share that all peers together may keep.
        events: Where events are published; None publishes none.
        key_file: Where the instance's own keys are, which only those read that need them; None:
            peers have no keys.
        peer_keys: Where the public keys of its peers are.
        anywhere: Whether it may be reached from other hosts.
        allowed_peers: Hosts that it may read from; see ``AllowedPeers``.
        server_devices: Network devices on which the data plane serves; ``""``: any.
        reader_devices: Those over which it reads.
        readers: Readers that work; 0: the instance fetches nothing.
        trace_file: Where traces go; None writes none.
        scratch: Folder in which each data process has one of its own; see ``region.scratch``.
    """

    engine_id: str
    incarnation: str
    engine_pid: int
    num_blocks: int
    block_size_bytes: int
    compat_hash: str
    timing: dict[str, float]
    nixl: str
    backends: tuple[str, ...]
    encoder_hash: str = ""
    encoder_required: bool = False
    checksum: str = ""
    writable: bool = False
    bind: tuple[str, int] | None = None
    advertised: tuple[str | None, int | None] = (None, None)
    peer_quota: float = 0.5
    grant_quota: float = 0.9
    events: EventsSpec | None = None
    key_file: str | None = None
    peer_keys: str | None = None
    anywhere: bool = False
    allowed_peers: tuple[str, ...] = ()
    server_devices: str = ""
    reader_devices: str = ""
    readers: int = 0
    trace_file: str | None = None
    scratch: str = ""

    @property
    def serves(self) -> bool:
        """Whether the instance has a server."""
        return self.bind is not None or self.events is not None

    @property
    def region_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_size_bytes

    def terms(self) -> Terms:
        """What is said to peers beyond the compatibility hash, and demanded of them."""
        return Terms(
            encoder_hash=self.encoder_hash,
            encoder_required=self.encoder_required,
            checksum=self.checksum,
        )

    def timers(self) -> Timing:
        """The timers, checked."""
        return Timing(**self.timing)


class ParentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent is started with.

    Attributes:
        version: Of the words that the engine speaks.
        instance: The instance.
        engine: Channel to the engine.
        region: The region, for readers: readable and writable.
        region_for_server: The region, for servers: as ``writable`` says.
        table: The table of offers, readable.
        ledger: The ledger, readable and writable.
        status: Its status page.
        scratch: Keeps the lock on the instance's folder; -1 where there is none.
        first: Number of its first process. No earlier parent's has had it or a later one:
            sessions and incarnations are made of it (EC-8.6, EC-9.2).
    """

    version: int
    instance: InstanceSpec
    engine: int
    status: int
    region: int
    region_for_server: int
    table: int
    ledger: int
    scratch: int = -1
    first: int = 1

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the process is handed."""
        region = (self.region, self.region_for_server)
        return _given(self.engine, *region, self.table, self.ledger, self.status, self.scratch)


class DataSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a data process is started with.

    Attributes:
        instance: The instance.
        kind: ``server`` or ``reader``.
        process: Its number.
        parent_pid: Its parent; it ends with it.
        parent: Channel to the parent.
        engine: Channel to the engine.
        status: Its status page.
        region: The region.
        table: The table of offers; a server's.
        ledger: The ledger; a server's.
    """

    instance: InstanceSpec
    kind: str
    process: int
    parent_pid: int
    parent: int
    engine: int
    status: int
    region: int
    table: int = -1
    ledger: int = -1

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the process is handed."""
        return _given(self.parent, self.engine, self.status, self.region, self.table, self.ledger)


def _given(*fds: int) -> tuple[int, ...]:
    return tuple(fd for fd in fds if fd >= 0)


def write_spec(spec: ParentSpec | DataSpec) -> int:
    """Put it into shared memory; the caller closes the descriptor."""
    fd = os.memfd_create("ec-spec", os.MFD_CLOEXEC)
    try:
        os.write(fd, msgspec.msgpack.encode(spec))
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_spec(fd: int, kind: type[Any]) -> Any:
    """Take it out; closes the descriptor."""
    with os.fdopen(fd, "rb") as file:
        return msgspec.msgpack.decode(file.read(), type=kind)


def command(module: str, fd: int, title: Iterable[str]) -> list[str]:
    """The command line of a process; ``title`` is for people who look at ``ps``.

    ``-P``: nothing is imported from whatever folder the host was started in.
    """
    return [sys.executable, "-P", "-m", module, str(fd), *title]
