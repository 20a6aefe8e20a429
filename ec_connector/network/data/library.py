# SPDX-License-Identifier: Apache-2.0
"""Getting at NIXL: quietly, with checked backends and typed errors.

Facts, measured with NIXL 1.5.1 (UCX inside the wheel, CMA and TCP transports, no RDMA
card), two processes on one host:

=====================================================  ================================
what was tried                                         what happened
=====================================================  ================================
first agent of a process / a further one               450 ms (plugins load) / 20 ms
``register_memory``, ``add_remote_agent``              under 1 ms; 10 to 20 ms
first READ between two processes                       40 to 500 ms on a busy host, where
                                                       later ones take under 1 ms: making
                                                       the connection takes several round
                                                       trips, in which both must progress
the same after a READ within each of the processes     no faster: 51 to 664 ms without (5
                                                       trials), 35 to 710 with (4); the
                                                       connection is each pair's own
READ, producer never polls                             stays PROC. With CMA all bytes may
                                                       be in place and it is still PROC
READ towards a SIGSTOPped producer                     stays PROC for ever; some bytes land
READ whose producer is SIGKILLed                       ``nixlRemoteDisconnectError`` within
                                                       1 ms, and at every later check
``release_xfer_handle`` of a READ in flight            returns at once, never raised. The
                                                       READ goes on: after SIGCONT *all*
                                                       remaining bytes landed as soon as
                                                       the agent was progressed
the same, then ``remove_remote_agent``                 the bytes landed all the same, and
                                                       the handle's state became unknowable
                                                       (``nixlNotFoundError``)
the same, then ``deregister_memory``                   the bytes landed all the same
dropping the agent, READs in flight                    5 to 160 ms, never blocked (producer
                                                       stopped, killed, not polling; CMA
                                                       and TCP; handles released or not);
                                                       afterwards nothing landed
dropping the agent right after an endpoint failed,     the process aborts (UCX asserts
shared-memory transport                                ``ucs_arbiter_group_is_empty``), 7
                                                       of 10; 0 of 40 after one progress
READ half-way over TCP, producer stopped, consumer's   the *producer* aborts as soon as it
agent dropped, producer continued                      runs again, 12 of 20 (UCX replies to
                                                       an endpoint that is gone)
consumer SIGKILLed half-way, producer polling          producer unharmed, 20 of 20
new agent, new name, same memory, same process         works at once; 100 cycles leak no
                                                       memory, descriptor or thread
``send_notif`` to a peer never read from               connects first: it leaves only while
                                                       *our* agent is progressed too
``send_notif`` to a stopped / a dead peer              returns at once / raises
READ beyond what either side registered                ``nixlNotFoundError`` on preparation
a restarted producer under its old agent name          ``nixlNotAllowedError`` until the old
                                                       one is removed
metadata refused half-way                              its name stays unusable in the agent
an endpoint that failed once                           fails for ever, also if the peer lives
unknown backend name                                   a log line; the agent comes up without
=====================================================  ================================

So nothing that this process can do ends a READ for certain, and some of it aborts the
process. That is why READs are made by processes that may die (EC-14.8): what moves bytes
for UCX are system calls and threads of the reader itself, or a card whose queue pairs the
kernel closes before it reports the process as gone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ec_connector.network.data.base import DataPlaneConfigError, DataPlaneError

#: Set unless the operator did: failures reach the log as our typed errors, and UCX
#: writes to stdout by default, which would spoil machine-readable output.
QUIET: Final = {
    "NIXL_LOG_LEVEL": "FATAL",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_LOG_FILE": "stderr",
}
#: Endpoints that failed are cleaned up by the progress that follows; an agent must not
#: be destroyed before that. One call was enough in every trial.
_LAST_PROGRESS: Final = 4


def which_nixl() -> str:
    """The package that has NIXL's bindings for the CUDA of this process's torch.

    Asked in the engine, where torch is imported anyway: to find out by itself, ``nixl``
    would import it in each data process, which has no use for it.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    wanted = [f"nixl_cu{str(cuda).split('.')[0]}"] if cuda else []
    for package in (*wanted, "nixl_cu13", "nixl_cu12"):
        if importlib.util.find_spec(package) is not None:
            return package
    return "nixl"


def load_nixl(package: str = "nixl") -> Any:
    """The module with NIXL's agent, with quiet logging unless the environment says otherwise.

    Args:
        package: See ``which_nixl``.

    Raises:
        DataPlaneConfigError: It cannot be imported.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module(f"{package}._api")
    except ImportError as exc:
        raise DataPlaneConfigError(
            f"nixl cannot be imported ({exc}); install the nixl package or remove "
            "ec_enable_nixl from ec_connector_extra_config"
        ) from exc


def attempt(what: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call into NIXL and turn whatever it raises into a ``DataPlaneError``."""
    try:
        return call(*args)
    except Exception as exc:
        raise DataPlaneError(f"{what}: {type(exc).__name__}: {exc}") from None


class Agent:
    """One NIXL agent with one registered piece of host memory.

    Args:
        name: Unique per agent in the world; peers key their state by it.
        backends: Backend names, all of which must be available.
        address: First byte of the memory.
        nbytes: Its length.
        package: See ``which_nixl``.

    Raises:
        DataPlaneConfigError: A backend is unknown, or cannot be started here.
        DataPlaneError: The memory cannot be registered.
    """

    def __init__(
        self,
        name: str,
        backends: Sequence[str],
        address: int,
        nbytes: int,
        package: str = "nixl",
    ) -> None:
        api = load_nixl(package)
        self.name = name
        self.backends = tuple(backends)
        # No backend yet: an unknown one would only be a log line, a broken one an
        # exception without a name.
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
        self.nixl: Any = attempt("creating a NIXL agent", api.nixl_agent, name, config)
        plugins = sorted(self.nixl.get_plugin_list())
        for backend in self.backends:
            if backend not in plugins:
                raise DataPlaneConfigError(
                    f"ec_nixl_backends: backend {backend!r} is not among the plugins of this "
                    f"NIXL installation: {', '.join(plugins) or 'none'}"
                )
            failure = ""
            try:
                self.nixl.create_backend(backend)
            except Exception as exc:
                failure = f"{type(exc).__name__}: {exc}"
            if failure:
                raise DataPlaneConfigError(
                    f"ec_nixl_backends: backend {backend!r} cannot be started ({failure}); set "
                    "NIXL_LOG_LEVEL=INFO and UCX_LOG_LEVEL=info to see why, and look at "
                    "UCX_TLS and UCX_NET_DEVICES"
                )
        self._registered = attempt(
            f"registering {nbytes} bytes at {address:#x}",
            self.nixl.register_memory,
            [(address, nbytes, 0, "")],
            "DRAM",
        )

    def metadata(self) -> bytes:
        """What peers need to reach the agent."""
        return bytes(attempt("reading the agent's metadata", self.nixl.get_agent_metadata))

    def destroy(self) -> None:
        """Let go of the agent; the caller must have let go of its handles."""
        for _ in range(_LAST_PROGRESS):
            with contextlib.suppress(Exception):
                self.nixl.get_new_notifs()
        registered, self._registered = self._registered, None
        with contextlib.suppress(Exception):
            self.nixl.deregister_memory(registered)
        self.nixl = None
