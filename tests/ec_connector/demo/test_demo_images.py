# SPDX-License-Identifier: Apache-2.0
"""Pictures for the demo: what is read, what is skipped and said, what is an error."""

import struct
import zlib

import pytest

from tests.needs import needs

needs("PIL")
from PIL import Image

from ec_connector.demo.images import (
    DRAWN_SIZES,
    ImageError,
    Picture,
    draw_pictures,
    load_folder,
    load_picture,
    read_pictures,
    write_pictures,
)


def save(path, size=(40, 30), colour=(10, 20, 30), **options):
    Image.new("RGB", size, colour).save(path, **options)
    return path


def huge_png(path):
    """A PNG of a few bytes that declares 60000x60000 pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 100)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )
    return path


def test_reads_png_jpeg_and_webp_in_name_order(tmp_path):
    save(tmp_path / "b.jpg", (50, 20))
    save(tmp_path / "c.webp", (20, 50), lossless=True)
    save(tmp_path / "a.PNG", (40, 30), (1, 2, 3))
    (tmp_path / "folder.png").mkdir()
    (tmp_path / ".hidden").write_text("x")
    said = []
    pictures = load_folder(tmp_path, on_skip=said.append)
    assert [(p.name, p.width, p.height) for p in pictures] == [
        ("a.PNG", 40, 30),
        ("b.jpg", 50, 20),
        ("c.webp", 20, 50),
    ]
    assert pictures[0].rgb == bytes((1, 2, 3)) * (40 * 30)
    assert said == []


def test_unusable_files_are_skipped_and_named(tmp_path):
    save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("hello")
    cut = tmp_path / "cut.png"
    Image.radial_gradient("L").save(cut)
    cut.write_bytes(cut.read_bytes()[:1000])
    huge_png(tmp_path / "huge.png")
    said = []
    pictures = load_folder(tmp_path, on_skip=said.append)
    assert [p.name for p in pictures] == ["good.png"]
    assert [line.split(":")[0] for line in said] == [
        "broken.png",
        "cut.png",
        "empty.jpg",
        "huge.png",
        "notes.txt",
    ]
    assert all(line.endswith("skipped") for line in said)
    assert "too many pixels" in said[3]
    assert ".png" in said[4]


def test_same_pixels_are_used_once(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    said = []
    assert len(load_folder(tmp_path, on_skip=said.append)) == 1
    assert said == ["b.png: same pixels as a.png; skipped"]


def test_limit_is_said(tmp_path):
    for i in range(5):
        save(tmp_path / f"{i}.png", colour=(i, 0, 0))
    said = []
    assert len(load_folder(tmp_path, limit=3, on_skip=said.append)) == 3
    assert said == ["2 more files not opened: the limit is 3 pictures"]


def test_a_folder_without_pictures_is_an_error(tmp_path):
    with pytest.raises(ImageError, match="it has no files"):
        load_folder(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ImageError, match="none of its 1 files is one"):
        load_folder(tmp_path)


def test_a_wrong_folder_is_an_error(tmp_path):
    with pytest.raises(ImageError, match="No such file"):
        load_folder(tmp_path / "absent")
    with pytest.raises(ImageError, match="is a file"):
        load_folder(save(tmp_path / "a.png"))


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    save(tmp_path / "turned.jpg", (40, 30), exif=exif)
    turned = load_picture(tmp_path / "turned.jpg")
    assert (turned.width, turned.height) == (30, 40)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 4)).save(path)
    assert len(load_picture(path).rgb) == 3 * 8 * 4


@pytest.mark.parametrize(("width", "height", "size"), [(0, 4, 0), (4, -1, 0), (2, 2, 11)])
def test_a_picture_that_contradicts_itself_is_refused(width, height, size):
    with pytest.raises(ImageError, match="x"):
        Picture("p", width, height, bytes(size))


def test_drawn_pictures_differ_and_repeat():
    first, second = draw_pictures(), draw_pictures()
    assert first == second
    assert tuple((p.width, p.height) for p in first) == DRAWN_SIZES
    assert DRAWN_SIZES[0] == (1280, 720)
    assert len({p.rgb for p in first}) == len(first)


def test_written_pictures_are_read_back_pixel_by_pixel(tmp_path):
    pictures = draw_pictures()
    write_pictures(pictures, tmp_path / "pictures")
    assert read_pictures(tmp_path / "pictures") == pictures
