# SPDX-License-Identifier: Apache-2.0
"""Behaviours of ``Fleet.tla``: several consumers and producers, which may crash.

In a schedule each instance is a node. As with ``PeerRead``, an ack waits in its socket
until the model posts the READ, and times keep to the side of the fence and of the lease
that the model is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.picture import STATE_STYLE, Picture, held
from ec_verify.behaviours.reading import Message, Move, State, at, elements, names_in, read
from ec_verify.behaviours.reads import P_RATE, TIMERS, ReadEvent, ReadTranslation
from ec_verify.behaviours.schedule import BLOCKS_EACH, Draft
from ec_verify.behaviours.story import Lane, Step
from ec_verify.models.tla_value import as_function, as_text

_EMPTY: Final = ("nobody", "torn")
_WAITING: Final = ("requested", "granted", "reading")
_AT_PRODUCER: Final = frozenset({"Grant", "Complete", "Expire"})
_OF_TIER: Final = frozenset(
    {"SaveBegin", "SaveEnd", "SaveSkipped", "Evict", "Cancel", "Hold", "ReleaseHold"}
)
_BY_ENGINE: Final = frozenset({"Fetch", "RequestRead"})


def attempts_of(state: State) -> dict[Any, dict[str, Any]]:
    """The attempts by number."""
    return elements(state, "att")


def grants_of(state: State, attempt: Any) -> dict[Any, dict[str, Any]]:
    """What each process of the asked producer did about an attempt."""
    return as_function(at(state, "gr", attempt)) or {}


def blocks_of(state: State) -> dict[tuple[Any, Any], dict[str, Any]]:
    """Every block, by instance and number."""
    return {
        (node, number): block
        for node, region in elements(state, "blk").items()
        for number, block in (as_function(region) or {}).items()
    }


class FleetEvent(ReadEvent):
    """A step of one instance, of its data plane, or of the network."""

    needs: ClassVar = frozenset({"inc", "blk", "att", "gr"})

    @cached_property
    def attempt(self) -> Any:
        """The attempt it is about: first by its state, then by a grant's, then at all."""
        if self.action == "Crash" or self.action in _OF_TIER:
            return None
        old, new = attempts_of(self.before), attempts_of(self.after)
        for attempt, record in new.items():
            if old[attempt]["st"] != record["st"] or old[attempt]["dma"] != record["dma"]:
                return attempt
        for attempt, _, was, now in self._grants():
            if was["st"] != now["st"]:
                return attempt
        for attempt, record in new.items():
            if old[attempt] != record:
                return attempt
        return next((attempt for attempt, _, was, now in self._grants() if was != now), None)

    def _grants(self) -> Iterator[tuple[Any, Any, dict[str, Any], dict[str, Any]]]:
        """Attempt, process, and the grant before and after."""
        for attempt in attempts_of(self.after):
            old = grants_of(self.before, attempt)
            for process, grant in grants_of(self.after, attempt).items():
                yield attempt, process, old[process], grant

    def ends(self, attempt: Any) -> tuple[str, str]:
        """Consumer and producer of an attempt."""
        record = attempts_of(self.after)[attempt]
        return str(record["con"]), str(record["pro"])

    @cached_property
    def blocks(self) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
        """Instance, and what was and is in it, of each block that is not what it was."""
        old = blocks_of(self.before)
        return [
            (node, old[node, number], block)
            for (node, number), block in blocks_of(self.after).items()
            if old[node, number] != block
        ]

    @property
    def lane(self) -> str:
        """The instance whose step it is, and which of its processes."""
        if self.attempt is None:
            nodes = self.changed("inc") or [node for node, _, _ in self.blocks]
            return f"{as_text(nodes[0])}/engine" if nodes else ""
        consumer, producer = self.ends(self.attempt)
        if self.action in _AT_PRODUCER:
            return f"{producer}/data"
        if self.action in ("DmaFinish", "DmaStop"):
            return f"{consumer}/dma"
        return f"{consumer}/{'engine' if self.action in _BY_ENGINE else 'data'}"

    @cached_property
    def sent(self) -> Sequence[Message]:
        """Requests, acks and notices."""
        if self.attempt is None:
            return []
        found = [self._message("request", self.attempt)] if self.action in _BY_ENGINE else []
        for attempt, process, was, now in self._grants():
            if now["st"] == "granted" and was["st"] == "none":
                found.append(self._message("ok", attempt, process))
            if now["note"] and not was["note"]:
                found.append(self._message("notice", attempt))
        return found

    @cached_property
    def taken(self) -> Sequence[Message]:
        """The request of a grant, the ack that arrived, or the notice that ended a grant."""
        if self.action == "Grant":
            return [self._message("request", self.attempt)]
        if self.action in ("AckOk", "DropAck"):
            record = attempts_of(self.after)[self.attempt]
            if self.action == "AckOk" and record["src"]:
                return [self._message("ok", record["via"] or self.attempt, record["src"])]
            # It came too late, so that its grant went back.
            back = [(a, process) for a, process, was, now in self._grants() if was != now]
            return [self._message("ok", *of) for of in back]
        if self.action == "Complete":
            # Of this attempt, or of another with its name.
            return [
                self._message("notice", attempt)
                for attempt, _, was, now in self._grants()
                if was["note"] and not now["note"]
            ]
        return []

    def _message(self, kind: Any, attempt: Any, process: Any = None) -> Message:
        return Message(kind, attempt, process, *self.ends(attempt))

    def dma_ended(self, attempt: Any) -> Literal["done", "closed"] | None:
        """It has completed, or its endpoint is gone."""
        return "done" if attempts_of(self.before)[attempt]["dma"] == "completed" else "closed"

    def fence_was_open(self, attempt: Any) -> bool:
        """Whether enough of the lease was left."""
        return bool(attempts_of(self.before)[attempt]["open"])


