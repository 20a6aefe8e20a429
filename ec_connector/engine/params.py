# SPDX-License-Identifier: Apache-2.0
"""What a request says about encodings elsewhere, checked before anything uses it.

``ec_transfer_params`` comes from outside: it may be of any type and any size, and
its contents may name any host. Parsing never raises; a parameter that cannot be
used is reported as a reason, and its request encodes locally (EC-11.4).
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

#: As on the wire (EC-8.8).
MAX_HASH_CHARS: Final = 512
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%\-\[\]]{1,255}")


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
                if "/" in rule or not _HOST.fullmatch(rule):
                    raise ValueError(f"{rule!r} is no host name, address or network") from None
                self._names.add(rule.lower())

    def allows(self, host: str) -> bool:
        """Whether ``host`` may be connected to."""
        if not self._names and not self._networks:
            return True
        if host.lower() in self._names:
            return True
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return any(address in network for network in self._networks)


@dataclass(frozen=True, slots=True)
class RemoteRef:
    """Where an encoding was announced to be.

    Attributes:
        host: Control host of the producer.
        port: Its control port.
        nbytes: Bytes of the encoding.
    """

    host: str
    port: int
    nbytes: int


def parse_remote(
    params: object,
    mm_hash: str,
    shape: tuple[int, ...],
    element_size: int,
    capacity: int,
    allowed: AllowedPeers | None = None,
) -> RemoteRef | str:
    """The reference that ``params`` holds for ``mm_hash``, or why it cannot be used.

    Args:
        params: ``request.ec_transfer_params``, of any type.
        mm_hash: The encoding that the request needs.
        shape: Rows × width that the request itself expects.
        element_size: Bytes per element of the encoder output.
        capacity: Bytes of our region.
        allowed: Hosts that may be connected to; None allows every one.

    Returns:
        The reference; ``"absent"`` when there is none; or another short reason,
        which is also a metric label.
    """
    if not isinstance(params, Mapping) or mm_hash not in params:
        return "absent"
    item: Any = params[mm_hash]
    if not isinstance(item, Mapping):
        return "not_a_mapping"
    host, port, size = item.get("peer_host"), item.get("peer_port"), item.get("size_bytes")
    if host is None and port is None:
        # The producer could not serve it: metadata and address go together (EC-11.1).
        return "absent"
    if not can_be_asked_for(mm_hash):
        return "bad_mm_hash"
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return "bad_peer_host"
    if allowed is not None and not allowed.allows(host):
        return "foreign_peer_host"
    if not _is_int(port) or not 1 <= port <= 65535:
        return "bad_peer_port"
    expected = math.prod(shape) * element_size
    if not _is_int(size) or size <= 0:
        return "bad_size_bytes"
    if size != expected:
        return "size_contradicts_request"
    if size > capacity:
        return "larger_than_region"
    announced = item.get("shape")
    if announced is not None and (
        not isinstance(announced, list | tuple)
        or not all(_is_int(n) for n in announced)
        or tuple(announced) != shape
    ):
        return "shape_contradicts_request"
    return RemoteRef(host.strip("[]"), port, size)


def can_be_asked_for(mm_hash: str) -> bool:
    """Whether a request on the wire can hold the name (EC-8.8).

    Names may be the clients' own: of any length, and with characters that are none,
    such as half a surrogate pair out of JSON.
    """
    if not 1 <= len(mm_hash) <= MAX_HASH_CHARS:
        return False
    try:
        mm_hash.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
