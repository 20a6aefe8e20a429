# SPDX-License-Identifier: Apache-2.0
"""Turns what TLC prints with ``-tool`` into data.

With ``-tool`` every message is framed by ``@!@!@STARTMSG code:severity @!@!@``
and ``@!@!@ENDMSG code @!@!@``; frames may be nested. Only the parser's own
complaints (SANY) stand outside of frames. The codes are those of TLC's
``tlc2.output.EC``; they are stable, its sentences are less so, hence the
verdict is read from the code, only names and numbers from the text, and
``runner`` compares the verdict with the exit status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal[
    "ok",
    "invariant",
    "property",
    "deadlock",
    "assumption",
    "evaluation",
    "parse",
    "config",
    "crash",
]

#: Exit statuses that agree with a verdict. TLC 2.15 leaves with 255 instead of
#: 151 when the config file cannot be read at all, and a property that already
#: fails in the initial state counts as a safety violation.
EXIT_CODES: Final[Mapping[Kind, frozenset[int]]] = {
    "ok": frozenset({0}),
    "invariant": frozenset({12}),
    "property": frozenset({12, 13}),
    "deadlock": frozenset({11}),
    "assumption": frozenset({10}),
    "evaluation": frozenset({10, 14, 75, 76, 77, 255}),
    "parse": frozenset({150}),
    "config": frozenset({151, 255}),
}

_SUCCESS = 2193
_BEHAVIOR_FOLLOWS = frozenset({2121, 2264})
_EVALUATION_EXITS = frozenset({14, 75, 76, 77})
_VERDICTS: Final[Mapping[int, Kind]] = {
    2107: "invariant",  # in the initial state
    2110: "invariant",
    2108: "property",  # in the initial state
    2112: "property",  # an action property, [][A]_v; it is named
    2116: "property",  # a temporal property; it is not named
    2114: "deadlock",
    2104: "assumption",
    **dict.fromkeys(
        (2102, 2105, 2106, 2109, 2111, 2113, 2115, 2117, 2132, 2147, 2154), "evaluation"
    ),
    3002: "parse",
    **dict.fromkeys((*range(2222, 2252), *range(5001, 5007)), "config"),
}

#: Verdicts that TLC explains in further messages.
_TALKATIVE: Final = ("evaluation", "crash")
_MESSAGE_LINES: Final = 30

_START = re.compile(r"@!@!@STARTMSG (\d+):(\d+) @!@!@")
_END = re.compile(r"@!@!@ENDMSG (\d+) @!@!@")
_VIOLATED = re.compile(r"(?:Invariant|Action property|Property) (\S+) is violated")
_FAILED = re.compile(r"Evaluating (?:invariant|action property) (\S+) failed")
_COUNTS = re.compile(r"(-?[\d,]+) states generated.*?(-?[\d,]+) distinct states found", re.DOTALL)
_PROGRESS_DEPTH = re.compile(r"Progress\((\d+)\)")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
# Newer releases put an action's arguments behind its name.
_ACTION = re.compile(r"<(\w+)(?:\(.*\))? line \d+[^>]*>")
_COVERED = re.compile(r"<(\w+)(?:\(.*\))? line \d+[^>]*>: (\d+):(\d+)")
_BOILERPLATE = re.compile(
    r"TLC threw an unexpected exception\..*?The exception was a \S+\n?(?::\s*)?", re.DOTALL
)
_BACK_TO = re.compile(r"(\d+): Back to state")
_VARIABLE = re.compile(r"^(?:/\\ )?(\w+) = ", re.MULTILINE)

INITIAL = "Initial state"


@dataclass(frozen=True, slots=True)
class Step:
    """One state of a counterexample.

    Attributes:
        action: The action that led here, or ``INITIAL``.
        state: Variable name to its value, as TLC prints it.
    """

    action: str
    state: Mapping[str, str]


@dataclass(slots=True)
class Output:
    """What one run of TLC said.

    Attributes:
        kind: The verdict; ``"crash"`` when TLC gave none.
        name: The violated invariant or property; ``None`` if TLC does not say.
        message: TLC's words for a verdict that is no plain violation.
        generated: States generated so far.
        distinct: Distinct states found so far; ``None`` in simulation.
        depth: Length of the longest of the shortest paths, in states.
        trace: The counterexample, empty if there is none.
        loop: How an infinite counterexample goes on: ``""`` for a finite one,
            ``"stutters for ever"`` or ``"goes back to state N"``.
        coverage: Times that each action was taken, for ``-coverage`` runs.
        printed: What the modules printed (``PrintT``), line by line.
    """

    kind: Kind = "crash"
    name: str | None = None
    message: str = ""
    generated: int | None = None
    distinct: int | None = None
    depth: int | None = None
    trace: tuple[Step, ...] = ()
    loop: str = ""
    coverage: dict[str, int] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)

    @property
    def dead_actions(self) -> tuple[str, ...]:
        """Actions that were enabled in no reachable state."""
        return tuple(sorted(name for name, taken in self.coverage.items() if not taken))


class OutputParser:
    """Reads TLC's output line by line; ``output`` is current at any time."""

    def __init__(self) -> None:
        self.output = Output()
        self._frames: list[tuple[int, int, list[str]]] = []
        self._outside: list[str] = []
        self._decided = False

    def feed(self, line: str) -> bool:
        """Take one line without its newline.

        Returns:
            Whether the counts of states may have changed.
        """
        start = _START.search(line)
        if start:
            if self._frames and line[: start.start()].strip():
                self._frames[-1][2].append(line[: start.start()])
            self._frames.append((int(start[1]), int(start[2]), []))
            return False
        if _END.search(line) and self._frames:
            code, severity, lines = self._frames.pop()
            if self._frames:
                self._frames[-1][2].extend(lines)
            self._message(code, severity, "\n".join(lines))
            return code in (2199, 2200, 2209)
        if self._frames:
            self._frames[-1][2].append(line)
        elif not line.startswith(("Parsing file ", "Semantic processing of module ")):
            self._outside.append(line)
            self.output.printed.append(line)
        return False

    def finish(self, exit_code: int, *, searched_all: bool) -> Output:
        """The final data, with the exit status taken into account.

        Args:
            exit_code: TLC's exit status.
            searched_all: Whether success must be stated: a search says so, a
                simulation just ends.
        """
        out = self.output
        if not self._decided and not searched_all and exit_code == 0 and not out.message:
            out.kind = "ok"
        if out.kind == "parse":
            out.message = _squeeze(self._outside) or out.message
        elif out.kind == "crash" and exit_code in _EVALUATION_EXITS:
            out.kind = "evaluation"
        allowed = EXIT_CODES.get(out.kind)
        if allowed is not None and exit_code not in allowed:
            clash = f"TLC's exit status {exit_code} contradicts its messages ({out.kind})."
            out.message = f"{clash} {out.message}".strip()
            out.kind = "crash"
        if out.kind == "crash" and not out.message:
            out.message = _squeeze(self._outside) or f"TLC ended with exit status {exit_code}"
        lines = out.message.splitlines()
        if len(lines) > _MESSAGE_LINES:
            out.message = "\n".join([*lines[:_MESSAGE_LINES], "..."])
        return out

    def _message(self, code: int, severity: int, text: str) -> None:
        out = self.output
        if code == _SUCCESS or code in _VERDICTS:
            self._verdict(_VERDICTS.get(code, "ok"), text)
        elif code in (2199, 2200, 2209):
            self._counts(text)
        elif code == 2194 and (match := _DEPTH.search(text)):
            out.depth = int(match[1])
        elif code == 2217:
            out.trace += (_step(text),)
        elif code == 2218:
            out.loop = "stutters for ever"
        elif code == 2122 and (match := _BACK_TO.search(text)):
            out.loop = f"goes back to state {match[1]}"
        elif code == 2201:
            out.coverage.clear()
        elif code == 2772 and (match := _COVERED.search(text)):
            # An action that is used in several places is reported at each.
            out.coverage[match[1]] = out.coverage.get(match[1], 0) + int(match[3])
        elif severity == 1 and code not in _BEHAVIOR_FOLLOWS and out.kind in _TALKATIVE:
            more = _BOILERPLATE.sub("", text).strip()
            if more not in out.message:
                out.message = f"{out.message}\n{more}".strip()

    def _verdict(self, kind: Kind, text: str) -> None:
        # TLC goes on talking after the first failure, so the first one counts.
        if self._decided:
            return
        self._decided = True
        out = self.output
        out.kind = kind
        if match := _VIOLATED.search(text) or _FAILED.search(text):
            out.name = match[1]
        if kind in ("invariant", "property") and "initial state" in text:
            out.trace = (Step(INITIAL, _variables(text.partition("\n")[2])),)
        if kind not in ("ok", "invariant", "property", "deadlock"):
            out.message = text.strip()

    def _counts(self, text: str) -> None:
        out = self.output
        if match := _COUNTS.search(text):
            generated, distinct = (int(number.replace(",", "")) for number in match.groups())
            out.generated = generated
            out.distinct = distinct if distinct >= 0 else None
        if match := _PROGRESS_DEPTH.search(text):
            out.depth = int(match[1])


def parse_output(text: str, exit_code: int, *, searched_all: bool = True) -> Output:
    """Parse a whole recorded output; see ``OutputParser.finish``."""
    parser = OutputParser()
    for line in text.splitlines():
        parser.feed(line)
    return parser.finish(exit_code, searched_all=searched_all)


def _step(text: str) -> Step:
    header, _, body = text.partition("\n")
    match = _ACTION.search(header)
    return Step(match[1] if match else INITIAL, _variables(body))


def _variables(text: str) -> dict[str, str]:
    """Split a printed state: one conjunct per variable, values over many lines."""
    marks = list(_VARIABLE.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark[1]: text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}


def _squeeze(lines: Iterable[str]) -> str:
    """The lines that say something."""
    return "\n".join(line.rstrip() for line in lines if line.strip())
