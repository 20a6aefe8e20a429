# SPDX-License-Identifier: Apache-2.0
"""What a producer may bind, and what can be connected to at all (EC-15.5)."""

from __future__ import annotations

import socket

from ec_connector.config.peers import is_address, is_loopback
from ec_connector.network.names import look_up
from ec_protocol.announcements import HOST
from ec_protocol.errors import ConfigError, ECError
from ec_protocol.p2p.commands import PeerKey


class ControlPlaneError(ECError):
    """The control plane cannot do what it was asked."""


class BindError(ControlPlaneError, ConfigError):
    """The control socket cannot be bound; the message names address and fix."""


class PeerAddressError(ControlPlaneError, ConfigError):
    """A peer address that cannot be connected to."""


def address_to_bind(host: str, port: int, *, anywhere: bool) -> str:
    """The address, or the interface, that a host to bind means.

    ZMQ binds addresses and interface names only. What is judged here is what is bound: a
    name is looked up once.

    Args:
        host: Interface name, host name or address.
        port: The port.
        anywhere: Whether it may be one that other hosts can reach.

    Raises:
        BindError: It may not, the port is none, or nothing here has that name.
    """
    if not 0 <= port <= 65535:
        # ZMQ would bind it modulo 65536.
        raise BindError(
            f"control socket on {host}:{port}: expected a port from 0 to 65535; set "
            "VLLM_EC_SIDE_CHANNEL_PORT"
        )
    address = _looked_up(host, port)
    if not anywhere and not is_loopback(address):
        raise BindError(
            f"control socket on {host}:{port}: {address} is no loopback address, and whoever can "
            "reach it could read the whole region. Set ec_key_file and ec_peer_keys, here and on "
            "those who read from here; or ec_insecure_control to true, on a network that nobody "
            "else is on"
        )
    return address


def _looked_up(host: str, port: int) -> str:
    if host == "*" or is_address(host):
        return host
    addresses = look_up(host)
    if addresses:
        return addresses[0]
    if is_device(host):
        return host
    raise BindError(
        f"control socket on {host}:{port}: no interface here has that name, and as a host's it "
        "has no address; set VLLM_EC_SIDE_CHANNEL_HOST to an address of this host"
    )


def is_device(host: str) -> bool:
    """Whether a network interface here has this name."""
    return any(name == host for _, name in socket.if_nameindex())


def check_peer(peer: PeerKey) -> None:
    """Refuse an address that cannot be one.

    Raises:
        PeerAddressError: Names the part that is wrong.
    """
    host, port = peer[:2]
    if not isinstance(host, str) or not HOST.fullmatch(host) or "[" in host or "]" in host:
        raise PeerAddressError(f"peer host {host!r:.80}: expected a host name or an IP address")
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise PeerAddressError(f"peer port {port!r}: expected 1 to 65535")
