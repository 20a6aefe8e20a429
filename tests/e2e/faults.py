# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in life: a producer dies, hangs, is slow to save, forgets.

And what happens to data processes, of which the engines must not notice anything.

``ec_transfer_params`` of a producer stay good for its successor on the same port, as
far as names and sizes go: an encoding is named by its content.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

from tests.e2e.ask import Answer, ask, ask_all, reference_parts, walk_away
from tests.e2e.rows import Oracle, Row, each, measured
from tests.e2e.server import Proxy, Server, ServerError, wait_gone

#: A lost producer is noticed by missing heartbeats, after 4 s, or at once. A fixed wait
#: for an answer, a minute for example, would show.
NOTICED_S: Final = 30.0
#: On a busy host whatever is done takes as many times longer as an answer that needs no
#: peer does.
USUAL_ANSWERS: Final = 10
#: Between two kills of data processes.
PAUSE_S: Final = 0.7


def in_time(row: Row, what: str, took: float, usual: float) -> None:
    """Expect that something was answered in the time that noticing the loss may take."""
    allowed = NOTICED_S + USUAL_ANSWERS * usual
    row.expect(took < allowed, f"{what} took {took:.1f} s, more than {allowed:.0f} s")


Params = Mapping[str, Any]


def announce(producer: Server, numbers: Sequence[int]) -> dict[int, Params]:
    """Have pictures encoded; returns what was announced, by picture.

    Raises:
        ServerError: Nothing was.
    """
    announced = {}
    for number in numbers:
        answer = ask(producer.url, (number,))
        if answer.status != 200 or not answer.params:
            raise ServerError(
                f"{producer.name} announced nothing: HTTP {answer.status} {answer.error}"
            )
        announced[number] = answer.params
    return announced


# ------------------------------------------------------------------------- (d) kill -9
def killed(
    producer: Server,
    decoder: Server,
    proxy: Proxy,
    oracle: Oracle,
    traffic: Sequence[int],
    announced: Mapping[int, Params],
) -> Row:
    """Kill -9 of the producer while requests go through the proxy.

    Args:
        producer: Its host's processes die after the first answer.
        decoder: Judged.
        proxy: In front of both.
        oracle: The right answers.
        traffic: Pictures asked for through the proxy, three at a time.
        announced: Pictures that are asked for when it is dead.
    """
    regions = producer.regions()
    first_done = threading.Event()

    def one(pictures: Sequence[int]) -> tuple[Answer, float]:
        answer = ask(proxy.url, pictures)
        first_done.set()
        return answer, time.monotonic()

    def body(row: Row) -> None:
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(one, pictures) for pictures in each(traffic)]
            first_done.wait(400)
            died = time.monotonic()
            took = producer.kill_hosts()
            row.notes.append(f"the data processes were gone {took:.2f} s after their engine")
            done = [future.result() for future in waiting]
        oracle.judge(row, each(traffic), [answer for answer, _ in done])
        kept = [ask(decoder.url, (n,), params=params) for n, params in announced.items()]
        oracle.judge(row, each([*announced]), kept)
        known = each([*announced][:1])
        (usual,) = ask_all(decoder.url, known)
        oracle.judge(row, known, [usual])

        under_way = [at - died for answer, at in done if at > died > at - answer.seconds]
        if under_way:
            slowest = max(under_way)
            row.notes.append(
                f"{len(under_way)} requests under way were answered within {slowest:.1f} s of "
                "the kill"
            )
            in_time(row, "a request under way", slowest, usual.seconds)
        slowest = max(answer.seconds for answer in kept)
        row.notes.append(
            f"what the dead producer had announced was answered in {slowest:.1f} s at most; "
            f"what is known, in {usual.seconds:.1f} s"
        )
        in_time(row, "an announced encoding", slowest, usual.seconds)
        left = wait_gone(regions)
        row.expect(not left, f"the killed producer left behind: {left}")

    everything = len(traffic) + len(announced)
    row = measured(
        "kill -9 the producer in traffic",
        decoder,
        body,
        lambda row: row.remote + row.recomputed >= everything,
    )
    row.expect(row.remote >= 1, "nothing was read before it died")
    row.expect(row.recomputed > len(announced), "no request of the traffic fell back")
    return row


