# SPDX-License-Identifier: Apache-2.0
"""The entry point, against a stand-in for vLLM's registry."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest

from ec_connector.vllm import plugin
from ec_protocol.errors import ConfigError
from tests import needs

FACTORY = "vllm.distributed.ec_transfer.ec_connector.factory"


class Registry:
    """As vLLM's: names can be registered once."""

    def __init__(self) -> None:
        self._registry: dict[str, Any] = {"ECCPUConnector": "built-in"}

    def register_connector(self, name: str, module: str, class_name: str) -> None:
        if name in self._registry:
            raise ValueError(f"two connectors called {name!r}")
        self._registry[name] = (module, class_name)


@pytest.fixture
def registry(monkeypatch):
    found = Registry()
    parts = FACTORY.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(parts[depth - 1]))
    sys.modules[FACTORY].ECConnectorFactory = found  # type: ignore[attr-defined]
    monkeypatch.delenv(plugin.REPLACE_VARIABLE, raising=False)
    return found


OURS = ("ec_connector.vllm.connector", "ECConnector")


def test_registers_by_name_also_when_called_again(registry):
    plugin.register()
    plugin.register()
    assert registry._registry == {"ECCPUConnector": "built-in", "ECConnector": OURS}


@pytest.mark.parametrize("yes", ["1", "true", " YES "])
def test_takes_the_built_in_name_over(registry, monkeypatch, yes):
    monkeypatch.setenv(plugin.REPLACE_VARIABLE, yes)
    plugin.register()
    plugin.register()
    assert registry._registry == {"ECCPUConnector": OURS, "ECConnector": OURS}


@pytest.mark.parametrize("no", ["", "0", "false", "No"])
def test_leaves_the_built_in_name_alone(registry, monkeypatch, no):
    monkeypatch.setenv(plugin.REPLACE_VARIABLE, no)
    plugin.register()
    assert registry._registry["ECCPUConnector"] == "built-in"


def test_typing_error_is_told(registry, monkeypatch):
    monkeypatch.setenv(plugin.REPLACE_VARIABLE, "on1")
    with pytest.raises(ConfigError, match="EC_CONNECTOR_REPLACE_BUILTIN='on1'"):
        plugin.register()


def test_another_kind_of_registry(registry, monkeypatch):
    registry.__dict__["_registry"] = None
    monkeypatch.setattr(registry, "register_connector", lambda *named: None)
    plugin.register()
    monkeypatch.setenv(plugin.REPLACE_VARIABLE, "1")
    with pytest.raises(ConfigError, match="another connector registry"):
        plugin.register()


def test_entry_point_is_installed():
    found = [e for e in entry_points(group="vllm.general_plugins") if e.name == "ec_connector"]
    needs.that(bool(found), "the package is not installed")
    assert found[0].load() is plugin.register
