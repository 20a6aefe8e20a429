# SPDX-License-Identifier: Apache-2.0
"""A small vision encoder with fixed weights, shaped like the ones of real models.

The demo needs an encoder whose output two processes can compute independently
and compare bit for bit, and whose output has a realistic size. This one has the
shape of a Qwen-VL encoder and weights drawn from a fixed seed:

1. The picture is scaled so that each side is a multiple of `CELL` = 32 pixels:
   down to the next multiple, and never below one cell. A picture of more than
   `MAX_ROWS` cells is scaled down further.
2. Patches of 16×16 pixels are embedded to 320 numbers each; a two-dimensional
   sine code of the patch's place is added.
3. A pre-norm transformer block attends over all patches.
4. Each cell's 2×2 patches are merged (4 × 320 numbers) and projected to 2560.

A 1280×720 picture becomes 1280×704: 40 × 22 cells, an output of 880 rows × 2560
bf16 numbers, 4.5 MB.

Everything is computed in float32 on one thread: the order of additions, and with
it every bit of the output, is then the same in every process on one machine. Only
the output is rounded to bf16, as servers store it: few CPUs can multiply bf16
matrices, and the others take ten times as long over them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from ec_connector.demo.images import Picture

PATCH = 16
MERGE = 2
CELL = PATCH * MERGE
WIDTH = 320
HEADS = 5
BLOCKS = 1
HIDDEN = 2560
#: Of the output.
DTYPE = torch.bfloat16
MAX_ROWS = 2048

_SEED = 20250601
# Part of every hash: change it with anything that changes the output's bits.
ENCODER_VERSION = "demo-vision-2"


def grid_of(width: int, height: int) -> tuple[int, int]:
    """The cells of a picture of `width` × `height` pixels, as (columns, rows)."""
    columns, rows = max(1, width // CELL), max(1, height // CELL)
    if columns * rows > MAX_ROWS:
        shrink = math.sqrt(MAX_ROWS / (columns * rows))
        columns, rows = max(1, int(columns * shrink)), max(1, int(rows * shrink))
        # Only a side that was held at one cell leaves the other one too long.
        columns, rows = min(columns, MAX_ROWS), min(rows, MAX_ROWS)
    return columns, rows


def output_shape(picture: Picture) -> tuple[int, int]:
    """Shape of `VisionEncoder.encode(picture)`: (rows, `HIDDEN`)."""
    columns, rows = grid_of(picture.width, picture.height)
    return columns * rows, HIDDEN


def output_bytes(picture: Picture) -> int:
    """Size of `VisionEncoder.encode(picture)` in bytes."""
    rows, hidden = output_shape(picture)
    return rows * hidden * DTYPE.itemsize


def mm_hash_of(picture: Picture) -> str:
    """The name of a picture's encoding: 64 hex digits.

    It covers what the encoding depends on, the pixels, the size and the encoder,
    and nothing else: two files with the same pixels share one encoding.
    """
    digest = hashlib.blake2b(digest_size=32)
    digest.update(f"{ENCODER_VERSION}:{picture.width}x{picture.height}:".encode())
    digest.update(picture.rgb)
    return digest.hexdigest()


class VisionEncoder:
    """The encoder with its weights (6.4 million, 25 MB). Not thread-safe.

    Two instances, in one process or in two, return the same bits for the same
    picture.
    """

    def __init__(self) -> None:
        seeded = torch.Generator().manual_seed(_SEED)

        def weights(inputs: int, outputs: int) -> Tensor:
            scale = 1.0 / math.sqrt(inputs)
            return torch.randn(outputs, inputs, generator=seeded) * scale

        self._embed = weights(3 * PATCH * PATCH, WIDTH)
        self._blocks = [
            (
                weights(WIDTH, 3 * WIDTH),
                weights(WIDTH, WIDTH),
                weights(WIDTH, 4 * WIDTH),
                weights(4 * WIDTH, WIDTH),
            )
            for _ in range(BLOCKS)
        ]
        self._merge = weights(MERGE * MERGE * WIDTH, 4 * WIDTH)
        self._project = weights(4 * WIDTH, HIDDEN)

    def encode(self, picture: Picture) -> Tensor:
        """Encode one picture.

        Returns:
            Contiguous bf16 tensor of shape `output_shape(picture)`, on the CPU.
        """
        columns, rows = grid_of(picture.width, picture.height)
        with torch.inference_mode(), _one_thread():
            x = self._patches(picture, columns, rows)
            x = functional.linear(x, self._embed) + _place_code(columns * MERGE, rows * MERGE)
            for block in self._blocks:
                x = _block(x, *block)
            # (rows, 2, columns, 2, WIDTH) -> one row per cell holding its four patches.
            x = x.view(rows, MERGE, columns, MERGE, WIDTH).transpose(1, 2)
            x = _norm(x.reshape(rows * columns, MERGE * MERGE * WIDTH))
            x = functional.gelu(functional.linear(x, self._merge))
            return functional.linear(x, self._project).to(DTYPE)

    def _patches(self, picture: Picture, columns: int, rows: int) -> Tensor:
        """Scale the picture to whole cells and cut it up: (patches, 3·16·16) float32."""
        pixels = torch.frombuffer(bytearray(picture.rgb), dtype=torch.uint8)
        image = pixels.view(1, picture.height, picture.width, 3).permute(0, 3, 1, 2).float()
        size = (rows * CELL, columns * CELL)
        if image.shape[-2:] != size:
            image = functional.interpolate(image, size=size, mode="bilinear", antialias=True)
        image = image / 127.5 - 1.0
        cut = image.view(3, rows * MERGE, PATCH, columns * MERGE, PATCH)
        return cut.permute(1, 3, 0, 2, 4).reshape(-1, 3 * PATCH * PATCH)


def _place_code(columns: int, rows: int) -> Tensor:
    """Sine code of each patch's place: (rows · columns, `WIDTH`) float32, row by row."""
    quarter = WIDTH // 4
    rates = torch.exp(torch.arange(quarter) * (-math.log(10_000.0) / quarter))
    across = torch.arange(columns).unsqueeze(1) * rates
    down = torch.arange(rows).unsqueeze(1) * rates
    across = torch.cat([across.sin(), across.cos()], dim=1).expand(rows, columns, 2 * quarter)
    down = torch.cat([down.sin(), down.cos()], dim=1).unsqueeze(1).expand_as(across)
    return torch.cat([across, down], dim=2).reshape(rows * columns, WIDTH)


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _block(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """One pre-norm transformer block over (patches, `WIDTH`)."""
    heads = functional.linear(_norm(x), qkv).view(-1, 3, HEADS, WIDTH // HEADS)
    query, key, value = heads.permute(1, 2, 0, 3).unsqueeze(1)
    seen = functional.scaled_dot_product_attention(query, key, value)
    x = x + functional.linear(seen.squeeze(0).transpose(0, 1).reshape(-1, WIDTH), out)
    return x + functional.linear(functional.gelu(functional.linear(_norm(x), up)), down)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hold torch's process-wide thread count at one, and put it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
