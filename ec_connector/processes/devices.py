# SPDX-License-Identifier: Apache-2.0
"""Over which network devices an instance's data plane may talk, and listen (EC-15.7).

UCX listens on every device unless it is told otherwise, in readers too. It is told those
over which the control plane reaches peers, or is reached: whoever is kept from the one is
to be kept from the other. Where a card does RDMA nothing is said, since it is a device of
its own; nor where the control plane itself is not bound to any.

Asked once, when the engine starts: a name may take long to look up.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ec_connector.config.peers import ANYBODY, Address, parse_address
from ec_connector.network.addresses import is_device
from ec_connector.network.names import look_up

logger = logging.getLogger(__name__)

#: The variable by which UCX is told.
VARIABLE: Final = "UCX_NET_DEVICES"
_LOOPBACK: Final = "lo"
_SIOCGIFADDR: Final = 0x8915
_INFINIBAND: Final = "/sys/class/infiniband"
#: A line per address: the address, its device's number, …, and its name.
_IF_INET6: Final = "/proc/net/if_inet6"


def serving_on(host: str) -> str:
    """The device that a server binds, or that has its address; ``""``: none is meant, or known."""
    if _has_rdma():
        return ""
    found = _look_up(host)
    if found is None:
        return host if is_device(host) else ""
    return _device_of(found) or ""


def reading_from(allowed: Sequence[str]) -> str:
    """The devices over which producers are reached, comma-separated; ``""``: any.

    Args:
        allowed: Rules of ``AllowedPeers``.
    """
    if _has_rdma() or ANYBODY in allowed:
        return ""
    devices: set[str] = set()
    for rule in allowed:
        device = _towards(rule)
        if device is None:
            logger.warning(
                "ec_allowed_peers: over which network device %s is reached is not known, so the "
                "data plane listens on all of them; %s can say which",
                rule,
                VARIABLE,
            )
            return ""
        devices.add(device)
    return ",".join(sorted(devices)) or _LOOPBACK  # nobody is read from


def _towards(rule: str) -> str | None:
    """The device over which a host or network is reached, as routes are now."""
    try:
        network = ipaddress.ip_network(rule.strip("[]"))
    except ValueError:
        found = _look_up(rule)
    else:
        found = network[min(1, network.num_addresses - 1)]
        if network.prefixlen == 0:
            return None  # everybody
    if found is None:
        return None
    if found.is_loopback:
        return _LOOPBACK
    family = socket.AF_INET if found.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(found), 9))  # which sends nothing
            own = str(sock.getsockname()[0])
        except OSError:
            return None
    return _device_of(ipaddress.ip_address(own))


def _has_rdma() -> bool:
    try:
        return bool(os.listdir(_INFINIBAND))
    except OSError:
        return False


def _look_up(host: str) -> Address | None:
    """What a host to bind or to reach means; None if nothing, or everything."""
    text = host.strip("[]")
    found = parse_address(text)
    if found is None:
        found = next(map(parse_address, look_up(text)), None)
    return None if found is None or found.is_unspecified else found


def _device_of(address: Address) -> str | None:
    """Name of the device that has an address; None if none has it."""
    if address.is_loopback:
        return _LOOPBACK
    if address.version == 6:
        return _six(address)
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


def _six(address: Address) -> str | None:
    try:
        lines: Iterable[str] = Path(_IF_INET6).read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        if int(words[0], 16) == int(address):
            return words[-1]
    return None
