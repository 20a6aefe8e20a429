# SPDX-License-Identifier: Apache-2.0
"""What is asked of real servers, and what must come back.

Every answer is compared with a plain server's answer to the same request, token by
token. Besides, each scenario says from where its encodings must have come.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from e2e.ask import Answer, ask, ask_all, reference_parts
from e2e.server import Process, Proxy, Server, wait_gone

#: A lost producer is noticed by missing heartbeats, after 4 s, or at once.
FALLBACK_S: Final = 30.0


@dataclass(slots=True)
class Row:
    """The result of one scenario.

    Attributes:
        scenario: Its name.
        requests: Requests that were judged.
        local: Encodings loaded out of the server's own tier.
        remote: Encodings read from the producer.
        recomputed: Encodings that the judged server computed itself.
        wrong: Answers that differ from the plain server's.
        seconds: Wall time.
        problems: What else was not as it must be.
        notes: What was measured besides.
    """

    scenario: str
    requests: int = 0
    local: int = 0
    remote: int = 0
    recomputed: int = 0
    wrong: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong and not self.problems

    def expect(self, true: bool, otherwise: str) -> None:
        """Note a problem unless ``true``."""
        if not true:
            self.problems.append(otherwise)


class Oracle:
    """Answers of a plain server, asked once and remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Answer] = {}

    def learn(self, url: str, wanted: Sequence[Sequence[int]]) -> list[str]:
        """Ask the plain server at ``url`` for whatever is not known yet.

        Returns:
            What makes it a bad oracle.
        """
        missing = [tuple(w) for w in wanted if tuple(w) not in self._known]
        answers = ask_all(url, missing, workers=4)
        self._known.update(zip(missing, answers, strict=True))
        problems = [
            f"the plain server did not answer: {answer.status} {answer.error}"
            for answer in answers
            if answer.status != 200 or not answer.tokens
        ]
        known = list(self._known.items())
        alike = [
            f"{list(one)} and {list(other)}"
            for at, (one, answer) in enumerate(known)
            for other, another in known[:at]
            if answer.same(another)
        ]
        if alike:
            problems.append(f"a wrong picture would not be noticed: {', '.join(alike)}")
        return problems

    def __getitem__(self, pictures: Sequence[int]) -> Answer:
        return self._known[tuple(pictures)]

    def judge(self, row: Row, wanted: Sequence[Sequence[int]], answers: Sequence[Answer]) -> None:
        """Count requests and wrong answers; an error is a problem of its own."""
        for pictures, answer in zip(wanted, answers, strict=True):
            row.requests += 1
            if answer.status != 200:
                row.problems.append(
                    f"pictures {list(pictures)}: HTTP {answer.status} {answer.error[:200]}"
                )
            elif not answer.same(self[pictures]):
                row.wrong += 1


def count_sources(row: Row, before: Counter[str], after: Counter[str]) -> None:
    """Where the encodings of a row came from, by the judged server's counters."""
    made = Counter({name: after[name] - before[name] for name in after})
    row.remote = made["consumer_events/reads_done"]
    # Each encoding that was read is then loaded out of the tier once.
    row.local = max(made["items/hit"] - row.remote, 0)
    row.recomputed = made["items/miss"]


def measured(name: str, server: Server | None, body: Callable[[Row], None]) -> Row:
    """Run one scenario, timed, with the counters of ``server`` around it."""
    row = Row(name)
    started = time.monotonic()
    try:
        before = server.events() if server is not None else Counter[str]()
        body(row)
        if server is not None:
            count_sources(row, before, server.events())
    except Exception as exc:
        row.problems.append(f"{type(exc).__name__}: {exc}")
    row.seconds = time.monotonic() - started
    return row


