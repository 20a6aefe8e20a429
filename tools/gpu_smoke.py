# SPDX-License-Identifier: Apache-2.0
"""What a GPU machine is, and whether everything that the bundle brought loads there.

Prints one JSON document; exit status 0 only if all of it does.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VLLM: Final = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn",
    "vllm.v1.worker.gpu_worker",
    "vllm.entrypoints.openai.api_server",
)


def gpu() -> dict[str, Any]:
    """The GPU and its software."""
    import torch

    shown = "--query-gpu=name,driver_version,memory.total,memory.used"
    asked = subprocess.run(
        ["nvidia-smi", shown, "--format=csv,noheader"], capture_output=True, text=True, timeout=60
    )
    one = torch.ones(1 << 20, device="cuda")
    assert float(one.sum()) == 1 << 20
    return {
        "nvidia-smi": asked.stdout.strip().splitlines(),
        "count": torch.cuda.device_count(),
        "torch": torch.__version__,
        "capability": torch.cuda.get_device_capability(),
    }


def machine() -> dict[str, Any]:
    """Processors, memory, and room for regions."""
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "memory": Path("/proc/meminfo").read_text().splitlines()[0].split(":")[1].strip(),
        "shm_mib": shutil.disk_usage("/dev/shm").total >> 20,
        "python": sys.version.split()[0],
    }


def nixl() -> str:
    """An agent with memory of its own, and UCX under it."""
    from ec_connector.network.data.library import Agent, which_nixl

    package = which_nixl()
    memory = bytearray(1 << 16)
    import ctypes

    address = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
    agent = Agent("smoke", ("UCX",), address, len(memory), package)
    size = len(agent.metadata())
    agent.destroy()
    return f"{package}: {size} bytes of metadata"


def host() -> dict[str, str]:
    """vLLM: its version, its platform, and its extensions for this torch."""
    import vllm
    from vllm.platforms import current_platform

    for name in VLLM:
        importlib.import_module(name)
    return {"vllm": vllm.__version__, "platform": type(current_platform).__name__}


def main() -> int:
    """Entry point."""
    checks: dict[str, Callable[[], Any]] = {"machine": machine, "gpu": gpu, "nixl": nixl}
    if importlib.util.find_spec("vllm") is not None:
        checks["vllm"] = host
    document: dict[str, Any] = {"ok": True}
    for name, check in checks.items():
        began = time.monotonic()
        try:
            said = check()
        except Exception as error:
            said = f"FAILED: {type(error).__name__}: {error}"
            document["ok"] = False
        document[name] = {"said": said, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(document, indent=1))
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
