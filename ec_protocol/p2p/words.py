# SPDX-License-Identifier: Apache-2.0
"""What engine, parent and data processes say to each other.

They are one instance and were started from one installation, but not at one time: a
process that is started again after an upgrade may be another version. Each says which it
is first (``Hello``), and is killed if it is not ours (EC-14.4). Nothing here comes from a
peer as it is: a reader says which loan landed and not what it was answered.

A message is one msgpack map of at most ``MAX_BYTES``, with its kind in ``type``.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ec_protocol.errors import RemoteProtocolError

#: Version of these messages and of the shared memory.
VERSION: Final = 2
#: Longest message.
MAX_BYTES: Final = 64 << 10


class _Said(msgspec.Struct, tag_field="type", frozen=True):
    """Base: a tagged map; unknown fields are ignored."""


# ------------------------------------------------------------------ engine to reader
class Lend(_Said, tag=True, frozen=True):
    """Fetch into these blocks.

    Attributes:
        loan: Number of the loan.
        mm_hash: The encoding.
        host: Host of its producer.
        port: Port of its producer.
        nbytes: Length of the encoding.
        extents: Where to, in blocks.
        deadline: Until when, seconds of the common clock.
        key: Its producer's public key; ``""`` where peers have none.
    """

    loan: int
    mm_hash: str
    host: str
    port: int
    nbytes: int
    extents: list[tuple[int, int]]
    deadline: float
    key: str = ""


class TakeBack(_Said, tag=True, frozen=True):
    """Nobody waits for this loan's encoding any more."""

    loan: int


# ------------------------------------------------------------------ reader to engine
class Words(_Said, tag=True, frozen=True):
    """How loans ended, and which; see ``loans.Loans.heard`` for the words."""

    words: list[tuple[str, int]]


# ------------------------------------------------------------------ engine to server
class Events(_Said, tag=True, frozen=True):
    """What has become of encodings; ``[event, mm_hash, nbytes, shape]``, to be published.

    Attributes:
        events: In order.
        missing: So many more followed and did not fit.
    """

    events: list[tuple[str, str, int, list[int] | None]]
    missing: int = 0


# ------------------------------------------------------------ data process to parent
class Hello(_Said, tag=True, frozen=True):
    """First word of a data process: it is ready to take a place."""

    version: int


class Working(_Said, tag=True, frozen=True):
    """It has taken its place.

    Attributes:
        host: Where peers find a server, as it is announced.
        port: As ``host``.
        bound: The port that it has bound; the next one is to have it too.
        key: The public key that peers need; ``""`` where they have none.
    """

    host: str = ""
    port: int = 0
    bound: int = 0
    key: str = ""


class Drain(_Said, tag=True, frozen=True):
    """A READ of it is lost: it is to be replaced."""

    reason: str


class Failing(_Said, tag=True, frozen=True):
    """It cannot work, and ends: a setting that cannot be, a port that is taken."""

    error: str


# ------------------------------------------------------------ parent to data process
class Take(_Said, tag=True, frozen=True):
    """Take your place: from here on there is work.

    Attributes:
        port: Where a server is to be found: where the one before it was; 0: where it likes.
    """

    port: int = 0


class Stop(_Said, tag=True, frozen=True):
    """The instance ends: say goodbye and exit."""


# ------------------------------------------------------------------ parent to engine
class Up(_Said, tag=True, frozen=True):
    """A data process works. With it come its channel, pidfd and status page.

    Attributes:
        process: Its number.
        kind: ``server`` or ``reader``.
        pid: For people.
        host: Where peers find a server, as it is announced.
        port: As ``host``.
        bound: The port that it has bound.
        key: The public key that peers need; ``""`` where they have none.
    """

    process: int
    kind: str
    pid: int
    host: str = ""
    port: int = 0
    bound: int = 0
    key: str = ""


class Leaving(_Said, tag=True, frozen=True):
    """A process gets no new work.

    Attributes:
        process: Its number.
        killed: It was killed, and is to exit soon.
    """

    process: int
    killed: bool = False


class Trouble(_Said, tag=True, frozen=True):
    """Something that an operator should know.

    Attributes:
        level: Of Python's ``logging``.
        text: One line; what a data process has logged, with the name of its logger first.
        fatal: The instance cannot have its data processes.
        who: Whose it is: ``ec-parent``, ``ec-server 3``. The parent fills it in.
    """

    level: int
    text: str
    fatal: bool = False
    who: str = ""


# ------------------------------------------------------------------ engine to parent
class Replace(_Said, tag=True, frozen=True):
    """Kill this one; it does what it must not."""

    process: int
    reason: str


ToReader = Lend | TakeBack
FromReader = Words
ToServer = Events
ToParent = Replace | Stop
FromParent = Up | Leaving | Trouble
FromData = Hello | Working | Drain | Failing | Trouble
ToData = Take | Stop

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(message: _Said) -> bytes:
    """A message as it travels."""
    return _encoder.encode(message)


def decode(raw: bytes, kinds: Any) -> Any:
    """A message that may be one of ``kinds``.

    Raises:
        RemoteProtocolError: It is none of them.
    """
    decoder = _decoders.get(kinds)
    if decoder is None:
        decoder = _decoders[kinds] = msgspec.msgpack.Decoder(kinds)
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"message between processes: {exc}", clause="EC-14.4") from exc
