# SPDX-License-Identifier: Apache-2.0
"""Tells behaviours of ``PeerRead.tla``: one consumer reads from one producer.

The model has no senders and receivers: a message is an element of ``net`` from
the moment it is sent, and an action takes it by looking. So an arrow begins at
the step that put the message there and ends at the step that acted on it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ec_verify.behaviours.reading import STATE_STYLE, State, Teller, changed_keys, gained
from ec_verify.behaviours.story import Arrow, ArrowKind, BarStyle, Lane, Step
from ec_verify.models.tla_value import as_function, shown

ORIGIN: Final = 0
_NOTHING: Final = ("nothing", "torn", None)

_CONSUMER, _PLANE, _PRODUCER = "consumer", "data plane", "producer"
_OF_ATTEMPT: Final = frozenset(
    {"read", "fence", "slot", "dst", "src", "handle", "dma", "seen", "grant", "lease"}
)
_OF_SLOT: Final = frozenset({"entry", "names", "at"})
_AT_PRODUCER: Final = frozenset({"Grant", "Complete", "Expire", "AnswerNotReady", "AnswerMissing"})
_BY_ENGINE: Final = frozenset({"Alloc", "Evict", "Cancel", "SaveBegin", "SaveEnd"})
_DMA: Final = frozenset({"DmaCopy", "DmaFinish", "DmaStop"})
_ON_ACK: Final = {"AckOk": "ok", "AckRetry": "retry", "AckRefused": "refused", "DropAck": "ok"}
_WORDS: Final = {"req": "request", "ok": "OK", "retry": "NOT_READY", "refused": "refusal"}


class PeerReadTeller(Teller):
    """Consumer, data plane and producer, with leases, fences and the bytes of blocks."""

    needs: ClassVar[frozenset[str]] = frozenset(
        {"read", "fence", "slot", "dst", "src", "dma", "net", "grant", "lease", "entry", "names",
         "at", "bytes", "inc"}
    )  # fmt: skip
    environment: ClassVar[dict[str, str]] = {
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
        self._sent: dict[str, tuple[str, int]] = {}
        self._arrived: dict[tuple[str, str], Arrow] = {}
        return [
            Lane("c.engine", "engine", _CONSUMER),
            Lane("c.pump", "pump", _CONSUMER),
            Lane("c.fence", "fence · quarantine", _CONSUMER, "bars"),
            Lane("c.region", "region", _CONSUMER, "bars"),
            Lane("dma", "DMA", _PLANE),
            Lane("p.region", "region", _PRODUCER, "bars"),
            Lane("p.lease", "lease", _PRODUCER, "bars"),
            Lane("p.pump", "pump", _PRODUCER),
            Lane("p.engine", "engine", _PRODUCER),
        ]

    def lane_of(self, action: str, before: State, after: State) -> str:
        """Where an action of the module happens."""
        if action == "Tick":
            return ""
        if action in _DMA:
            return "dma"
        if action in _AT_PRODUCER:
            return "p.pump"
        if action in _BY_ENGINE:
            slots = changed_keys("entry", before, after)
            return "p.engine" if slots == [ORIGIN] else "c.engine"
        if action == "ProducerRestart":
            return "p.engine"
        return "c.engine" if action in ("RequestRead", "Abort", "Settle") else "c.pump"

    def place(self, variable: str, key: Any) -> str | None:
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
        grants = as_function(state["grant"]) or {}
        for attempt, read in (as_function(state["read"]) or {}).items():
            if read == "absent" and grants.get(attempt) == "absent":
                group = f"attempt {attempt}|"
                found = {name: text for name, text in found.items() if not name.startswith(group)}
        for message in state["net"]:
            if isinstance(message, dict):
                found[f"network|{_named(message)}"] = "sent"
        return found

    def draw(self, action: str, before: State, after: State, step: Step) -> None:
        """Messages, the READ's own moves, and every bar."""
        attempts = self._attempts(action, before, after)
        step.subject = self._subject(attempts, before, after)
        self._messages(action, before, after, step.lane)
        for attempt in attempts:
            self._received(action, attempt, step.lane, after)
            self._moves(action, attempt, before, after)
        if action == "Tick":
            step.subject = self._countdown(before, after)
        self._bars(after)

    # ------------------------------------------------------------------ words
    def _attempts(self, action: str, before: State, after: State) -> list[Any]:
        """The attempts that a step is about."""
        if action == "Tick":
            return []
        for variable in ("read", "dma", "grant"):
            if keys := changed_keys(variable, before, after):
                return keys
        return [
            message["of"] for message in gained("net", before, after) if isinstance(message, dict)
        ]

    def _subject(self, attempts: list[Any], before: State, after: State) -> str:
        if attempts:
            return "attempt " + ", ".join(shown(a) for a in attempts)
        for slot in changed_keys("entry", before, after):
            name = _at(after, "names", slot)
            name = _at(before, "names", slot) if name in _NOTHING else name
            block = _at(after, "at", slot) or _at(before, "at", slot)
            return f"{shown(name)} in block {shown(block)}"
        return ""

    def _countdown(self, before: State, after: State) -> str:
        parts = [
            f"{variable} {key}: {_at(after, variable, key)} left"
            for variable in ("fence", "lease")
            for key in changed_keys(variable, before, after)
        ]
        return " · ".join(parts)

    # ----------------------------------------------------------------- arrows
    def _messages(self, action: str, before: State, after: State, lane: str) -> None:
        for message in gained("net", before, after):
            if not isinstance(message, dict):
                continue
            if message["type"] == "notice":
                self._send(message, "dma" if action == "DmaFinish" else "c.pump", "p.pump")
            else:
                self._send(message, lane, "p.pump" if message["type"] == "req" else "c.pump")

    def _send(self, message: dict[str, Any], source: str, target: str) -> None:
        kinds: dict[str, ArrowKind] = {"req": "request", "ok": "ack", "notice": "notice"}
        kind = kinds.get(message["type"], "nack")
        arrow = Arrow(source, target, self.row, None, _named(message), kind)
        self.story.arrows.append(arrow)
        self._arrived[(message["type"], shown(message["of"]))] = arrow

    def _received(self, action: str, attempt: Any, lane: str, after: State) -> None:
        """The message that made the step possible ends here, the first time it does."""
        wanted = None
        if action in ("Grant", "AnswerNotReady", "AnswerMissing"):
            wanted = "req"
        elif action in _ON_ACK:
            wanted = _ON_ACK[action]
        elif action == "Complete":
            wanted = "notice"
        if wanted is None:
            return
        arrow = self._arrived.get((wanted, shown(attempt)))
        if arrow is None:
            return
        if arrow.end is None:
            arrow.end, arrow.target = self.row, lane
        else:  # the network delivers it once more
            self.story.arrows.append(
                Arrow(arrow.source, lane, arrow.start, self.row, arrow.label, arrow.kind)
            )

    def _moves(self, action: str, attempt: Any, before: State, after: State) -> None:
        def arrow(source: str, target: str, label: str) -> None:
            self.story.arrows.append(Arrow(source, target, self.row, self.row, label, "data"))

        if action == "PostRead" and _at(after, "dma", attempt) == "posted":
            arrow("c.pump", "dma", "post READ")
        elif action == "DmaCopy":
            arrow("p.region", "dma", f"reads {_content(_at(after, 'seen', attempt))}")
        elif action == "DmaFinish":
            block = _at(after, "dst", attempt)
            arrow("dma", "c.region", f"writes {_content(_at(after, 'bytes', block))}")
        elif action == "ReadDone":
            arrow("dma", "c.pump", "seen done")

    # ------------------------------------------------------------------- bars
    def _bars(self, state: State) -> None:
        for attempt, read in (as_function(state["read"]) or {}).items():
            fence = _at(state, "fence", attempt) or 0
            running = read in ("requested", "granted", "reading")
            self._bar(("fence", attempt), running and fence > 0, "c.fence",
                      f"fence {attempt} open", "fence")  # fmt: skip
            self._bar(("past", attempt), running and fence <= 0, "c.fence",
                      f"fence {attempt} closed", "wrong")  # fmt: skip
            self._bar(("quarantine", attempt), read == "quarantined", "c.fence",
                      f"quarantine {attempt}", "quarantine")  # fmt: skip
            dma = _at(state, "dma", attempt)
            label = f"READ {attempt} into {shown(_at(state, 'dst', attempt))}"
            self._bar(("dma", attempt), dma in ("posted", "copying"), "dma", label, "transfer")
        for attempt, grant in (as_function(state["grant"]) or {}).items():
            self._bar(("lease", attempt), grant == "granted", "p.lease",
                      f"lease {attempt}", "lease")  # fmt: skip
        for block, attempt in (as_function(state.get("retired")) or {}).items():
            self._bar(("retired", block), bool(attempt), "c.region",
                      f"{block} retired", "retired")  # fmt: skip
        for slot, entry in (as_function(state["entry"]) or {}).items():
            lane = "p.region" if slot == ORIGIN else "c.region"
            name, block = _at(state, "names", slot), _at(state, "at", slot)
            held = _at(state, "bytes", block)
            wrong = entry in ("ready", "pinned") and held != name
            style = "wrong" if wrong else STATE_STYLE.get(str(entry), "state")
            label = f"{shown(name)}: wrong bytes" if wrong else f"{shown(name)}: {entry}"
            self._bar(("entry", slot), entry != "freed", lane, label, style)

    def _bar(self, key: object, there: bool, lane: str, label: str, style: BarStyle) -> None:
        if there:
            self.bars.show(key, self.row, lane, label, style)
        else:
            self.bars.hide(key, self.row)


def _at(state: State, variable: str, key: Any) -> Any:
    return (as_function(state.get(variable)) or {}).get(key)


def _named(message: dict[str, Any]) -> str:
    """A message in two words, three where the encoding is not clear."""
    words = f"{_WORDS.get(message['type'], message['type'])} {shown(message['of'])}"
    return f"{words} ({shown(message['names'])})" if message["type"] == "req" else words


def _content(held: Any) -> str:
    return "wrong bytes" if held in _NOTHING else f"bytes of {shown(held)}"