def each(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Requests about one picture each."""
    return [(number,) for number in numbers]


# ------------------------------------------------------------------- (a), (g): local
def local_tier(server: Server, oracle: Oracle, name: str = "local tier") -> Row:
    """Encode, lose the device's encoder cache, load from the tier."""
    wanted = each(range(3))

    def body(row: Row) -> None:
        oracle.judge(row, wanted, ask_all(server.url, wanted))
        server.events()  # the last save has landed
        server.reset_encoder_cache()
        # Two pictures in one request, both in the tier, one of them twice.
        again = [*wanted, (0, 1, 0)]
        oracle.judge(row, again, ask_all(server.url, again))

    row = measured(name, server, body)
    row.expect(row.recomputed == 3, f"3 encodings were to be computed, not {row.recomputed}")
    row.expect(row.local >= 3, f"3 encodings were to be loaded, not {row.local}")
    return row


def churn(server: Server, oracle: Oracle, requests: int = 50, pictures: int = 10) -> Row:
    """Many requests at once over more pictures than tier and encoder cache hold.

    Some pictures are asked for more often than others, as in life.
    """
    shuffled = random.Random(7)
    weights = [1 / (1 + number) for number in range(pictures)]
    numbers = [*range(pictures), *shuffled.choices(range(pictures), weights, k=requests - pictures)]
    shuffled.shuffle(numbers)
    wanted = each(numbers)
    row = measured(
        f"churn: {requests} at once, {pictures} pictures, tier of 4",
        server,
        lambda row: oracle.judge(row, wanted, ask_all(server.url, wanted, workers=requests)),
    )
    row.expect(row.recomputed >= pictures - 4, "nothing was evicted: the tier was not full")
    return row


# ------------------------------------------------------------- (b), (c): peer-to-peer
def pull(name: str, proxy: Proxy, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """Through the proxy: the encoder encodes, the decoder reads from it."""
    wanted = each(numbers)
    row = measured(
        name,
        decoder,
        lambda row: oracle.judge(row, wanted, ask_all(proxy.url, wanted, workers=2)),
    )
    row.expect(row.remote == len(wanted), f"{row.remote} of {len(wanted)} were read from the peer")
    row.expect(row.recomputed == 0, f"the decoder computed {row.recomputed} itself")
    return row


def reload_pulled(name: str, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """What was read once is in the decoder's own tier."""
    wanted = each(numbers)

    def body(row: Row) -> None:
        decoder.reset_encoder_cache()
        oracle.judge(row, wanted, ask_all(decoder.url, wanted))

    row = measured(name, decoder, body)
    row.expect(row.local == len(wanted), f"{row.local} of {len(wanted)} were loaded")
    return row


# ----------------------------------------------------------------- (d): producer dies
def killed(
    producer: Server, decoder: Server, proxy: Proxy, oracle: Oracle, numbers: Sequence[int]
) -> Row:
    """Kill -9 of the producer between the answers of a burst of requests.

    The first half of ``numbers`` goes through the proxy while the producer dies; the
    second half was announced before and is asked for when it is dead.
    """
    half = len(numbers) // 2
    burst, later = each(numbers[:half]), list(numbers[half:])
    regions = producer.regions()

    def body(row: Row) -> None:
        announced = {number: ask(producer.url, (number,)).params for number in later}
        row.expect(all(announced.values()), "the producer announced nothing")
        first_done = threading.Event()

        def one(pictures: Sequence[int]) -> Answer:
            answer = ask(proxy.url, pictures)
            first_done.set()
            return answer

        with ThreadPoolExecutor(len(burst)) as pool:
            waiting = [pool.submit(one, pictures) for pictures in burst]
            first_done.wait(60)
            producer.kill()
            died = time.monotonic()
            answers = [future.result() for future in waiting]
        row.notes.append(f"burst over {time.monotonic() - died:.1f} s after the kill")
        oracle.judge(row, burst, answers)

        kept = [ask(decoder.url, (number,), params=announced[number]) for number in later[:-1]]
        oracle.judge(row, each(later[:-1]), kept)
        slowest = max(answer.seconds for answer in kept)
        row.notes.append(f"fallback of an announced encoding took {slowest:.1f} s at most")
        row.expect(slowest < FALLBACK_S, f"fallback took {slowest:.1f} s")

        # No media and nobody to ask: that request fails, and no other.
        last = announced[later[-1]] or {}
        lost = ask(decoder.url, parts=reference_parts(last), params=last)
        row.expect(lost.status >= 400, f"a lost encoding was answered with HTTP {lost.status}")
        oracle.judge(row, each(later[:1]), ask_all(decoder.url, each(later[:1])))
        left = wait_gone(regions)
        row.expect(not left, f"files of the killed producer are left: {sorted(left)}")

    row = measured("kill -9 the producer", decoder, body)
    row.expect(row.recomputed >= len(later) - 1, "the decoder did not fall back to encoding")
    return row


def frozen(producer: Server, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """The producer stops without a word, as a host that hangs: no connection is reset."""
    wanted = each(numbers)

    def body(row: Row) -> None:
        announced = [ask(producer.url, pictures).params for pictures in wanted]
        row.expect(all(announced), "the producer announced nothing")
        producer.freeze(True)
        try:
            answers = [
                ask(decoder.url, pictures, params=params)
                for pictures, params in zip(wanted, announced, strict=True)
            ]
        finally:
            producer.freeze(False)
        oracle.judge(row, wanted, answers)
        row.notes.append("answers took " + ", ".join(f"{a.seconds:.1f} s" for a in answers))
        row.expect(max(a.seconds for a in answers) < FALLBACK_S, "fallback took too long")

    row = measured("SIGSTOP the producer", decoder, body)
    row.expect(row.recomputed == len(wanted), "the decoder did not fall back to encoding")
    return row


# ------------------------------------------------------------------- hostile requests
def hostile(decoder: Server, oracle: Oracle, number: int) -> Row:
    """``ec_transfer_params`` of any shape: the request falls back, or fails alone."""
    mm_hash = "0" * 64
    grid = {"image_grid_thw": [1, 16, 16]}
    somewhere = {"peer_host": "127.0.0.1", "peer_port": 9, "size_bytes": 32768}

    def body(row: Row) -> None:
        for params in (
            {mm_hash: 7},
            {mm_hash: {"peer_host": 5, "peer_port": "x"}},
            {"../../etc": somewhere, mm_hash: {**somewhere, "shape": [10**9, 10**9]}},
            {mm_hash: {**somewhere, "size_bytes": 1 << 62}},
        ):
            oracle.judge(row, [(number,)], [ask(decoder.url, (number,), params=params)])
        for name, params in (
            ("no announcement", None),
            ("x" * 100_000, {"x" * 100_000: {**somewhere, "shape": [64, 128]}}),
            ("../" * 20, {"../" * 20: {**somewhere, "shape": [64, 128]}}),
            ("wide", {"wide": {**somewhere, "size_bytes": 65536, "shape": [64, 256]}}),
        ):
            part = {"type": "image_embeds", "uuid": name, "image_embeds": grid}
            answer = ask(decoder.url, parts=[part], params=params)
            row.expect(answer.status >= 400, f"{name[:20]}: HTTP {answer.status}")
        oracle.judge(row, [(number,)], [ask(decoder.url, (number,))])
        row.requests += 4

    return measured("hostile parameters", decoder, body)


# ------------------------------------------------------------------------- (f): stop
def stopped(servers: Sequence[Server], row_name: str = "SIGTERM, default flags") -> Row:
    """A plain stop leaves no process and no file behind."""

    def body(row: Row) -> None:
        regions = {path for server in servers for path in server.regions()}
        row.expect(len(regions) == len(servers), f"regions before the stop: {sorted(regions)}")
        for server in servers:
            took = server.terminate()
            row.notes.append(f"{server.name} ended in {took:.1f} s")
        left = wait_gone(regions)
        row.expect(not left, f"files are left: {sorted(left)}")

    return measured(row_name, None, body)


def idle(plain: Server | None, servers: Sequence[Server], seconds: float) -> Row:
    """Processor time of instances that have nothing to do, beside a plain server's."""

    def body(row: Row) -> None:
        watched: list[Process] = [*([plain] if plain else []), *servers]
        before = [process.cpu_seconds() for process in watched]
        time.sleep(seconds)
        used = {
            process.name: 100 * (process.cpu_seconds() - was) / seconds
            for process, was in zip(watched, before, strict=True)
        }
        row.notes += [f"{name} {percent:.1f} % of a core" for name, percent in used.items()]
        base = used[plain.name] if plain else 0.0
        for server in servers:
            beyond = used[server.name] - base
            row.expect(beyond <= 2.0, f"{server.name} idles at {beyond:.1f} % beyond a plain one")

    return measured(f"idle for {seconds:g} s, peer-to-peer on", None, body)
