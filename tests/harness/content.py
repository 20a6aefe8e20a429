# SPDX-License-Identifier: Apache-2.0
"""Requests of the harness, and what the encoder makes of their media."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from ec_protocol.items import Item, make_item

WIDTH, ELEMENT = 16, 2
BLOCK = WIDTH * ELEMENT  # one row of bfloat16
DTYPE = torch.bfloat16


@cache
def expected(mm_hash: str, rows: int) -> torch.Tensor:
    """The encoding that the name stands for: different for every name, at every offset.

    Returns:
        ``(rows, WIDTH)`` of bfloat16. Compare with ``same``: some bits are NaN.
    """
    raw = hashlib.shake_128(mm_hash.encode(errors="surrogatepass")).digest(rows * BLOCK)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(DTYPE).view(rows, WIDTH)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


@dataclass(eq=False)
class Request:
    """One request as the host's scheduler sees it.

    Attributes:
        request_id: Unique.
        items: Its media, each as long as it has rows.
        starts: Where in the prompt each begins.
        prompt_len: Tokens of the prompt.
        output_len: Tokens to generate.
        ec_transfer_params: What a producer announced, if anything.
    """

    request_id: str
    items: list[Item]
    starts: list[int]
    prompt_len: int
    output_len: int
    ec_transfer_params: Any = None
    num_computed: int = 0
    num_output: int = 0
    placeholders: int = 0
    num_preemptions: int = 0
    finished: str = ""
    # Items that the host's encoder cache keeps for this request.
    cached: set[int] = field(default_factory=set)
    announced: dict[str, Any] | None = None


def request(
    request_id: str,
    *pieces: int | tuple[str, int],
    output_len: int = 1,
    params: Any = None,
    has_media: bool = True,
) -> Request:
    """A request whose prompt is made of text (a number of tokens) and media (name, rows)."""
    items: list[Item] = []
    starts: list[int] = []
    position = 0
    for piece in _with_text(pieces):
        if isinstance(piece, int):
            position += piece
            continue
        name, rows = piece
        starts.append(position)
        position += rows
        items.append(
            make_item(
                name,
                rows,
                WIDTH,
                ELEMENT,
                end=position,
                has_media=has_media,
                metadata={"rows": [rows]},
            )
        )
    return Request(request_id, items, starts, position, output_len, params)


def _with_text(pieces: Sequence[int | tuple[str, int]]) -> list[int | tuple[str, int]]:
    # A prompt ends with text, so that there is a token to sample from.
    return [*pieces, 1]
