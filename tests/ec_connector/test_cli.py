# SPDX-License-Identifier: Apache-2.0
"""The `ec-connector` command: options, exit status, and what it says on errors."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ec_connector.cli import app
from ec_connector.config.keyfiles import read_key_pair
from ec_connector.demo.report import RUN_NAMES, RunRow
from ec_protocol import __version__
from ec_protocol.errors import ECError
from tests.needs import needs

needs("PIL")


@pytest.fixture
def demo(monkeypatch):
    """Runs `ec-connector demo ARGS` with the processes replaced; keeps what they were asked."""
    needs("msgspec", "nixl", "zmq")
    asked = {}
    answer = {"wrong_bytes": 0, "error": None}

    def run_demo(pictures, *, runs, timeout_s, keep_logs, traces):
        if answer["error"]:
            raise answer["error"]
        asked.update(pictures=pictures, runs=runs, timeout_s=timeout_s, keep_logs=keep_logs)
        return [RunRow(name, True, "4 pulled", 4, 100, answer["wrong_bytes"]) for name in runs]

    module = types.ModuleType("ec_connector.demo.main")
    module.run_demo = run_demo
    monkeypatch.setitem(sys.modules, "ec_connector.demo.main", module)

    def run(*args):
        return CliRunner().invoke(app, ["demo", *args])

    run.asked, run.answer = asked, answer
    return run


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"ec-connector {__version__}\n"


def test_demo_defaults(demo):
    result = demo()
    assert result.exit_code == 0, result.output
    assert "bit-identical" in result.stdout
    assert demo.asked["runs"] == list(RUN_NAMES)
    assert len(demo.asked["pictures"]) == 4
    assert demo.asked["keep_logs"] is False


def test_demo_json_is_alone_on_stdout(demo):
    result = demo("--json", "--runs", "local")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["ok"] is True
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["local"]


def test_demo_with_a_wrong_byte_exits_1(demo):
    demo.answer["wrong_bytes"] = 1
    result = demo("--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert "--keep-logs" in result.stderr


def test_runs_are_checked_and_ordered_as_given(demo):
    assert demo("--runs", "local, p2p,local").exit_code == 0
    assert demo.asked["runs"] == ["local", "p2p"]
    for wrong in ("remote", ",", ""):
        result = demo("--runs", wrong)
        assert result.exit_code == 2
        assert "producer-killed" in result.stderr


@pytest.mark.parametrize("timeout", ["0", "-1", "nan"])
def test_timeout_must_be_positive(demo, timeout):
    result = demo("--timeout", timeout)
    assert result.exit_code == 2
    assert "more than 0" in result.stderr


def test_a_folder_without_pictures_exits_1(demo, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    result = demo("--images", str(tmp_path))
    assert result.exit_code == 1
    assert "notes.txt: not one of" in result.stderr
    assert "error: no usable picture" in result.stderr
    assert "Traceback" not in result.output


def test_json_reports_errors_as_json(demo):
    demo.answer["error"] = ECError("the region does not fit: free 1 MB of /dev/shm")
    result = demo("--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["runs"] == []
    assert "free 1 MB" in document["error"]


def test_a_missing_package_is_named_with_the_fix(demo, monkeypatch):
    monkeypatch.setattr("ec_connector.cli._DEMO_NEEDS", {"no_such_module_here": "nixl"})
    result = demo()
    assert result.exit_code == 1
    assert "the demo needs nixl" in result.stderr
    assert "pip install 'ec-connector[demo]'" in result.stderr


def test_help_does_not_load_torch():
    code = (
        "import sys; sys.argv[1:] = ['demo', '--help']\n"
        "from ec_connector.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: print('exit', e.code, sorted({'torch', 'PIL'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "exit 0 []"


# ----------------------------------------------------------------------------- keygen
@pytest.mark.clause("EC-15.4")
def test_keygen_makes_a_pair_says_what_is_for_whom_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("zmq")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["keygen", "enc0"])
    assert done.exit_code == 0, done.output
    assert "enc0.key: for its peers" in done.output
    assert "enc0.key_secret: its own" in done.output
    pair = read_key_pair("enc0.key_secret")
    assert pair.secret not in done.output
    assert pair.public in (tmp_path / "enc0.key").read_text()
    again = CliRunner().invoke(app, ["keygen", "enc0"])
    assert again.exit_code == 1
    assert "File exists" in again.output
    assert read_key_pair("enc0.key_secret") == pair
