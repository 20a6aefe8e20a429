# SPDX-License-Identifier: Apache-2.0
"""Tells the weights in one folder from all others, without reading all of them.

Two fine-tunes of a model have the same index, names, shapes and sizes, so those alone tell
nothing. A few kilobytes out of the middle of each tensor do: training, quantising or merging
moves nearly every number of a tensor that it touches. What is hashed is content and never a
path, so the same weights are the same wherever they lie.

It takes one read per tensor, of files that were just loaded: some milliseconds for a small
model, and at most ``MAX_TENSORS`` reads for any.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

#: Bytes that are hashed of each tensor, out of its middle; a smaller one is hashed whole.
_SAMPLE: Final = 4096
#: Tensors of one folder that are looked at each by itself.
MAX_TENSORS: Final = 1 << 16
#: Longest header of a safetensors file, as its format says.
_MAX_HEADER: Final = 100_000_000
#: Samples of a file whose tensors are not known, and its end, where archives have checksums.
_SAMPLES: Final = 256
_TAIL: Final = 64 << 10
#: Small files are hashed whole; of a longer one only so much.
_WHOLE: Final = 64 << 20

_WEIGHTS: Final = (".bin", ".pt", ".pth", ".gguf", ".safetensors")
#: Files beside the weights that decide what goes into the encoder.
_PREPARING: Final = ("processor", "preprocessor", "feature_extract")


def fingerprint(place: Path, *, code: bool = False) -> str | None:
    """SHA-256, hex, of what is in a folder of weights, or in one file of them.

    Args:
        place: The folder, or the file.
        code: Whether the folder's Python files are run.

    Returns:
        None: there are no weights.

    Raises:
        OSError: A file cannot be read.
    """
    files = [place] if place.is_file() else sorted(p for p in _listed(place) if p.is_file())
    weights = [p for p in files if p.name.endswith(_WEIGHTS)]
    if not weights:
        return None
    beside = [p for p in files if p.suffix == ".json" and _decides(p.name)]
    beside += [p for p in files if code and p.suffix == ".py"]
    found = hashlib.sha256()
    for path in weights:
        found.update(_of_weights(path).encode())
    for path in beside:
        with path.open("rb") as file:
            body = hashlib.sha256(file.read(_WHOLE)).hexdigest()
        found.update(json.dumps([path.name, body]).encode())
    return found.hexdigest()


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _decides(name: str) -> bool:
    return name.endswith(".index.json") or any(word in name for word in _PREPARING)


def _of_weights(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as raw:
        size = os.fstat(raw.fileno()).st_size
        spans = None
        if path.suffix == ".safetensors":
            header = _header(raw, size)
            if header is not None:
                found.update(header[1])
                spans = _tensors(*header, size)
        for at, length in _spread(size) if spans is None else spans:
            found.update(os.pread(raw.fileno(), length, at))
    return json.dumps([path.name, size, found.hexdigest()])


def _header(raw: BinaryIO, size: int) -> tuple[int, bytes] | None:
    """Where the tensors of a safetensors file begin, and what it says of them."""
    length = int.from_bytes(os.pread(raw.fileno(), 8, 0), "little")
    if length > min(size - 8, _MAX_HEADER):
        return None
    return 8 + length, os.pread(raw.fileno(), length, 8)


def _tensors(start: int, header: bytes, size: int) -> list[tuple[int, int]] | None:
    """What to hash of each tensor; None if the header is none, or has too many."""
    try:
        rows: dict[str, Any] = json.loads(header)
        offsets = [row["data_offsets"] for key, row in rows.items() if key != "__metadata__"]
        spans = sorted((start + int(first), start + int(last)) for first, last in offsets)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if len(spans) > MAX_TENSORS or any(not 0 <= a <= b <= size for a, b in spans):
        return None
    return [_middle(first, last) for first, last in spans]


def _middle(first: int, last: int) -> tuple[int, int]:
    length = min(_SAMPLE, last - first)
    return first + (last - first - length) // 2, length


def _spread(size: int) -> Iterator[tuple[int, int]]:
    """Evenly over the file, and its end."""
    if size <= _SAMPLES * _SAMPLE + _TAIL:
        yield 0, size
        return
    for number in range(_SAMPLES):
        yield number * size // _SAMPLES, _SAMPLE
    yield size - _TAIL, _TAIL
