# SPDX-License-Identifier: Apache-2.0
"""The pieces of media of a request, as much as the protocol needs to know of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ec_protocol.names import is_strangers

#: Characters of a name that can be asked for (EC-8.8).
MAX_HASH_CHARS: Final = 512

#: What vLLM calls media when it counts requests in place of hashing content: renderer
#: process, number of the request, modality, place in the request.
_COUNTED: Final = re.compile(r"renderer[0-9]+-mm-[0-9]+-.+-[0-9]+", re.DOTALL)


def is_counted(mm_hash: str) -> bool:
    """Whether a name comes from counting requests (EC-2.8).

    It may stand behind the name of a LoRA adapter and a colon. Takes time in
    proportion to the name's length: names may be clients' own.
    """
    return _COUNTED.fullmatch(mm_hash[mm_hash.rfind(":") + 1 :]) is not None


@dataclass(frozen=True, slots=True)
class Item:
    """One encoder output that a request needs.

    Attributes:
        mm_hash: Its name.
        shape: Rows × width.
        nbytes: Its bytes.
        end: Position in the prompt just after its placeholder.
        has_media: Whether the request still carries the media, so that it can be
            encoded here.
        metadata: Placeholder fields for whoever rewrites the media into a
            metadata-only reference; published with the address (EC-11.1).
        named_by_content: Whether the name may stand for the encoding. If not it is
            neither saved nor loaded, asked for or announced (EC-2.8).
    """

    mm_hash: str
    shape: tuple[int, int]
    nbytes: int
    end: int
    has_media: bool
    metadata: Mapping[str, Any]
    named_by_content: bool


def make_item(
    mm_hash: str,
    rows: int,
    width: int,
    element_size: int,
    *,
    end: int = 0,
    has_media: bool = True,
    metadata: Mapping[str, Any] | None = None,
    named_by_content: bool = True,
) -> Item:
    """An item of ``rows`` × ``width`` elements of ``element_size`` bytes.

    A name that comes from counting, or that looks as what strangers say is kept under, is
    never taken for one by content, whatever the caller says.
    """
    shape = (rows, width)
    return Item(
        mm_hash,
        shape,
        math.prod(shape) * element_size,
        end,
        has_media,
        dict(metadata or {}),
        named_by_content and not is_counted(mm_hash) and not is_strangers(mm_hash),
    )
