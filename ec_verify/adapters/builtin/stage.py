# SPDX-License-Identifier: Apache-2.0
"""What stands in for the outside world around vLLM's own classes: clock, ZMQ, NIXL.

Its modules are imported as they are installed; ``install`` then replaces, in those
modules only, the names that lead outside: ``time``, the making of sockets, and the NIXL
agent. Everything between them runs as it ships. The stand-ins behave as the real things
were measured to (the table in ``ec_connector.network.data.library``): in particular an index or a
description that NIXL refuses raises here too, a READ towards a peer that was removed
becomes unknowable, and giving up a handle stops nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import zmq

from ec_verify.adapters.ours.sockets import SimulatedDealer, SimulatedMonitor, SimulatedNetwork

#: Addresses of the kit's nodes.
_PLAIN: Final = re.compile(r"tcp://[a-z0-9.-]+\.example:[1-9]\d{3}")
#: Below this nobody has registered memory: neither the kit's peers nor a process.
_LOWEST: Final = 1 << 40
#: Where its modules are.
PACKAGE: Final = "vllm.distributed.ec_transfer.ec_connector.cpu"


@dataclass(eq=False)
class Stage:
    """One simulated process: its clock, and the outer ends of its sockets and agent.

    Attributes:
        emit: Notes an output for the kit.
        now: Seconds.
        prepare_s: How long it takes to prepare a READ.
        agent: Metadata of its NIXL agent.
        dtype: What the compatibility hash takes for the dtype's name.
        router: Its ROUTER, if it has bound one.
        network: Its DEALERs, and what lies behind them.
        watched: Monitors that nobody listens to yet, by address.
        reads: Posted READs by number.
        notices: Completion notices that have arrived.
    """

    emit: Callable[..., None]
    agent: bytes
    dtype: str = "torch.bfloat16"
    now: float = 0.0
    prepare_s: float = 0.0
    router: SimRouter | None = None
    network: SimulatedNetwork = field(init=False)
    watched: dict[str, SimulatedMonitor] = field(default_factory=dict)
    reads: dict[int, SimRead] = field(default_factory=dict)
    notices: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = SimulatedNetwork(self.emit, lambda: self.now)


#: The process that an operation is being carried out in; the kit is single-threaded.
_current: list[Stage] = []


def enter(stage: Stage) -> None:
    """From here on its code runs in this process."""
    _current[:] = [stage]


def _stage() -> Stage:
    return _current[0]


class _Time:
    """The ``time`` module with a driven monotonic clock."""

    def monotonic(self) -> float:
        return _stage().now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


# ---------------------------------------------------------------------------- ZMQ
class SimDealer(SimulatedDealer):
    """A DEALER that is watched by address, and that refuses what ZMQ refuses."""

    def connect(self, endpoint: str) -> None:
        """Begin to connect, with the options that are set by now."""
        _check_address(endpoint)
        super().connect(endpoint)

    def monitor(self, address: str, events: int) -> None:
        """What is connected to this address next hears of these events."""
        _stage().watched[address] = SimulatedMonitor(self, events)


class SimPair:
    """The reading end of a monitor; nothing else of this kind is made."""

    def __init__(self) -> None:
        self._watched: SimulatedMonitor | None = None

    def connect(self, address: str) -> None:
        """Watch what is to be watched by this address."""
        self._watched = _stage().watched.pop(address)

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        """The next event; ``zmq.Again`` if there is none."""
        if self._watched is None:
            raise zmq.Again
        return self._watched.recv_multipart(flags)

    def close(self, linger: int | None = None) -> None:
        """Hear no more."""
        self._watched = None


class SimRouter:
    """A ROUTER: the kit puts frames in and takes them out."""

    def __init__(self, stage: Stage) -> None:
        self.inbox: deque[list[bytes]] = deque()
        self._stage = stage

    def setsockopt(self, option: int, value: int) -> None:
        """No option of this side shows."""

    def bind(self, endpoint: str) -> None:
        """Requests come here from now on."""
        self._stage.router = self

    def send_multipart(self, frames: list[bytes], *_: Any, **__: Any) -> None:
        """Hand frames to the kit; the first one says whom they are for."""
        to, *rest = (frame.hex() for frame in frames)
        self._stage.emit("frames", to=to, frames=rest)

    def recv_multipart(self, *_: Any, **__: Any) -> list[bytes]:
        """What has come; ``zmq.Again`` if nothing has."""
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def close(self, linger: int | None = None) -> None:
        """The process ends."""


class _Context:
    def socket(self, kind: int) -> SimDealer | SimRouter | SimPair:
        """A socket that is neither bound nor connected yet."""
        if kind == zmq.DEALER:
            return SimDealer(_stage().network)
        return SimRouter(_stage()) if kind == zmq.ROUTER else SimPair()

    def destroy(self, linger: int | None = None) -> None:
        """Nothing to destroy."""


def _make_socket(ctx: Any, path: str, socket_type: Any, bind: bool | None = None) -> Any:
    """Bound, or connected: whoever sets options afterwards comes too late."""
    socket = ctx.socket(socket_type)
    (socket.bind if bind else socket.connect)(path)
    return socket


def _check_address(path: str) -> None:
    """Refuse what ZMQ refuses, by asking it; the kit's own addresses need no asking."""
    if not _PLAIN.fullmatch(path):
        real: Any = zmq.Context.instance().socket(zmq.DEALER)
        try:
            real.connect(path)
        finally:
            real.close(0)


