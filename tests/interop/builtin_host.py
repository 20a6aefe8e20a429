# SPDX-License-Identifier: Apache-2.0
"""vLLM's own ECCPUConnector, driven by a test from another process (``driver.Builtin``).

Everything is its real code: scheduler, cache, sessions, ZMQ, NIXL, the region under
``/dev/shm``. Three things stand in for what is around it: the configuration is a plain
object with the fields that the connector reads, the bytes that a worker's copy would put
into the region come from the test, and ``time`` in its modules is a ``Clock``.

The fork server imports this module; nothing of NIXL, ZMQ or threads exists before a
``Host`` is made in a forked process.
"""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import Any

import torch
import vllm
import zmq  # noqa: F401
from vllm.config.ec_transfer import ECTransferConfig
from vllm.distributed import nixl_utils  # noqa: F401
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.cpu import scheduler, session
from vllm.distributed.ec_transfer.ec_connector.cpu.common import ECCPUWorkerMetadata
from vllm.distributed.ec_transfer.ec_connector.cpu.connector import ECCPUConnector
from vllm.distributed.ec_transfer.ec_connector.cpu.control import zmq as control  # noqa: F401
from vllm.distributed.ec_transfer.ec_connector.cpu.data import nixl as plane  # noqa: F401
from vllm.multimodal.inputs import PlaceholderRange
from vllm.v1.outputs import ECConnectorOutput

from tests.interop.clock import Clock

HIDDEN = 2048
DTYPE = torch.bfloat16
BLOCK = HIDDEN * DTYPE.itemsize
MODEL = "interop"


def configuration(role: str, name: str, blocks: int, ranks: int, extra: dict[str, Any]) -> Any:
    """What the connector reads of a VllmConfig."""
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
            tensor_parallel_size=ranks,
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
    feature = SimpleNamespace(
        identifier=mm_hash,
        modality="image",
        mm_position=PlaceholderRange(offset=0, length=rows),
        data=Media(pixels=SimpleNamespace(data=b"media")),
    )
    return SimpleNamespace(request_id=request_id, mm_features=[feature], ec_transfer_params=params)


