# SPDX-License-Identifier: Apache-2.0
"""The environment of a data process: what its libraries need, and no secrets.

Over TCP a peer that forges its metadata reads whatever lies in the process's memory, and
there the environment lies too: tokens and keys of the host have no business in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Names that are passed on, and beginnings of names.
_NAMES: Final = frozenset(
    {"HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"}
)
_BEGINNINGS: Final = ("CUDA_", "IBV_", "LC_", "MLX5_", "NIXL_", "NVIDIA_", "PYTHON", "UCX_")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What data processes are given of the host's environment.

    The region is host memory. Where there is a GPU, UCX would make a context on it all the
    same and hold its devices open, unless it leaves those modules alone.
    """
    found = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_BEGINNINGS)
    }
    return {"UCX_MODULES": "^cuda", **found}


def sharing_in(folder: str) -> dict[str, str]:
    """What a data process is given besides: where it shares memory under a name."""
    return {"UCX_POSIX_DIR": folder} if folder else {}
