# SPDX-License-Identifier: Apache-2.0
import dataclasses
import re

import pytest

from ec_protocol._files import tla_dir
from ec_protocol.lifecycle import load_lifecycles
from ec_protocol.tlc import lifecycle_tla

TEXT = lifecycle_tla.generate()


def test_committed_module_is_what_the_tables_say():
    assert (tla_dir() / "Lifecycle.tla").read_text(encoding="ascii") == TEXT
    assert lifecycle_tla.is_current()


def test_write_then_current_and_any_change_is_noticed(tmp_path):
    assert not lifecycle_tla.is_current(tmp_path)
    path = lifecycle_tla.write(tmp_path)
    assert lifecycle_tla.is_current(tmp_path)
    path.write_text(path.read_text().replace('"write_landed"', '"write_ended"', 1))
    assert not lifecycle_tla.is_current(tmp_path)


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
