# SPDX-License-Identifier: Apache-2.0
"""Our class inside a real vLLM engine, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.platform import ROOT, chosen
from tests.recording import trace_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.vllm]


def run(*arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **chosen().env, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    # `make e2e` has made one already.
    made = os.environ.get("EC_E2E_MODEL")
    if made is None:
        made = str(tmp_path_factory.mktemp("models") / "qwen2vl")
        run("tests.e2e.tiny_model", "qwen2vl", made)
    return made


@pytest.fixture(scope="module", params=["in-step", "ahead"])
def facts(request, model) -> dict[str, Any]:
    """One engine that plans a step when the last one is over, one that plans ahead."""
    env = chosen().step_env(request.param == "ahead")
    if file := trace_file("vllm"):
        env["EC_CONNECTOR_TRACE_FILE"] = file
    out = run("tests.ec_connector.vllm.vllm_child", model, request.param, **env)
    (line,) = [line for line in out.splitlines() if line.startswith("FACTS ")]
    facts = json.loads(line.removeprefix("FACTS "))
    assert facts["engine"]["plans_ahead"] == (request.param == "ahead")
    return facts


def test_v2_model_runner_is_required(facts):
    assert len(facts["refused"]) == 2
    for text in facts["refused"]:
        assert text.startswith("ECConnector works with vLLM's V2 model runner only")
        assert "VLLM_USE_V2_MODEL_RUNNER=1" in text


def test_every_hook_is_ours(facts):
    """What is left to the base class keeps state of its own, or is for other connectors."""
    assert set(facts["shell"]["not_ours"]) <= {
        "bind_connector_metadata",
        "clear_connector_metadata",
        "is_consumer",
        "is_producer",
        "register_caches",
        "role",
    }


def test_messages_travel_and_aggregate(facts):
    assert facts["shell"]["ranks"] == [0, 1]
    assert facts["shell"]["step"] == 3
    assert facts["shell"]["region"] == bytes(range(16)).hex()


def test_entry_point_registers_beside_the_built_in_one(facts):
    assert {"ECConnector", "ECCPUConnector"} <= set(facts["shell"]["names"])


def test_statistics_reach_prometheus(facts):
    assert facts["shell"]["hits"] == [
        'vllm:ec_items_total{engine="0",model_name="tiny",result="hit"} 4.0'
    ]


def test_reload_from_the_tier_gives_the_same_answer(facts):
    engine = facts["engine"]
    assert engine["same"]
    stats = engine["stats"]
    assert (stats["misses"], stats["hits"]) == (2, 2)
    assert (stats["saves_landed"], stats["loads_landed"]) == (2, 2)


def test_nothing_is_left_over(facts):
    engine = facts["engine"]
    assert engine["items_left"] == 0
    assert not engine["pending"]
    assert engine["there"]
    assert not engine["left"]


NOTHING = {"items": 0, "copies": 0, "held": []}


@pytest.mark.parametrize("when", ["never_ran", "ran_once"])
def test_an_aborted_request_leaves_nothing(facts, when):
    assert facts["engine"]["aborted"][when] == NOTHING


def test_preempted_requests_load_again_and_answer_the_same(facts):
    preempted = facts["engine"]["preempted"]
    assert preempted["times"] > 0
    assert preempted["same"]
    assert preempted["hits"] > 0
    assert preempted["misses"] == 0
    assert preempted["left"] == NOTHING
