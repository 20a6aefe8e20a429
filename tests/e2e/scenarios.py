# SPDX-License-Identifier: Apache-2.0
"""What is asked of servers that are well, and what must come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.e2e.ask import ask, ask_all, image_part, reference_parts
from tests.e2e.rows import Oracle, Row, each, measured
from tests.e2e.server import Proxy, Server, wait_gone

#: Requests that are sent at once, about ten pictures: four pictures in turn, four times,
#: then three others with one of them, and so on. A picture comes again after three
#: others, so the tier, which holds four, has it, and the device, which holds two, not.
CHURN: Final = (*((0, 1, 2, 3) * 4), *((3, 4, 5, 6) * 4), *((6, 7, 8, 9) * 4), 0, 1)
#: In this order 36 of the 50 would be loaded. They arrive in about this order, and
#: requests that run together share what the device holds, so it is fewer.
CHURN_LOADS: Final = 8


# ------------------------------------------------------------------- (a), (g): local
def local_tier(
    server: Server, oracle: Oracle, name: str, several: Sequence[Sequence[int]] = ()
) -> Row:
    """Encode, lose the device's encoder cache, load from the tier.

    Args:
        server: Judged.
        oracle: The right answers.
        name: Of the row.
        several: Requests about several of the pictures 0 to 2.
    """
    wanted = each(range(3))

    def body(row: Row) -> None:
        oracle.judge(row, wanted, ask_all(server.url, wanted))
        server.events()  # the last save has landed
        server.forget()
        again = [*several, *wanted]
        oracle.judge(row, again, ask_all(server.url, again))

    row = measured(name, server, body, lambda row: row.recomputed >= 3 and row.local >= 3)
    row.expect(row.recomputed == 3, f"3 encodings were to be computed, not {row.recomputed}")
    row.expect(row.local >= 3, f"3 encodings were to be loaded, not {row.local}")
    return row


def churn(server: Server, oracle: Oracle) -> Row:
    """Many requests at once over more pictures than tier and encoder cache hold."""
    wanted = each(CHURN)
    before = server.actions()
    row = measured(
        f"churn: {len(wanted)} at once, {len(set(CHURN))} pictures, tier of 4",
        server,
        lambda row: oracle.judge(row, wanted, ask_all(server.url, wanted, workers=len(wanted))),
        lambda row: row.local >= CHURN_LOADS,
    )
    evicted = server.actions()["Evict"] - before["Evict"]
    row.notes.append(f"{evicted} encodings gave way to others")
    row.expect(row.local >= CHURN_LOADS, f"only {row.local} were loaded from the tier")
    row.expect(evicted >= 6, f"only {evicted} were evicted: the tier was not full")
    return row


# ------------------------------------------------------------- (b), (c): peer-to-peer
def pull(
    name: str,
    proxy: Proxy,
    decoder: Server,
    oracle: Oracle,
    wanted: Sequence[Sequence[int]],
    *,
    patient: bool = True,
    stream: bool = False,
) -> Row:
    """Through the proxy: the encoder encodes, the decoder reads from it.

    Args:
        name: Of the row.
        proxy: In front of both.
        decoder: Judged.
        oracle: The right answers.
        wanted: Pictures that the decoder has not seen, by request.
        patient: The decoder waits for acks longer than a busy host needs. If not, each
            that it computes itself must be one for which it waited in vain.
        stream: Have the answers streamed.
    """
    different = len({number for pictures in wanted for number in pictures})
    before = decoder.actions()
    row = measured(
        name,
        decoder,
        lambda row: oracle.judge(row, wanted, ask_all(proxy.url, wanted, 2, stream)),
        lambda row: row.remote + row.recomputed >= different,
    )
    in_vain = 0
    if not patient:
        in_vain = decoder.actions()["AckTimeout"] - before["AckTimeout"]
        if in_vain:
            row.notes.append(f"{in_vain} acks came later than after 2 s: this host is busy")
    row.expect(
        different - in_vain <= row.remote <= different,
        f"{row.remote} of {different} were read from the peer",
    )
    row.expect(row.recomputed <= in_vain, f"the decoder computed {row.recomputed} itself")
    return row


def reload_pulled(
    name: str, proxy: Proxy, decoder: Server, oracle: Oracle, numbers: Sequence[int]
) -> Row:
    """What was read once is in the decoder's own tier."""
    wanted = each(numbers)

    def body(row: Row) -> None:
        decoder.forget()
        oracle.judge(row, wanted, ask_all(proxy.url, wanted))

    row = measured(name, decoder, body, lambda row: row.local >= len(wanted))
    row.expect(row.local == len(wanted), f"{row.local} of {len(wanted)} were loaded")
    row.expect(row.remote == 0, f"{row.remote} were read again")
    return row


