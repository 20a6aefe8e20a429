# SPDX-License-Identifier: Apache-2.0
"""Ways to hand a batch of copies to the GPU's copy engines.

None of them runs a kernel. A gather kernel reaches the same rate whatever the order of
the blocks, but it takes multiprocessors and memory bandwidth from the model: a matrix
product beside it was measured to take almost twice as long, beside the copy engines 0.4
per cent longer (``docs/performance.md``). With entries in one or two extents the copy
engines need no help.

``batch`` submits everything in one driver call, ``swap`` is the same call made by
vLLM's own extension, ``plain`` is one call for each piece. They are tried in the order
of their measured cost per batch.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import torch

logger = logging.getLogger(__name__)

#: cudaMemcpyBatchAsync: the CUDA runtime and driver that brought it.
_BATCH_SINCE: Final = 12080


class MethodUnavailable(Exception):
    """This method cannot be used here; the message says why."""


class Piece(NamedTuple):
    """One copy: bytes of the region from or to bytes of a tensor.

    A tuple, since a batch makes many of them while the engine step waits.

    Attributes:
        host: Address in the region.
        device: Address in the tensor.
        nbytes: Length.
        tensor: Contiguous, on the device.
    """

    host: int
    device: int
    nbytes: int
    tensor: torch.Tensor


class CopyMethod(ABC):
    """Submits copies to a stream.

    Args:
        region: The whole region as a tensor of bytes.
    """

    name: ClassVar[str]

    def __init__(self, region: torch.Tensor) -> None:
        self.region = region
        self.base = region.data_ptr()

    @abstractmethod
    def submit(self, pieces: Sequence[Piece], save: bool, stream: torch.cuda.Stream) -> None:
        """Queue the copies; nothing says in which order they run.

        Args:
            pieces: Disjoint; at least one.
            save: From tensors into the region, or the other way.
            stream: Where to queue; its device is the current one.

        Raises:
            Exception: Some may have been queued all the same.
        """


class BatchMethod(CopyMethod):
    """``cudaMemcpyBatchAsync`` by way of the package cuda-bindings."""

    name = "batch"

    def __init__(self, region: torch.Tensor) -> None:
        super().__init__(region)
        try:
            runtime = importlib.import_module("cuda.bindings.runtime")
        except ImportError as exc:
            raise MethodUnavailable(f"cuda-bindings cannot be imported ({exc})") from exc
        self._call: Any = getattr(runtime, "cudaMemcpyBatchAsync", None)
        version = min(
            int(_result(runtime.cudaRuntimeGetVersion())),
            int(_result(runtime.cudaDriverGetVersion())),
        )
        if self._call is None or version < _BATCH_SINCE:
            raise MethodUnavailable(f"CUDA {version}: batched copies came with {_BATCH_SINCE}")
        attributes = runtime.cudaMemcpyAttributes()
        # The source is read when the stream gets there, not earlier.
        attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
        attributes.flags = 0
        self._attributes: Final = [attributes]
        self._first: Final = [0]

    def submit(self, pieces: Sequence[Piece], save: bool, stream: torch.cuda.Stream) -> None:
        """Queue the copies in one call."""
        host, device, sizes, _ = zip(*pieces, strict=True)
        targets, sources = (host, device) if save else (device, host)
        _result(
            self._call(
                targets,
                sources,
                sizes,
                len(sizes),
                self._attributes,
                self._first,
                1,
                stream.cuda_stream,
            )
        )


class SwapMethod(CopyMethod):
    """vLLM's ``swap_blocks_batch``, which makes the same call from C++."""

    name = "swap"

    def __init__(self, region: torch.Tensor) -> None:
        super().__init__(region)
        try:
            ops = importlib.import_module("vllm._custom_ops")
            self._call: Callable[..., None] = ops.swap_blocks_batch
            _ = torch.ops._C_cache_ops.swap_blocks_batch
        except (ImportError, AttributeError, RuntimeError) as exc:
            raise MethodUnavailable(f"vLLM's swap_blocks_batch is not there ({exc})") from exc

    def submit(self, pieces: Sequence[Piece], save: bool, stream: torch.cuda.Stream) -> None:
        """Queue the copies in one call."""
        host, device, sizes, _ = zip(*pieces, strict=True)
        targets, sources = (host, device) if save else (device, host)
        as_tensor = torch.tensor([sources, targets, sizes], dtype=torch.int64)
        with torch.cuda.stream(stream):
            self._call(as_tensor[0], as_tensor[1], as_tensor[2])


class PlainMethod(CopyMethod):
    """One asynchronous copy for each piece, by torch."""

    name = "plain"

    def submit(self, pieces: Sequence[Piece], save: bool, stream: torch.cuda.Stream) -> None:
        """Queue the copies one after the other."""
        with torch.cuda.stream(stream):
            for piece in pieces:
                offset = piece.host - self.base
                host = self.region[offset : offset + piece.nbytes]
                flat = piece.tensor.detach().reshape(-1).view(torch.uint8)
                at = piece.device - flat.data_ptr()
                device = flat[at : at + piece.nbytes]
                target, source = (host, device) if save else (device, host)
                target.copy_(source, non_blocking=True)


#: Cheapest first, as measured.
METHODS: Final[tuple[type[CopyMethod], ...]] = (BatchMethod, SwapMethod, PlainMethod)


def choose_method(region: torch.Tensor, name: str | None = None) -> CopyMethod:
    """The cheapest method that works here.

    Args:
        region: The whole region as a tensor of bytes.
        name: Insist on one: ``batch``, ``swap`` or ``plain``.

    Raises:
        MethodUnavailable: The one that was asked for cannot be used here.
        ValueError: There is no method of that name.
    """
    names = [kind.name for kind in METHODS]
    if name is not None and name not in names:
        raise ValueError(f"copy method {name!r}: expected one of {', '.join(names)}")
    for kind in METHODS:
        if name in (None, kind.name):
            try:
                return kind(region)
            except MethodUnavailable as exc:
                if name is not None:
                    raise
                logger.info("copy method %s: %s", kind.name, exc)
    raise MethodUnavailable("no copy method")


def _result(answer: Any) -> Any:
    """The value of a cuda-bindings call, which returns ``(error, value)`` or ``(error,)``."""
    error, *values = answer
    if int(error):
        raise RuntimeError(f"CUDA: {error!r}")
    return values[0] if values else None
