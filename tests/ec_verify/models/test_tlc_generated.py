# SPDX-License-Identifier: Apache-2.0
"""The generated modules: Lifecycle.tla from the tables, Timing.tla from the timers."""

import dataclasses
import re

import pytest

from ec_protocol.tables.files import tla_dir
from ec_protocol.tables.lifecycle import load_lifecycles
from ec_protocol.tables.timing import inequalities, timer_specs
from ec_verify.models.generate import lifecycle_tla, timing_tla

TEXT = lifecycle_tla.generate()
MODULES = {"Lifecycle.tla": lifecycle_tla, "Timing.tla": timing_tla}


@pytest.mark.parametrize("name", MODULES)
def test_committed_module_is_what_the_tables_say(name):
    path = tla_dir() / "common" / name
    assert path.read_text(encoding="ascii") == MODULES[name].generate()
    assert MODULES[name].is_current()


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [("Lifecycle.tla", '"write_landed"', '"write_ended"'), ("Timing.tla", "<= t.", "< t.")],
)
def test_write_then_current_and_any_change_is_noticed(tmp_path, name, was, now):
    module = MODULES[name]
    assert not module.is_current(tmp_path)
    path = module.write(tmp_path)
    assert path.name == name
    assert module.is_current(tmp_path)
    path.write_text(path.read_text().replace(was, now, 1))
    assert not module.is_current(tmp_path)


@pytest.mark.parametrize("name", load_lifecycles())
def test_every_word_and_edge_of_a_table_is_there(name):
    table, prefix = load_lifecycles()[name], name.capitalize()

    def members(operator):
        (body,) = re.findall(rf"^{prefix}{operator} == {{(.*)}}$", TEXT, re.MULTILINE)
        return set(re.findall(r'"(\w+)"', body))

    assert members("States") == set(table.states)
    assert members("Terminal") == set(table.terminal)
    assert members("Events") == set(table.events)
    assert members("Guards") == set(table.guards)
    assert f'{prefix}Initial == "{table.initial}"' in TEXT
    (body,) = re.findall(rf"^{prefix}Edges == {{\n(.*?)^}}$", TEXT, re.MULTILINE | re.DOTALL)
    records = re.findall(
        r'\[from \|-> "(\w+)", event \|-> "(\w+)", needs \|-> {(.*?)}, forbids \|-> {(.*?)},'
        r'\s+to \|-> "(\w+)", effect \|-> "(\w*)"\]',
        body,
    )

    def words(text):
        return tuple(re.findall(r"\w+", text))

    assert [(s, e, words(n), words(f), d, effect) for s, e, n, f, d, effect in records] == [
        (x.source, x.event, x.needs, x.forbids, x.dest, x.effect) for x in table.edges
    ]
    assert body.count("\\* ") == len(table.edges)  # each with its reason


def test_comments_stay_comments():
    entry = load_lifecycles()["entry"]
    edge = dataclasses.replace(entry.edges[0], why="two\nlines, and é")
    odd = dataclasses.replace(entry, edges=(edge,))
    text = lifecycle_tla.generate({"entry": odd})
    assert "    \\* two lines, and ?\n" in text
    assert text.isascii()


def test_every_inequality_and_timer_is_there():
    text = timing_tla.generate()
    formulas = dict(re.findall(r"^(T\d+)\(t\) == (.*)$", text, re.MULTILINE))
    wanted = {item.id: re.sub(r"(\w+_s)\b", r"t.\1", str(item)) for item in inequalities()}
    assert formulas == wanted
    assert re.findall(r"^    /\\ (T\d+)\(t\)$", text, re.MULTILINE) == list(wanted)
    (names,) = re.findall(r"^TimerNames == {(.*?)}", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r'"(\w+)"', names) == list(timer_specs())


def test_inequalities_that_are_given_are_those_of_the_module():
    text = timing_tla.generate(inequalities()[3:4])
    assert text.endswith(
        "T4(t) == t.heartbeat_interval_s < t.heartbeat_timeout_s\n\n"
        "Sound(t) ==\n    /\\ T4(t)\n" + "=" * 77 + "\n"
    )
