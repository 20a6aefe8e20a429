# SPDX-License-Identifier: Apache-2.0
"""The table of verbs: which function plays which step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ec_verify.kit.language.steps import Step
from ec_verify.kit.world.world import World

S = TypeVar("S", bound=Step)
Player = Callable[[World, Any], None]

PLAYERS: dict[type[Step], Player] = {}


def plays(kind: type[S]) -> Callable[[Callable[[World, S], None]], Callable[[World, S], None]]:
    """Register the function that plays steps of a kind."""

    def register(function: Callable[[World, S], None]) -> Callable[[World, S], None]:
        PLAYERS[kind] = function
        return function

    return register
