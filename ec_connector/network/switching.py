# SPDX-License-Identifier: Apache-2.0
"""How long a thread that computes in Python may keep the interpreter from the pump.

Python asks the running thread to let go after 5 ms, and an ack takes the pump several
turns: beside an engine thread that computes in Python it took 20 to 40 ms. With a
shorter interval it takes a few. It matters only while the pump has something to do: a
thread that waits for a socket asks for nothing.

The interval belongs to the whole process, so it is only ever lowered, and put back when
the last pump has ended.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

#: Seconds.
INTERVAL: Final = 0.001

_lock = threading.Lock()
_users = 0
_before = 0.0


@contextlib.contextmanager
def prompt_switching(interval: float = INTERVAL) -> Iterator[None]:
    """Threads of this process take turns at least this often meanwhile."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, interval))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setswitchinterval(_before)
