# SPDX-License-Identifier: Apache-2.0
"""One row of the table: what was asked, what came back, and from where.

Every answer is compared with a plain server's answer to the same request, token by
token. Besides, each scenario says from where its encodings must have come.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.ask import Answer, ask_all
from tests.e2e.server import Server

#: Counters reach the metrics with a later engine step. On a busy host that takes a
#: while, so what must be counted is waited for, this long at most.
COUNTED_WITHIN_S: Final = 30.0


@dataclass(slots=True)
class Row:
    """The result of one scenario.

    Attributes:
        scenario: Its name.
        group: The group of servers that it ran on.
        requests: Requests that were judged.
        local: Encodings loaded out of the server's own tier.
        remote: Encodings read from the producer.
        recomputed: Encodings that the judged server computed itself.
        wrong: Answers that differ from the plain server's.
        seconds: Wall time.
        problems: What else was not as it must be.
        notes: What was measured besides.
    """

    scenario: str
    group: str = ""
    requests: int = 0
    local: int = 0
    remote: int = 0
    recomputed: int = 0
    wrong: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong and not self.problems

    def expect(self, true: bool, otherwise: str) -> None:
        """Note a problem unless ``true``."""
        if not true:
            self.problems.append(otherwise)


class Oracle:
    """Answers of a plain server, asked once and remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Answer] = {}

    def learn(self, url: str, wanted: Sequence[Sequence[int]]) -> list[str]:
        """Ask the plain server at ``url`` for whatever is not known yet.

        Returns:
            What makes it a bad oracle.
        """
        missing = [tuple(w) for w in wanted if tuple(w) not in self._known]
        answers = ask_all(url, missing, workers=4)
        self._known.update(zip(missing, answers, strict=True))
        problems = [
            f"the plain server did not answer: {answer.status} {answer.error}"
            for answer in answers
            if answer.status != 200 or not answer.tokens
        ]
        known = list(self._known.items())
        alike = [
            f"{list(one)} and {list(other)}"
            for at, (one, answer) in enumerate(known)
            for other, another in known[:at]
            if answer.same(another)
        ]
        if alike:
            problems.append(f"a wrong picture would not be noticed: {', '.join(alike)}")
        return problems

    def __getitem__(self, pictures: Sequence[int]) -> Answer:
        return self._known[tuple(pictures)]

    def judge(self, row: Row, wanted: Sequence[Sequence[int]], answers: Sequence[Answer]) -> None:
        """Count requests and wrong answers; an error is a problem of its own."""
        for pictures, answer in zip(wanted, answers, strict=True):
            row.requests += 1
            if answer.status != 200:
                row.problems.append(
                    f"pictures {list(pictures)}: HTTP {answer.status} {answer.error[:200]}"
                )
            elif not answer.same(self[pictures]):
                row.wrong += 1
                row.notes.append(
                    f"WRONG pictures {list(pictures)}: {list(answer.tokens)}, "
                    f"not {list(self[pictures].tokens)}"
                )


def _count_sources(row: Row, before: Counter[str], after: Counter[str]) -> None:
    """Where the encodings of a row came from, by the judged server's counters."""
    made = Counter({name: after[name] - before[name] for name in after})
    # The engine's own figure: those of the reader arrive a moment later.
    row.remote = made["consumer_events/landed"]
    # Each encoding that was read is then loaded out of the tier once.
    row.local = max(made["items/hit"] - row.remote, 0)
    row.recomputed = made["items/miss"]


def measured(
    name: str,
    server: Server | None,
    body: Callable[[Row], None],
    counted: Callable[[Row], bool] = lambda row: True,
) -> Row:
    """Run one scenario, timed, with the counters of ``server`` around it.

    Args:
        name: Of the row.
        server: The judged one.
        body: Asks and judges.
        counted: Whether everything that must be counted has been. It is waited for;
            what must not be is for the caller to expect afterwards.
    """
    row = Row(name)
    started = time.monotonic()
    try:
        before = server.events() if server is not None else Counter[str]()
        asked = time.monotonic()
        body(row)
        row.seconds = time.monotonic() - asked
        deadline = time.monotonic() + COUNTED_WITHIN_S
        while server is not None:
            _count_sources(row, before, server.events())
            if counted(row) or time.monotonic() > deadline:
                break
    except Exception as exc:
        row.problems.append(f"{type(exc).__name__}: {exc}")
        row.seconds = time.monotonic() - started
    return row


def each(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Requests about one picture each."""
    return [(number,) for number in numbers]
