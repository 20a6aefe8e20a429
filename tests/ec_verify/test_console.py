# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: how they end, and what they say on the way."""

import io
import json

import pytest
import typer
from rich.console import Console

from ec_protocol.errors import ConfigError
from ec_verify.console import errors, progress


def test_an_error_ends_with_a_status_and_one_line(capsys):
    with pytest.raises(typer.Exit) as ended, errors():
        raise ConfigError("name [one] of these")
    assert ended.value.exit_code == 2
    assert capsys.readouterr() == ("", "error: name [one] of these\n")


def test_a_reader_of_json_gets_a_document_in_any_case(capsys):
    with pytest.raises(typer.Exit) as ended, errors(1, document={"ok": False}):
        raise ConfigError("no")
    assert ended.value.exit_code == 1
    assert json.loads(capsys.readouterr().out) == {"ok": False}


def test_ctrl_c_ends_with_130(capsys):
    with pytest.raises(typer.Exit) as ended, errors(interrupted="stopped; all is ended"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "error: stopped; all is ended\n"


def test_without_a_terminal_progress_is_a_line_now_and_then():
    out = Console(file=io.StringIO(), width=80)
    with progress(out, "parts", 5, every=2) as step:
        for name in "abcde":
            step(name)
    said = out.file.getvalue()
    assert [line.partition(",")[0] for line in said.splitlines()] == ["2/5", "4/5", "5/5"]
    with progress(out, "parts", 1) as step:
        step("a")
    assert out.file.getvalue() == said
