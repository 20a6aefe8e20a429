# SPDX-License-Identifier: Apache-2.0
"""What the connector needs to know of vLLM's configuration.

Both halves read the same ``VllmConfig`` in different processes and must come to the
same region, so nothing here may depend on the process, on time, or on what was
measured after the workers were made.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from ec_connector.config.settings import ECConfig
from ec_connector.copies.base import CopyEngine
from ec_connector.engine.facts import ModelFacts
from ec_connector.region.shared import SharedRegion
from ec_connector.vllm.names import Names, read_names
from ec_protocol.errors import ConfigError

#: Does what ``ec_trace_file`` does, for who cannot change the command line.
TRACE_VARIABLE: Final = "EC_CONNECTOR_TRACE_FILE"

logger = logging.getLogger(__name__)

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
        configured: ``ec_encoder_widths``, with ``*`` for the modalities that it does
            not name.
    """

    text: int
    vision: int
    measured: Mapping[str, int]
    configured: Mapping[str, int] = field(default_factory=dict)

    def of(self, modality: str) -> int:
        """Width of one modality's rows."""
        width = self.measured.get(modality)
        return self.expected(modality) if width is None else width

    def expected(self, modality: str) -> int:
        """The same as a consumer has it, where nothing is measured."""
        width = self.configured.get(modality, self.configured.get("*"))
        if width is not None:
            return width
        return self.vision if modality in _VISION else self.text

    @property
    def block(self) -> int:
        """Width of a block's row: the widest that is known without measuring.

        Encodings of any length fit, since an entry is a run of blocks and its last
        one may be partly used. Not what was measured: the workers make their
        region before anything can be.
        """
        known = [*self.configured.values()]
        if "*" not in self.configured:
            known += [self.text, self.vision]
        return max(known)

    def check(self) -> None:
        """Compare what was measured with what consumers will expect.

        Raises:
            ConfigError: ``ec_encoder_widths`` says something else.
        """
        for modality, width in self.measured.items():
            expected = self.expected(modality)
            if width == expected:
                continue
            if modality in self.configured or "*" in self.configured:
                raise ConfigError(
                    f"ec_encoder_widths={dict(self.configured)}: the encoder's rows of "
                    f"{modality!r} have {width} elements, not {expected}; set it to "
                    f"{_measured_hint(self)} on encoders and decoders"
                )
            logger.warning(
                "rows of %r have %d elements, but the model's configuration tells %d: decoders "
                "will refuse what is announced; set ec_encoder_widths to %s on encoders and "
                "decoders",
                modality,
                width,
                expected,
                _measured_hint(self),
            )


def warn_of_strangers(config: ECConfig) -> None:
    """Say what keys are for: vLLM does by itself what EC-15.8 forbids us."""
    if config.enable_nixl and config.consumes and config.key_file is None:
        logger.warning(
            "ec_key_file is not set, so peers do not authenticate. What one sends is used for "
            "requests that name it and for no other, but vLLM's own encoder cache and prefix "
            "cache share by name what a request has loaded. Where clients may bring "
            "ec_transfer_params of their own, set ec_key_file and ec_peer_keys, or keep "
            "ec_allowed_peers to hosts on which they have no process"
        )


def _measured_hint(widths: Widths) -> str:
    return json.dumps({**widths.configured, **widths.measured})


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine instance and data-parallel rank, as far as the connector cares.

    Attributes:
        config: Checked ``ec_connector_extra_config``.
        facts: What decides whether two instances understand each other's bytes.
        widths: Of encoder outputs.
        names: Which names of media follow from their content.
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
    names: Names
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
            from ec_connector.copies.cpu import CpuCopyEngine

            return CpuCopyEngine(region)
        if self.device_type == "cuda":
            from ec_connector.copies.cuda import CudaCopyEngine

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
        widths=_widths(model, ec, config.encoder_widths),
        names=read_names(vllm_config, vllm_version),
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
    """Ranks that load: of the first pipeline stage, which has the encoder, all.

    Raises:
        ConfigError: The scheduler would not hear of all of them, or they do not share
            a host's memory.
    """
    ranks = int(parallel.tensor_parallel_size) * int(parallel.prefill_context_parallel_size)
    world = ranks * int(getattr(parallel, "pipeline_parallel_size", 1))
    backend = parallel.distributed_executor_backend
    if world > 1 and backend != "mp":
        # Its scheduler may hear of one rank only, and would reuse blocks that others
        # still copy from.
        raise ConfigError(
            f"distributed_executor_backend={backend!r} with {world} ranks: only the mp executor "
            "passes on every rank's reports; set --distributed-executor-backend mp"
        )
    nodes = int(getattr(parallel, "nnodes_within_dp", getattr(parallel, "nnodes", 1)))
    if nodes > 1 and ranks > world // nodes:
        # A rank elsewhere would make a file of its own, and load zeros out of it.
        raise ConfigError(
            f"nnodes={nodes}: {ranks} tensor- and context-parallel ranks on several hosts cannot "
            f"share one /dev/shm; let one host run them all (at most {world // nodes} here), and "
            "span hosts with --pipeline-parallel-size or --data-parallel-size instead"
        )
    return ranks


def _widths(model: Any, ec: Any, configured: Mapping[str, int]) -> Widths:
    measured = dict(getattr(ec, "mm_encoder_output_widths", None) or {})
    text = vision = 0
    try:
        text = vision = int(model.get_inputs_embeds_size())
        # Omni models keep the multimodal half one level deeper.
        for outer in (model.hf_config, _field(model.hf_config, "thinker_config")):
            tower = _field(outer, "vision_config")
            layers = _field(tower, "deepstack_visual_indexes")
            width = _field(tower, "out_hidden_size")
            if layers and width:
                vision = int(width) * (1 + len(layers))
        problem = "" if text > 0 and vision > 0 else f"{text} and {vision} elements"
    except Exception as exc:
        problem = f"{type(exc).__name__}: {exc}"
    if problem and "*" not in configured:
        raise ConfigError(
            "the width of encoder outputs does not follow from the model's configuration "
            f"({problem}); set ec_encoder_widths to the elements per row on encoders and "
            'decoders, for example 3584 or {"image": 14336, "*": 3584}'
        )
    widths = Widths(text=text, vision=vision, measured=measured, configured=configured)
    widths.check()
    return widths


def _field(config: Any, name: str) -> Any:
    """A field of a Hugging Face configuration, which may be an object or a dict."""
    if isinstance(config, Mapping):
        return config.get(name)
    return getattr(config, name, None)
