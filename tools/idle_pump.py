# SPDX-License-Identifier: Apache-2.0
"""What a peer-to-peer instance costs while nobody asks it for anything.

    python tools/idle_pump.py [--json] [--seconds S]

Processor time of the whole process (pump, ZMQ's and UCX's threads) in percent of one
core: of two instances, one of each role, with a live connection between them and an
encoding fetched before; of the same right after start; and, as the baseline, of one
NIXL agent with its own progress thread, which is what others run instead of a pump.

Exit status 1 if an instance takes more than 2 % of a core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import secrets
import sys
import time

from ec_connector.config.settings import ECConfig
from ec_connector.engine.facts import ModelFacts
from ec_connector.instance import SchedulerInstance
from ec_connector.network.data.library import load_nixl
from ec_connector.region.shared import SharedRegion

BLOCK = 8192
BLOCKS = 256
LIMIT_PERCENT = 2.0
FACTS = ModelFacts("bench", "model", "bfloat16", 2)


class Instance:
    """One scheduler instance with a region and a pump of its own."""

    def __init__(self, role: str) -> None:
        config = ECConfig.parse({"ec_cpu_bytes": BLOCKS * BLOCK, "ec_enable_nixl": True}, role)
        if config.side_channel is not None:
            config = dataclasses.replace(config, side_channel=("127.0.0.1", 0))
        name = f"bench-idle-{secrets.token_hex(4)}"
        self.region = SharedRegion.open(name, 0, BLOCKS, BLOCK, create=True, guard=False)
        self.inner = SchedulerInstance(
            config, FACTS, self.region, items=lambda request: [], engine_id=name
        )

    def close(self) -> None:
        """Stop the pump and remove the region."""
        self.inner.shutdown()
        self.region.close(unlink=True)


def percent_of_a_core(seconds: float) -> float:
    """Processor time of this process while its main thread sleeps."""
    used, start = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.perf_counter() - start)


def fetch(producer: Instance, consumer: Instance) -> None:
    """Let one encoding travel, so that connections of both planes are made."""
    source, target = producer.inner.p2p, consumer.inner.p2p
    reads = consumer.inner.node.reads
    if source is None or source.address is None or target is None or reads is None:
        raise SystemExit("the instances have no peer-to-peer half")
    nbytes = 100 * BLOCK
    with producer.inner.lock:
        entry = producer.inner.node.tier.alloc("picture", nbytes)
        assert entry is not None
        producer.inner.node.tier.begin_write(entry, ("save", 1))
        producer.inner.node.tier.write_landed(entry, ("save", 1))
    deadline = time.monotonic() + 20
    while True:
        with consumer.inner.lock:
            found = consumer.inner.node.tier.get("picture")
            if found is not None and found.servable:
                return
            state = reads.fetch(
                "picture", source.address, nbytes, None, "request", time.monotonic()
            )
        if state == "failed" or time.monotonic() > deadline:
            raise SystemExit(f"the fetch went wrong: {dict(reads.counters)}")
        target.wake()
        time.sleep(0.001)


def measure(seconds: float) -> dict[str, float]:
    """Percent of a core by case."""
    result = {}
    producer, consumer = Instance("ec_producer"), Instance("ec_consumer")
    try:
        result["both pumps, just started"] = percent_of_a_core(seconds)
        fetch(producer, consumer)
        # Past the grant's linger and the notice's second.
        time.sleep(1.5)
        result["both pumps, connected"] = percent_of_a_core(seconds)
    finally:
        consumer.close()
        producer.close()
    api = load_nixl()
    agent = api.nixl_agent("bench", api.nixl_agent_config(enable_prog_thread=True))
    result["NIXL progress thread"] = percent_of_a_core(min(seconds, 3.0))
    del agent
    return result


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    args = parser.parse_args()
    cases = measure(args.seconds)
    baseline = cases.pop("NIXL progress thread")
    rows = [
        {
            "bench": "idle_pump",
            "case": case,
            "ours": round(percent, 3),
            "baseline": round(baseline, 3),
            "unit": "% of a core",
            "ratio": round(percent / baseline, 5),
        }
        for case, percent in cases.items()
    ]
    # Two pumps are in the process; each alone must stay below the limit.
    ok = all(percent / 2 <= LIMIT_PERCENT for percent in cases.values())
    if args.json:
        machine = {
            "arch": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        }
        print(json.dumps({"ok": ok, "machine": machine, "rows": rows}))
    else:
        print(f"{'case':<28}{'% of a core':>12}{'progress thread':>18}")
        for row in rows:
            print(f"{row['case']:<28}{row['ours']:>12}{row['baseline']:>18}")
        print("ok" if ok else f"more than {LIMIT_PERCENT} % for one pump")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
