# SPDX-License-Identifier: Apache-2.0
"""Items of requests, and names that were counted (EC-2.8)."""

from __future__ import annotations

import pytest

from ec_protocol.items import is_counted, make_item

pytestmark = pytest.mark.clause("EC-2.8")


def test_an_item_has_the_bytes_of_its_shape() -> None:
    made = make_item("a", 3, 16, 2)
    assert (made.mm_hash, made.shape, made.nbytes) == ("a", (3, 16), 96)
    assert (made.end, made.has_media, made.metadata, made.named_by_content) == (0, True, {}, True)
    said = {"grid": [1]}
    made = make_item("a", 0, 16, 2, end=7, has_media=False, metadata=said, named_by_content=False)
    assert (made.end, made.has_media, made.nbytes, made.named_by_content) == (7, False, 0, False)
    assert made.metadata == said
    assert made.metadata is not said


@pytest.mark.parametrize(
    "name",
    [
        "renderer0-mm-0-image-0",
        "renderer12-mm-25-vision_chunk-3",
        "adapter:renderer0-mm-25-audio-0",
        "a:b:renderer0-mm-25-audio-0",
        "renderer0-mm-25-two\nlines-0",
    ],
)
def test_a_counted_name_is_known_by_its_form(name: str) -> None:
    assert is_counted(name)
    assert not make_item(name, 1, 1, 1).named_by_content


@pytest.mark.parametrize(
    "name",
    [
        "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4",
        "",
        "image-0",
        "renderer0-mm-25-image",
        "renderer-mm-25-image-0",
        "renderer0-mm-25-image-0-large",
        "myrenderer0-mm-25-image-0",
        "renderer0-mm-25-image-0:x",
    ],
)
def test_other_names_are_not_counted(name: str) -> None:
    assert not is_counted(name)


def test_a_hostile_name_costs_time_in_proportion_to_its_length() -> None:
    """A quadratic search of these would outlast any test's time."""
    for name in (
        "renderer0-mm-0-:" * 60_000,
        "renderer0-mm-0-" + "-1" * 500_000 + "x",
        "renderer" + "1" * 1_000_000,
        "renderer0-mm-" * 80_000,
    ):
        assert not is_counted(name)
