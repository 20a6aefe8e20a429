# SPDX-License-Identifier: Apache-2.0
"""The environment of a data process: what its libraries need, and no secrets.

Over TCP a peer that forges its metadata reads whatever lies in the process's memory, and
there the environment lies too: tokens and keys of the host have no business in it.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final

#: Names that are passed on, and beginnings of names.
_NAMES: Final = frozenset(
    {"HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"}
)
_BEGINNINGS: Final = ("CUDA_", "IBV_", "LC_", "MLX5_", "NIXL_", "NVIDIA_", "PYTHON", "UCX_")

_SIOCGIFADDR: Final = 0x8915
_INFINIBAND: Final = "/sys/class/infiniband"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What data processes are given of the host's environment.

    The region is host memory. Where there is a GPU, UCX would make a context on it all the
    same and hold its devices open, unless it leaves those modules alone.
    """
    found = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_BEGINNINGS)
    }
    return {"UCX_MODULES": "^cuda", **found}


def serving_on(host: str) -> dict[str, str]:
    """What a server is given besides: the network device of the address that is bound.

    UCX listens on every device unless it is told otherwise. Where a card does RDMA
    nothing is said, since it is a device of its own; nor where the host is a wildcard.
    """
    device = None if _has_rdma() else _device_of(host)
    return {} if device is None else {"UCX_NET_DEVICES": device}


def sharing_in(folder: str) -> dict[str, str]:
    """What a data process is given besides: where it shares memory under a name."""
    return {"UCX_POSIX_DIR": folder} if folder else {}


def _has_rdma() -> bool:
    try:
        return bool(os.listdir(_INFINIBAND))
    except OSError:
        return False


def _device_of(host: str) -> str | None:
    """Name of the device that has the address of a host; None if none or all have it."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
        address = ipaddress.IPv4Address(str(found[0][4][0]))
    except (OSError, ValueError, IndexError):
        return None
    if address.is_loopback:
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, request)
            except OSError:
                continue
            if ipaddress.IPv4Address(answer[20:24]) == address:
                return name
    return None
