# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from typer.testing import CliRunner

from ec_verify import cli
from ec_verify.models.generate import lifecycle_tla, timing_tla
from ec_verify.models.manifest import load_manifest
from tests.ec_verify.models.tlc.helpers import copy_models, rewrite

RUN = CliRunner()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = copy_models(tmp_path / "models")
    monkeypatch.setattr(cli, "tla_dir", lambda: path)
    return path


def test_json_is_alone_on_stdout_and_ok(folder):
    done = RUN.invoke(cli.app, ["check", "--json", "ok", "invariant"])
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer) == ["ok", "models"]
    assert answer["ok"] is True
    assert [(m["name"], m["result"], m["property"]) for m in answer["models"]] == [
        ("ok", "ok", None),
        ("invariant", "SmallInv", "SmallInv"),
    ]
    assert "2/2" in done.stderr
    assert " left\n" in done.stderr.partition("2/2")[0]


def test_unexpected_violation_prints_the_counterexample(folder):
    done = RUN.invoke(cli.app, ["check", "surprise", "--jobs", "1"])
    assert done.exit_code == 1
    assert "surprise: SmallInv (not as expected)" in done.stdout
    assert "  2 Step" in done.stdout
    assert "0 of 1 models are as expected" in done.stdout


def test_json_of_a_failed_run_keeps_stdout_for_the_object(folder):
    done = RUN.invoke(cli.app, ["check", "--json", "surprise"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["ok"] is False
    assert "2 Step" in done.stderr


def test_show_runs_one_model_and_prints_what_changed(folder):
    rewrite(
        folder / "small" / "models.toml",
        ("constants = { Rogue = true }", 'constants = { Rogue = true }\ninvariants = ["Unfreed"]'),
    )
    rewrite(
        folder / "small" / "OneEntry.tla", ("TypeOK ==", 'Unfreed == entry # "pinned"\nTypeOK ==')
    )
    done = RUN.invoke(cli.app, ["check", "--show", "edges-rogue"])
    assert done.exit_code == 1
    lines = [line.strip() for line in done.stdout.splitlines()]
    step = next(line for line in lines if " Hold" in line)
    assert step.endswith("Hold  entry: ready --pin--> pinned")
    assert lines[lines.index(step) + 1] == 'entry = "pinned"'


def test_show_of_an_expected_violation(folder):
    done = RUN.invoke(cli.app, ["check", "--show", "stutter"])
    assert done.exit_code == 0
    assert "stutter: PassesTwoProp (as expected)" in done.stdout
    assert "then it stutters for ever" in done.stdout
    # Only what changed: log is the same in the last state's neighbour or printed once.
    assert done.stdout.count("x = 0") == 1


@pytest.mark.parametrize(("options", "seed"), [((), 1), (("--seed", "77"), 77)])
def test_random_walks_print_their_seed(folder, options, seed):
    done = RUN.invoke(cli.app, ["check", "simulation", "ok", *options])
    assert done.exit_code == 0, done.stderr
    assert f"(5 walks of up to 20 steps, --seed {seed})" in done.stderr
    assert done.stderr.count("walks") == 1
    assert load_manifest(folder).select(["simulation"], "pr")[0].simulate.seed == 1


def test_unknown_model(folder):
    done = RUN.invoke(cli.app, ["check", "invarient"])
    assert done.exit_code == 2
    assert "did you mean invariant, " in done.stderr
    assert done.stdout == ""


def test_a_config_is_printed_and_nothing_runs(folder, monkeypatch):
    monkeypatch.setenv("JAVA", "no-such-java")
    done = RUN.invoke(cli.app, ["check", "--cfg", "temporal"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "\\* temporal: a config for Counter.tla\n\\* The second of two properties.\n"
        "SPECIFICATION FairSpec\nCONSTANTS\n    Max = 3\nINVARIANTS\n    TypeOK\n"
        "PROPERTIES\n    ReturnsProp\n    PassesTwoProp\n"
    )
    for words in (["--cfg", "tempral"], ["--cfg", "ok", "live"], ["--cfg", "ok", "--show", "live"]):
        done = RUN.invoke(cli.app, ["check", *words])
        assert (done.exit_code, done.stdout) == (2, "")


def test_new_pins(folder):
    done = RUN.invoke(cli.app, ["check", "pins", "--update-manifest"])
    assert done.exit_code == 1
    assert "new pins for pins" in done.stderr
    (model,) = load_manifest(folder).select(["pins"], "pr")
    assert (model.distinct_states, model.depth) == (6, 3)


def test_a_model_that_is_added_is_pinned_by_its_first_run(folder):
    """Step 4 of `tla/README.md`."""
    with open(folder / "small" / "models.toml", "a") as file:
        file.write('\n[model.fresh]\nbase = "ok"\nabout = "It was added."\n')
    done = RUN.invoke(cli.app, ["check", "fresh"])
    assert done.exit_code == 1
    assert "distinct_states is 6, the manifest says nothing" in done.stdout
    assert RUN.invoke(cli.app, ["check", "fresh", "--update-manifest"]).exit_code == 1
    assert RUN.invoke(cli.app, ["check", "fresh"]).exit_code == 0
    assert [model.name for model in load_manifest(folder).models][-1] == "fresh"


def test_problems_of_other_models_do_not_fail_a_named_run(folder):
    (folder / "stray.cfg").write_text("")
    rewrite(
        folder / "small" / "models.toml",
        ('about = "It comes back again and again."', 'module = "Gone.tla"\nabout = "x"'),
    )
    done = RUN.invoke(cli.app, ["check", "--json", "ok"])
    assert done.exit_code == 0
    assert "stray.cfg" in done.stderr
    done = RUN.invoke(cli.app, ["check", "--json", "live"])
    assert done.exit_code == 1
    assert "Gone.tla is missing" in done.stderr


def test_problems_fail_a_whole_run(folder):
    (folder / "small" / "models.toml").write_text(
        '[model.ok]\nmodule = "Counter.tla"\nmode = "exhaustive"\nspecification = "Spec"\n'
        'about = "x"\nconstants = { Max = 3 }\ninvariants = ["TypeOK"]\n'
    )
    done = RUN.invoke(cli.app, ["check", "--json"])
    answer = json.loads(done.stdout)
    assert [m["result"] for m in answer["models"]] == ["ok"]
    assert answer["ok"] is False
    assert done.exit_code == 1
    assert "no model uses small/Broken.tla" in done.stderr
    assert "manifest.json pins live" in done.stderr


def test_broken_manifest(folder):
    (folder / "manifest.json").write_text("{")
    done = RUN.invoke(cli.app, ["check", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"ok": False, "models": []}
    assert "no JSON" in done.stderr


def test_no_java(folder, monkeypatch):
    monkeypatch.setenv("JAVA", "no-such-java")
    done = RUN.invoke(cli.app, ["check", "--json", "ok"])
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"ok": False, "models": []}
    assert "JAVA='no-such-java' is not an executable" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_kills_java(folder, number):
    code = (
        "import pathlib, signal, sys\nfrom ec_verify import cli\n"
        # Whoever runs the tests in the background may have it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "folder = pathlib.Path(sys.argv.pop())\ncli.tla_dir = lambda: folder\ncli.main()"
    )
    command = [sys.executable, "-c", code, "check", "endless", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        java = []
        while not java:
            assert process.poll() is None
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            java = [child for child in children if "tlc2.TLC" in child.cmdline()]
        os.kill(process.pid, number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted; every TLC process was killed" in stderr
    assert psutil.wait_procs(java, timeout=30)[1] == []


def test_generate(tmp_path, monkeypatch):
    done = RUN.invoke(cli.app, ["generate", "--check"])
    names = ("tla/common/Lifecycle.tla", "tla/common/Timing.tla")
    both = "".join(f"{name} is current\n" for name in names)
    assert (done.exit_code, done.stdout) == (0, both)
    for module in (lifecycle_tla, timing_tla):
        monkeypatch.setattr(module, "tla_dir", lambda: tmp_path)
        (tmp_path / "common").mkdir(exist_ok=True)
        done = RUN.invoke(cli.app, ["generate", "--check"])
        assert done.exit_code == 1
        assert f"tla/common/{module.FILE_NAME} is not what" in done.stderr
        assert "run ec-protocol generate" in done.stderr
        module.write()
    (tmp_path / "common" / "Timing.tla").unlink()
    assert RUN.invoke(cli.app, ["generate"]).exit_code == 0
    assert RUN.invoke(cli.app, ["generate", "--check"]).stdout == both


def test_nothing_is_written_into_an_installed_package(monkeypatch):
    monkeypatch.setattr(cli, "checkout_dir", lambda: None)
    for command in (["generate"], ["diagram", "--write"], ["diagram", "--check"]):
        done = RUN.invoke(cli.app, command)
        assert done.exit_code == 2
        assert "needs a source checkout" in done.stderr


def test_diagram():
    done = RUN.invoke(cli.app, ["diagram", "copy"])
    assert done.exit_code == 0
    assert done.stdout.startswith("stateDiagram-v2\n    [*] --> planned\n")
    assert RUN.invoke(cli.app, ["diagram"]).stdout.count("stateDiagram-v2") == 9
    assert RUN.invoke(cli.app, ["diagram", "--check"]).exit_code == 0
    done = RUN.invoke(cli.app, ["diagram", "entri"])
    assert done.exit_code == 2
    assert "did you mean entry, " in done.stderr
    assert RUN.invoke(cli.app, ["diagram", "copy", "--write"]).exit_code == 2


def test_stale_and_broken_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "checkout_dir", lambda: tmp_path)
    page = tmp_path / "docs" / "architecture.md"
    page.parent.mkdir()
    page.write_text("<!-- diagram:peer -->\n<!-- /diagram -->\n")
    done = RUN.invoke(cli.app, ["diagram", "--check"])
    assert done.exit_code == 1
    assert "run ec-protocol diagram --write" in done.stderr
    assert "wrote" in RUN.invoke(cli.app, ["diagram", "--write"]).stdout
    assert RUN.invoke(cli.app, ["diagram", "--check"]).exit_code == 0
    page.write_text("<!-- diagram:nobody -->\n<!-- /diagram -->\n")
    done = RUN.invoke(cli.app, ["diagram", "--check"])
    assert done.exit_code == 1
    assert "no such lifecycle" in done.stderr
