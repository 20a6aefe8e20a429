# SPDX-License-Identifier: Apache-2.0
"""Requests of the engine, as far as vLLM's connector looks at them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from ec_verify.kit.adapter import Result

#: A field that a model publishes with an encoding, for whoever rewrites the request.
METADATA: Final = "image_grid_thw"


class Media(dict[str, Any]):
    """The processed media of an item, as far as a connector looks at it."""

    def get_data(self) -> dict[str, Any]:
        """What may be published of it."""
        return {METADATA: [1, 2, 2]}


def modality_of(item: Result) -> str:
    """What kind of media an item is: one kind has one width."""
    return f"image{item['shape'][1]}"


def make_request(raw: Result, placeholder: Callable[..., Any]) -> Any:
    """A request of the engine.

    Args:
        raw: As the kit tells it.
        placeholder: vLLM's ``PlaceholderRange``.
    """
    features = []
    offset = 0
    for item in raw["items"]:
        rows = item["shape"][0]
        data = Media({METADATA: SimpleNamespace(data=[1, 2, 2])})
        if item["media"]:
            data["pixel_values"] = SimpleNamespace(data=b"media")
        features.append(
            SimpleNamespace(
                identifier=item["hash"],
                modality=modality_of(item),
                mm_position=placeholder(offset=offset, length=rows),
                data=data,
            )
        )
        offset += rows
    return SimpleNamespace(
        request_id=raw["id"], mm_features=features, ec_transfer_params=raw["params"]
    )


def text_request() -> Any:
    """A request without media, which never ends."""
    return SimpleNamespace(request_id="text", mm_features=[], ec_transfer_params=None)
