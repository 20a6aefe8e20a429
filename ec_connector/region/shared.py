# SPDX-License-Identifier: Apache-2.0
"""The shared-memory region of one engine instance and data-parallel rank.

``/dev/shm/vllm_ec_{instance_id}_dp{dp_rank}.mmap``: the blocks from offset 0, one
trailer page behind them (``region_header``), mode 0600. The scheduler process and
every worker process map it; whoever comes first creates it and the others join.
``region_file`` explains why it survives a SIGKILL of any process at any moment.

    with SharedRegion.open("prefill-0", 0, num_blocks, block_size) as region:
        region.view((3, 2))[:5] = b"hello"      # blocks 3 and 4
        region.tensor[3 * block_size]           # the same bytes for torch

Start again under the same id. The file of a dead instance is reaped at once.
While a process of it is still alive, joining it would let that process write into
our blocks, so:

* give all processes of one start the same ``nonce``: they then wait for files of
  other starts to go away and never join them;
* or let one process pass ``create=True`` and the others ``create=False`` after it.

With neither, a process joins any live file of its id and geometry. That is right
when ids are unique per start (vLLM draws them at random unless told).

The region of one start is one file. If its name goes while processes of the start have
it open (one of them was shut down, say), whoever comes with their ``nonce`` gets a
``RegionLostError`` and no new file; ``identity`` tells two files apart (``marks``).

A process that forks passes its mapping, its lock and its mark on: the file counts as
used until the child has exited as well.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ec_connector.region import file as region_file
from ec_connector.region.errors import (
    RegionArgumentError,
    RegionClosedError,
    RegionError,
)
from ec_connector.region.file import Directory, Reaped, reap_orphans
from ec_connector.region.header import (
    IDENTITY_BYTES,
    NONCE_BYTES,
    RegionHeader,
    boot_id,
    region_name,
    write_draining,
)
from ec_connector.region.marks import Marks
from ec_connector.region.memory import Populated, populate
from ec_connector.region.opening import Opening
from ec_protocol.tables.dispatch import REGION

if TYPE_CHECKING:
    import torch

__all__ = ["Reaped", "SharedRegion", "reap_orphans"]


class SharedRegion:
    """A mapped region. Made by ``open`` only.

    Any thread may read ``buffer``, ``view``, ``address`` and ``tensor``; who may
    touch which block when is the tier's business, not this class's. ``drain`` and
    ``close`` may be called from any thread.

    Attributes:
        path: The file's path.
        header: What the trailer says.
        created: Whether this process made the file.
        reaped: What the sweep before creation removed.
        populated: How the pages were faulted in; None if that was not asked for.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        fd: int,
        header: RegionHeader,
        reaped: Reaped | None,
        marks: Marks,
    ) -> None:
        self.path: Final = os.path.join(os.path.abspath(directory), name)
        self.header: Final = header
        self.created: Final = reaped is not None
        self.reaped: Final = reaped or Reaped()
        self.populated: Populated | None = None
        self._directory: Final = directory
        self._name: Final = name
        self._marks: Final = marks
        # Whoever made it, a file that can be seen has been published.
        self._state = REGION.fire(REGION.initial, "publish").state
        self._pid: Final = os.getpid()
        self._mutex: Final = threading.Lock()
        self._closed = False
        self._tensor: torch.Tensor | None = None
        # From here on the objects own the descriptor, and with it the lock. The
        # map keeps a duplicate, so the lock lasts as long as the mapping does,
        # even when a tensor outlives this object.
        self._file: Final = os.fdopen(fd, "r+b", buffering=0)
        try:
            self._map: mmap.mmap | None = mmap.mmap(fd, header.file_bytes)
        except BaseException:
            self._file.close()
            marks.close()
            raise
        self._blocks: memoryview | None = memoryview(self._map)[: header.data_bytes]
        self._address: Final = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    # ------------------------------------------------------------------ opening
    @classmethod
    def open(
        cls,
        instance_id: str,
        dp_rank: int,
        num_blocks: int,
        block_size_bytes: int,
        *,
        create: bool | None = None,
        nonce: bytes | None = None,
        directory: str = "/dev/shm",
        guard: bool = True,
        prefault: bool = True,
        prefault_threads: int | None = None,
        timeout_s: float = 60.0,
    ) -> SharedRegion:
        """Create the region, or join the one that another process of the instance made.

        Args:
            instance_id: Characters ``A-Za-z0-9._-``, at most 128.
            dp_rank: Data-parallel rank, from 0.
            num_blocks: Blocks of the region, at least 1.
            block_size_bytes: Bytes of a block, at least 1.
            create: True insists on creating, False on joining, None does either.
            nonce: 16 bytes common to the processes of one start; see the module.
            directory: A tmpfs folder.
            guard: Start a guard process when creating (``guard.py``).
            prefault: Fault all pages in now instead of at first use.
            prefault_threads: Threads that fault pages in; None chooses.
            timeout_s: Seconds to wait for another process: for its file to appear
                (plus 1 s per GiB while somebody is creating it) or to go away.

        Raises:
            RegionArgumentError: An argument that no region can have.
            RegionSpaceError: No room; nothing was allocated and no name is left.
            RegionForeignError: The path is taken by something that is not ours.
            RegionBusyError: The path is taken by a live region that is not ours.
            RegionMissingError: ``create=False`` and nobody created it.
            RegionLostError: Its name is gone while processes of this start use it.
            RegionError: Faulting the pages in failed.
        """
        name = region_name(instance_id, dp_rank)
        for key, value in (("num_blocks", num_blocks), ("block_size_bytes", block_size_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RegionArgumentError(
                    name, f"{key}={value!r}: expected an integer of at least 1"
                )
        if num_blocks * block_size_bytes >= 1 << 62:
            raise RegionArgumentError(
                name,
                f"num_blocks={num_blocks} of block_size_bytes={block_size_bytes}: too large for "
                "a file; lower ec_cpu_bytes",
            )
        if nonce is not None and len(nonce) != NONCE_BYTES:
            raise RegionArgumentError(
                name, f"nonce of {len(nonce)} bytes: expected exactly {NONCE_BYTES}"
            )
        wanted = RegionHeader(
            instance_id=instance_id,
            dp_rank=dp_rank,
            num_blocks=num_blocks,
            block_size_bytes=block_size_bytes,
            nonce=nonce or secrets.token_bytes(NONCE_BYTES),
            identity=secrets.token_bytes(IDENTITY_BYTES),
            creator_pid=os.getpid(),
            boot_id=boot_id(),
        )
        with Directory(directory) as folder:
            opening = Opening(folder, name, wanted, create, nonce is not None, guard)
            fd, header, reaped = opening.run(timeout_s)
        region = cls(directory, name, fd, header, reaped, opening.marks)
        if prefault:
            region._prefault(prefault_threads)
        return region

    def _prefault(self, threads: int | None) -> None:
        try:
            self.populated = populate(
                self._address, self.buffer, write=self.created, threads=threads
            )
        except OSError as exc:
            self.close(unlink=self.created)
            raise RegionError(
                self.path,
                f"its pages cannot be mapped ({exc}): lower ec_cpu_bytes or free memory",
            ) from exc

    # ------------------------------------------------------------------- access
    @property
    def num_blocks(self) -> int:
        """Blocks of the region."""
        return self.header.num_blocks

    @property
    def block_size_bytes(self) -> int:
        """Bytes of a block."""
        return self.header.block_size_bytes

    @property
    def identity(self) -> bytes:
        """16 bytes that no other file has, whatever start it belongs to (EC-10.7)."""
        return self.header.identity

    def fileno(self) -> int:
        """The file's descriptor; block 0 is its first byte. For who is handed the region.

        Raises:
            RegionClosedError: ``close`` was called.
        """
        if self._closed:
            raise self._closed_error()
        return self._file.fileno()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks; the trailer is not counted."""
        return self.header.data_bytes

    @property
    def state(self) -> str:
        """State of the region lifecycle as this process knows it."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def buffer(self) -> memoryview:
        """All blocks as bytes, writable. Keeps the mapping alive."""
        if self._blocks is None:
            raise self._closed_error()
        return self._blocks

    @property
    def address(self) -> int:
        """Address of block 0 in this process; page-aligned."""
        if self._closed:
            raise self._closed_error()
        return self._address

    @property
    def tensor(self) -> torch.Tensor:
        """All blocks as a one-dimensional uint8 tensor of ``nbytes``, sharing memory."""
        if self._tensor is None:
            import torch

            self._tensor = torch.frombuffer(self.buffer, dtype=torch.uint8)
        return self._tensor

    def view(self, extent: tuple[int, int]) -> memoryview:
        """The bytes of one extent, ``(first block, number of blocks)``, writable.

        Raises:
            RegionArgumentError: The extent is empty or not inside the region.
        """
        blocks = self.buffer
        start, count = extent
        if start < 0 or count < 1 or start + count > self.header.num_blocks:
            raise RegionArgumentError(
                self.path,
                f"extent ({start}, {count}) is not inside its {self.header.num_blocks} blocks",
            )
        size = self.header.block_size_bytes
        return blocks[start * size : (start + count) * size]

    def _closed_error(self) -> RegionClosedError:
        return RegionClosedError(self.path, "the region was closed in this process")

    # ------------------------------------------------------------------- ending
    def drain(self) -> None:
        """Shutdown begins: no process joins from here on. Mappings stay as they are."""
        with self._mutex:
            if self._closed:
                raise self._closed_error()
            self._drain()

    def _drain(self) -> None:
        if self._state == "live":
            self._state = REGION.fire(self._state, "drain").state
            write_draining(self._file.fileno(), self.header)

    def close(self, unlink: bool) -> None:
        """Let go of the region. A second call does nothing.

        Views and tensors that were handed out stay valid: the memory, and the lock
        that says so, go with the last of them.

        Args:
            unlink: Remove the name as well, for all processes. Others that map the
                region keep it. In a forked child this is ignored.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            try:
                if unlink and os.getpid() == self._pid:
                    self._drain()
                    with Directory(self._directory) as folder:
                        region_file.unlink_own(self._file.fileno(), folder, self._name)
                    self._state = REGION.fire(self._state, "unlink").state
            finally:
                self._unmap()

    def _unmap(self) -> None:
        # Whatever was handed out refers to the map; the last reference unmaps.
        self._tensor = self._blocks = self._map = None
        self._file.close()
        self._marks.close()

    def __enter__(self) -> SharedRegion:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; the process that created the region also removes its name."""
        self.close(unlink=self.created)

    def __repr__(self) -> str:
        return (
            f"<SharedRegion {self.path} {self.num_blocks}x{self.block_size_bytes} "
            f"{'closed' if self._closed else self._state}>"
        )
