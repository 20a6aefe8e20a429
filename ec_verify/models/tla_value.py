# SPDX-License-Identifier: Apache-2.0
"""Reads values as TLC prints them.

============================  ===========================================
printed                       read as
============================  ===========================================
``12``, ``TRUE``              ``int``, ``bool``
``"ready"``, ``b1``           ``str`` (strings and model values alike)
``<<a, b>>``                  ``tuple``
``{a, b}``                    ``list``, in TLC's order
``[st |-> a]``, ``(x :> a)``  ``dict``
============================  ===========================================
"""

from __future__ import annotations

import re
from typing import Any, Final

from ec_protocol.errors import ECError

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>-?\d+)(?![\w])|(?P<name>\w+)'
    r"|(?P<mark><<|>>|\|->|:>|@@|[\[\](){},]))"
)
_ESCAPE: Final = re.compile(r"\\(.)")
#: A printed state is shallow; anything deeper is no output of TLC.
_MAX_DEPTH: Final = 60


class ValueTextError(ECError):
    """A text is not a value as TLC prints it; the message shows where it stops being one."""


def parse(text: str) -> Any:
    """Read one printed value.

    Raises:
        ValueTextError: It is not one.
    """
    reader = _Reader(text)
    value = reader.value(0)
    reader.end()
    return value


def as_text(value: Any) -> str:
    """A value in one short line for people; strings carry no quotes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "⟨" + ", ".join(map(as_text, value)) + "⟩"
    if isinstance(value, list):
        return "{" + ", ".join(map(as_text, value)) + "}" if value else "∅"
    if isinstance(value, dict):
        return "[" + ", ".join(f"{as_text(k)} {as_text(v)}" for k, v in value.items()) + "]"
    return str(value)


def as_function(value: Any) -> dict[Any, Any] | None:
    """A function's pairs: also a sequence's, whose domain starts at 1; else None."""
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple):
        return dict(enumerate(value, 1))
    return None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next = self._scan()

    def _scan(self) -> tuple[str, str] | None:
        if not self._text[self._at :].strip():
            return None
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error("no value begins here")
        self._at = match.end()
        kind = match.lastgroup or ""
        return kind, match[kind]

    def _error(self, why: str) -> ValueTextError:
        rest = " ".join(self._text[self._at : self._at + 40].split())
        return ValueTextError(f"not a value of TLC: {why}: {rest!r}")

    def _take(self) -> tuple[str, str]:
        if self._next is None:
            raise self._error("the text ends too early")
        taken, self._next = self._next, self._scan()
        return taken

    def _peek(self, mark: str) -> bool:
        return self._next == ("mark", mark)

    def _expect(self, mark: str) -> None:
        if not self._peek(mark):
            raise self._error(f"expected {mark}")
        self._take()

    def end(self) -> None:
        if self._next is not None:
            raise self._error(f"text after the value, from {self._next[1]!r}")

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH}")
        kind, text = self._take()
        if kind == "string":
            return _ESCAPE.sub(r"\1", text[1:-1])
        if kind == "number":
            return int(text)
        if kind == "name":
            return {"TRUE": True, "FALSE": False}.get(text, text)
        if text == "<<":
            return tuple(self._items(">>", depth))
        if text == "{":
            return self._items("}", depth)
        if text == "[":
            return self._pairs("|->", ",", "]", depth)
        if text == "(":
            return self._pairs(":>", "@@", ")", depth)
        raise self._error(f"{text!r} opens nothing")

    def _items(self, close: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._peek(close):
            if items:
                self._expect(",")
            items.append(self.value(depth + 1))
        self._take()
        return items

    def _pairs(self, arrow: str, between: str, close: str, depth: int) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        while not self._peek(close):
            if pairs:
                self._expect(between)
            key = _hashable(self.value(depth + 1))
            self._expect(arrow)
            pairs[key] = self.value(depth + 1)
        self._take()
        return pairs


def _hashable(key: Any) -> Any:
    """A key that a dict takes; sets and functions as keys are rare and shown as text."""
    if isinstance(key, tuple):
        return tuple(_hashable(item) for item in key)
    return as_text(key) if isinstance(key, (list, dict)) else key
