# SPDX-License-Identifier: Apache-2.0
"""What the demo's processes do; ``main.Child`` starts them.

They send the parent events and take commands from it, both dicts. Whatever they print
goes into a log. When the parent closes its end, or ends, so does the process, in good
order.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ec_connector.demo.encoder import VisionEncoder, output_bytes
from ec_connector.demo.engine import DemoEngine, Request, region_bytes
from ec_connector.demo.images import Picture, read_pictures
from ec_protocol.errors import ECError

_STEP_TIMEOUT_S = 60.0


class Parent:
    """The other end of a child's two pipes."""

    def __init__(self, events: Connection, commands: Connection) -> None:
        self._events = events
        self._commands = commands

    def say(self, event: str, **fields: Any) -> None:
        """One event for the parent."""
        self._events.send({"event": event, **fields})

    def listen(self) -> dict[str, Any] | None:
        """The parent's next command, or None at the end."""
        try:
            command: dict[str, Any] = self._commands.recv()
        except EOFError:
            return None
        return command


def wrong_bytes(got: torch.Tensor, want: torch.Tensor) -> int:
    """How many bytes differ; all of them if shape or type do."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return want.numel() * want.element_size()
    flat = got.contiguous().view(torch.uint8) != want.contiguous().view(torch.uint8)
    return int(flat.sum())


def produce(parent: Parent, pictures: list[Picture], instance: str, trace: str) -> None:
    """Encode, save and announce every picture; serve until the parent says stop."""
    engine = DemoEngine(
        instance, "ec_producer", region_bytes(pictures), peer_to_peer=True, trace=trace
    )
    try:
        params: dict[str, Any] = {}
        for number, picture in enumerate(pictures):
            request = Request(f"p{number}", picture)
            engine.run(request)
            engine.drain(_STEP_TIMEOUT_S)
            params.update(engine.instance.scheduler.request_finished(request)[1] or {})
            parent.say("progress", doing=f"producer: saved {picture.name}")
        parent.say("announced", params=params, pids=[*engine.data_pids(), os.getpid()])
        parent.listen()
    finally:
        engine.close()


def consume(parent: Parent, pictures: list[Picture], instance: str, trace: str) -> None:
    """Pull every picture's encoding from the producer and compare it with our own."""
    encoder = VisionEncoder()
    own = _own_encodings(encoder, pictures)  # meanwhile the producer encodes its own
    command = parent.listen()
    if command is None:
        return
    kill_at = command.get("kill_at", 0)
    pids = command["pids"]
    engine = DemoEngine(
        instance,
        "ec_consumer",
        region_bytes(pictures),
        peer_to_peer=True,
        encoder=encoder,
        trace=trace,
    )

    def meanwhile(number: int) -> None:
        """The producer dies while this picture, and no other, is being fetched.

        All of it, as when its machine dies: what serves for it would otherwise do so until
        it is told that its engine is gone.
        """
        if number == kill_at:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            parent.say("killed", pid=pids[-1])

    try:
        _compare(parent, engine, pictures, command["params"], own, meanwhile)
        parent.say("stats", **engine.measured())
    finally:
        engine.close()


def _warm_up(encoder: VisionEncoder, pictures: list[Picture]) -> None:
    """A first encoding pays for torch's own start-up."""
    encoder.encode(min(pictures, key=output_bytes))


def _own_encodings(
    encoder: VisionEncoder, pictures: list[Picture]
) -> list[tuple[torch.Tensor, float]]:
    """Each picture's encoding as this process computes it, and in how many seconds."""
    _warm_up(encoder, pictures)
    own = []
    for picture in pictures:
        started = time.perf_counter()
        own.append((encoder.encode(picture), time.perf_counter() - started))
    return own


def _compare(
    parent: Parent,
    engine: DemoEngine,
    pictures: list[Picture],
    params: dict[str, Any],
    own: list[tuple[torch.Tensor, float]],
    meanwhile: Callable[[int], None] = lambda number: None,
) -> None:
    for number, (picture, (expected, recompute_s)) in enumerate(zip(pictures, own, strict=True)):
        request = Request(f"c{number}", picture, params)
        started = time.perf_counter()
        engine.admit(request, _STEP_TIMEOUT_S, lambda number=number: meanwhile(number + 1))  # type: ignore[misc]
        waited_s = time.perf_counter() - started
        load_before, encoded_before = engine.load_s, engine.encoded
        got = engine.run(request)
        engine.drain(_STEP_TIMEOUT_S)
        engine.instance.scheduler.request_finished(request)
        parent.say(
            "compared",
            name=picture.name,
            bytes=output_bytes(picture),
            wrong=wrong_bytes(got, expected),
            pulled=engine.encoded == encoded_before,
            waited_ms=waited_s * 1e3,
            load_ms=(engine.load_s - load_before) * 1e3,
            recompute_ms=recompute_s * 1e3,
        )


def local(parent: Parent, pictures: list[Picture], instance: str, trace: str) -> None:
    """One process: save, lose the device's cache, load, compare."""
    engine = DemoEngine(
        instance, "ec_both", region_bytes(pictures), peer_to_peer=False, trace=trace
    )
    try:
        _warm_up(engine.encoder, pictures)
        own = []
        for number, picture in enumerate(pictures):
            before = engine.encode_s
            encoding = engine.run(Request(f"s{number}", picture))
            engine.drain(_STEP_TIMEOUT_S)
            own.append((encoding, engine.encode_s - before))
            parent.say("progress", doing=f"saved {picture.name}")
        engine.encoder_cache.clear()
        _compare(parent, engine, pictures, {}, own)
    finally:
        engine.close()


def run(
    role: str,
    pictures: Path,
    instance: str,
    trace: str,
    log: Path,
    events: Connection,
    commands: Connection,
) -> None:
    """A child's whole life.

    Args:
        role: ``producer``, ``consumer`` or ``local``.
        pictures: Folder that ``write_pictures`` has filled.
        instance: Names the region.
        trace: File for a trace; none if empty.
        log: Where everything that the process prints goes.
        events: To the parent.
        commands: From the parent.
    """
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parent = Parent(events, commands)
    play = {"producer": produce, "consumer": consume, "local": local}[role]
    try:
        play(parent, read_pictures(pictures), instance, trace)
    except ECError as error:
        logging.getLogger(__name__).exception("%s gave up", role)
        parent.say("error", message=str(error))
        raise SystemExit(1) from error
