# SPDX-License-Identifier: Apache-2.0
"""Pictures that a tiny random model tells apart."""

from __future__ import annotations

import base64
import functools
import io
import random

#: Pixels per side. In both tiny models that makes 64 rows of encoder output at most.
SIDE = 224


@functools.cache
def picture(number: int) -> str:
    """Picture ``number`` as a data URL: four patches of different colours, as PNG."""
    from PIL import Image

    colours = random.Random(number)
    image = Image.new("RGB", (SIDE, SIDE))
    half = SIDE // 2
    for x in (0, half):
        for y in (0, half):
            colour = tuple(colours.randrange(256) for _ in range(3))
            image.paste(colour, (x, y, x + half, y + half))
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
