# SPDX-License-Identifier: Apache-2.0
"""Which memory node the region's pages come from, on machines that have several.

A GPU copies fastest from the memory of its own socket. The pages of a region are
allocated once, by the thread that creates it, so that thread's memory policy decides:
the node of the visible GPUs, or all of their nodes in turn when there are several.
Other machines, other operating systems and sandboxes that forbid it are left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_MPOL_DEFAULT: Final = 0
_MPOL_PREFERRED: Final = 1
_MPOL_INTERLEAVE: Final = 3
#: set_mempolicy(2) and get_mempolicy(2); the C library has no wrapper for them.
_CALLS: Final = {"x86_64": (238, 239), "aarch64": (237, 236)}
_MAX_NODES: Final = 1024
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

SetPolicy = Callable[[int, Sequence[int]], bool]


def online_nodes(sysfs: Path = Path("/sys")) -> list[int]:
    """Memory nodes of the machine; ``[0]`` when it does not say."""
    try:
        text = (sysfs / "devices/system/node/online").read_text()
    except OSError:
        return [0]
    return _parse_list(text) or [0]


def gpu_nodes(sysfs: Path = Path("/sys"), environ: Mapping[str, str] | None = None) -> list[int]:
    """Memory nodes that the visible NVIDIA GPUs are attached to, ascending.

    ``CUDA_VISIBLE_DEVICES`` is followed where it lists numbers: these count GPUs by
    PCI address, which is CUDA's order on machines with GPUs of one kind.
    """
    nodes: list[int] = []
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            vendor, kind, node = (
                (device / name).read_text().strip() for name in ("vendor", "class", "numa_node")
            )
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASSES):
            nodes.append(int(node))
    visible = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES", "")
    numbers = [word.strip() for word in visible.split(",")]
    if visible and all(word.isdecimal() and int(word) < len(nodes) for word in numbers):
        nodes = [nodes[int(word)] for word in numbers]
    return sorted({node for node in nodes if node >= 0})


def set_policy(mode: int, nodes: Sequence[int]) -> bool:
    """Set this thread's memory policy; False if the kernel or a sandbox refuses."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return False
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    where = mask if nodes else None
    return bool(_libc.syscall(calls[0], mode, where, _MAX_NODES if nodes else 0) == 0)


def policy() -> int | None:
    """This thread's memory policy; None if it cannot be asked."""
    calls = _CALLS.get(platform.machine())
    mode = ctypes.c_int(-1)
    if calls is None or _libc.syscall(calls[1], ctypes.byref(mode), None, 0, None, 0):
        return None
    return mode.value


@contextlib.contextmanager
def near_the_gpus(
    sysfs: Path = Path("/sys"),
    environ: Mapping[str, str] | None = None,
    set_policy: SetPolicy = set_policy,
    policy: Callable[[], int | None] = policy,
) -> Iterator[list[int]]:
    """What this thread allocates meanwhile comes from the GPUs' memory nodes.

    Does nothing on machines with one node, without GPUs, or where somebody (``numactl``)
    has set a policy already.

    Yields:
        The nodes; empty when nothing was changed.
    """
    online = online_nodes(sysfs)
    nodes = [node for node in gpu_nodes(sysfs, environ) if node in online]
    if len(online) < 2 or not nodes or policy() != _MPOL_DEFAULT:
        yield []
        return
    mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_INTERLEAVE
    if not set_policy(mode, nodes):
        logger.info("the kernel refused a memory policy for nodes %s", nodes)
        yield []
        return
    try:
        yield nodes
    finally:
        set_policy(_MPOL_DEFAULT, ())


def _parse_list(text: str) -> list[int]:
    """``0-3,8`` as numbers."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers += range(int(first), int(last or first) + 1)
    return numbers
