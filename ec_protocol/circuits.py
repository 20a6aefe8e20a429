# SPDX-License-Identifier: Apache-2.0
"""What an engine knows of the producers it reads from, for all of its readers (EC-14.14).

A producer can end a reader: a READ from it is lost, so that the reader is replaced, or the
reader dies under it. Whose READ was lost is *blamed*, and so is everybody who was being
read from when a reader ended by itself. Who was blamed is a *suspect*: it gets a reader to
itself, so that the next end shows whose doing it was. So many of its fetches must land
there before it is trusted again, and twice as many the next time. Who was blamed alone
several times, without being trusted in between, *rests*: nothing is fetched from it for a
while, longer each time. A producer that could not be reached rests too, a little while
(``rests``), and is no suspect.

Engine thread only. Who reads from whom is ``loans``' business; ``tla/circuits`` is both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from ec_protocol.announcements import Address
from ec_protocol.rests import Rests
from ec_protocol.tables.timing import Timing

#: Producers of which something is known, at most.
MAX_PRODUCERS: Final = 1024
#: So often certainly the doer: then it rests, so long the first time, and the longest.
HARMS: Final = 3
FIRST_REST_S: Final = 10.0
LONGEST_REST_S: Final = 600.0
#: Fetches that must land, at most: of who was blamed with others, and alone.
MOST_TO_LAND: Final = 8
MOST_TO_LAND_ALONE: Final = 64
#: Who was not blamed for this long is as if it never had been.
FORGET_S: Final = 600.0
#: Producers that one note names.
_NAMED: Final = 4

#: What a producer is at some moment.
Standing = Literal["trusted", "suspect", "resting"]
#: What it is blamed for.
Blame = Literal["read_lost", "reader_ended", "overdue"]

#: How that is counted, and said.
_SAYS: Final[dict[Blame, tuple[str, str]]] = {
    "read_lost": ("blamed_read_lost", "a READ from it was lost"),
    "reader_ended": ("blamed_reader_ended", "a reader ended while it read from it"),
    "overdue": ("blamed_overdue", "a reader is stuck that read from it"),
}


@dataclass(slots=True)
class _Circuit:
    """One producer.

    Attributes:
        blames: How often it was blamed.
        to_land: Fetches that must land until it is trusted.
        harms: How often it was certainly its doing since it was trusted last.
        rests_until: Seconds; nothing is fetched from it before.
        blamed_at: When it was blamed last, seconds.
    """

    blames: int = 0
    to_land: int = 0
    harms: int = 0
    rests_until: float = 0.0
    blamed_at: float = 0.0


class Circuits:
    """Everything that is known of producers.

    Args:
        timing: See ``Rests``.
        counters: Where to count, by reason.

    Attributes:
        notes: What an operator should know, a line each; to be taken by whoever logs.
    """

    def __init__(self, timing: Timing, counters: Counter[str]) -> None:
        self.rests = Rests(timing)
        self.counters = counters
        self.notes: list[str] = []
        self._circuits: dict[Address, _Circuit] = {}
        self._forget_at = 0.0

    def take_notes(self) -> list[str]:
        """Take what is to be logged, in order."""
        notes, self.notes = self.notes, []
        return notes

    def __len__(self) -> int:
        return len(self._circuits)

    def standing(self, source: Address, now: float) -> Standing:
        """What the producer is now."""
        circuit = self._circuits.get(source)
        if self.rests.resting(source, now) or (circuit and now < circuit.rests_until):
            return "resting"
        return "suspect" if circuit and circuit.to_land else "trusted"

    def why(self, source: Address, now: float) -> str:
        """Why a producer rests, as a counter of what is not fetched from it."""
        circuit = self._circuits.get(source)
        harm = circuit is not None and now < circuit.rests_until
        return "left_alone_harm" if harm else "left_alone_unreachable"

    def amounts(self, now: float) -> dict[str, int]:
        """How many are suspect, rest for harm, and rest because nobody answered."""
        known = Counter(
            "harmful" if now < circuit.rests_until else "suspect"
            for circuit in self._circuits.values()
            if circuit.to_land
        )
        return {**known, "unreachable": self.rests.amount(now)}

    # --------------------------------------------------------------------- what happens
    def blame(self, sources: Collection[Address], what: Blame, now: float) -> None:
        """One of these producers has ended a reader, or is about to; if it is one, that one."""
        counter, said = _SAYS[what]
        alone = len(sources) == 1
        most = MOST_TO_LAND_ALONE if alone else MOST_TO_LAND
        for source in sources:
            circuit = self._known(source)
            circuit.blames += 1
            circuit.to_land = max(circuit.to_land, min(1 << min(circuit.blames - 1, 30), most))
            circuit.blamed_at = now
            self.counters[counter] += 1
            if alone:
                circuit.harms += 1
                self._note(sources, f"{said}; it gets a reader to itself")
                self._rest_for_harm(source, circuit, now)
        if len(sources) > 1:
            self._note(sources, f"{said}: which one's doing it was is found out")

    def _rest_for_harm(self, source: Address, circuit: _Circuit, now: float) -> None:
        if circuit.harms < HARMS:
            return
        rest_s = min(FIRST_REST_S * 2.0 ** min(circuit.harms - HARMS, 30), LONGEST_REST_S)
        circuit.rests_until = max(circuit.rests_until, now + rest_s)
        self.counters["rests_harm"] += 1
        self._note([source], f"nothing is fetched from it for {rest_s:g} s")

    def unreachable(self, source: Address, tried_s: float, now: float) -> None:
        """Nobody answers there: it rests, for every reader (EC-9.4).

        Args:
            source: The producer.
            tried_s: How long it was tried in vain; it may have answered meanwhile.
            now: Seconds.
        """
        # Several fetches see one loss.
        if not self.rests.resting(source, now):
            self.rests.lost(source, tried_s, now)
            self.counters["rests_unreachable"] += 1

    def landed(self, source: Address) -> None:
        """A fetch landed that had a reader to itself."""
        circuit = self._circuits.get(source)
        if circuit is not None and circuit.to_land:
            circuit.to_land -= 1
            if not circuit.to_land:
                circuit.harms = 0
                self._note([source], "its fetches land; it is trusted again")

    def forget(self, now: float) -> None:
        """Drop what is over, so that nothing grows with time (EC-9.5)."""
        if now < self._forget_at:
            return
        self._forget_at = now + 1.0
        self.rests.forget(now)
        for source, circuit in list(self._circuits.items()):
            if now >= max(circuit.blamed_at + FORGET_S, circuit.rests_until):
                del self._circuits[source]

    # ------------------------------------------------------------------------ internals
    def _known(self, source: Address) -> _Circuit:
        """The producer's, which is the one that was blamed last from here on."""
        circuit = self._circuits.pop(source, None) or _Circuit()
        if len(self._circuits) >= MAX_PRODUCERS:
            del self._circuits[next(iter(self._circuits))]
        self._circuits[source] = circuit
        return circuit

    def _note(self, sources: Collection[Address], text: str) -> None:
        names = [f"{source[0]}:{source[1]}" for source in list(sources)[:_NAMED]]
        more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
        self.notes.append(f"producer {', '.join(names)}{more}: {text}")