class _Zmq:
    """The ``zmq`` module with contexts that open nothing."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.Context = _Context
        self.Poller = lambda: SimpleNamespace(register=lambda *_: None, poll=lambda **_: [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


# --------------------------------------------------------------------------- NIXL
class NixlFailure(Exception):
    """Stands for the exceptions of NIXL's bindings."""


@dataclass(eq=False)
class SimRead:
    """A READ: its state as NIXL would tell it."""

    number: int
    peer: str
    fields: dict[str, Any]
    state: str = "PROC"


class SimAgent:
    """A NIXL agent: the kit moves the bytes."""

    _numbers = 0

    def __init__(self, name: str, config: Any) -> None:
        self._stage = _stage()
        self._base = 0
        self._peers: dict[str, bytes] = {}

    def get_reg_descs(self, descs: list[tuple[int, int, int, str]], kind: str) -> Any:
        """The description of the region, which READs name by offset."""
        self._base = descs[0][0]
        return descs

    def register_memory(self, descs: Any, backends: Any = None) -> None:
        """Nothing to register with."""

    def deregister_memory(self, descs: Any) -> None:
        """Nothing to take back."""

    def get_agent_metadata(self) -> bytes:
        """What acks carry."""
        return self._stage.agent

    def get_xfer_descs(self, descs: list[tuple[int, int, int]], kind: str) -> Any:
        """A description is itself."""
        return list(descs)

    def prep_xfer_dlist(self, agent: str, descs: Any) -> tuple[str, Any]:
        """A table of blocks of an agent."""
        if any(address < _LOWEST or size <= 0 for address, size, _ in descs):
            raise NixlFailure("NIXL_ERR_NOT_FOUND")
        return (agent, descs)

    def add_remote_agent(self, metadata: bytes) -> str:
        """A peer's name is its metadata."""
        if not metadata:
            raise NixlFailure("NIXL_ERR_MISMATCH")
        name = metadata.decode(errors="replace")
        self._peers[name] = metadata
        return name

    def remove_remote_agent(self, name: str) -> None:
        """READs towards it become unknowable."""
        self._peers.pop(name, None)

    def make_prepped_xfer(
        self,
        operation: str,
        local: tuple[str, Any],
        local_indices: list[int],
        remote: tuple[str, Any],
        remote_indices: list[int],
        notif_msg: bytes = b"",
    ) -> SimRead:
        """A READ, refused as NIXL refuses it."""
        peer, table = remote
        if peer not in self._peers:
            raise NixlFailure("NIXL_ERR_NOT_FOUND")
        if not local_indices or len(local_indices) != len(remote_indices):
            raise NixlFailure("NIXL_ERR_INVALID_PARAM")
        if not all(0 <= index < len(table) for index in remote_indices):
            raise NixlFailure("NIXL_ERR_INVALID_PARAM")
        here = [local[1][index] for index in local_indices]
        there = [table[index] for index in remote_indices]
        if [size for _, size, _ in here] != [size for _, size, _ in there]:
            raise NixlFailure("NIXL_ERR_INVALID_PARAM")
        self._stage.now += self._stage.prepare_s
        SimAgent._numbers += 1
        fields = {
            "agent": self._peers[peer].hex(),
            "device": there[0][2],
            "notice": notif_msg.hex(),
            "local": [[address - self._base, size] for address, size, _ in here],
            "remote": [[address, size] for address, size, _ in there],
        }
        return SimRead(SimAgent._numbers, peer, fields)

    def transfer(self, read: SimRead) -> str:
        """Post it: from now on the kit moves the bytes."""
        self._stage.reads[read.number] = read
        self._stage.emit("read", read=read.number, **read.fields)
        return "PROC"

    def check_xfer_state(self, read: SimRead) -> str:
        """``PROC``, ``DONE``, or an exception."""
        if read.peer not in self._peers:
            raise NixlFailure("NIXL_ERR_NOT_FOUND")
        if read.state == "ERR":
            raise NixlFailure("NIXL_ERR_REMOTE_DISCONNECT")
        return read.state

    def release_xfer_handle(self, read: SimRead) -> None:
        """Giving a handle up stops nothing."""
        self._stage.emit("release", read=read.number)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Notices that have arrived."""
        notices, self._stage.notices = self._stage.notices, []
        return {"peer": notices} if notices else {}


# ------------------------------------------------------------------------ install
def _hide_broken(name: str) -> None:
    """A package whose native half does not load counts as not installed."""
    try:
        importlib.import_module(name)
    except ImportError:
        pass
    except OSError:
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            del sys.modules[module]
        sys.modules[name] = None  # type: ignore[assignment]


def _prepare_import() -> None:
    """Let vLLM be imported beside a CPU build of torch, whose companions are for CUDA."""
    import torch

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    for name in ("torchaudio", "torchcodec"):
        _hide_broken(name)
    if not hasattr(torch.ops.torchvision, "nms"):
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


_kept: list[Any] = []
_modules: dict[str, Any] = {}


def install() -> dict[str, Any]:
    """Import its modules, once, and put the stand-ins in.

    Returns:
        ``connector``, ``common``, ``protocol``, ``scheduler``, ``session``, ``base``,
        ``outputs``, ``config``, ``inputs``, ``version``.

    Raises:
        ImportError: vLLM is not installed.
    """
    if _modules:
        return _modules
    _prepare_import()
    names = {
        "connector": f"{PACKAGE}.connector",
        "common": f"{PACKAGE}.common",
        "protocol": f"{PACKAGE}.protocol",
        "scheduler": f"{PACKAGE}.scheduler",
        "session": f"{PACKAGE}.session",
        "control": f"{PACKAGE}.control.zmq",
        "data": f"{PACKAGE}.data.nixl",
        "base": "vllm.distributed.ec_transfer.ec_connector.base",
        "nixl_utils": "vllm.distributed.nixl_utils",
        "outputs": "vllm.v1.outputs",
        "config": "vllm.config.ec_transfer",
        "inputs": "vllm.multimodal.inputs",
        "version": "vllm.version",
    }
    found: dict[str, Any] = {key: importlib.import_module(name) for key, name in names.items()}
    logging.getLogger("vllm").setLevel(logging.CRITICAL + 1)
    found["scheduler"].time = found["session"].time = _Time()
    found["control"].zmq = _Zmq(zmq)
    found["control"].make_zmq_socket = _make_socket
    for module in (found["data"], found["nixl_utils"]):
        module.NixlWrapper = SimAgent
        module.nixl_agent_config = lambda **_: None
    _name_dtypes(found["protocol"])
    _modules.update(found)
    return _modules


def _name_dtypes(protocol: Any) -> None:
    """Hash the dtype by the name in the kit's facts, which need not be torch's for it."""
    compute = protocol.compute_ec_compatibility_hash
    protocol.compute_ec_compatibility_hash = lambda *, dtype, **facts: compute(
        dtype=_stage().dtype, **facts
    )
    protocol.real_compatibility_hash = compute
