# SPDX-License-Identifier: Apache-2.0
"""Items made of a request's features; stand-ins take the place of vLLM's classes."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ec_connector.vllm.features import RequestItems, placeholder_fields
from ec_connector.vllm.names import Names
from ec_connector.vllm.setup import Widths

FIELDS = {
    "image": frozenset({"image_grid_thw"}),
    "video": frozenset({"video_grid_thw", "timestamps"}),
    "audio": frozenset({"audio_num_tokens"}),
}
GRID = torch.tensor([1, 8, 8])


@dataclass
class Place:
    offset: int
    length: int
    embeds: int

    def get_num_embeds(self) -> int:
        return self.embeds


def feature(name: str, data: dict[str, Any] | None, modality: str = "image", **place: int) -> Any:
    where = Place(**{"offset": 5, "length": 18, "embeds": 16, **place})
    held = None if data is None else SimpleNamespace(get_data=lambda: data)
    return SimpleNamespace(identifier=name, modality=modality, mm_position=where, data=held)


def request(*features: Any, request_id: str = "r") -> Any:
    return SimpleNamespace(request_id=request_id, mm_features=list(features))


def items_of(*features: Any) -> list[Any]:
    return make()(request(*features))


def make(names: Names | None = None) -> RequestItems:
    widths = Widths(text=128, vision=384, measured={})
    return RequestItems(
        widths, 2, lambda modality: FIELDS.get(modality, frozenset()), names or Names()
    )


def test_rows_are_the_embeddings_of_the_placeholder():
    (item,) = items_of(feature("a", {"pixel_values": GRID, "image_grid_thw": GRID}))
    assert (item.mm_hash, item.shape, item.nbytes) == ("a", (16, 384), 16 * 384 * 2)
    assert item.end == 5 + 18, "the whole placeholder, markers included"
    assert item.has_media
    assert item.metadata == {"image_grid_thw": [1, 8, 8]}


def test_width_goes_by_modality():
    (item,) = items_of(feature("a", {"input_features": GRID}, "audio"))
    assert item.shape == (16, 128)
    assert item.metadata == {"audio_num_tokens": [16]}, "the placeholder tells it"


@pytest.mark.parametrize(
    "data", [None, {}, {"image_grid_thw": GRID}, {"pixel_values": None, "image_grid_thw": GRID}]
)
def test_reference_without_media(data):
    (item,) = items_of(feature("a", data))
    assert not item.has_media


@pytest.mark.clause("EC-11.1")
def test_metadata_is_whole_or_empty():
    grid = {"video_grid_thw": GRID, "pixel_values_videos": GRID}
    half, whole = items_of(
        feature("a", grid, "video"), feature("b", {**grid, "timestamps": [0.5, 1.0]}, "video")
    )
    assert half.metadata == {}
    assert whole.metadata == {"video_grid_thw": [1, 8, 8], "timestamps": [0.5, 1.0]}


def test_metadata_that_is_no_list_of_numbers_is_not_published():
    (item,) = items_of(feature("a", {"image_grid_thw": object(), "pixel_values": GRID}))
    assert item.metadata == {}


def test_scalar_becomes_a_list():
    (item,) = items_of(feature("a", {"image_grid_thw": torch.tensor(7), "pixel_values": GRID}))
    assert item.metadata == {"image_grid_thw": [7]}


def test_modality_without_declared_fields_has_no_metadata():
    (item,) = items_of(feature("a", {"points": GRID}, "lidar"))
    assert item.metadata == {}
    assert item.has_media


def test_items_are_made_once_per_request():
    items = make()
    asked = request(feature("a", {"pixel_values": GRID}))
    assert items(asked) is items(asked)
    items.forget("r")
    items.forget("r")
    assert len(items) == 0


def test_streaming_session_adds_features():
    items = make()
    asked = request(feature("a", {"pixel_values": GRID}))
    assert [item.mm_hash for item in items(asked)] == ["a"]
    asked.mm_features.append(feature("b", {"pixel_values": GRID}))
    assert [item.mm_hash for item in items(asked)] == ["a", "b"]


def test_model_that_cannot_be_asked_publishes_nothing(caplog, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm.multimodal", None)
    fields_of = placeholder_fields(SimpleNamespace())
    assert fields_of("image") == frozenset()
    assert fields_of("image") == frozenset()
    assert len(caplog.records) == 1, "asked, and complained about, once"
