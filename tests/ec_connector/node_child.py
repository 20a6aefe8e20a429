# SPDX-License-Identifier: Apache-2.0
"""A producer instance in a process of its own.

Usage: ``node_child PORT BLOCKS EXTRA``, the last more of ``ec_connector_extra_config`` as
JSON. Prints its port, then answers each line on stdin: ``NAME
NBYTES SEED`` saves random bytes, ``counters`` says what was counted. Leaves when stdin
closes.
"""

from __future__ import annotations

import json
import random
import sys

from tests.ec_connector.network.pair import Node


def main() -> None:
    port, blocks, extra = sys.argv[1:]
    bind = ("127.0.0.1", int(port))
    with Node("ec_producer", int(blocks), bind=bind, extra=json.loads(extra)) as node:
        sys.stdout.write(f"{node.address[1]}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            words = line.split()
            if len(words) == 3:
                node.save(words[0], random.Random(int(words[2])).randbytes(int(words[1])))
            sys.stdout.write(json.dumps(node.counters()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
