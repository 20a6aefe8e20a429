# SPDX-License-Identifier: Apache-2.0
"""The guides: what they say about names, defaults and options is what the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import ROOT

PAGES = (
    *(
        f"guide/{name}"
        for name in (
            "README",
            "one-server",
            "two-servers",
            "proxy",
            "orchestrator",
            "events",
            "troubleshooting",
            "limits",
        )
    ),
    "reference/settings",
    "reference/metrics",
)


def english(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def korean(page: str) -> str:
    folder, _, name = page.partition("/")
    return (ROOT / "docs" / folder / "ko" / f"{name}.md").read_text(encoding="utf-8")


ENGLISH = "\n".join(map(english, PAGES))
KOREAN = "\n".join(map(korean, PAGES))
BOTH = pytest.mark.parametrize("text", [ENGLISH, KOREAN], ids=["en", "ko"])
EACH_PAGE = pytest.mark.parametrize("page", PAGES)


def test_every_page_of_the_guide_has_its_partner():
    for folder in ("guide", "reference"):
        here = {p.name for p in (ROOT / "docs" / folder).glob("*.md")} - {"commands.md"}
        assert here == {p.name for p in (ROOT / "docs" / folder / "ko").glob("*.md")}
        assert {f"{folder}/{Path(name).stem}" for name in here} <= set(PAGES)


@EACH_PAGE
def test_both_pages_name_each_other(page):
    name = page.partition("/")[2]
    assert f"한국어: [{name}.md](ko/{name}.md)" in english(page)
    assert f"English: [{name}.md](../{name}.md)" in korean(page)


def block(text: str, name: str) -> str:
    """A reference block, which must be there once."""
    (found,) = re.findall(rf"<!-- reference:{name} -->\n(.*?)<!-- /reference -->", text, re.DOTALL)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without the lines below their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize(("name", "last"), [("config", -1), ("metrics", -1), ("timing", -1)])
def test_the_korean_reference_has_the_same_rows(name, last):
    """All columns but the meaning: names, types, defaults. The meaning is in Korean."""
    english, korean = rows(block(ENGLISH, name)), rows(block(KOREAN, name))
    assert len(english) == len(korean)
    for ours, theirs in zip(english, korean, strict=True):
        head = not any("`" in cell for cell in ours)
        if head:
            continue
        wanted = [cell.replace("**required**", "**필수**") for cell in ours[:last]]
        assert theirs[:last] == wanted
        assert re.search("[가-힣]", theirs[last]), theirs


@EACH_PAGE
def test_both_guides_have_the_same_shape(page):
    def shape(text: str) -> list[str]:
        return [line.split()[0] for line in text.splitlines() if re.match("#+ ", line)]

    def tables(text: str) -> list[int]:
        return [len(row) for row in rows(text)]

    ours, theirs = english(page), korean(page)
    prose = re.compile(r"```.*?```", re.DOTALL)
    assert shape(prose.sub("", ours)) == shape(prose.sub("", theirs))
    assert tables(ours) == tables(theirs)
    for item in (r"^- ", r"^\d+\. "):
        assert len(re.findall(item, ours, re.M)) == len(re.findall(item, theirs, re.M))
    assert len(re.findall(r"\]\(", ours)) == len(re.findall(r"\]\(", theirs))


def test_both_guides_show_the_same_commands():
    def commands(text: str) -> list[str]:
        found = re.findall(r"^ *```\n(.*?)^ *```", text, re.DOTALL | re.M)
        return [re.sub(r" *#.*", "", code) for code in found]

    assert commands(ENGLISH) == commands(KOREAN)
    assert len(commands(ENGLISH)) == 9


def test_the_korean_guide_is_korean():
    """No paragraph is left in English."""
    prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|\(.*?\)", "", KOREAN, flags=re.DOTALL)
    for paragraph in prose.split("\n\n"):
        words = re.findall(r"[A-Za-z]{2,}", paragraph)
        if len(words) > 8:
            assert len(re.findall("[가-힣]", paragraph)) > len(words), paragraph


@BOTH
def test_every_option_of_the_proxy_is_explained(text):
    import typer.main

    from ec_connector.cli import app

    command = typer.main.get_command(app).commands["proxy"]  # type: ignore[attr-defined]
    options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--help"}
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", text, re.M))


@BOTH
def test_every_error_code_and_metric_of_the_proxy_is_named(text):
    sources = [p.read_text() for p in (ROOT / "ec_connector" / "proxy").glob("*.py")]
    code = "\n".join(sources)
    raised = re.findall(r'ProxyError\(\s*\d+,\s*"([a-z_]+)"', code)
    codes = {*raised, "decoder_lost"} - {"http_error", "internal_error"}
    assert codes <= set(re.findall(r"`([a-z_]+)`", text))
    metrics = re.findall(r'"(ec_proxy_[a-z_]+)"', code)
    assert len(metrics) == 9
    for name in metrics:
        assert name in text


@BOTH
def test_counters_of_the_troubleshooting_table_exist(text):
    table = text[text.index("| `nack_incompat`") : text.index("`absent`") + 10]
    names = {name for row in rows(table) for name in re.findall("`([a-z_]+)`", row[0])}
    assert len(names) >= 12
    code = "\n".join(path.read_text() for path in (ROOT / "ec_protocol").rglob("*.py"))
    from_statuses = {"nack_incompat", "nack_version", "nack_missing"}
    for name in names - from_statuses:
        assert f'"{name}"' in code, name


@BOTH
def test_every_event_is_explained(text):
    table = text[text.index("| `stored`") : text.index("\n\n", text.index("| `stopped`"))]
    explained = [row[0].strip("`") for row in rows(table)]
    tier = (ROOT / "ec_protocol" / "tier" / "encodings.py").read_text()
    (kinds,) = re.findall(r"TierEvent = Literal\[(.*?)\]", tier)
    assert explained == [*re.findall('"([a-z]+)"', kinds), "dropped", "stopped"]


@BOTH
def test_facts_of_the_seeds_are_told(text):
    for fact in (
        "VLLM_USE_V2_MODEL_RUNNER=1",
        "ec_enable_nixl requires NIXL",
        "/dev/shm/vllm_ec_{instance_id}_dp{dp_rank}.mmap",
        '"ec_role": "ec_both"',
        '"ec_role": "ec_producer"',
        '"ec_role": "ec_consumer"',
        "--mm-encoder-only",
        "ec_transfer_params",
        "SamplingParams.extra_args",
        "VLLM_EC_SIDE_CHANNEL_HOST",
        "VLLM_EC_SIDE_CHANNEL_PORT",
        "EC_CONNECTOR_REPLACE_BUILTIN",
        "engine_id",
    ):
        assert fact in text, fact


def messages() -> str:
    """Every piece of text in the connector's source, adjacent literals joined."""
    texts: list[str] = []
    for package in ("ec_connector", "ec_protocol"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value for p in node.values if isinstance(p, ast.Constant))
                    texts.append("\n".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("read", [english, korean], ids=["en", "ko"])
def test_a_server_that_does_not_start_prints_what_the_page_looks_for(read):
    """Somebody pastes the message into the page's search; a reworded one is not found."""
    table = read("guide/troubleshooting").split("\n|---|---|\n")[1].split("\n\n")[0]
    quoted = [q for row in table.splitlines() for q in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(quoted) >= 10, quoted
    source = messages()
    pieces = [piece.strip() for quote in quoted for piece in quote.split("…")]
    assert [piece for piece in pieces if piece not in source] == []
