# SPDX-License-Identifier: Apache-2.0
"""What servers are told on each kind of machine."""

from __future__ import annotations

import os

import pytest

from ec_connector.bench import platforms
from tests.e2e.platform import ROOT, VARIABLE, chosen, named


def test_a_cpu_plans_ahead_by_a_variable_and_a_gpu_by_options():
    cpu, cuda = platforms.cpu(), platforms.cuda()
    assert cpu.step_env(True) == {"EC_E2E_ASYNC_SCHEDULING": "1"}
    assert cpu.step_env(False) == {"EC_E2E_ASYNC_SCHEDULING": "0"}
    assert cpu.step_options(True) == ()
    assert cpu.step_engine(True) == {}
    assert cuda.step_env(True) == {}
    assert cuda.step_options(True) == ("--async-scheduling",)
    assert cuda.step_options(False) == ("--no-async-scheduling",)
    assert cuda.step_engine(False) == {"async_scheduling": False}
    for platform in (cpu, cuda):
        assert (platform.step_env(None), platform.step_options(None)) == ({}, ())


def test_no_more_ranks_than_there_are():
    assert platforms.cpu().parallel(2) == ("--tensor-parallel-size", "2")
    assert platforms.cuda().parallel(2) == ()
    two = platforms.cuda(ranks=2)
    assert two.parallel(2) == ("--tensor-parallel-size", "2")
    # Nothing of theirs may use multicast between GPUs.
    assert two.env["NCCL_NVLS_ENABLE"] == "0"
    assert "--disable-custom-all-reduce" in two.options(1)


def test_servers_share_a_gpu():
    options = platforms.cuda().options(64 << 20)
    assert options[options.index("--kv-cache-memory-bytes") + 1] == str(64 << 20)
    assert "--gpu-memory-utilization" in options
    assert "mp" not in options
    assert platforms.cuda().options(1, own_worker=True)[-2:] == (
        "--distributed-executor-backend",
        "mp",
    )
    assert platforms.cpu().options(1, own_worker=True) == platforms.cpu().options(1)


def test_paths_of_the_environment_come_last(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/there")
    assert named("cuda").env["PYTHONPATH"] == f"{ROOT}{os.pathsep}/there"
    shims, root = named("cpu").env["PYTHONPATH"].split(os.pathsep)
    assert (shims, root) == (f"{ROOT}/tests/e2e/shims", str(ROOT))


@pytest.mark.parametrize("name", ["", "gpu", "cpu:2", "cuda:0", "cuda:x"])
def test_other_names_are_refused(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(ValueError, match="choose cpu, cuda, or cuda:N"):
        chosen()


def test_children_are_told_by_a_variable(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen().name == "cpu"
    monkeypatch.setenv(VARIABLE, "cuda:2")
    assert (chosen().name, chosen().ranks) == ("cuda", 2)
