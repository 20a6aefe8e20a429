# SPDX-License-Identifier: Apache-2.0
"""Who may import whom.

`ec_protocol` knows nothing of `ec_connector`; its core is sans-I/O and needs
only the standard library and `transitions`; msgspec is for `wire` alone. With
peer-to-peer off nothing imports nixl, zmq or msgspec, which is shown in a fresh
interpreter in which these three cannot be imported at all.
"""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT
from tests.needs import needs

# Core modules that are imported only when peer-to-peer is on.
P2P_CORE = {"attempt", "commands", "consumer", "peers", "producer", "reads", "wire"}
# Command-line and model-checking tools: not the core, and no part of a running connector.
TOOLING = {"cli", "conformance", "console", "explain", "mutants", "scenarios", "tlc", "tracecheck"}
# I/O modules that are imported only when peer-to-peer is on.
P2P_IO = {"control", "data", "events", "p2p", "pump", "pump_io", "pump_serve", "pump_stats"}
# Not part of a running connector.
IO_TOOLING = {"bench", "cli", "conformance", "demo", "proxy"}

# The core has no sockets, no shared memory, no threads and no clock of its own.
IO_MODULES = {
    "_thread",
    "asyncio",
    "concurrent",
    "ctypes",
    "fcntl",
    "mmap",
    "multiprocessing",
    "queue",
    "random",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


@dataclass(frozen=True)
class Import:
    """One `import` anywhere in a file, at the top or inside a function."""

    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: imports {self.module}"

    @property
    def root(self) -> str:
        return self.module.split(".")[0]


def modules_of(package: str) -> dict[str, Path]:
    """Dotted module name -> file, for every module of the package in the checkout."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    assert found, f"{package}/ has no modules"
    return found


def imports_of(path: Path) -> list[Import]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            found.append(Import(path, node.lineno, module))
            # `from ec_protocol import wire` imports the submodule.
            found += [Import(path, node.lineno, f"{module}.{a.name}") for a in node.names]
    return found


def part(module: str) -> str:
    """`ec_verify.models.output` -> `tlc`; `ec_protocol` -> ``."""
    return module.partition(".")[2].partition(".")[0]


CORE = {m: p for m, p in modules_of("ec_protocol").items() if part(m) not in TOOLING}
LOCAL_CORE = [m for m in CORE if part(m) not in P2P_CORE]
# Modules that need vLLM itself, which is no dependency.
ADAPTER = {"connector", "encoder_only", "metadata", "metrics"}
LOCAL_IO = [
    m
    for m in modules_of("ec_connector")
    if part(m) not in P2P_IO | IO_TOOLING
    and not (part(m) == "vllm" and m.rpartition(".")[2] in ADAPTER)
]


def test_core_needs_only_the_standard_library_and_transitions():
    allowed = sys.stdlib_module_names | {"ec_protocol", "transitions"}
    wrong = [
        str(i)
        for module, path in CORE.items()
        for i in imports_of(path)
        if i.root not in allowed and not (module == "ec_protocol.p2p.wire" and i.root == "msgspec")
    ]
    assert wrong == []


def test_core_is_sans_io():
    wrong = [str(i) for path in CORE.values() for i in imports_of(path) if i.root in IO_MODULES]
    assert wrong == []


def test_core_does_not_import_the_tools():
    wrong = [
        str(i)
        for path in CORE.values()
        for i in imports_of(path)
        if i.root == "ec_protocol" and part(i.module) in TOOLING
    ]
    assert wrong == []


def test_ec_protocol_does_not_import_the_layers_below():
    wrong = [
        str(i)
        for path in modules_of("ec_protocol").values()
        for i in imports_of(path)
        if i.root in {"ec_connector", "tests", "torch", "nixl", "zmq", "vllm"}
    ]
    assert wrong == []


def test_ec_connector_imports_neither_tests_nor_the_tools():
    wrong = [
        str(i)
        for module, path in modules_of("ec_connector").items()
        for i in imports_of(path)
        if i.root == "tests"
        # The adapter is part of a tool, and speaks the tool's interface.
        or (
            i.root == "ec_protocol"
            and part(i.module) in TOOLING
            and (part(module), part(i.module)) != ("conformance", "conformance")
        )
    ]
    assert wrong == []


def test_local_core_does_not_import_peer_to_peer_modules():
    wrong = [
        str(i)
        for module in LOCAL_CORE
        for i in imports_of(CORE[module])
        if i.root == "ec_protocol" and part(i.module) in P2P_CORE
    ]
    assert wrong == []


def test_vllm_is_imported_by_its_adapter_only():
    wrong = [
        str(i)
        for module, path in modules_of("ec_connector").items()
        for i in imports_of(path)
        # The kit's adapter of vLLM's own connector needs that one.
        if i.root == "vllm" and part(module) not in {"vllm", "conformance"}
    ]
    assert wrong == []


# Blocks the gated packages, imports the modules named in argv, prints what of
# the unwanted is in sys.modules afterwards.
_IMPORT_ALL = """
import importlib, json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"nixl", "zmq", "msgspec"}:
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
    return json.loads(done.stdout)


def test_gate_off_core_loads_no_heavy_package():
    assert {
        "ec_protocol.tier.encodings",
        "ec_protocol.tier.copies",
        "ec_protocol.tables.timing",
    } <= set(LOCAL_CORE)
    unwanted = ["nixl", "zmq", "msgspec", "torch", "typer", "rich", "numpy"]
    assert import_all(LOCAL_CORE, unwanted) == []


def test_gate_off_connector_loads_no_peer_to_peer_package():
    assert "ec_connector.region.shared" in LOCAL_IO
    assert import_all(LOCAL_IO, ["nixl", "zmq", "msgspec", "vllm"]) == []


def test_the_fresh_interpreter_would_notice():
    """The control: a module that does need msgspec must fail the same check."""
    needs("msgspec")
    with pytest.raises(AssertionError, match="with peer-to-peer off"):
        import_all(["ec_protocol.p2p.wire"], [])
