# SPDX-License-Identifier: Apache-2.0
"""The steps of the schedule language: one struct per verb (``spec/SCENARIOS.md``).

A step is an object whose first key is its verb. Unknown keys are errors, so that a
misspelt expectation cannot be silently left out.
"""

# ruff: noqa: RUF012 - msgspec copies the defaults of a struct
from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from ec_verify.kit.language.step import Step, Time
from ec_verify.kit.language.steps_peers import (
    Answer,
    Ask,
    Bound,
    Deliver,
    Dma,
    Drop,
    Exchange,
    Handle,
    Message,
    Notice,
    Overwrite,
    PeerEvent,
    Posted,
    Prepare,
    Pull,
    Raw,
    SameBlocks,
    Sent,
    Twins,
)


# ----------------------------------------------------------------------- engine
class Request(Step):
    """Declare a request of the host; nothing is called."""

    request: str
    at: str
    items: list[str]
    source: str | None = None
    media: bool = True
    params: Any = UNSET
    change: dict[str, Any] = {}


class EngineStep(Step):
    """One engine step of a node: requests in order, then its metadata."""

    step: str
    run: list[str] = []
    expect: dict[str, str | dict[str, str]] = {}
    saves: list[str] | None = None
    loads: list[str] | None = None
    ranks: dict[str, list[int]] = {}
    extents: dict[str, int] = {}


class Hook(Step):
    """One hook by itself; a step of several is put together from these."""

    hook: Literal["available", "has", "alloc", "build", "failed"]
    at: str
    request: str = ""
    item: str = ""
    expect: Any = UNSET


class Copy(Step):
    """A copy that a step started, by its name, such as ``"save A"``."""

    copy: str
    at: str
    do: Literal["land", "skip", "move", "report"] = "land"
    blocks: int | None = None
    rank: int | None = None
    landed: bool = True
    id: Any = UNSET
    expect: Literal["accepted", "refused"] | None = None


class Settle(Step):
    """Every copy of a node that is under way lands on every rank; its READs end too if asked."""

    settle: str
    reads: bool = False


class Resize(Step):
    """From now on requests mean something of another size by this name."""

    resize: str
    blocks: int


class Store(Step):
    """A request encodes and saves an encoding, and is over. Expects that it is saved."""

    store: str
    at: str


class Finish(Step):
    """The request is over; checks what is announced for its encodings."""

    finish: str
    aborted: bool = False
    expect: dict[str, Any] = {}


class Work(Step):
    """A rank's worker takes the node's latest step, with what it held and what it encoded."""

    work: str
    rank: int = 0
    held: list[str] = []
    encoded: list[str] = []
    reports: dict[str, bool] | None = None
    started: list[str] | None = None


class Copied(Step):
    """The device of a rank ended a copy that ``work`` started."""

    copied: str
    at: str
    rank: int = 0
    ok: bool = True
    reports: dict[str, bool] | None = None


# ------------------------------------------------------------------------- time
class Advance(Step):
    """Time passes; every node's timers are asked at the end of it."""

    advance: Time


class Until(Step):
    """Time passes until a moment, such as ``"sent + lease_s - eps"``."""

    until: Time
    quiet: bool = False


class Tick(Step):
    """One node looks at its clock, the others do not."""

    tick: str


class Mark(Step):
    """Give the present moment a name."""

    mark: str


# ------------------------------------------------------------------------ nodes
class Crash(Step):
    """The node is gone without a word: SIGKILL."""

    crash: str


class Restart(Step):
    """A new process of the node; a running one is crashed first."""

    restart: str


class Stop(Step):
    """The node shuts down in good order."""

    stop: str


class Kill(Step):
    """Processes of a node that serve or READ for it are gone; its engine is not.

    With ``of``, such as ``"C#1"``, only the one that has posted that READ.
    """

    kill: str
    process: Literal["server", "reader"]
    of: str = ""


# ----------------------------------------------------------------------- checks
class Servable(Step):
    """Whether the node would promise the encoding in a step of its own.

    With ``after``, such as ``"P>C#2"``, it is asked only if that message was delivered.
    """

    servable: str
    at: str
    expect: bool = True
    after: str = ""


