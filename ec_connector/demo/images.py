# SPDX-License-Identifier: Apache-2.0
"""Pictures for the demo: read from a folder, or drawn.

A `Picture` is plain bytes, so that the encoder and the processes that exchange
pictures need no imaging library; only this module uses Pillow.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ec_protocol.errors import ECError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})

# Sizes of the drawn pictures, (width, height) in pixels: the first is the one
# that the documentation quotes, the others give other numbers of rows.
DRAWN_SIZES = ((1280, 720), (640, 480), (1024, 1024), (480, 853))


class ImageError(ECError, ValueError):
    """A picture, or a folder of pictures, that the demo cannot use."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One RGB picture.

    Attributes:
        name: file name, or the name of a drawn picture; for people only.
        width: pixels.
        height: pixels.
        rgb: `3 * width * height` bytes, rows from the top, no padding.
    """

    name: str
    width: int
    height: int
    rgb: bytes

    def __post_init__(self) -> None:
        """Refuse a picture whose size and bytes contradict each other.

        Raises:
            ImageError: a side is not positive, or `rgb` has another length.
        """
        if self.width <= 0 or self.height <= 0:
            raise ImageError(
                f"{self.name}: size {self.width}x{self.height}: both sides must be positive"
            )
        expected = 3 * self.width * self.height
        if len(self.rgb) != expected:
            raise ImageError(
                f"{self.name}: {len(self.rgb)} bytes for {self.width}x{self.height} RGB, "
                f"expected {expected}"
            )


def load_folder(
    folder: Path, *, limit: int = 16, on_skip: Callable[[str], None] = lambda message: None
) -> list[Picture]:
    """Read the pictures of a folder, in the order of their names.

    Subfolders and dot files are passed over in silence. Any other file that
    cannot be used is reported through `on_skip` and left out, as is a picture
    with the same pixels as an earlier one (it has the same encoding).

    Args:
        folder: where the pictures lie.
        limit: most pictures to return; files beyond it are not opened.
        on_skip: called with one sentence for each file that is left out.

    Raises:
        ImageError: no such folder, it cannot be listed, or it holds no usable picture.
    """
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    except NotADirectoryError as error:
        raise ImageError(f"{folder} is a file: name the folder that holds the pictures") from error
    except OSError as error:
        raise ImageError(f"cannot list the folder {folder}: {error.strerror or error}") from error

    first_with: dict[tuple[int, int, bytes], str] = {}
    pictures: list[Picture] = []
    for index, path in enumerate(files):
        if len(pictures) == limit:
            on_skip(f"{len(files) - index} more files not opened: the limit is {limit} pictures")
            break
        try:
            picture = load_picture(path)
        except ImageError as error:
            on_skip(f"{error}; skipped")
            continue
        same = first_with.setdefault((picture.width, picture.height, picture.rgb), picture.name)
        if same != picture.name:
            on_skip(f"{picture.name}: same pixels as {same}; skipped")
            continue
        pictures.append(picture)
    if not pictures:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES))
        found = f"none of its {len(files)} files is one" if files else "it has no files"
        raise ImageError(f"no usable picture in {folder} ({kinds}): {found}")
    return pictures


def load_picture(path: Path) -> Picture:
    """Decode one file: turned upright by its EXIF orientation, first frame, alpha dropped.

    Raises:
        ImageError: not a picture by its suffix or its content, truncated, or so
            large that decoding it could exhaust memory.
    """
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise ImageError(f"{path.name}: not one of {', '.join(sorted(IMAGE_SUFFIXES))}")
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            # Pillow only warns up to twice its pixel limit; we stop at the limit.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                return _picture(path.name, ImageOps.exif_transpose(image).convert("RGB"))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{path.name}: too many pixels ({error})") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        # Pillow's decoders raise all of these for damaged files.
        raise ImageError(f"{path.name}: not a readable picture ({error})") from error


def write_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    """Write pictures as PNG files, which keep every pixel; `read_pictures` reads them."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for index, picture in enumerate(pictures):
        image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
        image.save(folder / f"{index:04d}.png")
    (folder / "names").write_text("\n".join(picture.name for picture in pictures))


def read_pictures(folder: Path) -> list[Picture]:
    """Read what `write_pictures` wrote.

    Raises:
        ImageError: a file is missing or damaged.
    """
    names = (folder / "names").read_text().split("\n")
    pictures = [load_picture(folder / f"{index:04d}.png") for index in range(len(names))]
    return [
        dataclasses.replace(picture, name=name)
        for picture, name in zip(pictures, names, strict=True)
    ]


def draw_pictures() -> list[Picture]:
    """Draw one picture per `DRAWN_SIZES` entry; the same bytes every time."""
    return [_draw(index, width, height) for index, (width, height) in enumerate(DRAWN_SIZES)]


def _draw(index: int, width: int, height: int) -> Picture:
    """A two-way gradient under shapes that differ with `index`."""
    from PIL import Image, ImageDraw

    across = Image.linear_gradient("L").rotate(90).resize((width, height))
    down = Image.linear_gradient("L").resize((width, height))
    around = Image.radial_gradient("L").resize((width, height))
    channels = [across, down, around]
    turned = channels[index % 3 :] + channels[: index % 3]
    image = Image.merge("RGB", turned)
    draw = ImageDraw.Draw(image)
    step = min(width, height) // (4 + index)
    for i in range(4 + index):
        left, top = i * width // (4 + index), i * height // (4 + index)
        colour = (37 * i % 256, 91 * (i + index) % 256, 255 - 29 * i % 256)
        box = (left, top, left + step, top + step)
        if (i + index) % 2:
            draw.ellipse(box, fill=colour)
        else:
            draw.rectangle(box, fill=colour, outline=(255, 255, 255), width=3)
        draw.line((left, height - top, width - left, top), fill=colour, width=2 + index)
    return _picture(f"drawn-{index}-{width}x{height}", image)


def _picture(name: str, image: Image.Image) -> Picture:
    return Picture(name=name, width=image.width, height=image.height, rgb=image.tobytes())
