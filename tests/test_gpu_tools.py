# SPDX-License-Identifier: Apache-2.0
"""What brings software to a GPU machine and runs it there, without one."""

from __future__ import annotations

import importlib
import json
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import ROOT

TOOLS = ROOT / "tools"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


def tool(name: str) -> ModuleType:
    return importlib.import_module(name)


# --------------------------------------------------------------------------- device code
def fat(*entries: tuple[int, int, bytes]) -> bytes:
    """A fat binary of (kind, architecture, code)."""
    packed = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 1, 64, len(code), architecture) + code
        for kind, architecture, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(packed)) + packed


def test_code_of_other_gpus_is_zeroed():
    library = bytearray(
        b"host code" + struct.pack("<I", 0xBA55ED50) + bytes(12)
        + fat((2, 80, b"old!"), (2, 90, b"kept"), (1, 90, b"text")) + b"more"
        + fat((1, 90, b"this alone"), (2, 90 + 10, b"new!"))
        + fat((2, 90, b"some half_t"))
    )  # fmt: skip
    before = bytes(library)
    counts = tool("gpu_fatbin").prune(library, 90, [b"half_t"])
    assert len(library) == len(before)
    for gone in (b"old!", b"text", b"new!", b"some half_t"):
        assert gone in before
        assert gone not in library
    for kept in (b"host code", b"kept", b"more", b"this alone"):
        assert kept in library
    assert counts == {
        "zeroed ELF 80": 4,
        "kept ELF 90": 4,
        "zeroed PTX 90": 4,
        "kept PTX 90": 10,
        "zeroed ELF 100": 4,
        "zeroed ELF 90": 11,
    }


def test_a_library_without_code_for_the_gpu_is_an_error():
    with pytest.raises(ValueError, match="no code for architecture 90"):
        tool("gpu_fatbin").prune(bytearray(fat((2, 80, b"old!"))), 90)
    broken = bytearray(fat((2, 90, b"code")))
    broken[16] = 7
    with pytest.raises(ValueError, match="no entry of a fat binary"):
        tool("gpu_fatbin").prune(broken, 90)


# -------------------------------------------------------------------------------- bundle
def wheel(folder: Path, name: str, version: str, files: dict[str, str], *needs: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    told += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", told)
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def plan(**changes: Any) -> Any:
    said: dict[str, Any] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "architecture": 90,
        "glibc": 28,
        "machine": ["torch"],
        "parts": {"one": ["alpha"], "two": ["beta"]},
        "without": {"for a reason": ["gamma"]},
        "leave": {"data": ["alpha/data/*"]},
        "prune": {},
        "exactly": {"alpha": "1.0"},
        **changes,
    }
    return tool("gpu_bundle").Plan(said, {"beta": "2.0"})


def test_the_plan_has_a_pin_for_each_package():
    bundle = tool("gpu_bundle")
    made = bundle.Plan(
        tomllib.loads(bundle.PLAN.read_text()), bundle.read_pins(bundle.PINS.read_text())
    )
    assert made.pins["vllm"] == "0.32.0"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"machine": ["alpha"]}, "names twice: alpha"),
        ({"parts": {"one": ["alpha", "delta"]}}, "no version in .*: delta"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes, problem):
    with pytest.raises(tool("gpu_bundle").BundleError, match=problem):
        plan(**changes)


def test_whatever_a_package_asks_for_must_be_known(tmp_path):
    bundle = tool("gpu_bundle")
    wheel(tmp_path, "alpha", "1.0", {}, "beta[more]>=3", "torch==99", "gamma", "delta")
    wheel(tmp_path, "beta", "2.0", {}, 'epsilon; extra == "more"', 'zeta; sys_platform == "win32"')
    made = plan()
    problems = bundle.unmet(made, bundle.wheels_of(made, tmp_path))
    assert len(problems) == 3
    assert "beta 2.0 is brought" in problems[0]
    assert "asks for delta" in problems[1]
    assert "epsilon" in problems[2]


