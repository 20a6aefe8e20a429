# SPDX-License-Identifier: Apache-2.0
"""As much of vLLM's public surface as the adapter touches, for tests without vLLM."""

from __future__ import annotations

import enum
import importlib
import os
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.recording import trace_setting

_EC = "vllm.distributed.ec_transfer.ec_connector"


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    """The base class, as far as its state goes."""

    def __init__(self, vllm_config: Any, role: Role) -> None:
        self._connector_metadata: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None


class Marker:
    """Base of the messages."""


@dataclass
class Stats:
    data: dict[str, Any] = field(default_factory=dict)


class Prom:
    def __init__(self, config: Any, types: Any, names: list[str], values: Any) -> None:
        self.per_engine_labelvalues = values


@dataclass
class Ranks:
    """Where the process stands; changed by tests before a worker is made."""

    tp: int = 0
    tp_size: int = 1
    pcp: int = 0
    pcp_size: int = 1
    first_stage: bool = True


def install(monkeypatch: Any) -> tuple[Any, Ranks]:
    """Put the stand-in in place; returns the connector class and the ranks."""
    ranks = Ranks()

    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("vllm.distributed", "vllm.distributed.ec_transfer", _EC):
        module(name)
    module("vllm", __version__="0.32.0")
    module(
        f"{_EC}.base",
        ECConnectorBase=Base,
        ECConnectorRole=Role,
        ECConnectorMetadata=Marker,
        ECConnectorWorkerMetadata=Marker,
    )
    module(f"{_EC}.metrics", ECConnectorStats=Stats, ECConnectorPromMetrics=Prom)
    module(
        "vllm.distributed.parallel_state",
        get_pp_group=lambda: SimpleNamespace(is_first_rank=ranks.first_stage),
        get_tp_group=lambda: SimpleNamespace(rank_in_group=ranks.tp, world_size=ranks.tp_size),
        get_pcp_group=lambda: SimpleNamespace(rank_in_group=ranks.pcp, world_size=ranks.pcp_size),
    )
    parser = SimpleNamespace(placeholder_metadata_fields=lambda modality: {"image_grid_thw"})
    processor = SimpleNamespace(info=SimpleNamespace(data_parser=parser))
    registry = SimpleNamespace(create_processor=lambda model_config: processor)
    module("vllm.multimodal", MULTIMODAL_REGISTRY=registry)
    # Made against the stand-in, so not to be found by anybody else.
    for part in ("connector", "metadata", "metrics"):
        monkeypatch.delitem(sys.modules, f"ec_connector.vllm.{part}", raising=False)
    connector = importlib.import_module("ec_connector.vllm.connector")
    for part in ("connector", "metadata", "metrics"):
        monkeypatch.setitem(
            sys.modules, f"ec_connector.vllm.{part}", sys.modules[f"ec_connector.vllm.{part}"]
        )
    return connector.ECConnector, ranks


def config(role: str = "ec_both", tp: int = 1, **changed: Any) -> Any:
    """A ``VllmConfig``: rows of 16 floats, a region of 64 rows."""
    hf_config = SimpleNamespace()
    made = SimpleNamespace(
        ec_transfer_config=SimpleNamespace(
            ec_role=role,
            ec_connector_extra_config={
                "ec_cpu_bytes": 64 * 64,
                "ec_region_guard": False,
                **trace_setting("connector"),
            },
            engine_id="engine",
            mm_encoder_output_widths={},
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            tensor_parallel_size=tp,
            prefill_context_parallel_size=1,
            distributed_executor_backend="mp",
        ),
        model_config=SimpleNamespace(
            dtype=torch.float32,
            model="m",
            hf_config=hf_config,
            get_inputs_embeds_size=lambda: 16,
            multimodal_config=SimpleNamespace(mm_processor_cache_gb=4),
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        device_config=SimpleNamespace(device_type="cpu"),
        instance_id=f"fake-{os.getpid()}-{os.urandom(4).hex()}",
        use_v2_model_runner=True,
        is_mm_encoder_only=False,
    )
    made.__dict__.update(changed)
    return made


def request(name: str, *hashes: str, rows: int = 4, media: bool = True) -> Any:
    """A request with one feature per hash."""
    grid = torch.tensor([1, 2, rows])
    data = {"image_grid_thw": grid, **({"pixel_values": grid} if media else {})}
    features = [
        SimpleNamespace(
            identifier=mm_hash,
            modality="image",
            mm_position=SimpleNamespace(offset=0, length=rows, get_num_embeds=lambda: rows),
            data=SimpleNamespace(get_data=lambda: data),
        )
        for mm_hash in hashes
    ]
    return SimpleNamespace(
        request_id=name, mm_features=features, num_preemptions=0, ec_transfer_params=None
    )
