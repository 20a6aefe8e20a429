# SPDX-License-Identifier: Apache-2.0
"""The pieces of media of a request, as much as the connector needs to know of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """

    mm_hash: str
    shape: tuple[int, int]
    nbytes: int
    end: int
    has_media: bool
    metadata: Mapping[str, Any]


def make_item(
    mm_hash: str,
    rows: int,
    width: int,
    element_size: int,
    *,
    end: int = 0,
    has_media: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Item:
    """An item of ``rows`` × ``width`` elements of ``element_size`` bytes."""
    shape = (rows, width)
    return Item(
        mm_hash, shape, math.prod(shape) * element_size, end, has_media, dict(metadata or {})
    )
