# SPDX-License-Identifier: Apache-2.0
"""Behaviours of ``PeerRead.tla``: one consumer reads from one producer.

The model has no senders and receivers: a message is an element of ``net`` from the
moment it is sent, and an action takes it by looking. ``peer_read_schedule`` makes
schedules of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from ec_verify.behaviours.picture import STATE_STYLE, Picture, held
from ec_verify.behaviours.reading import (
    Message,
    MessageKind,
    State,
    at,
    elements,
)
from ec_verify.behaviours.reads import ReadEvent
from ec_verify.behaviours.story import Lane, Step
from ec_verify.models.tla_value import as_text

ORIGIN: Final = 0
_NOTHING: Final = ("nothing", "torn", None)
_CONSUMER, _PLANE, _PRODUCER = "consumer", "data plane", "producer"
_OF_ATTEMPT: Final = frozenset(
    {"read", "fence", "slot", "dst", "src", "handle", "dma", "seen", "grant", "lease"}
)
_OF_SLOT: Final = frozenset({"entry", "names", "at"})
_ANSWERS: Final = frozenset({"Grant", "AnswerNotReady", "AnswerMissing"})
_AT_PRODUCER: Final = _ANSWERS | {"Complete", "Expire"}
_BY_ENGINE: Final = frozenset({"Alloc", "Evict", "Cancel", "SaveBegin", "SaveEnd"})
_DMA: Final = frozenset({"DmaCopy", "DmaFinish", "DmaStop"})
_KINDS: Final[Mapping[str, MessageKind]] = {
    "req": "request", "ok": "ok", "retry": "retry", "refused": "refused", "notice": "notice",
}  # fmt: skip
_ACKS: Final = {"AckOk": "ok", "AckRetry": "retry", "AckRefused": "refused"}


class PeerReadEvent(ReadEvent):
    """A step of the consumer, of the data plane, or of the producer."""

    needs: ClassVar = frozenset(
        {"read", "fence", "slot", "dst", "src", "dma", "net", "grant", "lease", "entry", "names",
         "at", "bytes", "inc"}
    )  # fmt: skip

    @property
    def lane(self) -> str:
        """Where an action of the module happens."""
        if self.action == "Tick":
            return ""
        if self.action in _DMA:
            return "dma"
        if self.action in _AT_PRODUCER:
            return "p.server"
        if self.action in _BY_ENGINE:
            return "p.engine" if self.changed("entry") == [ORIGIN] else "c.engine"
        if self.action == "ProducerRestart":
            return "p.engine"
        return "c.engine" if self.action in ("RequestRead", "Abort", "Settle") else "c.reader"

    @cached_property
    def attempts(self) -> list[Any]:
        """The attempts that the step is about."""
        if self.action == "Tick":
            return []
        for variable in ("read", "dma", "grant"):
            if keys := self.changed(variable):
                return keys
        return [message.of for message in self.sent]

    @property
    def attempt(self) -> Any:
        """The first of them."""
        return self.attempts[0] if self.attempts else None

    @property
    def entry(self) -> Any:
        """The slot whose entry is not what it was."""
        return next(iter(self.changed("entry")), None)

    @cached_property
    def sent(self) -> Sequence[Message]:
        """What is in ``net`` and was not."""
        return [_message(raw) for raw in self.gained("net") if isinstance(raw, dict)]

    @cached_property
    def taken(self) -> Sequence[Message]:
        """What the step found in ``net``."""
        if self.action in _ANSWERS:
            return [Message("request", attempt) for attempt in self.attempts]
        if self.action in _ACKS:
            return [self._ack(_ACKS[self.action])]
        if self.action == "DropAck":
            # Its notice says which ack it was.
            return [Message("ok", notice["of"], notice["inc"]) for notice in self.gained("net")]
        if self.action == "Complete":
            # Its own, or with a broken identity another's.
            notices = [m["of"] for m in self.before["net"] if m["type"] == "notice"]
            own = self.attempt in notices or not notices
            return [Message("notice", self.attempt if own else notices[-1])]
        return []

    def _ack(self, kind: str) -> Message:
        """The attempt's own, or with a broken identity another's."""
        acks = [m for m in self.before["net"] if m["type"] == kind]
        own = [m for m in acks if m["of"] == self.attempt]
        of_process = [m for m in own if m["inc"] == self.now("src", self.attempt)]
        return _message((of_process or own or acks)[-1])

    def dma_ended(self, attempt: Any) -> Literal["done", "closed"] | None:
        """It has completed, or was stopped; or nobody knows."""
        ends: dict[Any, Literal["done", "closed"]] = {"completed": "done", "stopped": "closed"}
        return ends.get(self.was("dma", attempt))

    def fence_was_open(self, attempt: Any) -> bool:
        """Whether any of the fence was left."""
        return (self.was("fence", attempt) or 0) > 0


def _message(raw: Mapping[str, Any]) -> Message:
    kind = _KINDS[raw["type"]]
    answer = kind not in ("request", "notice")
    return Message(kind, raw["of"], raw["inc"] if answer else None, about=raw.get("names"))


class PeerReadPicture(Picture[PeerReadEvent]):
    """Consumer, data plane and producer, with leases, fences and the bytes of blocks."""

    environment: ClassVar = {
        "SaveBegin": "The engine of that side starts to save the encoding itself.",
        "SaveEnd": "The save has ended: the block holds the encoding.",
        "DropAck": "An OK ack that no attempt waits for is dropped and its grant given back.",
        "DmaCopy": "The READ takes the bytes of its source; its destination is torn meanwhile.",
        "DmaFinish": "The READ ends: its bytes are in place, and the notice travels with it.",
        "DmaStop": "The READ is aborted, or its endpoint is gone: it touches nothing any more.",
        "AnswerNotReady": "The save has not landed yet, so the producer answers NACK_NOT_READY.",
        "AnswerMissing": "The producer does not have the encoding.",
        "ProducerRestart": "The producer dies and another process takes its address.",
        "Tick": "Time passes on both sides.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """Consumer on the left, producer on the right, the DMA between their regions."""
        return [
            Lane("c.engine", "engine", _CONSUMER),
            Lane("c.reader", "reader", _CONSUMER),
            Lane("c.fence", "fence · quarantine", _CONSUMER, "bars"),
            Lane("c.region", "region", _CONSUMER, "bars"),
            Lane("dma", "DMA", _PLANE),
            Lane("p.region", "region", _PRODUCER, "bars"),
            Lane("p.lease", "lease", _PRODUCER, "bars"),
            Lane("p.server", "server", _PRODUCER),
            Lane("p.engine", "engine", _PRODUCER),
        ]

    def place(self, variable: str, key: Any) -> str:
        """Groups by attempt, by entry and by block."""
        if key is None:
            side = _PRODUCER if variable in ("inc", "pins") else _CONSUMER
            return f"{side if variable != 'net' else 'network'}|{variable}"
        if variable in _OF_ATTEMPT:
            return f"attempt {key}|{variable}"
        if variable in _OF_SLOT:
            owner = "producer’s entry" if key == ORIGIN else f"consumer’s entry {key}"
            return f"{owner}|{variable}"
        block = f"producer’s block {key}" if isinstance(key, int) else f"consumer’s block {key}"
        return f"{block}|{variable}"

    def rows(self, state: State) -> dict[str, str]:
        """One row for each message; nothing of attempts that were not made."""
        found = super().rows(state)
        found.pop("network|net", None)
        for attempt, st in elements(state, "read").items():
            if st == "absent" and at(state, "grant", attempt) == "absent":
                group = f"attempt {attempt}|"
                found = {name: text for name, text in found.items() if not name.startswith(group)}
        for raw in state["net"]:
            if isinstance(raw, dict):
                found[f"network|{self.label(_message(raw))}"] = "sent"
        return found

    def label(self, message: Message) -> str:
        """A request says what it asks for."""
        label = super().label(message)
        return f"{label} ({as_text(message.about)})" if message.kind == "request" else label

    def draw(self, event: PeerReadEvent, step: Step) -> None:
        """Messages, the READ's own moves, and every bar."""
        step.subject = _subject(event)
        for message in event.sent:
            if message.kind == "notice":
                source = "dma" if event.action == "DmaFinish" else "c.reader"
                self.send(message, source, "p.server")
            else:
                target = "p.server" if message.kind == "request" else "c.reader"
                self.send(message, event.lane, target)
        for message in event.taken:
            self.receive(message)
        for attempt in event.attempts:
            self._moves(event, attempt)
        self._bars(event.after)

    def _moves(self, event: PeerReadEvent, attempt: Any) -> None:
        if event.action == "PostRead" and event.now("dma", attempt) == "posted":
            self.arrow("c.reader", "dma", "post READ", "data")
        elif event.action == "DmaCopy":
            self.arrow("p.region", "dma", f"reads {held(event.now('seen', attempt))}", "data")
        elif event.action == "DmaFinish":
            content = held(event.now("bytes", event.now("dst", attempt)))
            self.arrow("dma", "c.region", f"writes {content}", "data")
        elif event.action in ("ReadDone", "ReadCorrupt"):
            self.arrow("dma", "c.reader", "seen done", "data")

    def _bars(self, state: State) -> None:
        for attempt, st in elements(state, "read").items():
            fence = at(state, "fence", attempt) or 0
            running = st in ("requested", "granted", "reading")
            self.bar(("fence", attempt), running and fence > 0, "c.fence",
                     f"fence {attempt} open", "fence")  # fmt: skip
            self.bar(("past", attempt), running and fence <= 0, "c.fence",
                     f"fence {attempt} closed", "wrong")  # fmt: skip
            self.bar(("quarantine", attempt), st == "quarantined", "c.fence",
                     f"quarantine {attempt}", "quarantine")  # fmt: skip
            moving = at(state, "dma", attempt) in ("posted", "copying")
            label = f"READ {attempt} into {as_text(at(state, 'dst', attempt))}"
            self.bar(("dma", attempt), moving, "dma", label, "transfer")
        for attempt, grant in elements(state, "grant").items():
            self.bar(("lease", attempt), grant == "granted", "p.lease",
                     f"lease {attempt}", "lease")  # fmt: skip
        for block, attempt in elements(state, "retired").items():
            self.bar(("retired", block), bool(attempt), "c.region", f"{block} retired", "retired")
        for slot, entry in elements(state, "entry").items():
            lane = "p.region" if slot == ORIGIN else "c.region"
            name, block = at(state, "names", slot), at(state, "at", slot)
            wrong = entry in ("ready", "pinned") and at(state, "bytes", block) != name
            style = "wrong" if wrong else STATE_STYLE.get(str(entry), "state")
            label = f"{as_text(name)}: wrong bytes" if wrong else f"{as_text(name)}: {entry}"
            self.bar(("entry", slot), entry != "freed", lane, label, style)


def _subject(event: PeerReadEvent) -> str:
    if event.action == "Tick":
        return " · ".join(
            f"{variable} {key}: {event.now(variable, key)} left"
            for variable in ("fence", "lease")
            for key in event.changed(variable)
        )
    if event.attempts:
        return "attempt " + ", ".join(map(as_text, event.attempts))
    if (slot := event.entry) is None:
        return ""
    name = event.now("names", slot)
    name = event.was("names", slot) if name in _NOTHING else name
    return f"{as_text(name)} in block {as_text(event.now('at', slot) or event.was('at', slot))}"
