# SPDX-License-Identifier: Apache-2.0
"""What the operating system says of an instance's processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.leftovers import start_of
from tests.world.instance import Node, wait_for
from tests.world.processes import stop


def children(pid: int) -> list[int]:
    """Its children, whichever of its threads made them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(number) for number in file.read_text().split()]
    return found


def name(pid: int) -> str:
    """As ``ps`` shows it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent_of(node: Node) -> int:
    """The process that starts the others."""
    parent = node.data._parent
    assert parent is not None
    return parent.pid


def everybody(node: Node) -> list[int]:
    """Parent, those that work and those that stand by."""
    return [parent_of(node), *children(parent_of(node))]


def working(node: Node, kind: str) -> list[int]:
    """Those of a kind that work, the oldest first."""
    return [data.pid for data in node.data._data.values() if data.kind == kind]


def gone(*pids: int) -> bool:
    """Whether none of them runs any more, nor waits to be reaped."""
    return all(start_of(pid) is None for pid in pids) and not any(
        Path(f"/proc/{pid}").exists() for pid in pids
    )


def wait_gone(*pids: int) -> None:
    """Wait until none of them is left, a zombie neither."""
    wait_for(lambda: gone(*pids), f"the ends of {pids}")


def complete(node: Node) -> bool:
    """Whether as many work and stand by as are to."""
    spec = node.data._spec
    wanted = (2 if spec.serves else 0) + (spec.readers + 1 if spec.readers else 0)
    there = children(parent_of(node))
    return (
        node.data._channel is not None
        and node.data._complete
        and len(there) == wanted
        # An engine that was told late of one that has died since counts it still.
        and all(data.pid in there for data in node.data._data.values())
        and all(name(pid).startswith("ec-") for pid in there)
    )


def wait_complete(node: Node) -> None:
    """Wait until the instance has all of its processes again."""
    wait_for(lambda: complete(node), f"all processes of {node.name}")


@contextlib.contextmanager
def standing(pid: int) -> Iterator[None]:
    """It stands still meanwhile."""
    stop(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
