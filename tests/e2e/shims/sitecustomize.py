# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM run on a host without a GPU. Python imports it at start: put it on PYTHONPATH.

* The torchvision wheel is built for CUDA. Beside a CPU build of torch its library is
  not loaded, and its Python half then misses the two operators that it wants to
  describe. They are declared here; nothing on the way of an image calls them.
* torchaudio and torchcodec raise OSError instead of ImportError for the same reason,
  which nobody expects. They are hidden: looked for, they are not there.
* The V2 model runner writes its small kernels in Triton, which has no CPU back end on
  PyPI. With TRITON_INTERPRET=1 they run in Triton's interpreter, which needs a back end
  to exist but never asks it to compile anything.
* On a CPU vLLM switches asynchronous scheduling off, which is the default on GPUs: the
  next step is planned before the output of this one is there. With
  EC_E2E_ASYNC_SCHEDULING=1 it is on.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_HIDDEN = frozenset({"torchaudio", "torchcodec"})
_keep: list[Any] = []  # torch drops a library's declarations with the object


def _declare_torchvision_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep.append(library)


class _InterpreterDriver:
    """Just enough of a Triton driver for its interpreter."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_current_target(self) -> None:
        return None

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")


class _Loader:
    """A module's own loader; what is derived from it changes the module afterwards."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)


class _BackendsLoader(_Loader):
    """Loads triton.backends and adds the interpreter's."""

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        module.backends["cpu"] = module.Backend(compiler=None, driver=_InterpreterDriver)


class _CpuPlatformLoader(_Loader):
    """Loads vllm.platforms.cpu and has it leave asynchronous scheduling on."""

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        platform = module.CpuPlatform
        check = platform.check_and_update_config.__func__

        def check_but_stay_ahead(cls: Any, vllm_config: Any) -> None:
            check(cls, vllm_config)
            vllm_config.scheduler_config.async_scheduling = True

        platform.check_and_update_config = classmethod(check_but_stay_ahead)


class _CpuPathFinder(PathFinder):
    """The ordinary finder of modules on sys.path, with the exceptions above."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname in _HIDDEN:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is None:
            return None
        if fullname == "torchvision" and not _keep:
            _declare_torchvision_operators()
        elif fullname == "triton.backends" and os.environ.get("TRITON_INTERPRET") == "1":
            spec.loader = _BackendsLoader(spec.loader)  # type: ignore[assignment]
        elif fullname == "vllm.platforms.cpu" and os.environ.get("EC_E2E_ASYNC_SCHEDULING") == "1":
            spec.loader = _CpuPlatformLoader(spec.loader)  # type: ignore[assignment]
        return spec


sys.meta_path[:] = [_CpuPathFinder if finder is PathFinder else finder for finder in sys.meta_path]
