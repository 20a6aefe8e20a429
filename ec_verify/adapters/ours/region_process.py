# SPDX-License-Identifier: Apache-2.0
"""A real process that holds a region: commands as JSON lines in, answers out.

Run by ``processes`` for the region cases of the conformance kit; it can be killed at
any moment, which is what it is for.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from typing import Any

from ec_connector.region.header import NONCE_BYTES
from ec_connector.region.shared import SharedRegion
from ec_protocol.errors import ECError


def open_region(
    directory: str,
    instance: str,
    dp_rank: int,
    blocks: int,
    block_size_bytes: int,
    guard: bool,
    start: str | None,
) -> tuple[SharedRegion, dict[str, Any]]:
    """Open a region, and say what the file looks like."""
    region = SharedRegion.open(
        instance,
        dp_rank,
        blocks,
        block_size_bytes,
        nonce=None if start is None else hashlib.sha256(start.encode()).digest()[:NONCE_BYTES],
        directory=directory,
        guard=guard,
        timeout_s=2.0,
    )
    status = os.stat(region.path)
    return region, {
        "path": region.path,
        "name": os.path.basename(region.path),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "created": region.created,
        "usable": region.num_blocks * region.block_size_bytes,
    }


def main() -> None:
    """Obey until standard input ends."""
    region: SharedRegion | None = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if command["do"] == "open":
                region, answer = open_region(**command["args"])
            elif command["do"] == "write" and region is not None:
                region.buffer[:4] = bytes.fromhex(command["args"]["data"])
            elif command["do"] == "read" and region is not None:
                answer = {"data": bytes(region.buffer[:4]).hex()}
            elif command["do"] == "close" and region is not None:
                region.close(unlink=bool(command["args"].get("unlink", True)))
                region = None
        except ECError as exc:
            answer = {"error": str(exc)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
