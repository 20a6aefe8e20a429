# SPDX-License-Identifier: Apache-2.0
"""The demo's processes: ``python -m ec_connector.demo.child ROLE FOLDER INSTANCE [TRACE]``.

They talk to the parent in JSON lines: events on stdout, commands on stdin. Logs go to
stderr. End of input, or the end of the parent, ends the process in good order.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ec_connector.demo.encoder import VisionEncoder, output_bytes
from ec_connector.demo.engine import DemoEngine, Request, region_bytes
from ec_connector.demo.images import Picture, read_pictures
from ec_protocol.errors import ECError

_STEP_TIMEOUT_S = 60.0


def say(event: str, **fields: Any) -> None:
    """One event for the parent."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def listen() -> dict[str, Any] | None:
    """The parent's next command, or None at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line.strip() else None


def wrong_bytes(got: torch.Tensor, want: torch.Tensor) -> int:
    """How many bytes differ; all of them if shape or type do."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return want.numel() * want.element_size()
    flat = got.contiguous().view(torch.uint8) != want.contiguous().view(torch.uint8)
    return int(flat.sum())


def produce(pictures: list[Picture], instance: str, trace: str) -> None:
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
            say("progress", doing=f"producer: saved {picture.name}")
        say("announced", params=params, pid=os.getpid())
        listen()
    finally:
        engine.close()


class KillingReader:
    """A data plane that kills the producer between having a READ ready and posting it."""

    def __init__(self, reader: Any, pid: int, at: int) -> None:
        self._reader = reader
        self._pid = pid
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def post(self, attempt_id: int) -> None:
        """Post; the READ whose turn it is goes to a process that has just died."""
        self._left -= 1
        if self._left == 0:
            os.kill(self._pid, signal.SIGKILL)
            say("killed", pid=self._pid)
        self._reader.post(attempt_id)


def consume(pictures: list[Picture], instance: str, trace: str) -> None:
    """Pull every picture's encoding from the producer and compare it with our own."""
    encoder = VisionEncoder()
    own = _own_encodings(encoder, pictures)  # meanwhile the producer encodes its own
    command = listen()
    if command is None:
        return
    kill_at = command.get("kill_at", 0)
    pid = command["pid"]
    engine = DemoEngine(
        instance,
        "ec_consumer",
        region_bytes(pictures),
        peer_to_peer=True,
        encoder=encoder,
        wrap_reader=(lambda reader: KillingReader(reader, pid, kill_at)) if kill_at else None,
        trace=trace,
    )
    try:
        _compare(engine, pictures, command["params"], own)
        p2p = engine.instance.p2p
        stats = p2p.pump.stats.summary() if p2p is not None else {}
        counters = dict(p2p.consumer.counters) if p2p is not None and p2p.consumer else {}
        say("stats", stats=stats, counters=counters)
    finally:
        engine.close()


def _own_encodings(
    encoder: VisionEncoder, pictures: list[Picture]
) -> list[tuple[torch.Tensor, float]]:
    """Each picture's encoding as this process computes it, and in how many seconds."""
    # A first encoding pays for torch's own start-up.
    encoder.encode(min(pictures, key=output_bytes))
    own = []
    for picture in pictures:
        started = time.perf_counter()
        own.append((encoder.encode(picture), time.perf_counter() - started))
    return own


def _compare(
    engine: DemoEngine,
    pictures: list[Picture],
    params: dict[str, Any],
    own: list[tuple[torch.Tensor, float]],
) -> None:
    for number, (picture, (expected, recompute_s)) in enumerate(zip(pictures, own, strict=True)):
        request = Request(f"c{number}", picture, params)
        started = time.perf_counter()
        engine.admit(request, _STEP_TIMEOUT_S)
        waited_s = time.perf_counter() - started
        load_before, encoded_before = engine.load_s, engine.encoded
        got = engine.run(request)
        engine.drain(_STEP_TIMEOUT_S)
        engine.instance.scheduler.request_finished(request)
        say(
            "compared",
            name=picture.name,
            bytes=output_bytes(picture),
            wrong=wrong_bytes(got, expected),
            pulled=engine.encoded == encoded_before,
            waited_ms=waited_s * 1e3,
            load_ms=(engine.load_s - load_before) * 1e3,
            recompute_ms=recompute_s * 1e3,
        )


def local(pictures: list[Picture], instance: str, trace: str) -> None:
    """One process: save, lose the device's cache, load, compare."""
    engine = DemoEngine(
        instance, "ec_both", region_bytes(pictures), peer_to_peer=False, trace=trace
    )
    try:
        for number, picture in enumerate(pictures):
            engine.run(Request(f"s{number}", picture))
            engine.drain(_STEP_TIMEOUT_S)
            say("progress", doing=f"saved {picture.name}")
        engine.encoder_cache.clear()
        _compare(engine, pictures, {}, _own_encodings(engine.encoder, pictures))
    finally:
        engine.close()


def main() -> None:
    """Entry point of the child process."""
    role, folder, instance, trace = [*sys.argv[1:], ""][:4]
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s"
    )
    run = {"producer": produce, "consumer": consume, "local": local}[role]
    try:
        run(read_pictures(Path(folder)), instance, trace)
    except ECError as error:
        logging.getLogger(__name__).exception("%s gave up", role)
        say("error", message=str(error))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
