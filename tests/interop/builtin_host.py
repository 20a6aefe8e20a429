# SPDX-License-Identifier: Apache-2.0
"""vLLM's own ECCPUConnector in a process of its own, for the wire interop tests.

Usage: ``python -m tests.interop.builtin_host ROLE PORT BLOCKS [NAME=VALUE …]``.

Everything is its real code: scheduler, cache, sessions, ZMQ, NIXL, the region under
``/dev/shm``. Two things stand in for what needs a GPU and a model: the configuration is
a plain object with the fields that the connector reads, and the bytes that a worker's
copy would put into the region are written here. Options shorten its timers or make it
an older release: ``lease``, ``ack``, ``admit``, ``version``.

One JSON object per line comes in on stdin, one goes out per object; see ``Host``.
Engine steps follow each other as long as it ``run``s.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN = 2048
DTYPE = torch.bfloat16
BLOCK = HIDDEN * DTYPE.itemsize
MODEL = "interop"


def configuration(role: str, name: str, blocks: int, extra: dict[str, Any]) -> Any:
    """What the connector reads of a VllmConfig."""
    from vllm.config.ec_transfer import ECTransferConfig

    transfer = ECTransferConfig(
        ec_connector="ECCPUConnector",
        ec_role=role,
        engine_id=name,
        ec_connector_extra_config={"ec_cpu_bytes": blocks * BLOCK, "ec_enable_nixl": True, **extra},
    )
    transfer.mm_encoder_output_widths["image"] = HIDDEN
    return SimpleNamespace(
        instance_id=name,
        use_v2_model_runner=True,
        ec_transfer_config=transfer,
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            distributed_executor_backend="mp",
        ),
        model_config=SimpleNamespace(
            dtype=DTYPE, model=MODEL, get_inputs_embeds_size=lambda: HIDDEN
        ),
    )


class Media(dict):
    """Processed media, as far as a connector looks at them."""

    def get_data(self) -> dict[str, Any]:
        return {}


def request_for(mm_hash: str, rows: int, request_id: str, params: Any = None) -> Any:
    """A request with one item that still carries its media."""
    from vllm.multimodal.inputs import PlaceholderRange

    feature = SimpleNamespace(
        identifier=mm_hash,
        modality="image",
        mm_position=PlaceholderRange(offset=0, length=rows),
        data=Media(pixels=SimpleNamespace(data=b"media")),
    )
    return SimpleNamespace(request_id=request_id, mm_features=[feature], ec_transfer_params=params)


class Host:
    """One engine: the connector's scheduler half, stepped as an engine steps it."""

    def __init__(self, role: str, port: int, blocks: int, options: dict[str, str]) -> None:
        os.environ["VLLM_EC_SIDE_CHANNEL_HOST"] = "127.0.0.1"
        os.environ["VLLM_EC_SIDE_CHANNEL_PORT"] = str(port)
        from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
        from vllm.distributed.ec_transfer.ec_connector.cpu import scheduler, session
        from vllm.distributed.ec_transfer.ec_connector.cpu.connector import ECCPUConnector

        if "lease" in options:
            session.PRODUCER_PIN_LEASE_S = float(options["lease"])
        if "version" in options:
            session.EC_CONNECTOR_VERSION = int(options["version"])
        if "admit" in options:
            scheduler._ADMIT_DEFER_TIMEOUT_S = float(options["admit"])
        extra = {"consumer_ack_timeout_s": float(options["ack"])} if "ack" in options else {}
        name = f"builtin-{os.getpid()}"
        config = configuration(role, name, blocks, extra)
        self.connector = ECCPUConnector(config, ECConnectorRole.SCHEDULER)
        self.half = self.connector.connector_scheduler
        self.running = True
        self.waiting: dict[str, Any] = {}
        self.admitted: set[str] = set()

    def hello(self) -> dict[str, Any]:
        import vllm

        return {
            "vllm": vllm.__version__,
            "compat": self.half._compat_hash,
            "metadata": len(self.half._data.get_agent_metadata()),
            "descriptor": len(self.half._data.get_mem_descriptor()),
        }

    # ---------------------------------------------------------------- engine steps
    def step(self) -> None:
        for request_id, request in list(self.waiting.items()):
            if self.connector.ensure_cache_available(request, 0):
                del self.waiting[request_id]
                self.admitted.add(request_id)
        self.connector.build_connector_meta(None)

    def do_run(self, on: bool) -> dict[str, Any]:
        """Go on stepping, or stand still as in a long step."""
        self.running = on
        return {}

    # -------------------------------------------------------------------- producer
    def do_save(self, name: str, rows: int, seed: int, land: bool = True) -> dict[str, Any]:
        """Save random rows, as if the encoder had made them; announce them."""
        request = request_for(name, rows, f"save-{name}")
        self.connector.update_state_after_alloc(request, 0)
        blocks = self.connector.build_connector_meta(None).saves[name]
        data = bytearray(random.Random(seed).randbytes(rows * BLOCK))
        rows_of = torch.frombuffer(data, dtype=torch.int8).view(rows, BLOCK)
        self.half._region.blocks[blocks] = rows_of
        if land:
            self.do_land(name)
        return {"blocks": blocks, "params": self.connector.request_finished(request)[1]}

    def do_land(self, name: str) -> dict[str, Any]:
        """The worker's report that a save finished."""
        from vllm.distributed.ec_transfer.ec_connector.cpu.common import ECCPUWorkerMetadata
        from vllm.v1.outputs import ECConnectorOutput

        report = ECCPUWorkerMetadata(completed_saves=[name])
        self.connector.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=report))
        return {}

    def do_hang_up(self) -> dict[str, Any]:
        """The first thing that its shutdown does: the control socket is closed."""
        self.running = False
        self.half._producer_session.close()
        return {}

    def do_grants(self) -> dict[str, Any]:
        """Outstanding grants by their keys, and pins by name."""
        session = self.half._producer_session
        entries = self.half._cache._entries
        return {
            "grants": sorted(session._active_xfers),
            "pins": {name: entry._pin_count for name, entry in entries.items()},
        }

    def do_account(self) -> dict[str, Any]:
        """What it still holds: entries that are not ready, READs in quarantine, grants."""
        entries = self.half._cache._entries
        sessions = self.half._sessions.values()
        return {
            "not_ready": sorted(name for name, entry in entries.items() if not entry.ready),
            "quarantined": sum(len(session._quarantined) for session in sessions),
            "sessions": len(self.half._sessions),
            "free": len(self.half._cache._free_blocks),
            "pending": self.connector.has_pending_push_work(),
        }

    def do_schedule(self, items: dict[str, int]) -> dict[str, Any]:
        """A request in one step, in the order of vLLM's scheduler: encode first, then load."""
        self.connector.build_connector_meta(None)
        promised = [name for name in items if self.connector.has_cache_item(name)]
        for name in sorted(items, key=lambda name: name in promised):
            self.connector.update_state_after_alloc(request_for(name, items[name], "s"), 0)
        step = self.connector.build_connector_meta(None)
        return {"promised": promised, "loads": list(step.loads), "saves": list(step.saves)}

    # -------------------------------------------------------------------- consumer
    def do_ask(self, name: str, rows: int, request: str, params: Any) -> dict[str, Any]:
        """A request arrives that refers to an encoding elsewhere."""
        self.waiting[request] = request_for(name, rows, request, params)
        return {}

    def do_state(self, name: str, request: str) -> dict[str, Any]:
        """Where the request is, and what the region holds for the encoding."""
        entry = self.half._cache.get(name)
        ready = entry is not None and entry.ready
        return {
            "admitted": request in self.admitted,
            "ready": ready,
            "blocks": list(entry.block_ids) if entry is not None else [],
            "bytes": self._bytes(entry) if ready else "",
            "in_flight": name in self.half._in_flight,
        }

    def _bytes(self, entry: Any) -> str:
        rows = self.half._region.blocks[list(entry.block_ids)]
        return rows.numpy().tobytes().hex()

    def do_evict(self, name: str) -> dict[str, Any]:
        """Fill the region until a ready entry is gone, and make room again."""
        cache = self.half._cache
        cache.alloc("filler", cache._num_blocks)
        cache.discard("filler")
        return {"gone": cache.get(name) is None}


def main() -> None:
    role, port, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # Libraries write to stdout; the driver gets a pipe of its own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host = Host(role, port, blocks, dict(word.split("=") for word in sys.argv[4:]))
    try:
        out.write(json.dumps(host.hello()) + "\n")
        out.flush()
        while True:
            if not select.select([sys.stdin], [], [], 0.001)[0]:
                if host.running:
                    host.step()
                continue
            line = sys.stdin.readline()
            if not line:
                return
            command = json.loads(line)
            answer = getattr(host, "do_" + command.pop("do"))(**command)
            out.write(json.dumps({**answer, "at": time.monotonic()}) + "\n")
            out.flush()
    finally:
        host.connector.shutdown()


if __name__ == "__main__":
    main()
