# SPDX-License-Identifier: Apache-2.0
"""What is said of encodings to whoever sends requests on, and how it is read (EC-11).

A producer announces, per ``mm_hash``, metadata and address together or neither::

    {"<mm_hash>": {"item_indices": [0], "metadata": {…}, "peer_host": "10.0.0.7",
                   "peer_port": 5601, "size_bytes": 8192, "shape": [16, 128]}}

A request brings such a mapping to a consumer. It comes from outside: it may be of any
type and any size, and may name any host. Reading it never raises; what cannot be used
is a reason, and the request encodes for itself (EC-11.4).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ec_protocol.items import MAX_HASH_CHARS, Item
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable

#: What a host's name or address is made of.
HOST: Final = re.compile(r"[A-Za-z0-9_.:%\-\[\]]{1,255}")

#: Says whether a request may send us to a host.
Allowed = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Source:
    """Where an encoding was announced to be.

    Attributes:
        host: Control host of the producer.
        port: Its control port.
    """

    host: str
    port: int


def read_source(
    announced: object, item: Item, capacity: int, allowed: Allowed | None = None
) -> Source | str:
    """Where ``announced`` says that the encoding of ``item`` is, or why that is of no use.

    Args:
        announced: Of any type.
        item: What the request itself expects.
        capacity: Bytes of our region.
        allowed: Hosts that may be connected to; None allows every one.

    Returns:
        The source; ``"absent"`` when there is none; or another short reason, which is
        also a metric label.
    """
    mm_hash = item.mm_hash
    if not isinstance(announced, Mapping) or mm_hash not in announced:
        return "absent"
    said: Any = announced[mm_hash]
    if not isinstance(said, Mapping):
        return "not_a_mapping"
    host, port, size = said.get("peer_host"), said.get("peer_port"), said.get("size_bytes")
    if host is None and port is None:
        # The producer could not serve it: metadata and address go together (EC-11.1).
        return "absent"
    if not can_be_asked_for(mm_hash):
        return "bad_mm_hash"
    if not isinstance(host, str) or not HOST.fullmatch(host):
        return "bad_peer_host"
    if allowed is not None and not allowed(host):
        return "foreign_peer_host"
    if not _is_int(port) or not 1 <= port <= 65535:
        return "bad_peer_port"
    if not _is_int(size) or size <= 0:
        return "bad_size_bytes"
    if size != item.nbytes:
        return "size_contradicts_request"
    if size > capacity:
        return "larger_than_region"
    shape = said.get("shape")
    if shape is not None and (
        not isinstance(shape, list | tuple)
        or not all(_is_int(n) for n in shape)
        or tuple(shape) != item.shape
    ):
        return "shape_contradicts_request"
    return Source(host.strip("[]"), port)


def announcement(item: Item, entry: Entry, address: tuple[str, int]) -> dict[str, Any]:
    """What is said of an encoding that ``address`` will serve."""
    host, port = address
    return {
        "metadata": dict(item.metadata),
        "peer_host": host,
        "peer_port": port,
        "size_bytes": entry.nbytes,
        "shape": list(entry.shape or item.shape),
    }


class Announcer:
    """Says what this producer will serve, and holds it for whoever comes.

    Engine thread.

    Args:
        copies: What is stored, or about to be.
        holds: Keeps what is announced.
        timing: For how long.
        counters: Where it counts what it says.
    """

    def __init__(
        self, copies: CopyTable, holds: HoldTable, timing: Timing, counters: Counter[str]
    ) -> None:
        self._copies = copies
        self._holds = holds
        self._hold_s = timing.announce_hold_s
        self._counters = counters

    def announce(
        self, items: Sequence[Item], address: tuple[str, int] | None, now: float
    ) -> dict[str, dict[str, Any]]:
        """See ``Node.announce``."""
        announced: dict[str, dict[str, Any]] = {}
        for index, item in enumerate(items):
            if not item.named_by_content:
                continue
            if item.mm_hash not in announced:
                said = self._say(item, address, now)
                announced[item.mm_hash] = {"item_indices": [], **said}
            announced[item.mm_hash]["item_indices"].append(index)
        return announced

    def _say(self, item: Item, address: tuple[str, int] | None, now: float) -> dict[str, Any]:
        entry = self._copies.tier.get(item.mm_hash)
        if (
            address is None
            or entry is None
            or not (entry.servable or self._copies.save_of(item.mm_hash) is not None)
            or entry.contradicts(item.nbytes, item.shape)
            # A name may be a client's own; no request on the wire can hold a longer one.
            or not can_be_asked_for(item.mm_hash)
            or not self._can_be_had(entry)
        ):
            self._counters["announced_without_address"] += 1
            return {"metadata": {}}
        self._holds.hold(("announced", item.mm_hash), entry, now + self._hold_s)
        self._counters["announced"] += 1
        return announcement(item, entry, address)

    def _can_be_had(self, entry: Entry) -> bool:
        """Whether a server in another process would find it (EC-14.2)."""
        gate = self._copies.tier.gate
        return gate is None or gate.offered(entry)


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
