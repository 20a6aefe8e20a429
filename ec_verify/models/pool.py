# SPDX-License-Identifier: Apache-2.0
"""Several TLC processes at once, ended together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(
    items: Sequence[_Item],
    one: Callable[[_Item], _Result],
    *,
    jobs: int,
    stop: Callable[[], None],
) -> list[_Result]:
    """Do ``one`` for each item, ``jobs`` at a time; begins with the first.

    Args:
        items: What to do.
        one: Called in threads.
        jobs: How many at once; at least one.
        stop: Called when it is interrupted; ends what runs.

    Returns:
        The results in the order of ``items``.

    Raises:
        KeyboardInterrupt: After ``stop``.
    """
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            pending = set(futures)
            while pending:
                # A bounded wait: an unbounded one would hold signals back.
                _, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
    return [future.result() for future in futures]
