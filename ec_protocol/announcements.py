# SPDX-License-Identifier: Apache-2.0
"""What is said of encodings to whoever sends requests on, and how it is read (EC-11).

A producer announces, per ``mm_hash``, metadata and address together or neither::

    {"<mm_hash>": {"item_indices": [0], "metadata": {…}, "peer_host": "10.0.0.7",
                   "peer_port": 5601, "size_bytes": 8192, "shape": [16, 128]}}

where peers have keys with ``peer_key``, the producer's public one (EC-15.3). A request
brings such a mapping to a consumer. It comes from outside: it may be of any type and any
size, and may name any host. Reading it never raises; what cannot be used is a reason, and
the request encodes for itself (EC-11.4).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ec_protocol.items import MAX_HASH_CHARS, Item
from ec_protocol.names import is_strangers
from ec_protocol.tables.timing import Timing
from ec_protocol.tier.copies import CopyTable
from ec_protocol.tier.entry import Entry
from ec_protocol.tier.holds import HoldTable

#: What a host's name or address is made of.
HOST: Final = re.compile(r"[A-Za-z0-9_.:%\-\[\]]{1,255}")

#: The digits of Z85 (ZeroMQ's RFC 32), in which public keys are written.
_Z85: Final = {
    digit: value
    for value, digit in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}
#: A public key of CURVE has 32 bytes; five digits stand for four of them.
_KEY_CHARS: Final = 40

#: Host and port of a producer's control socket, and its public key where peers have keys.
Address = tuple[str, int] | tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Whom a request may have us read from.

    Attributes:
        allowed: Says whether a request may send us to a host; None allows every one.
        known: Says whether a public key is in our list; None: peers have no keys.
        shared: Whether what is read from them may be given to every request (EC-15.8). That
            they have keys that are known is reason enough.
    """

    allowed: Callable[[str], bool] | None = None
    known: Callable[[str], bool] | None = None
    shared: bool = False

    @property
    def strangers(self) -> bool:
        """Whether what a peer says is its own word, and no more."""
        return self.known is None and not self.shared


@dataclass(frozen=True, slots=True)
class Source:
    """Where an encoding was announced to be.

    Attributes:
        host: Control host of the producer.
        port: Its control port.
        key: Its public key; ``""`` where peers have none.
    """

    host: str
    port: int
    key: str = ""

    @property
    def address(self) -> Address:
        """Where to connect to. With another key it is another address."""
        return (self.host, self.port, self.key) if self.key else (self.host, self.port)


def read_source(
    announced: object, item: Item, capacity: int, rules: PeerRules | None = None
) -> Source | str:
    """Where ``announced`` says that the encoding of ``item`` is, or why that is of no use.

    Args:
        announced: Of any type.
        item: What the request itself expects.
        capacity: Bytes of our region.
        rules: Whom we may read from; None: anybody who has no key.

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
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # What is left could mean this host, which nobody has named.
    if not bare or "[" in bare or "]" in bare:
        return "bad_peer_host"
    rules = PeerRules() if rules is None else rules
    if rules.allowed is not None and not rules.allowed(host):
        return "foreign_peer_host"
    if not _is_int(port) or not 1 <= port <= 65535:
        return "bad_peer_port"
    key = said.get("peer_key")
    refused = _refuse_key(key, rules)
    if refused is not None:
        return refused
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
    return Source(bare, port, key or "")


def _refuse_key(key: object, rules: PeerRules) -> str | None:
    """Why a producer with this key is not read from (EC-15.3)."""
    if rules.known is None:
        # It would not even shake hands with us.
        return None if key is None else "unexpected_peer_key"
    if key is None:
        return "no_peer_key"
    if not is_public_key(key):
        return "bad_peer_key"
    return None if rules.known(key) else "foreign_peer_key"


def is_public_key(text: object) -> TypeGuard[str]:
    """Whether something is a public key of CURVE, as text."""
    if not isinstance(text, str) or len(text) != _KEY_CHARS or not _Z85.keys() >= set(text):
        return False
    groups = (text[start : start + 5] for start in range(0, _KEY_CHARS, 5))
    # Five digits could say a little more than four bytes can.
    return all(_number(group) < 1 << 32 for group in groups)


def _number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_Z85) + _Z85[digit]
    return number


def announcement(item: Item, entry: Entry, address: Address) -> dict[str, Any]:
    """What is said of an encoding that ``address`` will serve."""
    said: dict[str, Any] = {
        "metadata": dict(item.metadata),
        "peer_host": address[0],
        "peer_port": address[1],
        "size_bytes": entry.nbytes,
        "shape": list(entry.shape or item.shape),
    }
    return {**said, "peer_key": address[2]} if len(address) == 3 else said


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
        self, items: Sequence[Item], address: Address | None, now: float
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

    def _say(self, item: Item, address: Address | None, now: float) -> dict[str, Any]:
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
    such as half a surrogate pair out of JSON. What a stranger has sent is nobody's to have.
    """
    if not 1 <= len(mm_hash) <= MAX_HASH_CHARS or is_strangers(mm_hash):
        return False
    try:
        mm_hash.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
