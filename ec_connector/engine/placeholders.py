# SPDX-License-Identifier: Apache-2.0
"""Whether a reference describes the encoding that it names (EC-11.5).

A request may name an encoding and bring no media: then the sizes of the placeholder (its
grid, for example) are what the request says they are. The host believes them. A grid that
does not fit moves every position in the prompt, so that the answer is wrong although the
encoding is right; one of negative numbers ends the engine. And what a host has believed
once it keeps, under that name, for later requests that bring the media.

So a reference is compared with what is known: what was seen of media with this name when
the host processed it, and what the producer announced.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from ec_protocol.items import Item

logger = logging.getLogger(__name__)

#: Names of which the sizes are remembered; of more the one not seen for longest goes.
MAX_KNOWN: Final = 65_536
_TOLERANCE: Final = 1e-6
#: Numbers and lists of a field that is compared.
_MAX_PARTS: Final = 4096


class Placeholders:
    """What is known of the placeholders of encodings. Engine thread.

    Args:
        limit: Names that are remembered.
    """

    def __init__(self, limit: int = MAX_KNOWN) -> None:
        self._limit = limit
        self._known: OrderedDict[str, tuple[tuple[int, int], Mapping[str, Any]]] = OrderedDict()
        self._refused = 0

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, item: Item) -> None:
        """The host has processed this item's media; a reference teaches nothing."""
        if not item.has_media or not item.named_by_content:
            return
        self._known[item.mm_hash] = (item.shape, item.metadata)
        self._known.move_to_end(item.mm_hash)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def refuses(self, item: Item, announced: object) -> bool:
        """Whether a reference contradicts what is known of the encoding; logs it then.

        Args:
            item: Any item; only one without media can be refused.
            announced: ``ec_transfer_params`` of its request, of any type (EC-11.4).
        """
        if item.has_media:
            return False
        problem = self._problem(item, announced)
        if not problem:
            return False
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            # The 1st, 2nd, 4th, 8th …: whoever sends such requests must not fill the log.
            logger.error(
                "a request that refers to %.80r without media is failed, no. %d: %s",
                item.mm_hash,
                self._refused,
                problem,
            )
        return True

    def _problem(self, item: Item, announced: object) -> str:
        for field, value in item.metadata.items():
            for number in _numbers(value):
                if not (math.isfinite(number) and number >= 0):
                    return f"its {field} holds {number}"
        known = self._known.get(item.mm_hash)
        if known is not None:
            shape, metadata = known
            if shape != item.shape:
                return f"its placeholder is for {item.shape}, the encoding has {shape}"
            if problem := _differing(item.metadata, metadata, "media of this name had"):
                return problem
        said = announced.get(item.mm_hash) if isinstance(announced, Mapping) else None
        fields = said.get("metadata") if isinstance(said, Mapping) else None
        if isinstance(fields, Mapping):
            return _differing(item.metadata, fields, "was announced with")
        return ""


def _differing(ours: Mapping[str, Any], others: Mapping[str, Any], what: str) -> str:
    """How two descriptions differ; of fields that only one has nothing is known."""
    for field, value in ours.items():
        if field in others:
            mine, theirs = _numbers(value), _numbers(others[field])
            if len(mine) != len(theirs) or not all(map(_alike, mine, theirs)):
                return f"its {field} is {mine[:8]}, but {what} {theirs[:8]}"
    return ""


def _alike(a: float, b: float) -> bool:
    # Numbers that went through tensors of single precision on one of the two ways.
    return a == b or math.isclose(a, b, rel_tol=_TOLERANCE)


def _numbers(value: object) -> list[float]:
    """The numbers of a field of any shape, in order; what is none is not-a-number.

    Never raises and never takes long: an announcement comes from outside.
    """
    found: list[float] = []
    left: list[object] = [value]
    for _ in range(_MAX_PARTS):
        if not left:
            return found
        part = left.pop()
        if isinstance(part, list | tuple):
            if len(part) > _MAX_PARTS:
                break
            left.extend(reversed(part))
        elif isinstance(part, int | float):
            try:
                found.append(float(part))
            except OverflowError:
                found.append(math.inf)
        else:
            found.append(math.nan)
    return [math.nan]
