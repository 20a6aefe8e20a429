# SPDX-License-Identifier: Apache-2.0
"""``ec_allowed_peers``: to which hosts a request may send us."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from ec_protocol.announcements import HOST


def is_address(host: str) -> bool:
    """Whether a host is an IP address and needs no looking up."""
    return _address(host) is not None


def is_loopback(host: str) -> bool:
    """Whether a host is an address that no other host can reach."""
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    # An IPv4 address in IPv6's clothes is that one.
    return getattr(address, "ipv4_mapped", None) or address


class AllowedPeers:
    """Hosts that a request may send us to; without any rule every host is.

    A rule is a host name, an address, or a network such as ``10.1.0.0/16``. Names are
    compared as they are written, and never looked up: a name is allowed only if it is
    a rule itself, whatever address it has.

    Args:
        rules: The rules.

    Raises:
        ValueError: A rule is none of these.
    """

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for rule in rules:
            try:
                self._networks.append(ipaddress.ip_network(rule.strip("[]")))
            except ValueError:
                if "/" in rule or not HOST.fullmatch(rule):
                    raise ValueError(f"{rule!r} is no host name, address or network") from None
                self._names.add(rule.lower())

    def allows(self, host: str) -> bool:
        """Whether ``host`` may be connected to."""
        if not self._names and not self._networks:
            return True
        if host.lower() in self._names:
            return True
        address = _address(host)
        if address is None:
            return False
        return any(address in network for network in self._networks)
