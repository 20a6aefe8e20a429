# SPDX-License-Identifier: Apache-2.0
"""With peer-to-peer off nothing imports nixl, zmq or msgspec (EC-12.2).

Shown in a fresh interpreter in which these three cannot be imported at all. Who may
import whom otherwise is in ``pyproject.toml`` (``lint-imports``).
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import ROOT

#: Modules that are imported only when peer-to-peer is on.
GATED = (
    "ec_protocol.p2p",
    "ec_connector.events",
    "ec_connector.network",
    "ec_connector.processes",
)
#: No part of a running connector.
PROGRAMS = ("ec_connector.bench", "ec_connector.cli", "ec_connector.demo", "ec_connector.proxy")
#: Modules that need vLLM itself, which is no dependency.
NEEDS_VLLM = tuple(
    f"ec_connector.vllm.{name}" for name in ("connector", "encoder_only", "metadata", "metrics")
)


def modules_of(package: str) -> list[str]:
    """Dotted names of the modules of a package that run without the gate."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not any(f"{name}.".startswith(f"{out}.") for out in (*GATED, *PROGRAMS, *NEEDS_VLLM)):
            names.append(name)
    return names


# Blocks the gated packages, imports the modules named in argv, prints what of
# the unwanted is in sys.modules afterwards.
_IMPORT_ALL = """
import importlib, json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"nixl", "zmq", "msgspec", "xxhash"}:
            raise ImportError(f"{name} was imported with peer-to-peer off")

sys.meta_path.insert(0, Blocked())
modules, unwanted = json.loads(sys.argv[1])
for module in modules:
    importlib.import_module(module)
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules} & set(unwanted))))
"""


def import_all(modules: list[str], unwanted: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL, json.dumps([modules, unwanted])],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.clause("EC-12.2")
def test_gate_off_core_loads_no_heavy_package() -> None:
    core = modules_of("ec_protocol")
    assert {"ec_protocol.node", "ec_protocol.tier.copies", "ec_protocol.tables.timing"} <= set(core)
    unwanted = ["nixl", "zmq", "msgspec", "xxhash", "torch", "typer", "rich", "numpy"]
    assert import_all(core, unwanted) == []


@pytest.mark.clause("EC-12.2")
def test_gate_off_connector_loads_no_peer_to_peer_package() -> None:
    connector = modules_of("ec_connector")
    assert {"ec_connector.region.shared", "ec_connector.instance"} <= set(connector)
    assert import_all(connector, ["nixl", "zmq", "msgspec", "xxhash", "vllm"]) == []


def test_the_fresh_interpreter_would_notice() -> None:
    """The control: a module that does need msgspec must fail the same check."""
    with pytest.raises(AssertionError, match="with peer-to-peer off"):
        import_all(["ec_protocol.p2p.wire"], [])
