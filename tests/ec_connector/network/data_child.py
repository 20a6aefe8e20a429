# SPDX-License-Identifier: Apache-2.0
"""A producer process: a NixlServer over memory of known content.

Usage: ``data_child NAME NBYTES SEED``. Prints one JSON line when it is up, and one per
line that it gets on stdin: ``poll`` and ``rest`` switch progress on and off, ``notices``
asks for what came so far. Leaves when stdin closes.
"""

from __future__ import annotations

import base64
import ctypes
import json
import mmap
import random
import select
import sys
from typing import Any

from ec_connector.network.data import NixlServer


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, nbytes, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    memory = mmap.mmap(-1, nbytes)
    memory[:] = random.Random(seed).randbytes(nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    server = NixlServer(name, address, nbytes)
    say(metadata=base64.b64encode(server.agent_metadata).decode(), address=address)
    notices: list[str] = []
    polling = True
    while True:
        if polling:
            notices += [notice.decode() for notice in server.poll_notices()]
        if not select.select([sys.stdin], [], [], 0.0002)[0]:
            continue
        command = sys.stdin.readline().strip()
        if not command:
            return
        polling = {"poll": True, "rest": False}.get(command, polling)
        say(notices=notices)


if __name__ == "__main__":
    main()