class FleetPicture(Picture[FleetEvent]):
    """A group of lanes for each instance."""

    environment: ClassVar = {
        "SaveBegin": "The instance's engine begins to save an encoding.",
        "SaveEnd": "The save has ended: the block holds the encoding.",
        "Fetch": "The consumer allocates and asks the producer.",
        "FenceCloses": "Too little of the lease is left from here on.",
        "GiveUp": "The attempt ends before anything was posted.",
        "DropAck": "An ack that nobody waits for: its grant goes back.",
        "DmaFinish": "The READ ends: its bytes are in place, and the notice goes out.",
        "DmaStop": "The READ is aborted, or its endpoint is gone.",
        "Crash": "The process dies and another takes its address.",
    }

    def lanes(self, first: State) -> list[Lane]:
        """Engine, data processes, bars and DMA of each instance."""
        lanes = []
        for name in map(as_text, elements(first, "inc")):
            lanes += [
                Lane(f"{name}/engine", "engine", name),
                Lane(f"{name}/data", "data processes", name),
                Lane(f"{name}/fence", "fence · quarantine", name, "bars"),
                Lane(f"{name}/lease", "lease", name, "bars"),
                Lane(f"{name}/region", "region", name, "bars"),
                Lane(f"{name}/dma", "DMA", name),
            ]
        return lanes

    def rows(self, state: State) -> dict[str, str]:
        """Blocks in use, attempts that were made, grants that were given."""
        groups: dict[str, dict[str, Any]] = {"processes": elements(state, "inc")}
        for (node, number), block in blocks_of(state).items():
            if block["st"] != "freed":
                groups[f"{as_text(node)}: block {as_text(number)}"] = block
        for attempt, record in attempts_of(state).items():
            if record["st"] == "none":
                continue
            groups[f"attempt {attempt}"] = record
            for process, grant in grants_of(state, attempt).items():
                if grant["st"] != "none":
                    where = f"grant {attempt} of {as_text(record['pro'])}, process {process}"
                    groups[where] = grant
        return {
            f"{group}|{as_text(name)}": as_text(value)
            for group, values in groups.items()
            for name, value in values.items()
        }

    def draw(self, event: FleetEvent, step: Step) -> None:
        """Messages, bytes and bars."""
        attempt = event.attempt
        if attempt is not None:
            record = attempts_of(event.after)[attempt]
            step.subject = f"attempt {attempt} ({as_text(record['name'])})"
            for message in event.sent:
                self._send(message, event)
            for message in event.taken:
                self.receive(message)
            consumer, producer = event.ends(attempt)
            if event.action == "PostRead":
                self.arrow(f"{consumer}/data", f"{consumer}/dma", "post READ", "data")
            elif event.action == "DmaFinish":
                content = held(attempts_of(event.before)[attempt]["result"])
                self.arrow(f"{producer}/region", f"{consumer}/dma", f"reads {content}", "data")
            elif event.action == "ReadDone":
                self.arrow(f"{consumer}/dma", f"{consumer}/data", "seen done", "data")
        self._bars(event.after)

    def _send(self, message: Message, event: FleetEvent) -> None:
        if message.kind == "ok":
            self.send(message, event.lane, f"{message.consumer}/data")
        elif message.kind == "request":
            self.send(message, event.lane, f"{message.producer}/data")
        else:
            thread = "dma" if event.action == "DmaFinish" else "data"
            self.send(message, f"{message.consumer}/{thread}", f"{message.producer}/data")

    def _bars(self, state: State) -> None:
        for (node, number), block in blocks_of(state).items():
            st, name = str(block["st"]), as_text(block["name"])
            wrong = st in ("ready", "pinned") and block["bytes"] != block["name"]
            style = "wrong" if wrong else STATE_STYLE.get(st, "retired")
            label = f"{name}: {'wrong bytes' if wrong else st}" if st != "retired" else st
            where = f"{as_text(node)}/region"
            self.bar(("block", node, number), st != "freed", where, label, style)
        for attempt, record in attempts_of(state).items():
            consumer, st = as_text(record["con"]), record["st"]
            fence, open_ = f"{consumer}/fence", bool(record["open"])
            waiting = st in _WAITING
            self.bar(("open", attempt), waiting and open_, fence, f"fence {attempt} open", "fence")
            self.bar(
                ("shut", attempt), waiting and not open_, fence, f"fence {attempt} closed", "wrong"
            )
            quarantine = f"quarantine {attempt}"
            self.bar(("lost", attempt), st == "quarantined", fence, quarantine, "quarantine")
            moving = record["dma"] == "moving"
            self.bar(("dma", attempt), moving, f"{consumer}/dma", f"READ {attempt}", "transfer")
            for process, grant in grants_of(state, attempt).items():
                lease = f"{as_text(record['pro'])}/lease"
                there = grant["st"] == "granted"
                self.bar(("lease", attempt, process), there, lease, f"lease {attempt}", "lease")


