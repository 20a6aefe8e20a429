# SPDX-License-Identifier: Apache-2.0
"""The wheel: what it holds, and that the code finds its tables from inside it."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ec_protocol
from ec_protocol.tables.dispatch import DISPATCH
from tests import ROOT
from tests.needs import needs

PACKAGES = {"ec_connector", "ec_protocol", "ec_verify"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    needs("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_packages_the_tables_and_the_models(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for top in PACKAGES:
        expected = {str(p.relative_to(ROOT)) for p in (ROOT / top).rglob("*.py")}
        assert expected <= names
    assert {f"{top}/py.typed" for top in PACKAGES} <= names
    for top in ("spec", "tla"):
        sources = {
            p for p in (ROOT / top).rglob("*") if p.suffix in {".json", ".md", ".tla", ".toml"}
        }
        assert {f"ec_protocol/{p.relative_to(ROOT)}" for p in sources} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_tables_are_found_from_inside_the_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from ec_protocol.tables.files import spec_path, tla_dir, checkout_dir\n"
        "from ec_protocol.tables.dispatch import DISPATCH\n"
        "print(spec_path('lifecycle.toml'), tla_dir(), checkout_dir(), len(DISPATCH), sep='\\n')\n"
    )
    env = dict(os.environ, PYTHONPATH=str(tmp_path))
    lines = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    assert lines == [
        str(tmp_path / "ec_protocol" / "spec" / "lifecycle.toml"),
        str(tmp_path / "ec_protocol" / "tla"),
        "None",
        str(len(DISPATCH)),
    ]


def test_console_scripts_exist():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"ec-protocol": "ec_verify.cli:main", "ec-connector": "ec_connector.cli:main"}
    for script in scripts:
        done = subprocess.run(
            [Path(sys.executable).parent / script, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


def test_the_version_is_a_release_or_pre_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", ec_protocol.__version__)
