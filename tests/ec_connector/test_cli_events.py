# SPDX-License-Identifier: Apache-2.0
"""`ec-connector events` and `ec-connector proxy --events`: options and errors."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.needs import needs

needs("aiohttp", "prometheus_client", "zmq")

from ec_connector.cli import app

PROXY = ["proxy", "--encoder", "http://127.0.0.1:1", "--decoder", "http://127.0.0.1:2"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def without_zmq(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "zmq" else find(name)
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings that the proxy would have been run with."""
    settings: list[Any] = []

    async def serve(made: Any, on_ready: Any) -> None:
        settings.append(made)

    monkeypatch.setattr("ec_connector.proxy.listening.serve", serve)
    return settings


def test_events_may_be_repeated_and_separated_by_commas(served):
    done = invoke(*PROXY, "--events", "tcp://a:1,tcp://a:2", "--events", "ipc:///e")
    assert done.exit_code == 0, done.output
    assert served[0].events == ("tcp://a:1", "tcp://a:2", "ipc:///e")
    assert served[0].events_topic == "ec"


def test_without_events_the_proxy_needs_no_zmq(served, without_zmq):
    assert invoke(*PROXY).exit_code == 0
    assert served[0].events == ()


def test_with_events_the_missing_package_is_named_with_the_fix(without_zmq):
    done = invoke(*PROXY, "--events", "tcp://a:1")
    assert done.exit_code == 1
    assert "the proxy needs pyzmq" in done.output
    assert "pip install 'ec-connector[proxy,events]'" in done.output


def test_listening_names_the_missing_package_too(without_zmq):
    done = invoke("events", "tcp://a:1")
    assert done.exit_code == 1
    assert "pip install 'ec-connector[events]'" in done.output


@pytest.mark.parametrize("endpoint", ["10.0.0.5:5650", "tcp://*:5650"])
def test_a_wrong_endpoint_of_the_proxy_is_named(served, endpoint):
    done = invoke(*PROXY, "--events", endpoint)
    assert done.exit_code == 1
    assert f"--events='{endpoint}'" in done.output


def test_a_wrong_endpoint_to_listen_to_is_named():
    done = invoke("events", "smtp://x")
    assert done.exit_code == 1
    assert "events endpoint 'smtp://x'" in done.output
