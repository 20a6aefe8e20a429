# SPDX-License-Identifier: Apache-2.0
"""Every way in: the APIs behind the proxy, what clients may not name, other orchestrators."""

from __future__ import annotations

import base64
import io
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.e2e.ask import TOKENS, ask, image_part
from tests.e2e.pictures import SIDE, picture
from tests.e2e.rows import Oracle, Row, each, measured
from tests.e2e.server import Process, Proxy, Server, ServerError

FLOWS: Final = json.loads(Path(__file__).with_name("orchestrators.json").read_text())
_TEXT: Final = "What is it?"
#: Frames of a film; two become one patch in time.
_FRAMES: Final = 4


# ------------------------------------------------------------------------- the requests
def _responses(number: int) -> dict[str, Any]:
    content = [
        {"type": "input_image", "image_url": picture(number), "detail": "auto"},
        {"type": "input_text", "text": _TEXT},
    ]
    return {
        "input": [{"role": "user", "content": content}],
        "max_output_tokens": TOKENS,
        "ignore_eos": True,
        "store": False,
    }


def _messages(number: int) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png"}
    source["data"] = picture(number).partition(",")[2]
    content = [{"type": "image", "source": source}, {"type": "text", "text": _TEXT}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS}


def _chat(*parts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": _TEXT}]
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": TOKENS, "ignore_eos": True, **more}


def _completions(number: int) -> dict[str, Any]:
    return {"prompt": f"Picture {number}", "max_tokens": TOKENS, "ignore_eos": True}


WAYS: Final[Mapping[str, Callable[[int], dict[str, Any]]]] = {
    "/v1/chat/completions": lambda number: _chat(image_part(number)),
    "/v1/responses": _responses,
    "/v1/messages": _messages,
    "/v1/completions": _completions,
}


def film(number: int) -> dict[str, Any]:
    """A film of a few frames, each of one colour, as a client sends it."""
    from PIL import Image

    colours = random.Random(number)
    frames = []
    for _ in range(_FRAMES):
        colour = tuple(colours.randrange(256) for _ in range(3))
        data = io.BytesIO()
        Image.new("RGB", (SIDE, SIDE), colour).save(data, "JPEG")
        frames.append(base64.b64encode(data.getvalue()).decode())
    return {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(frames)}}


