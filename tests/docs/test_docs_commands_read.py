# SPDX-License-Identifier: Apache-2.0
"""Commands of the documents that are only read: what they name is there.

Those that need vLLM, install packages or take minutes (``ONLY_READ``), and those within
sentences and tables, where words in capitals stand for something.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import typer.main

import ec_connector.cli
import ec_verify.cli
from ec_connector.config.settings import ECConfig
from tests import ROOT
from tests.docs.pages import command_blocks, mentioned, program, split
from tests.docs.test_docs_commands import ONLY_READ

PROGRAMS: dict[str, Any] = {
    "ec-connector": typer.main.get_command(ec_connector.cli.app),
    "ec-protocol": typer.main.get_command(ec_verify.cli.app),
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

#: Options of vLLM's own that the documents use.
VLLM_OPTIONS = {"--ec-transfer-config", "--port"}
#: Fields of vLLM's that are not settings of ours.
FIELDS = {"ec_connector", "ec_connector_module_path", "ec_role", "ec_connector_extra_config"}


def check_program(words: list[str]) -> None:
    """The subcommand exists, and so does each option that is named."""
    command, rest = PROGRAMS[program(words)], words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith(("…", "-")):
            return
        assert rest[0] in command.commands, f"{' '.join(words)}: no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {option for param in command.params for option in param.opts} | {"--help"}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{' '.join(words)}: no option {word}"


def check_make(words: list[str]) -> None:
    """The target exists, and so do the variables; ``ARGS`` of e2e are options of its script."""
    targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    for word in words[1:]:
        name, is_variable, value = word.partition("=")
        if is_variable:
            assert name == "PYTHON" or re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE), word
        if name == "ARGS" and targets == ["e2e"]:
            script = (ROOT / "tests" / "e2e" / "run.py").read_text(encoding="utf-8")
            for option in re.findall(r"--[a-z-]+", value):
                assert f'"{option}"' in script, option


def check_pip(words: list[str]) -> None:
    """Every extra that is installed is one of ours."""
    assert words[1] == "install"
    named = re.fullmatch(r"(?:\.|ec-connector)(?:\[([\w,]+)\])?", words[2])
    assert named, words
    extras = named[1].split(",") if named[1] else []
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def check_vllm(words: list[str], environ: dict[str, str]) -> None:
    """Our configuration takes what is given to vLLM."""
    assert words[:3] == ["vllm", "serve", "MODEL"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert set(options) <= VLLM_OPTIONS
    given = json.loads(options["--ec-transfer-config"])
    assert set(given) == FIELDS
    assert given["ec_connector_module_path"] == "ec_connector.vllm"
    extra = given["ec_connector_extra_config"]
    config = ECConfig.parse(extra, given["ec_role"], environ=environ)
    assert config.cpu_bytes == extra["ec_cpu_bytes"]
    if config.side_channel is not None:
        host, port = config.side_channel
        assert {host, str(port)} <= set(environ.values())


def check_python(words: list[str]) -> None:
    """Each file that is run is there."""
    files = [word for word in words[1:] if word.endswith(".py")]
    assert files or words[1] == "-m", words
    for file in files:
        assert (ROOT / file).is_file(), file


def check(words: list[str], environ: dict[str, str]) -> None:
    name = program(words)
    if name == "export":
        variable, _, value = words[1].partition("=")
        environ[variable] = value
    elif name == "vllm":
        check_vllm(words, environ)
    elif name == "pip":
        check_pip(words)
    elif name == "make":
        check_make(words)
    elif name == "python":
        check_python(words)
    else:
        check_program(words)


@pytest.mark.parametrize("block", command_blocks(), ids=lambda block: block[0][:60])
def test_what_is_only_read_is_right(block, monkeypatch):
    # What vLLM's commands need is not asked for here.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    environ: dict[str, str] = {}
    for command in block:
        if command in ONLY_READ:
            check(split(command), environ)
    if any(command.startswith("vllm") for command in block):
        assert environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"


@pytest.mark.parametrize("command", mentioned(), ids=lambda command: command[:60])
def test_commands_within_sentences_name_what_there_is(command):
    words = [word for word in split(command) if word not in ("…", "...")]
    check(words, {})


def test_what_is_wrong_would_be_noticed():
    environ: dict[str, str] = {}
    for command in (
        "ec-protocol chek",
        "ec-protocol check --tire pr",
        "ec-protocol conformance walks",
        "make tests",
        "make e2e ARGS=--olny",
        "pip install '.[nixls]'",
        "vllm serve MODEL --ec-transfer-confg '{}'",
    ):
        with pytest.raises(AssertionError):
            check(split(command), environ)
    wrong = {"ec_connector": "ECConnector", "ec_connector_module_path": "ec_connector.vllm"}
    extra = {"ec_role": "ec_both", "ec_connector_extra_config": {"ec_cpu_byte": 1}}
    with pytest.raises(ValueError, match="ec_cpu_byte"):
        check_vllm(
            ["vllm", "serve", "MODEL", "--ec-transfer-config", json.dumps(wrong | extra)], environ
        )