def schedule(
    moves: Sequence[Move], constants: Mapping[str, str] | None = None, broken: str = ""
) -> Draft:
    """As ``models.Model.schedule``; an old consumer is not ours, so nothing shows it."""
    constants = constants or {}
    old, consumers = (names_in(constants.get(n, "{}")) for n in ("OldConsumers", "Consumers"))
    for _, state in moves:
        if any(record["con"] in old for record in attempts_of(state).values()):
            raise NotExpressible("an old consumer asks, which our implementation is not")
    last = moves[-1][1]
    sizes = {str(node): 0 for node in elements(last, "inc")}
    for node, _ in blocks_of(last):
        sizes[str(node)] += BLOCKS_EACH
    found = {str(block["name"]) for _, state in moves for block in blocks_of(state).values()}
    quotas = {"peer": 8.0, "grants": 8.0, "holds": 1.0}
    nodes = {
        node: {"blocks": blocks, "quotas": quotas} | ({} if node in consumers else {"rate": P_RATE})
        for node, blocks in sizes.items()
    }
    draft = Draft(nodes, sorted(found - set(_EMPTY)), TIMERS)
    return _Translation(read(moves, FleetEvent), draft).translate()


class _Translation(ReadTranslation[FleetEvent]):
    def __init__(self, events: Sequence[FleetEvent], draft: Draft) -> None:
        super().__init__(events, draft)
        self.names = list(draft.encodings)

    def end(self) -> None:
        for node in self.draft.nodes:
            self.draft.whatever_is_loaded(node, self.names)
        self.draft.nothing_is_left()

    def take(self, event: FleetEvent) -> None:
        if event.action == "Crash":
            for node in event.changed("inc"):
                self.draft.restart(str(node))
        elif event.action in _OF_TIER:
            for node, old, new in event.blocks:
                if old["st"] != new["st"]:
                    self._tier(event.action, str(node), old, new)
        elif event.attempt is not None:
            super().take(event)
            # Notices that are on their way without a READ that was seen to end.
            if event.action != "DmaFinish":
                for message in event.sent:
                    if message.kind == "notice":
                        self.send(message)

    def _tier(self, action: str, node: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if action == "SaveBegin":
            self.draft.request(node, [str(new["name"])])
        elif action in ("SaveEnd", "SaveSkipped"):
            how = "land" if action == "SaveEnd" else "skip"
            self.draft.attempt({"copy": f"save {old['name']}", "at": node, "do": how})
        elif action == "Evict":
            self.draft.store_other(node)

    def on_fetch(self, event: FleetEvent) -> None:
        name = str(attempts_of(event.after)[event.attempt]["name"])
        self.ask(event.attempt, name, event)
        self.send(event.sent[0])

    def on_requestread(self, event: FleetEvent) -> None:
        record, before = attempts_of(event.after)[event.attempt], attempts_of(event.before)
        earlier = [
            other
            for other, old in before.items()
            if old["con"] == record["con"] and old["to"] == record["to"] and other in self.requests
        ]
        same = [other for other in earlier if before[other]["pro"] == record["pro"]]
        if same and self.requests[same[-1]] in self.draft.open_requests:
            self.ask_again(event.attempt, self.requests[same[-1]], event)
            self.send(event.sent[0])
            return
        if earlier:
            self.draft.give_up(self.requests[earlier[-1]])
        self.on_fetch(event)

    def on_fencecloses(self, event: FleetEvent) -> None:
        self.draft.quiet_until(f"asked{event.attempt} + lease_s - lease_margin_s + eps")

    def on_giveup(self, event: FleetEvent) -> None:
        self.draft.give_up(self.requests.get(event.attempt))

    def on_complete(self, event: FleetEvent) -> None:
        # Also a second notice of the attempt: a READ that was given up has ended after all.
        for message in event.taken:
            self.end_read(message.of, "done", event)
        super().on_complete(event)

    def on_postread(self, event: FleetEvent) -> None:
        first = Message("ok", event.attempt, 1, *event.ends(event.attempt))
        self.post(event.attempt, self.held.pop(event.attempt, first))
