# SPDX-License-Identifier: Apache-2.0
"""Shows how a printed TLA+ value changed from one state to the next."""

from __future__ import annotations

_OPEN, _CLOSE = "{[(<", "}])>"


def change(name: str, before: str | None, after: str) -> list[str]:
    """The lines that tell a variable's new value.

    A set that gained or lost elements is shown by those alone: messages on a
    network would otherwise be repeated with every step.

    Args:
        name: The variable.
        before: Its value as printed in the state before; None in the first.
        after: Its value as printed now.
    """
    old, new = elements(before), elements(after)
    if not old or not new:
        return [f"{name} = {after}"]
    gone = [f"{name} loses {item}" for item in old if item not in new]
    return gone + [f"{name} gains {item}" for item in new if item not in old]


def elements(text: str | None) -> list[str] | None:
    """The elements of a printed set, or None if the value is no set."""
    if text is None or not (text.startswith("{") and text.endswith("}")):
        return None
    items, depth, start, quoted = [], 0, 1, False
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPEN:
            depth += 1
        # `|->` and `:>` hold brackets that close nothing.
        elif character in _CLOSE and text[index - 1] not in "-:":
            depth -= 1
        elif character == "," and depth == 1:
            items.append(text[start:index])
            start = index + 1
    items.append(text[start:-1])
    return [stripped for item in items if (stripped := " ".join(item.split()))]