# ------------------------------------------------------------ names that are counted
def counted(
    producer: Server,
    decoder: Server,
    proxy: Proxy,
    oracle: Oracle,
    numbers: Sequence[int],
    where: tuple[str, int],
) -> Row:
    """One name, two pictures: both hosts count, and see the pictures in another order.

    Args:
        producer: Has encoded the pictures in their order.
        decoder: Judged; sees them in the other order, directly and through the proxy.
        proxy: In front of both; names pictures by their content.
        oracle: The right answers.
        numbers: The pictures.
        where: The producer's control socket.
    """
    host, port = where
    # Whatever the decoder's host calls a picture, the producer is said to have it.
    params = {
        f"renderer0-mm-{count}-image-0": {
            "peer_host": host,
            "peer_port": port,
            "size_bytes": 64 * 128 * 4,
            "shape": [64, 128],
        }
        for count in range(100)
    }
    forth, back = each(numbers), each([*reversed(numbers)])

    def body(row: Row) -> None:
        encoded = [ask(producer.url, pictures) for pictures in forth]
        announced = [answer.params for answer in encoded if answer.params]
        row.expect(not announced, f"announced under counted names: {announced}")
        oracle.judge(row, back, [ask(decoder.url, n, params=params) for n in back])
        oracle.judge(row, back, ask_all(proxy.url, back))
        decoder.forget()
        oracle.judge(row, forth, ask_all(decoder.url, forth))

    every = len(back) + len(forth)
    row = measured(
        "names by count",
        decoder,
        body,
        lambda row: row.local + row.remote + row.recomputed >= every + len(back),
    )
    row.expect(row.recomputed == every, f"{row.recomputed} of {every} were encoded")
    row.expect(row.remote == len(back), f"{row.remote} were read under the proxy's names")
    saved = producer.events()["copies/save_landed"] + decoder.events()["copies/save_landed"]
    row.expect(saved == len(back), f"{saved} encodings were saved, not {len(back)}")
    return row


def named(producer: Server, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """The same servers: a name that the requests bring themselves is good for a pull."""
    wanted = each(numbers)

    def body(row: Row) -> None:
        for (number,) in wanted:
            part = {**image_part(number), "uuid": f"catalogue-{number}"}
            told = ask(producer.url, parts=[part]).params or {}
            row.expect(list(told) == [part["uuid"]], f"announced: {list(told)}")
            answer = ask(decoder.url, parts=reference_parts(told), params=told)
            oracle.judge(row, [(number,)], [answer])

    row = measured(
        "names by request, same servers", decoder, body, lambda row: row.remote >= len(wanted)
    )
    row.expect(row.remote == len(wanted), f"{row.remote} of {len(wanted)} were read")
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
        for name, said in (
            ("no announcement", None),
            ("x" * 1_000_000, {"x" * 1_000_000: {**somewhere, "shape": [64, 128]}}),
            ("../" * 20, {"../" * 20: {**somewhere, "shape": [64, 128]}}),
            ("wide", {"wide": {**somewhere, "size_bytes": 65536, "shape": [64, 256]}}),
        ):
            part = {"type": "image_embeds", "uuid": name, "image_embeds": grid}
            answer = ask(decoder.url, parts=[part], params=said)
            row.expect(answer.status >= 400, f"{name[:20]}: HTTP {answer.status}")
            row.requests += 1
        oracle.judge(row, [(number,)], [ask(decoder.url, (number,))])

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
        row.expect(not left, f"left behind: {left}")

    return measured(row_name, None, body)