def call(
    url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """POST; status and document, or text of what is none."""
    request = urllib.request.Request(
        url + path,
        data=json.dumps({"model": "tiny", "temperature": 0, **body}).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=400) as response:
            status, raw = response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        status, raw = exc.code, exc.read().decode(errors="replace")
    except OSError as exc:
        return 0, f"{type(exc).__name__}: {exc}"
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw


def said(answer: Any) -> str:
    """The text of an answer of any of the APIs, streamed or not."""
    if isinstance(answer, str):
        events = [line[5:].strip() for line in answer.splitlines() if line.startswith("data:")]
        return "".join(_delta(json.loads(event)) for event in events if event.startswith("{"))
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    blocks = answer.get("content") or [c for o in answer["output"] for c in o.get("content") or ()]
    return "".join(block.get("text", "") for block in blocks)


def _delta(event: Mapping[str, Any]) -> str:
    if event.get("choices"):
        choice = event["choices"][0]
        return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    delta = event.get("delta")
    if event.get("type") == "response.output_text.delta":
        return str(delta)
    return str(delta.get("text", "")) if isinstance(delta, dict) else ""


# ------------------------------------------------------------------------ the scenarios
class Asked:
    """Requests, with a plain server's answers to them."""

    def __init__(self) -> None:
        self._known: list[tuple[str, dict[str, Any], str]] = []

    def learn(self, plain: Process, path: str, body: dict[str, Any]) -> list[str]:
        """Ask the plain server; returns what is wrong with its answer."""
        status, answer = call(plain.url, path, body)
        text = said(answer) if status == 200 else ""
        self._known.append((path, body, text))
        return [] if text else [f"the plain server said to {path}: {status} {answer}"[:300]]

    def judge(self, row: Row, server: Process) -> None:
        """Ask another server the same, and compare."""
        for path, body, text in self._known:
            row.requests += 1
            status, answer = call(server.url, path, body)
            what = f"{path}{' as a stream' if body.get('stream') else ''}"
            if status != 200:
                row.problems.append(f"{what}: HTTP {status} {str(answer)[:200]}")
            elif said(answer) != text:
                row.wrong += 1
                row.notes.append(f"WRONG {what}: {said(answer)!r}, not {text!r}")
            row.expect("peer_host" not in json.dumps(answer), f"{what}: an address in the answer")


def learn_ways(plain: Process, numbers: Sequence[int]) -> Asked:
    """One request for each API, whole and streamed, each about a picture of its own."""
    asked, following = Asked(), iter(numbers)
    problems: list[str] = []
    for path, build in WAYS.items():
        for stream in (False, True):
            problems += asked.learn(plain, path, {**build(next(following)), "stream": stream})
    if problems:
        raise ServerError("; ".join(problems))
    return asked


def learn_films(plain: Process, number: int) -> Asked:
    """A film, and a picture with another one."""
    asked = Asked()
    chat = "/v1/chat/completions"
    problems = [
        *asked.learn(plain, chat, _chat(film(number))),
        *asked.learn(plain, chat, _chat(image_part(number), film(number + 1))),
    ]
    if problems:
        raise ServerError("; ".join(problems))
    return asked


def ways(proxy: Proxy, decoder: Server, asked: Asked, remote: int, name: str) -> Row:
    """Answers as the plain server's, with encodings that were read from the encoder.

    Args:
        proxy: Asked.
        decoder: Judged.
        asked: Requests about media that the decoder has not seen.
        remote: Encodings in them.
        name: Of the row.
    """
    row = measured(
        name,
        decoder,
        lambda row: asked.judge(row, proxy),
        lambda row: row.remote + row.recomputed >= remote,
    )
    row.expect(row.remote == remote, f"{row.remote} of {remote} were read")
    row.expect(row.recomputed == 0, f"the decoder computed {row.recomputed} itself")
    return row


def naming(proxy: Proxy, decoder: Server, oracle: Oracle, number: int, other: int) -> Row:
    """A client names its picture, then names it without sending it; nobody gets harmed.

    Args:
        proxy: Refuses such requests.
        decoder: Judged; asked directly as well, as one that trusts whoever may ask it.
        oracle: The right answers.
        number: The picture.
        other: What others ask for in between.
    """
    named = {**image_part(number), "uuid": "a name of mine"}
    grids = ([1, 16, 16], [1, 4, 4], [1, 2, 128], [1, 32, 32], [1, -16, -16])

    def body(row: Row) -> None:
        for server, refusal in ((proxy, 400), (decoder, 500)):
            engines = set(decoder.pids)
            oracle.judge(row, [(number,)], [ask(server.url, parts=[named])])
            for grid in grids:
                reference = {"type": "image_embeds", "uuid": "a name of mine"}
                reference["image_embeds"] = {"image_grid_thw": grid}
                answer = ask(server.url, parts=[reference])
                row.requests += 1
                row.expect(answer.status == refusal, f"{grid}: HTTP {answer.status}")
                oracle.judge(row, [(other,)], [ask(proxy.url, (other,))])
            row.expect(engines <= set(decoder.pids), "a process of the decoder is gone")

    return measured("clients that name encodings", decoder, body)


def fallen_back(
    producer: Server,
    decoder: Server,
    proxy: Proxy,
    oracle: Oracle,
    number: int,
    others: Sequence[int],
) -> Row:
    """A decoder that knows a picture, and a reference to it, and loses both gets it anew.

    Args:
        producer: Dies.
        decoder: Judged; its tier has no room for all of ``others``.
        proxy: In front of both.
        oracle: The right answers.
        number: The picture.
        others: Pictures that make it give way.
    """

    def body(row: Row) -> None:
        oracle.judge(row, [(number,)], [ask(decoder.url, (number,))])
        oracle.judge(row, [(number,)], [ask(proxy.url, (number,))])
        oracle.judge(row, each(others), [ask(proxy.url, (n,)) for n in others])
        producer.kill()
        decoder.forget()
        oracle.judge(row, [(number,)], [ask(proxy.url, (number,))])
        oracle.judge(row, [(number,)], [ask(decoder.url, (number,))])

    row = measured(
        "encoder gone, reference forgotten", decoder, body, lambda row: row.recomputed >= 2
    )
    row.expect(row.remote == 1 + len(others), f"{row.remote} were read")
    row.expect(row.recomputed == 2, f"the decoder computed {row.recomputed} itself, not 2")
    return row


# ------------------------------------------------------------------ other orchestrators
def orchestrated(producer: Server, decoder: Server, oracle: Oracle, numbers: Sequence[int]) -> Row:
    """The requests of ``orchestrators.json``, one picture for each flow."""

    def body(row: Row) -> None:
        for flow, number in zip(FLOWS["flows"], numbers, strict=True):
            _play(row, flow, number, producer, decoder, oracle)

    remote = sum(step["remote"] for flow in FLOWS["flows"] for step in flow["steps"])
    row = measured("other orchestrators", decoder, body, lambda row: row.remote >= remote)
    row.expect(row.remote == remote, f"{row.remote} of {remote} were read")
    row.expect(row.recomputed == 0, f"the decoder computed {row.recomputed} itself")
    return row


def _play(
    row: Row,
    flow: Mapping[str, Any],
    number: int,
    producer: Server,
    decoder: Server,
    oracle: Oracle,
) -> None:
    status, rendered = call(producer.url, "/v1/chat/completions/render", _chat(image_part(number)))
    if status != 200:
        raise ValueError(f"render: HTTP {status} {str(rendered)[:200]}")
    features, tokens = rendered["features"], rendered["token_ids"]
    (mm_hash,), (place,) = features["mm_hashes"]["image"], features["mm_placeholders"]["image"]
    values: dict[str, Any] = {
        "IMAGE": image_part(number),
        "NAMED": {**image_part(number), "uuid": mm_hash},
        "HASH": mm_hash,
        "PLACE": place,
        "KWARGS": features["kwargs_data"]["image"][0],
        "TOKENS": tokens,
        "ENCODER_PLACE": {**place, "offset": 1},
        "ENCODER_TOKENS": [tokens[0], *[tokens[place["offset"]]] * place["length"]],
    }
    asked = _filled(flow["encode"], values)
    status, answer = call(producer.url, asked["path"], asked["body"], asked["headers"])
    values["ANNOUNCED"] = answer.get("ec_transfer_params") if isinstance(answer, dict) else None
    row.expect(
        status == 200 and list(values["ANNOUNCED"] or ()) == [mm_hash],
        f"{flow['name']}, encode: HTTP {status} {str(answer)[:200]}",
    )
    for step in flow["steps"]:
        asked = _filled(step, values)
        status, answer = call(decoder.url, asked["path"], asked["body"], asked["headers"])
        row.requests += 1
        got = answer["choices"][0].get("token_ids") if status == 200 else None
        right = list(oracle[(number,)].tokens)[: len(got or ())]
        if not got:
            row.problems.append(
                f"{flow['name']}, {step['name']}: HTTP {status} {str(answer)[:200]}"
            )
        elif got != right:
            row.wrong += 1
            row.notes.append(f"WRONG {flow['name']}, {step['name']}: {got}, not {right}")


def _filled(shape: Any, values: Mapping[str, Any]) -> Any:
    """A shape with its ``$NAME`` replaced; other keys of a step stay."""
    if isinstance(shape, str) and shape.startswith("$"):
        return values[shape[1:]]
    if isinstance(shape, dict):
        return {_filled(k, values): _filled(v, values) for k, v in shape.items()}
    if isinstance(shape, list):
        return [_filled(part, values) for part in shape]
    return shape