def test_a_wheel_of_another_version_is_not_taken(tmp_path):
    wheel(tmp_path, "alpha", "1.1", {})
    wheel(tmp_path, "beta", "2.0", {})
    with pytest.raises(tool("gpu_bundle").BundleError, match="lacks wheels of alpha"):
        tool("gpu_bundle").wheels_of(plan(), tmp_path)


# ------------------------------------------------------------------------------- install
@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A bundle of one package, for this Python, on a machine that has pytest."""
    made = plan(parts={"one": ["alpha"]})
    files = {"alpha/__init__.py": "there = 1\n", "alpha/data/big": "x" * 1000}
    path = wheel(tmp_path, "alpha", "1.0", files)
    part = tool("gpu_bundle").write_part(made, "one", [path], tmp_path)
    assert part["left_behind"] == {"data": 1000}
    document = {"python": made.python, "machine": ["pytest"], "parts": [part]}
    (tmp_path / "bundle.json").write_text(json.dumps(document))
    return tmp_path


def test_an_environment_sees_the_bundle_the_machine_and_the_checkout(packed, tmp_path):
    to = tmp_path / "env"
    tool("gpu_install").install(packed, to, ["one"])
    code = (
        "import alpha, pytest, ec_connector; from importlib.metadata import entry_points as e\n"
        "(point,) = e(group='vllm.general_plugins', name='ec_connector')\n"
        "print(alpha.__file__, ec_connector.__file__, point.value)"
    )
    done = subprocess.run(
        [str(to / "bin/python"), "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=True,
    )  # fmt: skip
    ours, checkout, value = done.stdout.split()
    assert ours.startswith(str(to))
    assert checkout.startswith(str(ROOT))
    assert value == "ec_connector.vllm.plugin:register"
    assert (to / "bin/ec-connector").exists()
    assert not list(to.rglob("big"))


def test_a_part_that_is_not_whole_is_refused(packed, tmp_path):
    path = packed / "one.tar.xz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tool("gpu_install").InstallError, match="is not whole"):
        tool("gpu_install").install(packed, tmp_path / "env", ["one"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"machine": ["pytest", "no-such-package"]}, "lacks no-such-package"),
        ({"python": "2.7"}, "the bundle is for 2.7"),
    ],
)
def test_another_machine_is_refused(packed, tmp_path, change, problem):
    document = json.loads((packed / "bundle.json").read_text())
    (packed / "bundle.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(tool("gpu_install").InstallError, match=problem):
        tool("gpu_install").install(packed, tmp_path / "env", ["one"])


# ----------------------------------------------------------------------------------- run
@pytest.fixture
def run(tmp_path: Path) -> Any:
    return tool("gpu_run").Run(tmp_path / "out", tmp_path / "env", tmp_path, 1000.0)


def test_commands_run_side_by_side_and_end_with_their_time(run):
    quick, slow = run.together(
        {"quick": [sys.executable, "-c", "print('done')"], "slow": ["sleep", "1000"]}, 5.0
    )
    assert (quick.status, slow.status) == (0, 124)
    assert quick.log.read_text() == "done\n"


def test_what_pytest_has_found(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\n"
        "def test_other(): pytest.skip('no reason')\n"
    )
    junit = tmp_path / "it.xml"
    command = tool("gpu_run").pytest(sys.executable, junit, str(tmp_path / "test_it.py"))
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    found = tool("gpu_run").tested(junit)
    assert (found["ok"], found["passed"], found["skipped"]) == (False, 1, {"no reason": 1})
    (failed,) = found["failed"]
    assert failed.endswith("test_bad")
    assert not tool("gpu_run").tested(tmp_path / "none.xml")["ok"]


def test_results_are_kept(run):
    run.keep("one", {"ok": True}, 1.0)
    run.keep("two", {"ok": False, "error": "it broke"}, 2.0)
    (run.work / "some.log").write_text("text")
    run.pack()
    summary = json.loads((run.out / "summary.json").read_text())
    assert not summary["ok"]
    assert summary["parts"]["one"] == {"ok": True, "seconds": 1.0}
    assert json.loads((run.out / "two.json").read_text())["error"] == "it broke"
    assert (run.out / "logs.tar.xz").exists()
    assert not run.work.exists()
