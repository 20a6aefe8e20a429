# SPDX-License-Identifier: Apache-2.0
"""What the connector needs to know of vLLM's configuration.

Both halves read the same ``VllmConfig`` in different processes and must come to the
same region, so nothing here may depend on the process, on time, or on what was
measured after the workers were made.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from ec_connector.config import ECConfig
from ec_connector.copy_engine import CopyEngine
from ec_connector.instance import ModelFacts
from ec_connector.region import SharedRegion
from ec_protocol.errors import ConfigError

#: Does what ``ec_trace_file`` does, for who cannot change the command line.
TRACE_VARIABLE: Final = "EC_CONNECTOR_TRACE_FILE"

#: Modalities that go through a vision tower, and so through DeepStack.
_VISION: Final = frozenset({"image", "video"})


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements per row of the encoder output, by modality.

    Attributes:
        text: Width of the language model's input embeddings.
        vision: Width of image and video rows: DeepStack packs the outputs of
            several layers side by side.
        measured: What vLLM measured at start-up, on producers only; goes first.
    """

    text: int
    vision: int
    measured: Mapping[str, int]

    def of(self, modality: str) -> int:
        """Width of one modality's rows."""
        width = self.measured.get(modality)
        if width is not None:
            return width
        return self.vision if modality in _VISION else self.text

    @property
    def block(self) -> int:
        """Width of a block's row: the widest that the model's configuration names.

        Encodings of any length fit, since an entry is a run of blocks and its last
        one may be partly used. Not what was measured: the workers make their
        region before anything can be.
        """
        return max(self.text, self.vision)


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine instance and data-parallel rank, as far as the connector cares.

    Attributes:
        config: Checked ``ec_connector_extra_config``.
        facts: What decides whether two instances understand each other's bytes.
        widths: Of encoder outputs.
        engine_id: ``ec_transfer_config.engine_id``; names agents and traces.
        instance_id: Names the region.
        dp_rank: Data-parallel rank.
        nonce: Common to the processes of one start.
        load_ranks: Ranks that load and report.
        device_type: ``cpu``, ``cuda``, ….
    """

    config: ECConfig
    facts: ModelFacts
    widths: Widths
    engine_id: str
    instance_id: str
    dp_rank: int
    nonce: bytes
    load_ranks: int
    device_type: str

    @property
    def block_size_bytes(self) -> int:
        """Bytes of one block: one row of the encoder output."""
        return self.widths.block * self.facts.element_size

    def open_region(self) -> SharedRegion:
        """Create the region, or join the one of this start.

        Raises:
            ConfigError: Not even one block fits.
            RegionError: See ``SharedRegion.open``.
        """
        return SharedRegion.open(
            self.instance_id,
            self.dp_rank,
            self.config.num_blocks(self.block_size_bytes),
            self.block_size_bytes,
            nonce=self.nonce,
            guard=self.config.region_guard,
        )

    def make_engine(self, region: SharedRegion) -> CopyEngine:
        """The copy engine of this platform.

        Raises:
            ConfigError: There is none.
        """
        if self.device_type == "cpu":
            from ec_connector.copy_cpu import CpuCopyEngine

            return CpuCopyEngine(region)
        if self.device_type == "cuda":
            from ec_connector.copy_cuda import CudaCopyEngine

            return CudaCopyEngine(region)
        raise ConfigError(
            f"device type {self.device_type!r}: ec-connector has copy engines for: cpu, cuda"
        )


def read_setup(vllm_config: Any, vllm_version: str) -> Setup:
    """Read and check vLLM's configuration.

    Args:
        vllm_config: A ``VllmConfig``.
        vllm_version: Version of vLLM.

    Raises:
        ConfigError: A ``ValueError`` that names what is wrong.
        PeerToPeerMissing: Peer-to-peer is on and a package is missing.
    """
    ec, parallel, model = (
        vllm_config.ec_transfer_config,
        vllm_config.parallel_config,
        vllm_config.model_config,
    )
    dp_rank = int(parallel.data_parallel_index)
    config = ECConfig.parse(ec.ec_connector_extra_config, ec.ec_role, dp_rank=dp_rank)
    config = replace(config, trace_file=_trace_file(config.trace_file, dp_rank))
    if getattr(model, "is_encoder_decoder", False):
        # vLLM runs no connector in its workers then: no save would ever be reported, and
        # the engine would wait for the reports.
        raise ConfigError(
            f"model={model.model!r} is an encoder-decoder model: its encoder output goes into "
            "the KV cache and not into an encoder cache; remove --ec-transfer-config"
        )
    dtype = model.dtype
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"dtype={dtype!r}: expected a torch dtype; set --dtype")
    instance_id, engine_id = str(vllm_config.instance_id), str(ec.engine_id)
    return Setup(
        config=config,
        facts=ModelFacts(
            vllm_version=vllm_version,
            model=str(model.model),
            dtype=str(dtype).removeprefix("torch."),
            element_size=dtype.itemsize,
        ),
        widths=_widths(model, ec),
        engine_id=engine_id,
        instance_id=instance_id,
        dp_rank=dp_rank,
        # Both are drawn at random by the process that parses the command line and
        # reach the others inside the configuration. Whoever fixes the engine id
        # still has the other.
        nonce=hashlib.sha256(f"{instance_id}\0{engine_id}".encode()).digest()[:16],
        load_ranks=_load_ranks(parallel),
        device_type=str(vllm_config.device_config.device_type),
    )


def _trace_file(said: str | None, dp_rank: int) -> str | None:
    """Where this rank writes its trace: two ranks in one file would be no trace."""
    path = said or os.environ.get(TRACE_VARIABLE)
    if not path:
        return None
    whole = Path(path)
    return path if dp_rank == 0 else str(whole.with_suffix(f".dp{dp_rank}{whole.suffix}"))


def _load_ranks(parallel: Any) -> int:
    ranks = int(parallel.tensor_parallel_size) * int(parallel.prefill_context_parallel_size)
    backend = parallel.distributed_executor_backend
    if ranks > 1 and backend != "mp":
        # Its scheduler hears of one rank only, and would reuse blocks that others
        # still copy from.
        raise ConfigError(
            f"distributed_executor_backend={backend!r} with {ranks} tensor- and context-parallel "
            "ranks: only the mp executor passes on every rank's reports; set "
            "--distributed-executor-backend mp"
        )
    return ranks


def _widths(model: Any, ec: Any) -> Widths:
    text = int(model.get_inputs_embeds_size())
    vision = text
    # Omni models keep the multimodal half one level deeper.
    for outer in (model.hf_config, _field(model.hf_config, "thinker_config")):
        tower = _field(outer, "vision_config")
        layers, width = _field(tower, "deepstack_visual_indexes"), _field(tower, "out_hidden_size")
        if layers and width:
            vision = int(width) * (1 + len(layers))
    measured = dict(getattr(ec, "mm_encoder_output_widths", None) or {})
    return Widths(text=text, vision=vision, measured=measured)


def _field(config: Any, name: str) -> Any:
    """A field of a Hugging Face configuration, which may be an object or a dict."""
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)