# ----------------------------------------------------------------------- data processes
def data_killed(
    producer: Server,
    decoder: Server,
    proxy: Proxy,
    oracle: Oracle,
    traffic: Sequence[int],
    known: int,
) -> Row:
    """Kill -9 of data processes while requests go through the proxy, one after the other.

    Args:
        producer: Its server is killed, and its parent of data processes.
        decoder: Judged; its readers are killed, and its parent.
        proxy: In front of both.
        oracle: The right answers.
        traffic: Pictures that the decoder has not seen. The last is asked for when nobody
            is killed any more and others have taken the places of the dead.
        known: A picture that both have seen.
    """
    *during, last = traffic
    hosts = [(server, set(server.hosts())) for server in (producer, decoder)]

    # Each parent once: the pause before the next one grows.
    parents = [(decoder, "ec-parent"), (producer, "ec-parent")]
    workers = itertools.cycle([(decoder, "ec-reader"), (producer, "ec-server")])
    victims = itertools.chain(itertools.islice(workers, 2), parents, workers)

    def kill_one(killed: list[str]) -> None:
        server, kind = next(victims)
        for pid in server.data(kind)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(kind)

    def complete() -> bool:
        # One that works and one that stands by; two readers that work.
        return len(producer.data("ec-server")) == 2 and len(decoder.data("ec-reader")) == 3

    def body(row: Row) -> None:
        killed = list[str]()
        with ThreadPoolExecutor(1) as pool:
            # However fast the servers are: some die in each round.
            for first in range(0, len(during), 2):
                wanted = each(during[first : first + 2])
                asked = pool.submit(ask_all, proxy.url, wanted, 2)
                while True:
                    kill_one(killed)
                    if wait([asked], PAUSE_S).done:
                        break
                oracle.judge(row, wanted, asked.result())
        since = time.monotonic()
        while not complete():
            if time.monotonic() > since + NOTICED_S:
                there = [producer.data("ec-server"), decoder.data("ec-reader")]
                raise ServerError(f"{NOTICED_S:.0f} s after the last kill there are {there}")
            # An engine notices in its steps that their parent is gone, and takes none idle.
            # A producer's answer has no tokens.
            encoded = ask(producer.url, (known,))
            row.expect(encoded.status == 200, f"the producer answered HTTP {encoded.status}")
            oracle.judge(row, each([known]), [ask(decoder.url, (known,))])
        row.notes.append(
            f"{len(killed)} killed: {', '.join(killed)}; all there again "
            f"{time.monotonic() - since:.1f} s after the last"
        )
        # A producer that was lost is not asked for a heartbeat's time, and one whose
        # readers died, for a while longer.
        oracle.judge(row, each([last]), ask_all(proxy.url, each([last])))
        row.expect(len(killed) >= 3, f"only {len(killed)} were killed")
        for server, before in hosts:
            row.expect(before == set(server.hosts()), f"{server.name}'s own processes changed")

    return measured(
        "kill -9 data processes in traffic",
        decoder,
        body,
        lambda row: row.remote + row.recomputed >= len(traffic),
    )


def engine_killed(servers: Sequence[Server], oracle: Oracle, number: int) -> Row:
    """Kill -9 of the engine's process alone, with a request under way: nothing is left.

    Args:
        servers: One after the other; each ends by itself, with all of its processes.
        oracle: The right answer, if one comes.
        number: A picture to ask for at that moment.
    """

    def body(row: Row) -> None:
        for server in servers:
            regions = server.regions()
            row.expect(bool(regions), f"{server.name} has no region")
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask, server.url, (number,))
                took = server.kill_engine()
                answer = asked.result()
            row.requests += 1
            if answer.status == 200 and not answer.same(oracle[number,]):
                row.wrong += 1
            row.notes.append(
                f"{server.name} was gone {took:.1f} s after its engine; the request under way "
                f"had HTTP {answer.status}"
            )
            left = wait_gone(regions)
            row.expect(not left, f"{server.name} left behind: {left}")

    return measured("kill -9 the engine alone", None, body)


