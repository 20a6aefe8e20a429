# SPDX-License-Identifier: Apache-2.0
"""Drives a producer instance in another process (``node_child``)."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

from tests.ec_connector.network.pair import BLOCK
from tests.harness.child import Child

NBYTES = 100 * BLOCK + 17

_seeds = itertools.count(1)


class Producer(Child):
    """The other process.

    Args:
        port: Control port; 0 takes a free one.
        blocks: Blocks of its region.
        extra: More of ``ec_connector_extra_config``.
    """

    def __init__(self, port: int = 0, blocks: int = 512, **extra: Any) -> None:
        arguments = [str(port), str(blocks), json.dumps(extra)]
        super().__init__("-m", "tests.ec_connector.node_child", *arguments, greets=True)
        self.address = ("127.0.0.1", self.hello)

    def save(self, nbytes: int = NBYTES) -> tuple[str, bytes]:
        """Let it save a new encoding; name and bytes."""
        seed = next(_seeds)
        self.tell(f"h{seed} {nbytes} {seed}")
        return f"h{seed}", random.Random(seed).randbytes(nbytes)
