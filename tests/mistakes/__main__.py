# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mistakes [NAME…]``: makes mistakes, and says which nothing noticed.

Names may have ``*``; without any, all are made. Exit status 0 only if each was noticed by
its test.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue

from tests.mistakes import Copy, Mistake, MistakeError, load


def judged(mistakes: list[Mistake], jobs: int) -> dict[str, str]:
    """The verdicts by name, which are printed as they come."""
    with ExitStack() as stack:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for _ in range(jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ec-mistakes-"))
            copy = Copy(Path(folder))
            stack.callback(copy.close)
            copies.put(copy)

        def judge(mistake: Mistake) -> str:
            copy, began = copies.get(), time.monotonic()
            try:
                verdict = copy.judge(mistake)
            except MistakeError as exc:
                verdict = str(exc)
            finally:
                copies.put(copy)
            sys.stdout.write(f"{verdict} in {time.monotonic() - began:.1f} s: {mistake.name}\n")
            sys.stdout.flush()
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            verdicts = pool.map(judge, mistakes)
        return dict(zip([mistake.name for mistake in mistakes], verdicts, strict=True))


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mistakes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to make; * stands for all")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    chosen = parser.parse_args()
    known = load()
    for name in chosen.names:
        if not any(fnmatchcase(one, name) for one in known):
            parser.error(f"no mistake is called {name!r}")
    wanted = [
        mistake
        for name, mistake in known.items()
        if not chosen.names or any(fnmatchcase(name, pattern) for pattern in chosen.names)
    ]
    verdicts = judged(wanted, chosen.jobs)
    left = [name for name, verdict in verdicts.items() if verdict != "killed"]
    sys.stdout.write(f"{len(wanted) - len(left)} of {len(wanted)} mistakes are noticed\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