class Load(Step):
    """A step loads the encoding on every rank, and its bytes are the right ones."""

    load: str
    at: str


class Room(Step):
    """Whether a save of this many blocks gets room; what it got is given back."""

    room: int
    at: str
    expect: bool = True


class Idle(Step):
    """Whether the node's engine may stop stepping."""

    idle: str
    expect: bool = True


class Blocks(Step):
    """The node's own account of its blocks."""

    blocks: str
    expect: dict[str, int]


class Events(Step):
    """What a node has published since the last look, such as ``"stored A"``, in order."""

    events: str
    expect: list[str] | None = None
    messages: int | None = None
    fields: dict[str, Any] = {}


class Config(Step):
    """Would a configuration start, and what does its error say?"""

    config: dict[str, Any]
    at: str
    ok: bool
    error: list[str] = []


class Start(Step):
    """Start a node that ``setup`` marks ``"later"``, with other settings if wanted."""

    start: str
    timers: dict[str, float] = {}
    ok: bool = True
    error: list[str] = []


class CompatHash(Step):
    """The compatibility hash of some facts."""

    compat_hash: str
    vector: str = ""
    facts: dict[str, Any] = {}
    expect: str = ""


class Region(Step):
    """Real files: an action of the adapter's ``region`` operation."""

    region: str
    at: str
    args: dict[str, Any] = {}
    expect: dict[str, Any] = {}
    error: list[str] = []
    save: dict[str, str] = {}


class Repeat(Step):
    """Steps again and again; ``{i}`` in their texts is the number of the round."""

    repeat: int
    steps: list[dict[str, Any]]


class Try(Step):
    """Steps that a correct implementation may have made impossible.

    The first of them that has nothing to act on (no such READ was posted, no such
    message waits, no such copy was handed out) ends the group without a failure. They
    have no expectations; invariants are watched all the same.
    """

    steps: list[dict[str, Any]] = msgspec.field(name="try")


VERBS: Final[dict[str, type[Step]]] = {
    "request": Request,
    "step": EngineStep,
    "hook": Hook,
    "copy": Copy,
    "settle": Settle,
    "resize": Resize,
    "store": Store,
    "finish": Finish,
    "work": Work,
    "copied": Copied,
    "deliver": Deliver,
    "drop": Drop,
    "exchange": Exchange,
    "ask": Ask,
    "bound": Bound,
    "twins": Twins,
    "answer": Answer,
    "raw": Raw,
    "notice": Notice,
    "pull": Pull,
    "peer": PeerEvent,
    "message": Message,
    "sent": Sent,
    "dma": Dma,
    "handle": Handle,
    "posted": Posted,
    "same_blocks": SameBlocks,
    "overwrite": Overwrite,
    "prepare": Prepare,
    "advance": Advance,
    "until": Until,
    "tick": Tick,
    "mark": Mark,
    "crash": Crash,
    "restart": Restart,
    "stop": Stop,
    "kill": Kill,
    "servable": Servable,
    "load": Load,
    "room": Room,
    "idle": Idle,
    "blocks": Blocks,
    "events": Events,
    "config": Config,
    "start": Start,
    "compat_hash": CompatHash,
    "region": Region,
    "repeat": Repeat,
    "try": Try,
}

__all__ = [
    "UNSET",
    "VERBS",
    "Advance",
    "Answer",
    "Ask",
    "Blocks",
    "Bound",
    "CompatHash",
    "Config",
    "Copied",
    "Copy",
    "Crash",
    "Deliver",
    "Dma",
    "Drop",
    "EngineStep",
    "Events",
    "Exchange",
    "Finish",
    "Handle",
    "Hook",
    "Idle",
    "Kill",
    "Load",
    "Mark",
    "Message",
    "Notice",
    "Overwrite",
    "PeerEvent",
    "Posted",
    "Prepare",
    "Pull",
    "Raw",
    "Region",
    "Repeat",
    "Request",
    "Resize",
    "Restart",
    "Room",
    "SameBlocks",
    "Sent",
    "Servable",
    "Settle",
    "Start",
    "Step",
    "Stop",
    "Store",
    "Tick",
    "Time",
    "Try",
    "Twins",
    "Until",
    "Work",
]
