# SPDX-License-Identifier: Apache-2.0
"""How long a consumer waits for an answer while the producer's engine is busy.

Ours: from sending the request to having the ack, as our consumer's reader sees it, with
the READ and the release of the grant after each. Baseline: a bare socket towards the
engine thread that answers once per step.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any, Final

import zmq

from ec_connector.bench import peers
from ec_connector.bench.rows import Row
from ec_protocol.p2p import wire

STEP_S: Final = 0.2
_NBYTES: Final = 4 * peers.BLOCK


def run(quick: bool = False) -> list[Row]:
    """Rows for an engine thread that sleeps, and one that computes in Python."""
    count, asked = (20, 8) if quick else (300, 60)
    rows: list[Row] = []
    engines: tuple[tuple[peers.Engine, str], ...] = (
        ("sleeps", "engine thread sleeps 200 ms"),
        ("computes", "engine thread holds the GIL for 200 ms"),
    )
    for engine, case in engines:
        with peers.producer(engine, STEP_S, count + 1, _NBYTES) as (offer, _):
            ours = _ours(offer)
            theirs = _baseline(offer, asked)
        for percent in (50, 99):
            rows.append(
                Row(
                    "ack",
                    f"p{percent}, {case}, beside answering from the step",
                    percentile(ours, percent) * 1e3,
                    percentile(theirs, percent) * 1e3,
                    "ms",
                )
            )
    return rows


def percentile(samples: list[float], percent: int) -> float:
    """A percentile, between samples if need be."""
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def _ours(offer: peers.Offer) -> list[float]:
    """Seconds from request to ack, by fetch, at random moments of the engine's step."""
    dice = random.Random(1)
    node = peers.Node("ec_consumer", 4 * len(offer.names) + 64)
    try:
        for name in offer.names:
            node.fetch(name, offer.address, offer.nbytes)
            time.sleep(dice.uniform(0.0, 0.02))
        # The first one opened the connection.
        return node.samples("ack", len(offer.names))[1:]
    finally:
        node.close()


def _baseline(offer: peers.Offer, count: int) -> list[float]:
    dice = random.Random(2)
    context: zmq.Context[Any] = zmq.Context()
    taken: list[float] = []
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{offer.baseline}")
        for number in range(count + 1):
            name = offer.names[number % len(offer.names)]
            began = time.perf_counter()
            socket.send_multipart([b"", wire.encode(peers.request(name, number + 1))])
            if not socket.poll(10_000):
                raise RuntimeError("the baseline does not answer")
            wire.decode_ack(socket.recv_multipart())
            if number:
                taken.append(time.perf_counter() - began)
            time.sleep(dice.uniform(0.0, STEP_S))
    finally:
        context.destroy(linger=0)
    return taken
