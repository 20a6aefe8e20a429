# SPDX-License-Identifier: Apache-2.0
"""The demo's encoder: shapes, and the same bits wherever it runs."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from ec_connector.demo.encoder import (
    CELL,
    MAX_ROWS,
    VisionEncoder,
    grid_of,
    mm_hash_of,
    output_bytes,
    output_shape,
)
from ec_connector.demo.images import Picture, draw_pictures

# Run in fresh processes: prints one digest per picture, after having made
# torch's thread count and its global generator differ between the processes.
_DIGESTS = """
import hashlib, sys
import torch
from ec_connector.demo.encoder import VisionEncoder
from ec_connector.demo.images import draw_pictures
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(int(sys.argv[1]))
encoder = VisionEncoder()
for picture in draw_pictures()[1:]:
    bits = encoder.encode(picture).view(torch.int16)
    print(hashlib.sha256(bits.numpy()).hexdigest())
"""


def picture(width: int, height: int, seed: int = 0) -> Picture:
    pixels = torch.randint(
        0, 256, (3 * width * height,), generator=torch.Generator().manual_seed(seed)
    )
    return Picture("noise", width, height, bytes(pixels.tolist()))


@pytest.fixture(scope="module")
def encoder() -> VisionEncoder:
    return VisionEncoder()


def test_two_fresh_processes_agree_on_every_bit():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _DIGESTS, threads],
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout.split()
        for threads in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == len(draw_pictures()) - 1


def test_a_720p_picture_has_880_rows(encoder):
    output = encoder.encode(draw_pictures()[0])
    assert output.shape == (880, 2560)
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous()
    assert output.isfinite().all()
    assert 0.1 < output.float().std() < 10


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1), (1, 500), (31, 33), (32, 32), (63, 64), (200, 97)]
)
def test_any_size_is_encoded(encoder, width, height):
    pic = picture(width, height)
    output = encoder.encode(pic)
    assert tuple(output.shape) == output_shape(pic)
    assert output.untyped_storage().nbytes() == output_bytes(pic)
    assert output.isfinite().all()


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((1280, 720), (40, 22)),
        ((CELL - 1, 1), (1, 1)),
        ((2 * CELL - 1, 2 * CELL), (1, 2)),
        ((10, 10_000_000), (1, MAX_ROWS)),
        ((10_000_000, 10), (MAX_ROWS, 1)),
    ],
)
def test_grid(size, grid):
    assert grid_of(*size) == grid


@pytest.mark.parametrize("size", [(4000, 3000), (3000, 4000), (64, 70_000), (2048, 1056)])
def test_rows_are_bounded(size):
    columns, rows = grid_of(*size)
    assert columns >= 1
    assert rows >= 1
    assert columns * rows <= MAX_ROWS


def test_output_depends_on_every_part_of_the_picture(encoder):
    base = bytearray(picture(96, 64).rgb)
    before = encoder.encode(Picture("a", 96, 64, bytes(base)))
    base[-1] ^= 0xFF
    after = encoder.encode(Picture("a", 96, 64, bytes(base)))
    changed = (before != after).any(dim=1)
    assert changed.sum() > 1, "attention carries a change to other rows"


def test_thread_count_is_put_back(encoder):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        encoder.encode(picture(32, 32))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_mm_hash_names_pixels_size_and_encoder_only(monkeypatch):
    pic = picture(64, 32)
    named = mm_hash_of(pic)
    assert len(named) == 64
    assert int(named, 16) >= 0
    assert mm_hash_of(dataclasses.replace(pic, name="another file")) == named
    assert mm_hash_of(dataclasses.replace(pic, width=32, height=64)) != named
    flipped = bytes([pic.rgb[0] ^ 1]) + pic.rgb[1:]
    assert mm_hash_of(dataclasses.replace(pic, rgb=flipped)) != named
    monkeypatch.setattr("ec_connector.demo.encoder.ENCODER_VERSION", "demo-vision-next")
    assert mm_hash_of(pic) != named
