# SPDX-License-Identifier: Apache-2.0
"""Steps of the control and the data plane; see ``steps``."""

# ruff: noqa: RUF012 - msgspec copies the defaults of a struct
from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET

from ec_verify.kit.language.step import Step, Time


class Deliver(Step):
    """Deliver a message of a channel: ``"C>P"`` frames, ``"C~P"`` notices."""

    deliver: str
    nth: int = 1
    keep: bool = False
    all: bool = False
    via: str = ""


class Drop(Step):
    """Lose a message of a channel."""

    drop: str
    nth: int = 1


class Exchange(Step):
    """Deliver frames between two nodes, both ways and in order, until there are none."""

    exchange: list[str]


class Ask(Step):
    """A played consumer sends an XferReq; the ack is expected at once.

    With ``alias`` over another socket of its host, which has another identity.
    """

    ask: str
    by: str
    hash: str
    session: str = ""
    alias: str = ""
    attempt: int | None = None
    version: int | None = 2
    form: Literal["extended", "old"] = "extended"
    compat: str | None = None
    fields: dict[str, Any] = {}
    name: str = ""
    expect: dict[str, Any] | None = None
    differs: dict[str, str] = {}


class Bound(Step):
    """A request of a played consumer with fields at or beyond a bound: ``ask``, any answer."""

    bound: str
    by: str
    fields: dict[str, Any]
    expect: Literal["dropped", "answered"]


class Twins(Step):
    """A field of two waiting messages differs: ``["C>P", 1, 2]``."""

    twins: list[str | int]
    field: str


class Answer(Step):
    """A played producer answers a request that waits in ``C>P``."""

    answer: str
    status: str | int = "OK"
    nth: int = 1
    form: Literal["auto", "extended", "old"] = "auto"
    lease: Time | None = None
    fields: dict[str, Any] = {}
    vector: str = ""
    damage: int = 0
    hold: bool = False
    keep: bool = False
    expect: dict[str, Any] = {}


class Raw(Step):
    """Frames as they are, from a played peer to a node: ``raw`` is a channel ``"X>P"``."""

    raw: str
    frames: list[str] | None = None
    payload: Any = UNSET
    cut: int | None = None
    nested: int = 0
    damage: int = 0
    vector: str = ""
    expect: Literal["dropped", "answered"] | dict[str, Any] | None = None


class Notice(Step):
    """A played consumer's completion notice: of a named grant, or any bytes (hex)."""

    notice: str
    of: str = ""
    vector: str = ""
    hex: str = ""
    text: str = ""


class Pull(Step):
    """A played consumer READs the blocks of a named grant, as they are now."""

    pull: str
    expect: Literal["right", "wrong"] = "right"


class PeerEvent(Step):
    """The node's control plane makes or loses the connection to a peer, or hears nothing."""

    peer: Literal["heard", "lost", "silent"]
    at: str
    of: str


class Message(Step):
    """Look at a message that waits in a channel, and leave it there."""

    message: str
    nth: int = 1
    expect: dict[str, Any] = {}


class Sent(Step):
    """How many messages wait in a channel."""

    sent: str
    count: int


# ------------------------------------------------------------------------- data
class Dma(Step):
    """A READ that a node posted: ``"C#1"`` is the first of C."""

    dma: str
    do: Literal["move", "finish", "done", "fail", "aborted", "closed", "look"]
    blocks: int | None = None
    expect: dict[str, Any] = {}


class Handle(Step):
    """Whether the implementation still keeps the handle of a READ (EC-6.4)."""

    handle: str
    expect: Literal["kept", "released"]


class Posted(Step):
    """How many READs a node has posted so far."""

    posted: str
    count: int


class SameBlocks(Step):
    """Two READs of a node go into the very same blocks (EC-5.8)."""

    same_blocks: list[str]


class Overwrite(Step):
    """A played producer reuses the blocks of an encoding for something else."""

    overwrite: str
    at: str


class Prepare(Step):
    """From now on the node's data plane needs this long before it posts a READ."""

    prepare: str
    takes: Time
