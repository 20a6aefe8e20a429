# SPDX-License-Identifier: Apache-2.0
"""The connector of ``docs/build-a-connector.md``: under the kit, and as the page tells it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import ROOT
from tests.needs import needs

needs("msgspec")

from ec_verify.kit.language.schedule import all_cases
from ec_verify.kit.runner import Result, Verdict, connector, run_cases
from ec_verify.kit.walk_failures import find_failures

EXAMPLES = ROOT / "ec_verify" / "kit" / "examples"
PAGE = (ROOT / "docs" / "build-a-connector.md").read_text(encoding="utf-8")
#: What the connector has not got, as its adapter says it.
LACKING = {"config", "data processes", "events", "region", "silent", "terms: checksum", "work"}


# -------------------------------------------------------------------------- the kit
@pytest.fixture(scope="module")
def results() -> list[Result]:
    _, connect = connector("node", None)
    return list(run_cases(all_cases(None), connect))


def test_every_case_that_the_connector_supports_is_ok(results: list[Result]):
    wrong = {r.case.id: r.detail for r in results if r.verdict not in ("OK", "UNSUPPORTED")}
    assert wrong == {}
    lacking = {r.detail.removeprefix("not supported: ") for r in results if r.detail}
    assert lacking == LACKING


def test_the_page_says_how_many(results: list[Result]):
    verdicts = Counter(r.verdict for r in results)
    ok, unsupported = verdicts[Verdict.OK], verdicts[Verdict.UNSUPPORTED]
    assert f"It ends with {ok} OK, {unsupported} UNSUPPORTED and none FAILED" in PAGE


def test_random_schedules_break_nothing():
    _, connect = connector("node", None)
    assert find_failures(range(20), 100, connect, every=False, done=lambda _: None) == []


IMPORTS = """
import json, sys
{code}
roots = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps(sorted(roots & {{"ec_connector", "nixl", "torch", "vllm", "zmq"}})))
"""


@pytest.mark.parametrize(
    "code",
    [
        "import ec_verify.kit.examples.connector",
        "from ec_verify.kit.language.schedule import all_cases\n"
        "from ec_verify.kit.runner import connector, run_cases\n"
        "cases = [c for c in all_cases(None) if c.area in ('read', 'grant', 'quarantine')\n"
        "         and not any(node.processes for node in c.setup.nodes.values())]\n"
        "results = list(run_cases(cases, connector('node', None)[1]))\n"
        "assert len(results) > 100 and {r.verdict for r in results} == {'OK'}",
    ],
    ids=["connector", "under the kit"],
)
def test_nothing_of_ours_or_of_others_is_imported(code: str):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(code=code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


# ------------------------------------------------------------------------- the page
def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def code(text: str) -> list[str]:
    """Lines but for blank ones and headings."""
    return [s for s in text.splitlines() if s and not re.match(r" *# -{9}", s)]


def test_the_page_quotes_the_whole_connector_in_order():
    _, found, rest = (EXAMPLES / "connector.py").read_text().partition("\nclass Connector:\n")
    assert found
    pair, *quoted = blocks("python")
    assert "pair.py" in PAGE[: PAGE.index(pair)]
    assert code("".join(quoted)) == code(found + rest)


def test_the_adapter_is_as_short_as_the_page_says():
    lines = (EXAMPLES / "connector_adapter.py").read_text().count("\n")
    assert lines <= 100
    assert f" | {lines} lines that put the kit in place of the sockets |" in PAGE


def test_the_first_program_of_the_page_runs(tmp_path: Path):
    program = tmp_path / "pair.py"
    program.write_text(blocks("python")[0])
    words = [sys.executable, str(program)]
    env = {"PYTHONPATH": str(ROOT)}
    producer = subprocess.Popen([*words, "producer"], stdout=subprocess.PIPE, env=env)
    try:
        consumer = subprocess.run(
            [*words, "consumer"],
            stdin=producer.stdout,
            capture_output=True,
            text=True,
            timeout=60,
            env=env,
        )
    finally:
        producer.kill()
        producer.communicate()
    assert consumer.returncode == 0, consumer.stderr
    assert re.fullmatch(r"[0-9a-f]{64}\n", consumer.stdout)