def engine_frozen(producer: Server, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """The producer's host stands still, its data processes do not: all is read as ever.

    Args:
        producer: Its host's processes are stopped when it has announced the pictures.
        decoder: Judged; has never seen them.
        oracle: The right answers.
        numbers: The pictures.
    """
    wanted = each(numbers)

    def body(row: Row) -> None:
        announced = announce(producer, numbers)
        hosts = producer.hosts()
        for pid in hosts:
            os.kill(pid, signal.SIGSTOP)
        try:
            answers = [ask(decoder.url, (n,), params=announced[n]) for n in numbers]
        finally:
            for pid in hosts:
                os.kill(pid, signal.SIGCONT)
        oracle.judge(row, wanted, answers)

    row = measured(
        "SIGSTOP the producer's host", decoder, body, lambda row: row.remote >= len(wanted)
    )
    row.expect(row.remote == len(wanted), f"{row.remote} of {len(wanted)} were read")
    row.expect(row.recomputed == 0, f"the decoder computed {row.recomputed} itself")
    return row


def lost(decoder: Server, oracle: Oracle, number: int, params: Params, known: int) -> Row:
    """No media, and nobody left to ask: that request fails, no other, and no engine.

    With the media put back, as the proxy does then, it is answered.

    Args:
        decoder: Judged.
        oracle: The right answers.
        number: A picture that the decoder has not seen.
        params: What a producer that is dead had announced for it.
        known: A picture to ask for at the same time and afterwards.
    """

    def body(row: Row) -> None:
        engines = set(decoder.pids)
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(ask, decoder.url, (known,))
            answer = ask(decoder.url, parts=reference_parts(params), params=params)
            oracle.judge(row, each([known]), [other.result()])
        row.requests += 1
        row.notes.append(f"HTTP {answer.status} after {answer.seconds:.1f} s: {answer.error[:90]}")
        row.expect(answer.status >= 400, f"it was answered with HTTP {answer.status}")
        (usual,) = ask_all(decoder.url, each([known]))
        oracle.judge(row, each([known]), [usual])
        in_time(row, "failing it", answer.seconds, usual.seconds)
        oracle.judge(row, each([number]), [ask(decoder.url, (number,), params=params)])
        row.expect(engines <= set(decoder.pids), "a process of the decoder is gone")

    # What was read from a peer without a key is there for who names that peer (EC-15.8), so it
    # is encoded here once; counted when the second answer is there.
    for _ in range(2):
        ask(decoder.url, (known,))
    before = decoder.events()
    row = measured("encoding lost, media gone", decoder, body, lambda row: row.recomputed >= 1)
    failed = decoder.events()["requests_unavailable"] - before["requests_unavailable"]
    row.expect(failed == 1, f"{failed} requests were failed by the connector, not 1")
    row.expect(row.recomputed == 1, "the media that was put back was not encoded")
    return row


# ------------------------------------------------------------------ clients that leave
def walked_away(decoder: Server, oracle: Oracle, announced: Mapping[int, Params]) -> Row:
    """Clients hang up while their encodings are being read; others ask for the same.

    Args:
        decoder: Judged; has not seen the pictures.
        oracle: The right answers.
        announced: What a producer has announced, by picture.
    """
    patience = (0.0, 0.01, 0.03, 0.1, 0.3)

    def body(row: Row) -> None:
        with ThreadPoolExecutor(len(announced)) as pool:
            for future in [
                pool.submit(walk_away, decoder.url, (number,), params, after_s)
                for (number, params), after_s in zip(announced.items(), patience, strict=True)
            ]:
                future.result()
        answers = [patiently(row, decoder, n, params) for n, params in announced.items()]
        oracle.judge(row, each([*announced]), answers)
        held = _held_at_rest(decoder, next(iter(announced)))
        row.expect(held == 0, f"{held} blocks are held for nobody")

    row = measured(
        "clients hang up", decoder, body, lambda row: row.remote + row.recomputed >= len(announced)
    )
    row.expect(row.recomputed == 0, f"the decoder computed {row.recomputed} itself")
    row.expect(row.remote >= len(announced), f"only {row.remote} were read")
    return row


def patiently(row: Row, decoder: Server, number: int, params: Params) -> Answer:
    """The answer about a picture; the second one if the host lost the picture itself.

    Only an HTTP 500 that the decoder's log explains by ``Server.drifted`` is forgiven,
    and once.
    """
    (mm_hash,) = params
    before = decoder.drifted(mm_hash)
    answer = ask(decoder.url, (number,), params=params)
    if answer.status != 500 or decoder.drifted(mm_hash) == before:
        return answer
    row.notes.append(f"picture {number}: HTTP 500 by the host's own processor cache, asked again")
    return ask(decoder.url, (number,), params=params)


def _held_at_rest(server: Server, known: int) -> int:
    """Blocks that are held when nobody asks for anything any more.

    How many there are is told with the steps of the engine, so it is kept stepping.
    """
    deadline = time.monotonic() + 60
    while (held := server.amount("blocks/held")) and time.monotonic() < deadline:
        ask(server.url, (known,))
        time.sleep(0.5)
    return held


# ------------------------------------------------------------------- hangs, is slow
def frozen(producer: Server, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """The producer stops without a word, as a host that hangs: no connection is reset."""
    wanted = each(numbers)

    def body(row: Row) -> None:
        announced = announce(producer, numbers)
        producer.freeze(True)
        try:
            answers = [ask(decoder.url, (n,), params=announced[n]) for n in numbers]
        finally:
            producer.freeze(False)
        oracle.judge(row, wanted, answers)
        (usual,) = ask_all(decoder.url, wanted[:1])
        oracle.judge(row, wanted[:1], [usual])
        took = ", then ".join(f"{a.seconds:.1f} s" for a in answers)
        row.notes.append(f"answers took {took}; what is known, {usual.seconds:.1f} s")
        in_time(row, "fallback", max(a.seconds for a in answers), usual.seconds)

    row = measured("SIGSTOP the producer", decoder, body, lambda row: row.recomputed >= len(wanted))
    row.expect(row.recomputed == len(wanted), "the decoder did not fall back to encoding")
    return row


def slow_save(
    producer: Server, decoder: Server, oracle: Oracle, number: int, params: Params
) -> Row:
    """The producer is asked before its save has landed: it says so, and is asked again.

    Args:
        producer: Its worker is stopped in the middle of the save. It has a process of
            its own.
        decoder: Judged; has never seen the picture.
        oracle: The right answers.
        number: The picture.
        params: What was announced for it once.
    """
    wanted = each([number])
    (mm_hash,) = params
    worker = "VLLM::Worker"

    def body(row: Row) -> None:
        with ThreadPoolExecutor(2) as pool:
            producer.freeze(True, only=worker)
            try:
                encoding = pool.submit(ask, producer.url, (number,))
                producer.await_actions(mm_hash, "SubmitSave")
                answer = pool.submit(ask, decoder.url, (number,), params=params)
                decoder.await_actions(mm_hash, "AckRetry", 3)
            finally:
                producer.freeze(False, only=worker)
            oracle.judge(row, wanted, [answer.result()])
            row.expect(encoding.result().status == 200, "the producer failed its request")
        told = decoder.actions(mm_hash)
        row.notes.append(
            f"asked {told['RequestRead']} times, for which blocks were lent {told['Lend']} times"
        )
        row.expect(told["Lend"] == 1, "a retry took other blocks")

    row = measured("the save is slow to land", decoder, body, lambda row: row.remote >= 1)
    row.expect(row.remote == 1, "it was not read from the producer")
    row.expect(row.recomputed == 0, "the decoder computed it itself")
    return row
