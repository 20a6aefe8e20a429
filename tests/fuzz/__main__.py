# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz [TARGET…]``: looks for inputs that a reader of foreign bytes mistakes.

    python -m tests.fuzz --list
    python -m tests.fuzz ack --seconds 60
    python -m tests.fuzz --inputs 1000000 --jobs 2 --json     # a campaign, all targets
    python -m tests.fuzz --seconds 300 --keep                 # corpus/ gets what was new

Exit status 0 only if nothing was found. What was found stays in ``found/TARGET/``, where
``test_fuzz.py`` takes it up from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests import ROOT
from tests.fuzz.targets import ANY, TARGETS

HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = HERE / "corpus"
FOUND: Final = HERE / "found"
#: Most inputs that are kept of one target, and the longest.
KEEP: Final = 40
KEEP_BYTES: Final = 2048
#: One input takes no longer, and the process no more memory.
_INPUT_S: Final = 10
_MEMORY_MB: Final = 1024

_UNITS: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERED: Final = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one target.

    Attributes:
        target: Its name.
        inputs: How many were tried.
        seconds: How long that took.
        edges: Edges of our code that were seen.
        found: Files with inputs that were mistaken.
        said: The end of what libFuzzer said, if something was found.
    """

    target: str
    inputs: int
    seconds: float
    edges: int
    found: list[str]
    said: str = ""


def fuzz(name: str, inputs: int, seconds: int, seed: int, keep: bool = False) -> Outcome:
    """Run one target.

    Args:
        name: Which; ``any``: all in one.
        inputs: Most inputs; 0: no bound.
        seconds: Longest time; 0: no bound.
        seed: Of libFuzzer.
        keep: Whether what covers something new becomes part of the corpus.
    """
    target, began = TARGETS.get(name, ANY), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ec-fuzz-") as made:
        work, seeds, bad = (Path(made) / part for part in ("work", "seeds", "bad"))
        for folder in (work, seeds, bad):
            folder.mkdir()
        for number, seed_input in enumerate(target.seeds()):
            (seeds / str(number)).write_bytes(seed_input)
        known = [str(seeds), *([str(CORPUS / name)] if (CORPUS / name).is_dir() else [])]
        options = [
            f"-runs={inputs or -1}",
            f"-max_total_time={seconds}",
            f"-max_len={target.max_len}",
            f"-seed={seed}",
            f"-timeout={_INPUT_S}",
            f"-rss_limit_mb={_MEMORY_MB}",
            f"-artifact_prefix={bad}/",
            "-print_final_stats=1",
        ]
        if target.words:
            quoted = [f'"{text}"\n' for text in target.words]
            (Path(made) / "words").write_text("".join(quoted), encoding="ascii")
            options.append(f"-dict={made}/words")
        status, said = _child(name, *options, str(work), *known)
        found = [_take(name, path) for path in sorted(bad.iterdir())]
        if status != 0 and not found:
            found = [f"(libFuzzer ended with {status})"]
        if keep and not found:
            _keep(name, work)
    units, covered = _UNITS.findall(said), _COVERED.findall(said)
    return Outcome(
        target=name,
        inputs=int(units[-1]) if units else 0,
        seconds=time.monotonic() - began,
        edges=int(covered[-1][0]) if covered else 0,
        found=found,
        said=said[-4000:] if found else "",
    )


def _child(name: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.child", name, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stderr


def _take(name: str, path: Path) -> str:
    """A finding becomes a case that every session goes through."""
    to = FOUND / name / path.name
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)
    return str(to.relative_to(ROOT))


def _keep(name: str, work: Path) -> None:
    """Few of the small inputs that each covered something new."""
    new = [path for path in work.iterdir() if path.stat().st_size <= KEEP_BYTES]
    new.sort(key=lambda path: (path.stat().st_size, path.name))
    corpus = CORPUS / name
    shutil.rmtree(corpus, ignore_errors=True)
    corpus.mkdir(parents=True)
    # Evenly over all lengths: the longest reach farthest.
    for path in new[:: max(1, -(-len(new) // KEEP))]:
        shutil.copyfile(path, corpus / path.name[:16])


def show(outcomes: list[Outcome]) -> None:
    """The table, and where to look."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="inputs from outside")
    table.add_column("target")
    for name in ("inputs", "per second", "edges", "found"):
        table.add_column(name, justify="right")
    for one in outcomes:
        rate = one.inputs / one.seconds if one.seconds else 0
        table.add_row(
            one.target, f"{one.inputs:,}", f"{rate:,.0f}", str(one.edges), str(len(one.found))
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{sum(one.inputs for one in outcomes):,} inputs")
    for one in outcomes:
        if one.found:
            console.print(f"{one.target}: {', '.join(one.found)}", one.said, markup=False)


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which; default: all")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--inputs", type=int, default=0, help="most inputs of each")
    parser.add_argument("--seconds", type=int, default=0, help="longest time for each; default 10")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of libFuzzer")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once")
    parser.add_argument("--keep", action="store_true", help="make the corpus anew")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    chosen = parser.parse_args()
    if chosen.list:
        for name, target in TARGETS.items():
            sys.stdout.write(f"{name:16} {(target.run.__doc__ or '').splitlines()[0]}\n")
        return 0
    for name in chosen.targets:
        if name not in TARGETS:
            parser.error(f"no target is called {name!r}; there are {', '.join(TARGETS)}")
    seconds = chosen.seconds or (0 if chosen.inputs else 10)

    def one(name: str) -> Outcome:
        outcome = fuzz(name, chosen.inputs, seconds, chosen.seed, chosen.keep)
        verdict = "FOUND SOMETHING" if outcome.found else "nothing found"
        sys.stderr.write(f"{name}: {outcome.inputs:,} inputs, {verdict}\n")
        return outcome

    with ThreadPoolExecutor(chosen.jobs) as pool:
        outcomes = list(pool.map(one, chosen.targets or TARGETS))
    document: dict[str, Any] = {"seed": chosen.seed, "targets": [asdict(o) for o in outcomes]}
    if chosen.json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(outcomes)
    return 1 if any(one.found for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