class Host:
    """One engine: the connector's scheduler half, stepped as an engine steps it.

    Args:
        role: ``ec_producer``, ``ec_consumer`` or ``ec_both``.
        port: Of its control socket.
        blocks: Of its region.
        version: Speak this version of the protocol, as another release would.
        ranks: Tensor-parallel size.
        extra: More of ``ec_connector_extra_config``.
    """

    def __init__(
        self,
        role: str,
        port: int,
        blocks: int,
        version: int | None = None,
        ranks: int = 1,
        **extra: Any,
    ) -> None:
        os.environ["VLLM_EC_SIDE_CHANNEL_HOST"] = "127.0.0.1"
        os.environ["VLLM_EC_SIDE_CHANNEL_PORT"] = str(port)
        self.clock = Clock()
        session.time = scheduler.time = SimpleNamespace(monotonic=self.clock)
        if version is not None:
            session.EC_CONNECTOR_VERSION = version
            if role == "ec_consumer":
                session.XferReq = functools.partial(session.XferReq, connector_version=version)
        config = configuration(role, f"builtin-{os.getpid()}", blocks, ranks, extra)
        self.connector = ECCPUConnector(config, ECConnectorRole.SCHEDULER)
        self.half = self.connector.connector_scheduler
        self.running = True
        self.waiting: dict[str, Any] = {}
        self.admitted: set[str] = set()
        self.posted = 0
        if self.half._data is not None:
            self._count_reads(self.half._data)

    def _count_reads(self, data: Any) -> None:
        post = data.post_read

        def counted(*arguments: Any, **options: Any) -> Any:
            handle = post(*arguments, **options)
            self.posted += 1
            return handle

        data.post_read = counted

    def hello(self) -> dict[str, Any]:
        return {
            "vllm": vllm.__version__,
            "compat": self.half._compat_hash,
            "metadata": len(self.half._data.get_agent_metadata()),
            "descriptor": len(self.half._data.get_mem_descriptor()),
            "lease": session.PRODUCER_PIN_LEASE_S,
        }

    # ---------------------------------------------------------------- engine steps
    def step(self) -> None:
        for request_id, request in list(self.waiting.items()):
            if self.connector.ensure_cache_available(request, 0):
                del self.waiting[request_id]
                self.admitted.add(request_id)
        self.connector.build_connector_meta(None)

    def do_run(self, on: bool) -> None:
        """Go on stepping, or stand still as in a long step."""
        self.running = on

    def do_step(self) -> None:
        self.step()

    def do_advance(self, seconds: float) -> None:
        """Its time moves on."""
        self.clock.advance(seconds)

    def do_hang_up(self) -> None:
        """The first thing that its shutdown does: the control socket is closed."""
        self.running = False
        self.half._producer_session.close()

    # -------------------------------------------------------------------- what it holds
    def do_grants(self) -> list[str]:
        """Keys of its outstanding grants."""
        return sorted(self.half._producer_session._active_xfers)

    def do_pins(self) -> dict[str, int]:
        return {name: entry._pin_count for name, entry in self.half._cache._entries.items()}

    def do_account(self) -> dict[str, Any]:
        """Entries that are not ready, READs, and what else it still holds."""
        entries = self.half._cache._entries
        sessions = self.half._sessions.values()
        transfers = [xfer for session in sessions for xfer in session._xfers.values()]
        return {
            "not_ready": sorted(name for name, entry in entries.items() if not entry.ready),
            "posted": self.posted,
            "reading": sum(xfer.transfer_handle is not None for xfer in transfers),
            "quarantined": sum(len(session._quarantined) for session in sessions),
            "sessions": len(self.half._sessions),
            "free": len(self.half._cache._free_blocks),
        }

    def do_connections(self) -> list[tuple[bool, bool]]:
        """Of each one to a producer: whether an answer has come, whether it has ended.

        Neither is taken: the next step finds both.
        """
        made = self.half._transport._connections.values()
        return [(bool(one.dealer.poll(0)), bool(one.monitor.poll(0))) for one in made]

    # -------------------------------------------------------------------- saves and loads
    def do_save(self, name: str, data: bytes, land: bool) -> Any:
        """Save bytes, as if the encoder had made them; what is announced of them."""
        rows = len(data) // BLOCK
        request = request_for(name, rows, f"save-{name}")
        self.connector.update_state_after_alloc(request, 0)
        blocks = self.connector.build_connector_meta(None).saves[name]
        copy = torch.frombuffer(bytearray(data), dtype=torch.int8).view(rows, BLOCK)
        self.half._region.blocks[blocks] = copy
        if land:
            self.do_report(saves=[name])
        return self.connector.request_finished(request)[1]

    def do_report(self, saves: list[str] = [], loads: list[int] = []) -> None:  # noqa: B006
        """One rank's report of what finished."""
        report = ECCPUWorkerMetadata(completed_saves=saves, completed_loads=loads)
        self.connector.update_connector_output(ECConnectorOutput(ec_connector_worker_meta=report))

    def do_schedule(self, items: dict[str, int]) -> dict[str, Any]:
        """A request in one step, in the order of vLLM's scheduler: encode first, then load."""
        self.connector.build_connector_meta(None)
        promised = [name for name in items if self.connector.has_cache_item(name)]
        for name in sorted(items, key=lambda name: name in promised):
            self.connector.update_state_after_alloc(request_for(name, items[name], "s"), 0)
        step = self.connector.build_connector_meta(None)
        loads = {name: transfer for name, (transfer, _, _) in step.loads.items()}
        return {"promised": promised, "loads": loads, "saves": list(step.saves)}

    # ---------------------------------------------------------------------------- READs
    def do_ask(self, name: str, rows: int, request: str, params: Any) -> None:
        """A request arrives that refers to an encoding elsewhere."""
        self.waiting[request] = request_for(name, rows, request, params)

    def do_state(self, name: str, request: str) -> dict[str, Any]:
        """Where the request is, and what the region holds for the encoding."""
        entry = self.half._cache.get(name)
        ready = entry is not None and entry.ready
        return {
            "admitted": request in self.admitted,
            "ready": ready,
            "bytes": self._bytes(entry) if ready else b"",
            "in_flight": name in self.half._in_flight,
        }

    def _bytes(self, entry: Any) -> bytes:
        return self.half._region.blocks[list(entry.block_ids)].numpy().tobytes()

    def do_evict(self, name: str) -> bool:
        """Fill the region until a ready entry is gone, and make room again."""
        cache = self.half._cache
        cache.alloc("filler", cache._num_blocks)
        cache.discard("filler")
        return cache.get(name) is None
