# SPDX-License-Identifier: Apache-2.0
"""A device for vLLM's own worker half: streams and events of which the kit decides.

Its worker module is imported as installed. Replaced in it are the platform's streams,
torch's events and device tensors, the batch copy, and the two questions about ranks;
the copies themselves are the kit's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from ec_verify.adapters.builtin.stage import PACKAGE


class _Event:
    """Fires when the kit has moved everything before it."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.fired = False

    def record(self, stream: Any) -> None:
        """An event of a pool is used again."""
        self.fired = False

    def query(self) -> bool:
        return self.fired

    def synchronize(self) -> None:
        self.fired = True

    def elapsed_time(self, other: _Event) -> float:
        return 0.0


class _Stream:
    def wait_stream(self, other: _Stream) -> None:
        """Order among streams is the kit's."""


class _DeviceTensor(torch.Tensor):
    """A tensor that a stream can be recorded for, though it is on the CPU."""

    def record_stream(self, stream: Any) -> None:
        """No caching allocator to tell."""


class _Torch:
    """The ``torch`` module with the device's events and memory."""

    Event = _Event

    def empty(self, *size: int, dtype: Any = None, device: Any = None) -> Any:
        return torch.empty(*size, dtype=dtype).as_subclass(_DeviceTensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _output(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes // 2, dtype=torch.bfloat16).as_subclass(_DeviceTensor)


@contextmanager
def _stream(stream: _Stream) -> Iterator[None]:
    yield


def _module(rank: int) -> Any:
    """Its worker module, set up for a rank."""
    module: Any = importlib.import_module(f"{PACKAGE}.worker")
    compute = _Stream()
    module.torch = _Torch()
    module.current_platform = SimpleNamespace(
        device_type="cpu",
        Stream=_Stream,
        current_stream=lambda: compute,
        stream=_stream,
        is_xpu=lambda: False,
    )
    module.swap_blocks_batch = lambda *_, **__: None
    module.is_pin_memory_available = lambda: False
    module.get_tensor_model_parallel_rank = lambda: rank
    module.get_pcp_group = lambda: SimpleNamespace(rank_in_group=0)
    return module


class Rank:
    """One worker process.

    Args:
        config: As for the scheduler half.
        rank: Its tensor-parallel rank.
    """

    def __init__(self, config: Any, rank: int) -> None:
        self._worker = _module(rank).ECCPUWorker(config)
        self._cache: dict[str, Any] = {}
        self._left: dict[Any, set[Any]] = {}
        self._event: dict[Any, _Event] = {}

    def work(
        self, metadata: Any, held: dict[str, int], encoded: dict[str, int]
    ) -> tuple[list[Any], list[list[Any]]]:
        """Take a step; its worker half is told nothing of what the host holds.

        Args:
            metadata: The step's.
            held: Encodings that the host's cache has, and their bytes.
            encoded: Bytes of each encoding that the encoder has produced.

        Returns:
            Copies that were started, and reports.
        """
        worker = self._worker
        before = {id(t) for t in (*worker._inflight_saves, *worker._inflight_loads)}
        self._cache |= {name: _output(nbytes) for name, nbytes in held.items()}
        worker.start_load_caches(self._cache, metadata)
        for mm_hash, nbytes in encoded.items():
            self._cache[mm_hash] = _output(nbytes)
            worker.save_caches(self._cache, mm_hash, metadata)
        worker.flush_saves()
        started: list[Any] = []
        for transfer in (*worker._inflight_loads, *worker._inflight_saves):
            if id(transfer) in before:
                continue
            names = [_name(item) for item in transfer.completions]
            started += names
            waiting = set(names)
            for name in names:
                self._left[name] = waiting
                self._event[name] = transfer.end_event
        return started, self._reports()

    def copied(self, copy: Any) -> list[list[Any]]:
        """The device has made a copy; a batch is over with its last one.

        Returns:
            Reports.
        """
        waiting = self._left.pop(copy, set())
        waiting.discard(copy)
        event = self._event.pop(copy, None)
        if event is not None and not waiting:
            event.fired = True
        return self._reports()

    def close(self) -> None:
        """Let go of the region."""
        self._worker._region.cleanup()

    def _reports(self) -> list[list[Any]]:
        report = self._worker.build_connector_worker_meta()
        if report is None:
            return []
        done = [*map(_name, report.completed_saves), *report.completed_loads]
        return [[name, True] for name in done]


def _name(completion: str | int) -> str | int:
    return f"save:{completion}" if isinstance(completion, str) else completion
