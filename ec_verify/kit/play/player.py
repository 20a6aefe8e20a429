# SPDX-License-Identifier: Apache-2.0
"""Plays a case from its first step to its last, or to the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.language.schedule import Case, parse_step
from ec_verify.kit.language.steps import Repeat, Try
from ec_verify.kit.language.times import ScheduleError
from ec_verify.kit.play import data as play_data
from ec_verify.kit.play import engine as play_engine
from ec_verify.kit.play import peers as play_peers
from ec_verify.kit.play import wire as play_wire
from ec_verify.kit.play.verbs import PLAYERS
from ec_verify.kit.world.checks import CheckFailed
from ec_verify.kit.world.links import Link
from ec_verify.kit.world.world import World

__all__ = ["play", "play_data", "play_engine", "play_peers", "play_wire"]


def play(case: Case, connect: Callable[[str], Link], history: list[dict[str, Any]]) -> None:
    """Play a case.

    Args:
        case: The case.
        connect: Makes a link to a fresh instance, given the node's name.
        history: Operations and events are appended.

    Raises:
        CheckFailed: What the implementation did is not what the case expects.
        Unsupported: The implementation lacks an operation that the case needs.
        ImplementationError: The implementation failed.
        ScheduleError: The case itself makes no sense.
    """
    world = World(case, connect, history)
    try:
        for node in world.nodes.values():
            if not node.setup.later:
                world.start(node)
        play_steps(world, case.steps, "step")
        if world.watch.near:
            raise world.watch.near[0]
    except Unsupported:
        if world.watch.near:
            raise world.watch.near[0] from None
        raise
    finally:
        world.close()


def play_steps(world: World, raw_steps: list[dict[str, Any]], where: str) -> None:
    """Play steps in order; a failure says at which one it came."""
    for number, raw in enumerate(raw_steps, 1):
        here = f"{where} {number}" if where == "step" else f"{where}.{number}"
        step = parse_step(raw, here)
        world.log("step", number=here.removeprefix("step "), step=raw)
        if isinstance(step, Repeat):
            for round_number in range(step.repeat):
                play_steps(world, _numbered(step.steps, round_number), f"{here}[{round_number}]")
            continue
        if isinstance(step, Try):
            _try(world, step, here)
            continue
        noted = len(world.watch.near)
        try:
            PLAYERS[type(step)](world, step)
        except CheckFailed as exc:
            exc.where = here if not step.note else f"{here} ({step.note})"
            exc.step = raw
            if not exc.invariant:
                exc.clause = step.clause or exc.clause
                exc.level = step.level or exc.level
            raise
        finally:
            for breach in world.watch.near[noted:]:
                breach.where, breach.step = here, raw


def _try(world: World, step: Try, here: str) -> None:
    """Play steps until one of them has nothing to act on."""
    try:
        play_steps(world, step.steps, here)
    except CheckFailed as exc:
        if exc.invariant or exc.clause:
            raise
        world.log("impossible", number=exc.where.removeprefix("step "), why=str(exc))
    except ScheduleError as exc:
        world.log("impossible", number=here.removeprefix("step "), why=str(exc))


def _numbered(template: Any, number: int) -> Any:
    """The steps with ``{i}`` replaced by the number of the round."""
    if isinstance(template, dict):
        return {_numbered(k, number): _numbered(v, number) for k, v in template.items()}
    if isinstance(template, list):
        return [_numbered(item, number) for item in template]
    if isinstance(template, str):
        return number if template == "{i}" else template.replace("{i}", str(number))
    return template
