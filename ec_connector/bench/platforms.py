# SPDX-License-Identifier: Apache-2.0
"""How vLLM is run on a kind of machine: what differs, and nothing else.

``tests/e2e`` and whatever measures whole servers say what they want of a server; a
``Platform`` says with which environment and options that machine gives it. Nothing here
imports vLLM or torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

#: What every process with vLLM in it is told, wherever it runs.
_EVERYWHERE: Final = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    # Ranks that save measure the encoder modality by modality, in the order of a set: in
    # different orders they wait for each other until one gives up.
    "PYTHONHASHSEED": "0",
    # A few helpers are compiled whatever --enforce-eager says; it takes longer than they do.
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # POST /reset_encoder_cache
}


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of machine.

    Attributes:
        name: ``cpu`` or ``cuda``.
        env: Environment of every process with vLLM in it, beside that of who starts it.
        exact: Options of ``vllm serve`` with which answers do not depend on what else is
            computed beside them: float32, and kernels that take it.
        fast: Options with which it is as fast as can be without compiling anything.
        shared: Options of a server that is not alone on the machine.
        exact_engine: ``exact`` and ``shared`` as arguments of ``vllm.LLM``.
        worker_apart: Options that give the engine's worker a process of its own.
        ranks: Tensor-parallel ranks that one server can have.
        ahead: Whether an engine plans a step before the last one is over unless told otherwise.
        ahead_variable: Environment variable that turns this on and off; without one, options do.
    """

    name: str
    env: Mapping[str, str]
    exact: tuple[str, ...]
    fast: tuple[str, ...]
    shared: tuple[str, ...]
    exact_engine: Mapping[str, Any]
    worker_apart: tuple[str, ...] = ()
    ranks: int = 1
    ahead: bool = False
    ahead_variable: str = ""

    def options(self, kv_cache_bytes: int, *, own_worker: bool = False) -> tuple[str, ...]:
        """Options of one of several servers whose answers are compared.

        Args:
            kv_cache_bytes: Of its key-value cache.
            own_worker: Give its worker a process of its own, as it has on several devices.
        """
        apart = self.worker_apart if own_worker else ()
        return (*self.exact, *self.shared, "--kv-cache-memory-bytes", str(kv_cache_bytes), *apart)

    def parallel(self, ranks: int) -> tuple[str, ...]:
        """Options of a server with so many ranks, or with as many as there can be here."""
        ranks = min(ranks, self.ranks)
        return ("--tensor-parallel-size", str(ranks)) if ranks > 1 else ()

    def step_env(self, ahead: bool | None) -> dict[str, str]:
        """Environment of an engine that is to plan ahead, or not; None: as it does here."""
        if ahead is None or not self.ahead_variable:
            return {}
        return {self.ahead_variable: "1" if ahead else "0"}

    def step_options(self, ahead: bool | None) -> tuple[str, ...]:
        """The same as options of ``vllm serve``."""
        if ahead is None or self.ahead_variable:
            return ()
        return ("--async-scheduling" if ahead else "--no-async-scheduling",)

    def step_engine(self, ahead: bool) -> dict[str, bool]:
        """The same as arguments of ``vllm.LLM``."""
        return {} if self.ahead_variable else {"async_scheduling": ahead}


def _path(first: Sequence[str], *rest: str) -> str:
    return os.pathsep.join(path for path in (*first, *rest) if path)


def cpu(python_path: Sequence[str] = ()) -> Platform:
    """A machine without a GPU.

    Args:
        python_path: Begins with a folder that lets vLLM run there (``tests/e2e/shims``).
    """
    return Platform(
        name="cpu",
        env=MappingProxyType(
            {
                **_EVERYWHERE,
                "PYTHONPATH": _path(python_path),
                "TRITON_INTERPRET": "1",
                "TRITON_DEFAULT_BACKEND": "cpu",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
            }
        ),
        exact=("--enforce-eager", "--dtype", "float32"),
        fast=("--enforce-eager",),
        shared=(),
        exact_engine=MappingProxyType({"enforce_eager": True, "dtype": "float32"}),
        ranks=2,
        # vLLM switches it off on CPUs; a shim looks at this variable.
        ahead_variable="EC_E2E_ASYNC_SCHEDULING",
    )


def cuda(python_path: Sequence[str] = (), ranks: int = 1) -> Platform:
    """A machine with NVIDIA GPUs. All servers share the first one, or the first few.

    Args:
        python_path: Comes before what the environment says.
        ranks: GPUs that one server may use.
    """
    # Neither multicast nor kernels between GPUs: they have no part in what is tested, and
    # some hosts must not be asked for them.
    several = ranks > 1
    alone = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "NCCL_NVLS_ENABLE": "0"} if several else {}
    return Platform(
        name="cuda",
        env=MappingProxyType(
            {
                **_EVERYWHERE,
                "PYTHONPATH": _path(python_path, os.environ.get("PYTHONPATH", "")),
                # FlashInfer is compiled when it is first used.
                "VLLM_USE_FLASHINFER_SAMPLER": "0",
                "TOKENIZERS_PARALLELISM": "false",
                **alone,
            }
        ),
        # FlashAttention, which is chosen otherwise, has no float32.
        exact=(
            *("--enforce-eager", "--dtype", "float32"),
            *("--attention-backend", "TRITON_ATTN"),
            *("--mm-encoder-attn-backend", "TORCH_SDPA"),
        ),
        # CUDA graphs of decoding steps: without them the host's share hides all else.
        fast=(
            *("--dtype", "bfloat16"),
            *("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'),
        ),
        # Of the memory that is free when it starts, so small that nobody takes another's.
        shared=(
            *("--gpu-memory-utilization", "0.05"),
            *(("--disable-custom-all-reduce",) if several else ()),
        ),
        exact_engine=MappingProxyType(
            {
                "enforce_eager": True,
                "dtype": "float32",
                "attention_config": {"backend": "TRITON_ATTN"},
                "mm_encoder_attn_backend": "TORCH_SDPA",
                "gpu_memory_utilization": 0.05,
            }
        ),
        # On one GPU the variable that says so is not enough.
        worker_apart=("--distributed-executor-backend", "mp"),
        ranks=ranks,
        ahead=True,
    )
