# SPDX-License-Identifier: Apache-2.0
"""Which models of a pull request a newcomer waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ec_verify.models.manifest import Model

#: A model that was quicker when it was pinned is one of those. Most of such a run is the
#: start of Java, so a little less leaves most models out and a little more few.
QUICK_SECONDS: Final = 2.0
#: Of one that has no pin yet.
UNKNOWN_SECONDS: Final = 10.0


def recorded(model: Model) -> float:
    """What a model took when it was pinned."""
    return UNKNOWN_SECONDS if model.seconds is None else model.seconds


def of_speed(models: Sequence[Model], *, quick: bool) -> tuple[Model, ...]:
    """The quick ones among these models, or all others."""
    return tuple(model for model in models if (recorded(model) < QUICK_SECONDS) == quick)
