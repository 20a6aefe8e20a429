# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapter ``vllm`` that are no protocol: set-up, memory, files, facts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from ec_protocol.tables.timing import MAX_TIMER_S, inequalities, timer_specs
from ec_verify.adapters.builtin import stage
from ec_verify.adapters.builtin.device import Rank
from ec_verify.adapters.builtin.region import Regions
from ec_verify.kit.adapter import Adapter, Json, Result, Unsupported

#: Largest region that a case of configuration may really make, bytes.
_LARGEST: Final = 64 << 20
#: Settings of this protocol's implementations that it does not have and cannot judge.
_NOT_ITS_OWN: Final = frozenset(
    {spec.key for spec in timer_specs().values() if spec.key != "consumer_ack_timeout_s"}
    | {"ec_peer_quota", "ec_grant_quota", "ec_hold_quota", "ec_nixl_backends"}
)
_numbers = itertools.count(1)


def _broken(timers: Mapping[str, float]) -> set[str]:
    """Timers that are no times; if all are, inequalities that do not hold."""
    wrong = {name for name, value in timers.items() if not 0 < value <= MAX_TIMER_S}
    return wrong or {item.id for item in inequalities() if not item.holds(timers)}


class BuiltinHost(Adapter):
    """What surrounds vLLM's connector: the process that it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self._modules = stage.install()
        number = next(_numbers)
        self._stage = stage.Stage(self.emit, f"agent-vllm-{os.getpid():x}-{number}".encode())
        self._name = f"conformance-{os.getpid():x}-{number}"
        self._block_size = 4096
        self._element_size = 2
        self._region: Any = None
        self._regions: Regions | None = None
        self._ranks: dict[int, Rank] = {}

    def _enter(self, now: float) -> None:
        """Its code runs in this process, at this time."""
        stage.enter(self._stage)
        self._stage.now = now

    def _configuration(
        self, settings: Mapping[str, Json], role: str, extra: dict[str, Json]
    ) -> SimpleNamespace:
        """What it reads of a VllmConfig."""
        transfer = self._modules["config"].ECTransferConfig(
            ec_connector="ECCPUConnector",
            ec_role=role,
            engine_id=self._name,
            ec_connector_extra_config=extra,
        )
        width = self._block_size // self._element_size
        return SimpleNamespace(
            instance_id=self._name,
            use_v2_model_runner=True,
            ec_transfer_config=transfer,
            parallel_config=SimpleNamespace(
                data_parallel_index=0,
                tensor_parallel_size=settings["ranks"],
                prefill_context_parallel_size=1,
                distributed_executor_backend="mp",
            ),
            model_config=SimpleNamespace(
                dtype=torch.bfloat16,
                model=settings["compat"]["model"],
                get_inputs_embeds_size=lambda: width,
            ),
        )

    def close(self) -> None:
        """The process is gone; its file, which SIGKILL would leave behind, goes with it."""
        for rank in self._ranks.values():
            rank.close()
        if self._regions is not None:
            self._regions.close()
            self._regions = None
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _timers(self, wanted: Mapping[str, float], *, shipped: bool) -> dict[str, float]:
        """The timers that it will have.

        Args:
            wanted: What the kit would like.
            shipped: Whether the one that can be set stays as it ships.

        Raises:
            Unsupported: The kit wants to see a combination refused that it cannot be given,
                and what is wrong with that is not wrong with its own.
        """
        session, control = self._modules["session"], self._modules["control"]
        own = {
            "ack_timeout_s": session.PRODUCER_PIN_LEASE_S if shipped else wanted["ack_timeout_s"],
            "lease_s": session.PRODUCER_PIN_LEASE_S,
            "read_timeout_s": session._CONSUMER_READ_TIMEOUT_S,
            "quarantine_s": session._CONSUMER_QUARANTINE_TIMEOUT_S,
            "fetch_budget_s": self._modules["scheduler"]._ADMIT_DEFER_TIMEOUT_S,
            "heartbeat_interval_s": control._HEARTBEAT_IVL_MS / 1000,
            "heartbeat_timeout_s": control._HEARTBEAT_TIMEOUT_MS / 1000,
            "heartbeat_ttl_s": control._HEARTBEAT_TTL_MS / 1000,
        }
        defaults = {name: spec.default for name, spec in timer_specs().items()}
        broken = _broken(wanted)
        if broken and not broken & _broken({**defaults, **own}):
            raise Unsupported("timers that it does not have, or not as settings")
        return {**wanted, **own}

    # --------------------------------------------------------------------- memory
    def peek(self, *, now: float, offset: int, size: int) -> Result:
        """See ``Adapter.peek``."""
        data = self._region.blocks.view(-1)[offset : offset + size]
        return {"data": data.numpy().tobytes().hex()}

    def poke(self, *, now: float, offset: int, data: str) -> Result:
        """See ``Adapter.poke``."""
        raw = bytearray.fromhex(data)
        view = torch.frombuffer(raw, dtype=torch.int8)
        self._region.blocks.view(-1)[offset : offset + len(raw)] = view
        return {}

    # --------------------------------------------------- configuration, compatibility
    def config(self, *, now: float, settings: Mapping[str, Json]) -> Result:
        """See ``Adapter.config``: an instance is started with it, and stopped."""
        self._enter(now)
        if lacking := sorted(_NOT_ITS_OWN & set(settings)):
            raise Unsupported(f"settings that it does not have: {', '.join(lacking)}")
        size = settings.get("ec_cpu_bytes")
        if isinstance(size, int) and size > _LARGEST:
            raise Unsupported("a region that would really be made, of that size")
        facts: dict[str, Json] = {"ranks": 1, "compat": {"model": "conformance/model"}}
        config = self._configuration(facts, "ec_both", dict(settings))
        role = self._modules["base"].ECConnectorRole.SCHEDULER
        try:
            connector = self._modules["connector"].ECCPUConnector(config, role)
        except Exception as exc:
            # It may have made the file before it failed, and leaves it.
            Path(f"/dev/shm/vllm_ec_{self._name}_dp0.mmap").unlink(missing_ok=True)
            return {"ok": False, "error": f"{type(exc).__name__}: {exc}"}
        connector.shutdown()
        return {"ok": True, "error": ""}

    def region(self, *, now: float, action: str, args: Mapping[str, Json]) -> Result:
        """See ``Adapter.region``."""
        if self._regions is None:
            self._regions = Regions()
        return self._regions.act(action, args)

    def compat_hash(self, *, now: float, facts: Mapping[str, Json]) -> Result:
        """See ``Adapter.compat_hash``."""
        return {"hash": self._modules["protocol"].real_compatibility_hash(**facts)}
