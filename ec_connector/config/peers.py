# SPDX-License-Identifier: Apache-2.0
"""``ec_allowed_peers``: to which hosts a request may send us."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from ec_protocol.announcements import HOST

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_address(host: str) -> bool:
    """Whether a host is an IP address and needs no looking up."""
    return parse_address(host) is not None


def is_loopback(host: str) -> bool:
    """Whether a host is an address that no other host can reach."""
    address = parse_address(host)
    return address is not None and address.is_loopback


def parse_address(host: str) -> Address | None:
    """The IP address that a host is; None: it is a name."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    # An IPv4 address in IPv6's clothes is that one.
    return getattr(address, "ipv4_mapped", None) or address


#: The rule that allows every host.
ANYBODY: Final = "*"
#: This host, and no other.
ONLY_HERE: Final = ("localhost", "127.0.0.0/8", "::1")


class AllowedPeers:
    """Hosts that a request may send us to; without any rule none (EC-15.6).

    A rule is a host name, an address, a network such as ``10.1.0.0/16``, or ``*``. Names
    are compared as they are written: a name is allowed only if it is a rule itself. What
    it then turns out to mean is judged again, by whoever has looked it up.

    Args:
        rules: The rules.

    Raises:
        ValueError: A rule is none of these.
    """

    def __init__(self, rules: Sequence[str] = ONLY_HERE) -> None:
        self._anybody = ANYBODY in rules
        self._names: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for rule in rules:
            try:
                self._networks.append(ipaddress.ip_network(rule.strip("[]")))
            except ValueError:
                if rule == ANYBODY:
                    continue
                if "/" in rule or not HOST.fullmatch(rule):
                    raise ValueError(f"{rule!r} is no host name, address or network") from None
                self._names.add(rule.lower())

    def allows(self, host: str) -> bool:
        """Whether ``host`` may be connected to, as far as it can be told unseen."""
        return self._anybody or host.lower() in self._names or self._inside(parse_address(host))

    def meant(self, host: str, addresses: Sequence[str]) -> tuple[str, ...]:
        """Those of a host's addresses that may be connected to.

        A name that is allowed may mean any address, but none that has a meaning of its own:
        no resolver is to lead us to ourselves or to whoever is on the same wire, unless
        that is allowed by itself. ``localhost`` is this host and nothing else.

        Args:
            host: As the request says it.
            addresses: What it means.
        """
        if self._anybody:
            return tuple(addresses)
        if not self.allows(host):
            return ()
        return tuple(
            text for text in addresses if self._may_mean(host.lower(), parse_address(text))
        )

    def _may_mean(self, host: str, address: Address | None) -> bool:
        if address is None:
            return False
        if self._inside(address):
            return True
        if host not in self._names:
            return False
        if host == "localhost":
            return address.is_loopback
        return not (
            address.is_loopback
            or address.is_link_local
            or address.is_multicast
            or address.is_unspecified
        )

    def _inside(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)
