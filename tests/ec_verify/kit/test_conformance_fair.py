# SPDX-License-Identifier: Apache-2.0
"""The kit's judgement of others: what it holds against nobody, and what it sees all the same."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.needs import needs

needs("msgspec", "zmq")

import zmq
from zmq.utils.monitor import recv_monitor_message

from ec_verify.adapters.builtin import stage as vllm_stage
from ec_verify.adapters.ours.adapter import Ours
from ec_verify.adapters.ours.sockets import SimulatedNetwork, lost_at
from ec_verify.kit.adapter import Unsupported
from ec_verify.kit.examples.tiny import TinyAdapter
from ec_verify.kit.language.schedule import all_cases, case_dir, load_file, select
from ec_verify.kit.runner import Result, Verdict, run_case, run_cases
from ec_verify.kit.world import frames as wire
from ec_verify.kit.world.links import InProcess
from tests.faults import FAULTS

PLAYED = {
    "nodes": {"C": {}, "P": {"played": "kit", "role": "producer", "blocks": 16, "holds": ["A"]}}
}
TWO = {"nodes": {"C": {}, "P": {"blocks": 2}}}
FETCH = [
    {"request": "r1", "at": "C", "items": ["A"], "from": "P"},
    {"mark": "asked"},
    {"step": "C", "run": ["r1"], "expect": {"r1": "deferred"}},
]


def play(folder: Path, setup: Any, steps: list[Any], factory: Any = Ours) -> Result:
    case = {"id": "fair", "clause": "EC-1.1", "title": "t", "setup": setup, "steps": steps}
    path = folder / "cases.json"
    path.write_text(json.dumps({"version": 1, "area": "read", "cases": [case]}), encoding="utf-8")
    (one,) = load_file(path)
    return run_case(one, lambda node: InProcess(factory))


# ------------------------------------------------------------------------- heartbeats
BEATS = {zmq.HEARTBEAT_IVL: 2000, zmq.HEARTBEAT_TIMEOUT: 4000}


@pytest.mark.parametrize(
    ("silent", "end"), [(100.0, 106.0), (101.9, 106.0), (102.0, 108.0), (103.0, 108.0)]
)
def test_silence_shows_from_the_first_heartbeat_that_is_not_answered(silent, end):
    """EC-9.1: no sooner than the timeout, no later than an interval after it."""
    assert lost_at(BEATS, 100.0, silent) == pytest.approx(end)
    assert silent + 4.0 <= end <= silent + 6.0


def test_without_heartbeats_silence_never_shows():
    assert lost_at({}, 100.0, 100.0) == math.inf


def test_options_count_only_if_they_are_set_before_the_connection():
    now = [0.0]
    network = SimulatedNetwork(lambda *_, **__: None, lambda: now[0])
    early, late = network.socket(zmq.DEALER), network.socket(zmq.DEALER)
    for socket, peer, order in ((early, "a", (0, 1)), (late, "b", (1, 0))):
        acts = (
            lambda s=socket: [s.setsockopt(option, value) for option, value in BEATS.items()],
            lambda s=socket, p=peer: s.connect(f"tcp://{p}.example:5600"),
        )
        for number in order:
            acts[number]()
        assert int.from_bytes(socket.get_monitor_socket().recv_multipart()[0][:2], "little") == (
            zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        network.falls_silent((f"{peer}.example", 5600))
    now[0] = 6.0
    assert early.get_monitor_socket().recv_multipart()
    with pytest.raises(zmq.Again):
        late.get_monitor_socket().recv_multipart()


def early(context: Any, endpoint: str) -> Any:
    """A socket, its options, a connection."""
    dealer = context.socket(zmq.DEALER)
    for option, value in BEATS.items():
        dealer.setsockopt(option, value)
    dealer.connect(endpoint)
    return dealer


def late(context: Any, endpoint: str) -> Any:
    """The helper that connects, and options afterwards, as vLLM 0.32 does."""
    dealer = vllm_stage._make_socket(context, endpoint, zmq.DEALER, bind=False)
    for option, value in BEATS.items():
        dealer.setsockopt(option, value)
    return dealer


@pytest.mark.parametrize(("connect", "seen"), [(early, True), (late, False)])
def test_what_vllm_runs_on_takes_options_in_the_same_order(connect, seen):
    """Its four failures of heartbeats are its own: the sockets below it would keep them."""
    stage = vllm_stage.Stage(lambda *_, **__: None, b"agent", now=1.0)
    vllm_stage.enter(stage)
    context = vllm_stage._Context()
    dealer = connect(context, "tcp://p.example:5600")
    dealer.monitor("inproc://watch", zmq.EVENT_DISCONNECTED)
    monitor = context.socket(zmq.PAIR)
    monitor.connect("inproc://watch")
    stage.network.falls_silent(("p.example", 5600))
    stage.now = 1.0 + 6.0 - 0.001
    with pytest.raises(zmq.Again):
        recv_monitor_message(monitor, zmq.NOBLOCK)
    stage.now = 1.0 + (6.0 if seen else 1e6)
    if seen:
        assert recv_monitor_message(monitor, zmq.NOBLOCK)["event"] == zmq.EVENT_DISCONNECTED
    # Once, or never.
    with pytest.raises(zmq.Again):
        recv_monitor_message(monitor, zmq.NOBLOCK)


# ---------------------------------------------------------------------------- margins
MARGIN = [
    *FETCH,
    {"answer": "C>P", "lease": 10},
    {"dma": "C#1", "do": "move"},
    {"until": "asked + 10 - lease_margin_s + eps", "quiet": True},
    {"dma": "C#1", "do": "done"},
    {"try": [{"step": "C", "run": ["r1"]}]},
]


def test_a_margin_alone_is_not_strict(tmp_path):
    """EC-5.3: the lease runs on, and nothing comes of it."""
    result = play(tmp_path, PLAYED, MARGIN, FAULTS["accepts-late-reads"].make)
    assert (result.verdict, result.invariant) == (Verdict.NON_STRICT, "FencedAccept")
    assert result.detail.startswith("step 8"), "where it happened, not where the case ended"


def late_and_no_loads() -> Any:
    """Promises what it read too late, and has no way to load it."""
    adapter = FAULTS["accepts-late-reads"].make()
    adapter.alloc = mock.Mock(side_effect=Unsupported("loads"))
    return adapter


def test_a_margin_is_told_with_its_step_when_that_cannot_be_ended(tmp_path):
    result = play(tmp_path, PLAYED, MARGIN, late_and_no_loads)
    assert (result.verdict, result.where) == (Verdict.NON_STRICT, "step 8.1")


def test_what_breaks_after_a_margin_is_the_failure(tmp_path):
    steps = [*MARGIN, {"posted": "C", "count": 5, "clause": "EC-5.2"}]
    result = play(tmp_path, PLAYED, steps, FAULTS["accepts-late-reads"].make)
    assert (result.verdict, result.clause) == (Verdict.FAILED, "EC-5.2")


def test_after_the_lease_it_is_a_failure_at_once(tmp_path):
    steps = json.loads(json.dumps(MARGIN).replace("10 - lease_margin_s + eps", "10 + eps"))
    result = play(tmp_path, PLAYED, steps, FAULTS["accepts-late-reads"].make)
    assert result.verdict is Verdict.FAILED


# ------------------------------------------------------------------- ends and processes
def test_settled_reads_are_over(tmp_path):
    steps = [*FETCH, {"answer": "C>P"}, {"settle": "C", "reads": True}, {"load": "A", "at": "C"}]
    assert play(tmp_path, PLAYED, steps).verdict is Verdict.OK
    without = [*FETCH, {"answer": "C>P"}, {"settle": "C"}, {"load": "A", "at": "C"}]
    assert play(tmp_path, PLAYED, without).verdict is Verdict.FAILED


class NoProofs(Ours):
    """Takes no teardown of an endpoint for an answer."""

    def data(self, *, now: float, read: Any, event: str) -> dict[str, Any]:
        if event == "endpoint_closed":
            raise Unsupported("endpoint_closed")
        return super().data(now=now, read=read, event=event)


def test_who_takes_no_proof_is_judged_all_the_same(tmp_path):
    lost = [*FETCH, {"answer": "C>P"}, {"dma": "C#1", "do": "fail"}]
    steps = [*lost, {"settle": "C", "reads": True}, {"room": 8, "at": "C", "expect": False}]
    assert play(tmp_path, PLAYED, steps, NoProofs).verdict is Verdict.OK
    assert play(tmp_path, PLAYED, steps).verdict is Verdict.FAILED, "ours takes the proof"


def test_an_answer_reaches_only_the_process_that_asked(tmp_path):
    steps = [
        {"store": "A", "at": "P"},
        *FETCH,
        {"deliver": "C>P"},
        {"restart": "C"},
        {"request": "r1", "at": "C", "items": ["A"], "from": "P"},
        {"step": "C", "run": ["r1"]},
        {"deliver": "P>C", "keep": True},
        {"servable": "A", "at": "C", "after": "P>C#1", "expect": True},
        {"posted": "C", "count": 0},
    ]
    result = play(tmp_path, TWO, steps)
    assert result.verdict is Verdict.OK, result.detail
    assert any(record.get("event") == "dropped" for record in result.history)


@pytest.mark.parametrize("deliver", [{}, {"keep": True}])
def test_after_counts_what_was_sent_not_what_waits(tmp_path, deliver):
    steps = [
        {"store": "A", "at": "P"},
        {"store": "B", "at": "P"},
        {"request": "r1", "at": "C", "items": ["A", "B"], "from": "P"},
        {"step": "C", "run": ["r1"]},
        {"deliver": "C>P", "all": True},
        {"deliver": "P>C", **deliver},
    ]
    nodes = {"nodes": {"C": {}, "P": {}}}
    for message, verdict in (("P>C#1", Verdict.FAILED), ("P>C#2", Verdict.OK)):
        asked = {"servable": "nothing", "at": "C", "after": message, "expect": True}
        assert play(tmp_path, nodes, [*steps, asked]).verdict is verdict, message


@pytest.mark.parametrize("message", ["P>C#0", "P>C", "P>C#x", "#1"])
def test_after_names_a_message(tmp_path, message):
    steps = [{"servable": "A", "at": "C", "after": message, "expect": False}]
    result = play(tmp_path, PLAYED, steps)
    assert result.verdict is Verdict.FAILED
    assert "is no message" in result.detail or "is no channel" in result.detail


# ----------------------------------------------------------------------- the old form
class OldForm(Ours):
    """A producer that knows no optional field."""

    def request(self, *, now: float, identity: str, frames: list[str]) -> dict[str, Any]:
        fields = wire.decode(frames)
        for name in ("attempt_id", "incarnation"):
            fields.pop(name, None)
        raw = ["", wire.encode(fields).hex()]
        return super().request(now=now, identity=identity, frames=raw)


ASKED = {"nodes": {"P": {}, "X": {"played": "kit", "role": "consumer"}}}


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        ({"ask": "P", "by": "X", "hash": "A", "expect": {"status": "OK"}}, Verdict.OK),
        (
            {"ask": "P", "by": "X", "hash": "A", "expect": {"lease_s": {"time": "lease_s"}}},
            Verdict.UNSUPPORTED,
        ),
        (
            {"bound": "P", "by": "X", "fields": {"attempt_id": -1}, "expect": "dropped"},
            Verdict.UNSUPPORTED,
        ),
        (
            {"bound": "P", "by": "X", "fields": {"mm_hash": ""}, "expect": "answered"},
            Verdict.FAILED,
        ),
    ],
)
def test_the_extended_form_is_expected_of_who_speaks_it(tmp_path, step, verdict):
    result = play(tmp_path, ASKED, [{"store": "A", "at": "P"}, step], OldForm)
    assert result.verdict is verdict, result.detail


def test_a_form_that_is_spoken_in_part_is_no_old_form(tmp_path):
    """EC-8.7: who echoes the attempt and forgets the lease has failed."""

    class Forgets(Ours):
        def emit(self, kind: str, **fields: Any) -> None:
            if kind == "frames" and isinstance(fields["to"], str):
                ack = wire.decode(fields["frames"])
                ack.pop("lease_s", None)
                fields["frames"] = ["", wire.encode(ack).hex()]
            super().emit(kind, **fields)

    step = {"ask": "P", "by": "X", "hash": "A", "expect": {"lease_s": {"time": "lease_s"}}}
    result = play(tmp_path, ASKED, [{"store": "A", "at": "P"}, step], Forgets)
    assert result.verdict is Verdict.FAILED


class OldLater(OldForm):
    """Speaks the extended form once, and the old one from then on."""

    def __init__(self) -> None:
        super().__init__()
        self._once = False

    def request(self, **args: Any) -> dict[str, Any]:
        if self._once:
            return super().request(**args)
        self._once = True
        return Ours.request(self, **args)


@pytest.mark.parametrize(
    "step",
    [
        {"ask": "P", "by": "X", "hash": "A", "expect": {"lease_s": {"time": "lease_s"}}},
        {"bound": "P", "by": "X", "fields": {"attempt_id": -1}, "expect": "dropped"},
    ],
)
def test_who_has_spoken_the_extended_form_is_held_to_it(tmp_path, step):
    """EC-8.7: also by its next process."""
    first = [{"store": "A", "at": "P"}, {"ask": "P", "by": "X", "hash": "A"}]
    assert play(tmp_path, ASKED, [*first, step], OldLater).verdict is Verdict.FAILED
    processes = iter((Ours, OldForm))
    again = [*first, {"restart": "P"}, {"store": "A", "at": "P"}, step]
    result = play(tmp_path, ASKED, again, lambda: next(processes)())
    assert result.verdict is Verdict.FAILED, result.detail


class UnnamedLater(Ours):
    """Names its first attempt only."""

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "frames" and not isinstance(fields["to"], str):
            request = wire.decode(fields["frames"])
            if request["attempt_id"] > 1:
                for name in ("attempt_id", "incarnation"):
                    request.pop(name, None)
                fields["frames"] = ["", wire.encode(request).hex()]
        super().emit(kind, **fields)


@pytest.mark.parametrize(("first", "verdict"), [("OK", Verdict.OK), (None, Verdict.UNSUPPORTED)])
def test_who_has_named_an_attempt_is_answered_so(tmp_path, first, verdict):
    class Unnamed(UnnamedLater):
        def emit(self, kind: str, **fields: Any) -> None:
            if kind == "frames" and first is None and not isinstance(fields["to"], str):
                request = {**wire.decode(fields["frames"]), "attempt_id": 2}
                fields["frames"] = ["", wire.encode(request).hex()]
            super().emit(kind, **fields)

    steps = [
        *FETCH,
        {"answer": "C>P", "status": "NACK_MISSING"},
        {"finish": "r1", "aborted": True},
        {"request": "r2", "at": "C", "items": ["A"], "from": "P"},
        {"step": "C", "run": ["r2"]},
        {"answer": "C>P", "lease": 10},
        {"posted": "C", "count": 1},
    ]
    result = play(tmp_path, PLAYED, steps, Unnamed)
    assert result.verdict is verdict, result.detail


class RefusesVersions(Ours):
    """Answers every request with NACK_VERSION."""

    def request(self, *, now: float, identity: str, frames: list[str]) -> dict[str, Any]:
        raw = ["", wire.encode({**wire.decode(frames), "connector_version": 99}).hex()]
        return super().request(now=now, identity=identity, frames=raw)


@pytest.mark.parametrize(
    ("version", "verdict"), [({}, Verdict.FAILED), (2, Verdict.FAILED), (1, Verdict.UNSUPPORTED)]
)
def test_a_refused_version_is_unsupported_only_if_another_one_was_named(tmp_path, version, verdict):
    payload = {"type": "req", "mm_hash": "A", "compatibility_hash": "<compat>", "session_id": "x"}
    if version:
        payload["connector_version"] = version
    step = {"raw": "X>P", "payload": payload, "expect": {"status": "OK"}}
    result = play(tmp_path, ASKED, [{"store": "A", "at": "P"}, step], RefusesVersions)
    assert result.verdict is verdict, result.detail


# ------------------------------------------------------------------- the worked example
def test_the_worked_example_ends_as_the_document_says():
    cases = select(all_cases(), ["tier", "save/load"])
    results = run_cases(cases, lambda node: InProcess(TinyAdapter))
    seen = Counter(result.verdict for result in results)
    page = case_dir().parents[1] / "docs" / "conformance" / "adapter.md"
    text = page.read_text(encoding="utf-8")
    said = f"{seen[Verdict.OK]} OK, {seen[Verdict.UNSUPPORTED]} UNSUPPORTED"
    assert f"Both end with {said}" in " ".join(text.split())
    assert (seen[Verdict.NON_STRICT], seen[Verdict.FAILED]) == (1, 0)
