# SPDX-License-Identifier: Apache-2.0
"""Turns behaviours of ``Fleet.tla`` into schedules: several instances, which may be killed.

As with ``PeerRead`` (see there), an ack waits in its socket until the model posts the
READ, and times keep to the side of the fence and of the lease that the model is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ec_verify.behaviours.draft import BLOCKS_EACH, Draft
from ec_verify.behaviours.errors import NotExpressible
from ec_verify.behaviours.peer_read import P_RATE, TIMERS
from ec_verify.behaviours.reading import State
from ec_verify.models.tla_value import as_function
from ec_verify.pictures.fleet_model import (
    attempts_of,
    blocks_of,
    changed_attempt,
    grants_of,
)

Move = tuple[str, State]
_EMPTY: Final = ("nobody", "torn")


def schedule(moves: Sequence[Move], constants: Mapping[str, str]) -> Draft:
    """The schedule of a behaviour.

    Args:
        moves: The behaviour.
        constants: Of the model's config, by name.

    Raises:
        NotExpressible: An old consumer takes part: ours is not one.
    """
    old = _names(constants.get("OldConsumers", "{}"))
    for _, state in moves:
        if any(record["con"] in old for record in attempts_of(state).values()):
            raise NotExpressible("an old consumer asks, which our implementation is not")
    return _Translation(moves, _names(constants["Consumers"])).translate()


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.strip("{} ").split(",") if name.strip()}


class _Translation:
    def __init__(self, moves: Sequence[Move], consumers: set[str]) -> None:
        self.moves = moves
        last = moves[-1][1]
        self.nodes = [str(node) for node in as_function(last["inc"]) or {}]
        sizes = dict.fromkeys(self.nodes, 0)
        for node, _ in blocks_of(last):
            sizes[str(node)] += BLOCKS_EACH
        found = {str(block["name"]) for _, state in moves for block in blocks_of(state).values()}
        self.names = sorted(found - set(_EMPTY))
        bounds = {"peer": 8.0, "grants": 8.0, "holds": 1.0}
        self.draft = Draft(
            {
                node: {"blocks": sizes[node], "quotas": bounds}
                | ({} if node in consumers else {"rate": P_RATE})
                for node in self.nodes
            },
            self.names,
            TIMERS,
        )
        self.sent: dict[str, list[tuple[Any, ...]]] = {}
        self.requests: dict[Any, str] = {}
        self.reads: dict[Any, str] = {}
        self.posted: dict[str, int] = {}
        self.told: set[Any] = set()
        self.held: dict[Any, tuple[Any, Any]] = {}

    def translate(self) -> Draft:
        before = self.moves[0][1]
        for number, (action, after) in enumerate(self.moves[1:], 2):
            self.number = number
            self.draft.note(f"state {number}: {action}")
            self._take(action, before, after)
            before = after
        draft = self.draft
        for node in self.nodes:
            draft.whatever_is_loaded(node, self.names)
        draft.nothing_is_left()
        return draft

    def _take(self, action: str, before: State, after: State) -> None:
        if action == "Crash":
            for node, process in (as_function(after["inc"]) or {}).items():
                if process != (as_function(before["inc"]) or {})[node]:
                    self.draft.restart(str(node))
        elif action in ("SaveBegin", "SaveEnd", "SaveSkipped", "Evict", "Cancel"):
            for (node, number), block in blocks_of(after).items():
                old = blocks_of(before)[node, number]
                if old["st"] != block["st"]:
                    self._tier(action, str(node), old, block)
        elif (attempt := changed_attempt(before, after)) is not None:
            getattr(self, f"_on_{action.lower()}", self._nothing)(attempt, before, after)
            self._notices(action, before, after)

    def _tier(self, action: str, node: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if action == "SaveBegin":
            self.draft.request(node, [str(new["name"])])
        elif action in ("SaveEnd", "SaveSkipped"):
            how = "land" if action == "SaveEnd" else "skip"
            self.draft.attempt({"copy": f"save {old['name']}", "at": node, "do": how})
        elif action == "Evict":
            self.draft.store_other(node)

    # -------------------------------------------------------------------- helpers
    def _ends(self, attempt: Any, state: State) -> tuple[str, str]:
        record = attempts_of(state)[attempt]
        return str(record["con"]), str(record["pro"])

    def _deliver(self, channel: str, message: tuple[Any, ...]) -> None:
        waiting = self.sent.setdefault(channel, [])
        if message in waiting:
            nth = waiting.index(message) + 1
            self.draft.attempt({"deliver": channel, "nth": nth, "keep": True})

    def _send(self, channel: str, message: tuple[Any, ...]) -> None:
        self.sent.setdefault(channel, []).append(message)

    def _later(self, attempt: Any) -> bool:
        """Whether the attempt's READ is posted later on."""
        states = [state for _, state in self.moves]
        return any(
            action == "PostRead" and changed_attempt(states[index - 1], states[index]) == attempt
            for index, (action, _) in enumerate(self.moves)
            if index >= self.number
        )

    def _notices(self, action: str, before: State, after: State) -> None:
        """Notices that are on their way without a READ that was seen to end."""
        if action == "DmaFinish":
            return
        for attempt in attempts_of(after):
            for process, grant in grants_of(after, attempt).items():
                if grant["note"] and not grants_of(before, attempt)[process]["note"]:
                    consumer, producer = self._ends(attempt, after)
                    self._send(f"{consumer}~{producer}", ("notice", attempt))

    def _tell(self, attempt: Any, how: str, state: State) -> None:
        """The data plane says how a READ ended, once."""
        if attempt in self.reads and attempt not in self.told:
            self.told.add(attempt)
            self.draft.attempt({"dma": self.reads[attempt], "do": how})
            if how == "done":
                consumer, producer = self._ends(attempt, state)
                self._send(f"{consumer}~{producer}", ("notice", attempt))

    def _nothing(self, attempt: Any, before: State, after: State) -> None:
        """``DmaStop``, ``Hold``, ``ReleaseHold``: nothing to be seen from outside."""

    # ------------------------------------------------------------------- consumers
    def _on_fetch(self, attempt: Any, before: State, after: State) -> None:
        consumer, producer = self._ends(attempt, after)
        name = str(attempts_of(after)[attempt]["name"])
        self.requests[attempt] = self.draft.declare(consumer, [name], producer)
        self.draft.mark(f"asked{attempt}")
        self.draft.must({"step": consumer, "run": [self.requests[attempt]]})
        self._send(f"{consumer}>{producer}", ("req", attempt))

    def _on_requestread(self, attempt: Any, before: State, after: State) -> None:
        record = attempts_of(after)[attempt]
        earlier = [
            other
            for other, old in attempts_of(before).items()
            if old["con"] == record["con"] and old["to"] == record["to"] and other in self.requests
        ]
        same = [o for o in earlier if attempts_of(before)[o]["pro"] == record["pro"]]
        if not same or self.requests[same[-1]] not in self.draft.open_requests:
            if earlier:
                self.draft.give_up(self.requests[earlier[-1]])
            self._on_fetch(attempt, before, after)
            return
        consumer, producer = self._ends(attempt, after)
        self.requests[attempt] = self.requests[same[-1]]
        self.draft.mark(f"again{attempt}")
        self.draft.quiet_until(f"again{attempt} + retry_max_interval_s")
        self.draft.mark(f"asked{attempt}")
        self.draft.touch(consumer)
        self._send(f"{consumer}>{producer}", ("req", attempt))

    def _on_fencecloses(self, attempt: Any, before: State, after: State) -> None:
        self.draft.quiet_until(f"asked{attempt} + lease_s - lease_margin_s + eps")

    def _on_ackok(self, attempt: Any, before: State, after: State) -> None:
        record = attempts_of(after)[attempt]
        of, process = record["via"] or attempt, record["src"]
        if record["st"] == "granted" and self._later(attempt):
            self.held[attempt] = (of, process)
        else:
            self._ack(attempt, of, process, after)

    def _ack(self, attempt: Any, of: Any, process: Any, state: State) -> None:
        consumer, producer = self._ends(attempt, state)
        channel = f"{producer}>{consumer}"
        given = [m for m in self.sent.get(channel, []) if m[:2] == ("ok", of)]
        chosen = [m for m in given if m[2] == process] or given
        if chosen:
            self._deliver(channel, chosen[0])

    def _on_giveup(self, attempt: Any, before: State, after: State) -> None:
        self.draft.give_up(self.requests.get(attempt))

    def _on_dropack(self, attempt: Any, before: State, after: State) -> None:
        for process, grant in grants_of(after, attempt).items():
            if grant != grants_of(before, attempt)[process]:
                self._ack(attempt, attempt, process, after)

    def _on_postread(self, attempt: Any, before: State, after: State) -> None:
        consumer, _ = self._ends(attempt, after)
        self.posted[consumer] = self.posted.get(consumer, 0) + 1
        self.reads[attempt] = f"{consumer}#{self.posted[consumer]}"
        of, process = self.held.pop(attempt, (attempt, 1))
        self._ack(attempt, of, process, after)

    def _on_readdone(self, attempt: Any, before: State, after: State) -> None:
        self._tell(attempt, "done", before)

    def _on_readlost(self, attempt: Any, before: State, after: State) -> None:
        if attempt in self.reads:
            self.draft.attempt({"dma": self.reads[attempt], "do": "fail"})
        self.draft.mark(f"gone{attempt}")

    def _on_dmaended(self, attempt: Any, before: State, after: State) -> None:
        over = attempts_of(before)[attempt]["dma"] == "completed"
        self._tell(attempt, "done" if over else "closed", before)

    def _on_retire(self, attempt: Any, before: State, after: State) -> None:
        self.draft.quiet_until(f"gone{attempt} + quarantine_s + eps")
        self.draft.touch(self._ends(attempt, before)[0])

    def _on_dmafinish(self, attempt: Any, before: State, after: State) -> None:
        if attempt in self.reads:
            self.draft.attempt({"dma": self.reads[attempt], "do": "move"})

    # ------------------------------------------------------------------- producers
    def _on_grant(self, attempt: Any, before: State, after: State) -> None:
        consumer, producer = self._ends(attempt, after)
        self._deliver(f"{consumer}>{producer}", ("req", attempt))
        process = (as_function(after["inc"]) or {})[attempts_of(after)[attempt]["pro"]]
        self._send(f"{producer}>{consumer}", ("ok", attempt, process))
        self.draft.mark(f"granted{attempt}")

    def _on_complete(self, attempt: Any, before: State, after: State) -> None:
        for other in attempts_of(before):
            for process, grant in grants_of(before, other).items():
                if grant["note"] and not grants_of(after, other)[process]["note"]:
                    self._tell(other, "done", before)
                    consumer, producer = self._ends(other, before)
                    self._deliver(f"{consumer}~{producer}", ("notice", other))

    def _on_expire(self, attempt: Any, before: State, after: State) -> None:
        # As in PeerRead: P's clock must be ahead only if the fence is open still.
        ahead = attempts_of(before)[attempt]["open"]
        self.draft.quiet_until(
            f"granted{attempt} + lease_s" + (" - 0.5 * lease_margin_s" if ahead else "")
        )
        self.draft.touch(self._ends(attempt, before)[1])
