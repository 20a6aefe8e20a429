# SPDX-License-Identifier: Apache-2.0
"""A process under test: takes commands as JSON lines on stdin, answers on stdout.

With ``pause`` it stops at a named moment of ``open``, says so, and goes on when it
gets any further line: the tests kill it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ec_connector.region import file as region_file
from ec_connector.region import guard, opening
from ec_connector.region import shared as region
from ec_connector.region.errors import RegionError
from ec_connector.region.marks import Marks
from ec_connector.region.shared import SharedRegion, reap_orphans


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def stop(moment: str) -> None:
    say(paused=moment)
    sys.stdin.readline()


def around(module: Any, name: str, before: str, after: str, wanted: str) -> None:
    """Make a function of a module or class stop before or after its work."""
    inner: Callable[..., Any] = getattr(module, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if wanted == before:
            stop(before)
        result = inner(*args, **kwargs)
        if wanted == after:
            stop(after)
        return result

    setattr(module, name, wrapper)


def pause_at(moment: str) -> None:
    around(region_file, "new_file", "before_file", "empty_file", moment)
    around(region_file, "allocate", "before_allocate", "allocated", moment)
    around(guard, "start_guard", "header_written", "guarded", moment)
    around(region_file, "_link", "before_link", "linked", moment)
    around(Marks, "set", "before_mark", "marked", moment)
    around(region, "populate", "mapped", "populated", moment)
    around(opening, "identify", "before_identify", "identified", moment)


def without_tmpfile() -> None:
    """Behave as on a file system that cannot make files without a name."""
    real = os.path.isdir
    region_file.os.path.isdir = lambda path: path != "/proc/self/fd" and real(path)


def without_turns() -> None:
    """Behave as in a network namespace of its own, where nobody's turn is seen."""
    region_file.creation_turn = lambda directory, name: contextlib.nullcontext(True)  # type: ignore


def main() -> None:
    opened: SharedRegion | None = None
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("do")
        try:
            if verb == "pause":
                pause_at(command["at"])
                say(ok=True)
            elif verb == "no_tmpfile":
                without_tmpfile()
                say(ok=True)
            elif verb == "no_turns":
                without_turns()
                say(ok=True)
            elif verb == "open":
                if "nonce" in command:
                    command["nonce"] = bytes.fromhex(command["nonce"])
                opened = SharedRegion.open(**command)
                say(
                    created=opened.created,
                    reaped=list(opened.reaped.names),
                    inode=os.fstat(opened._file.fileno()).st_ino,
                )
            elif verb == "write":
                opened.view((command["block"], 1))[0] = command["value"]
                say(ok=True)
            elif verb == "read":
                say(value=opened.view((command["block"], 1))[0])
            elif verb == "drain":
                opened.drain()
                say(ok=True)
            elif verb == "close":
                opened.close(unlink=command["unlink"])
                say(ok=True)
            elif verb == "fork":
                if os.fork() == 0:
                    sys.stdin.readline()  # holds what it inherited until stdin ends
                    os._exit(0)
                say(ok=True)
            elif verb == "fork_and_stay":
                pid = os.fork()
                if pid == 0:
                    signal.pause()  # holds what it inherited until it is killed
                say(pid=pid)
            elif verb == "fork_and_close":
                assert opened is not None
                pid = os.fork()
                if pid == 0:
                    opened.close(unlink=True)
                    os._exit(0)
                say(status=os.waitpid(pid, 0)[1])
            elif verb == "hold_loop":
                hold_loop(**command)
            elif verb == "reap_loop":
                reap_loop(**command)
        except (RegionError, OSError) as exc:
            say(error=type(exc).__name__, message=str(exc))


def hold_loop(seconds: float, directory: str, **kwargs: Any) -> None:
    """Join or create, look that the name means our file while we hold it, let go."""
    import time

    rounds = created = lost = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        held = SharedRegion.open(directory=directory, **kwargs)
        mine = os.fstat(held._file.fileno()).st_ino
        for _ in range(3):
            try:
                lost += os.stat(held.path).st_ino != mine
            except FileNotFoundError:
                lost += 1
        created += held.created
        rounds += 1
        held.close(unlink=False)
    say(rounds=rounds, created=created, lost=lost)


def reap_loop(seconds: float, directory: str) -> None:
    import time

    reaped = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reaped += len(reap_orphans(directory).names)
    say(reaped=reaped)


main()
