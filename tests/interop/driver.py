# SPDX-License-Identifier: Apache-2.0
"""Both ends of the wire: vLLM's connector in forked processes, ours in this thread.

Ours is an engine and its data processes as objects (``inside.Inside``), which take turns
whenever a test waits for something, and not otherwise: a test that lets our side stand
still, or looks at what it holds, need only not wait meanwhile.

One fork server imports vLLM, torch and NIXL, which takes longer than all tests together;
every process with the built-in connector is forked from it before any socket, agent or
thread exists, so a test has its own and may stop or kill it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import signal
import tempfile
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import zmq

from ec_connector.engine.facts import ModelFacts
from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.p2p import wire
from ec_protocol.p2p.fetches import Fetches
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.p2p.wire import XferAck, XferReq
from tests.e2e.platform import chosen
from tests.e2e.server import free_port
from tests.ec_connector.network.inside import Inside
from tests.interop import forked
from tests.interop.clock import Clock
from tests.world import processes
from tests.world.instance import BLOCK, wait_for

#: The release whose classes are driven; the compatibility hash contains it.
RELEASE = "0.32.0"
FACTS = ModelFacts(RELEASE, "interop", "bfloat16", 2)
COMPAT = wire.compatibility_hash(RELEASE, FACTS.model, "torch.bfloat16", BLOCK)
ROWS = 40
NBYTES = ROWS * BLOCK
#: Bound of every wait: far beyond what a healthy run takes, on a busy host too.
PATIENCE_S = 120.0
#: The same for the first process, which waits for the fork server's imports.
START_S = 500.0
#: No peer is missed because it had to wait for a core.
PATIENT = {"heartbeat_timeout_s": 60.0, "heartbeat_ttl_s": 60.0}

marks = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.vllm,
]

_numbers = itertools.count(1)


def fresh() -> str:
    """A name of no encoding so far."""
    return f"{next(_numbers):064x}"


def content(name: str, rows: int = ROWS) -> bytes:
    """What the encoding of that name looks like."""
    return random.Random(name).randbytes(rows * BLOCK)


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that another process does, or that ours do in their turns."""
    wait_for(condition, what, PATIENCE_S)


@functools.cache
def fork_server() -> Any:
    """The fork server, ready."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(forked.PRELOAD)
    with mock.patch.dict(os.environ, {**chosen().env, "VLLM_LOGGING_LEVEL": "ERROR"}):
        forkserver.ensure_running()
    return context


class Builtin:
    """A process with vLLM's connector.

    Args:
        role: ``ec_producer``, ``ec_consumer`` or ``ec_both``.
        blocks: Blocks of its region.
        port: Its control port; 0 picks a free one.
        options: See ``builtin_host.Host``.
    """

    def __init__(self, role: str, blocks: int = 128, port: int = 0, **options: Any) -> None:
        self.port = port or free_port()
        self._log = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._pipe, theirs = fork_server().Pipe()
        self.process = fork_server().Process(
            target=forked.serve,
            args=(theirs, self._log.name, role, self.port, blocks),
            kwargs=options,
            daemon=True,
        )
        self.process.start()
        theirs.close()
        try:
            self.hello = self._answer(START_S)
        except BaseException:
            # Interrupted while it was starting: nobody else knows of it.
            self.kill()
            raise

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def _answer(self, patience_s: float = PATIENCE_S) -> Any:
        assert self._pipe.poll(patience_s), "the built-in connector does not answer"
        try:
            return self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the built-in connector died: {self.errors()}") from None

    def errors(self) -> str:
        """The end of what it has printed."""
        return Path(self._log.name).read_text()[-4000:]

    def tell(self, do: str, **arguments: Any) -> Any:
        self._pipe.send({"do": do, **arguments})
        return self._answer()

    # ---------------------------------------------------------------- engine steps
    def hold(self) -> None:
        """Stand still, as in a long step; sockets and NIXL's own thread live on."""
        self.tell("run", on=False)

    def go_on(self) -> None:
        self.tell("run", on=True)

    def step_until(self, condition: Callable[[], Any], what: str) -> None:
        """One step after the other, and none after the condition holds."""

        def stepped() -> Any:
            self.tell("step")
            return condition()

        until(stepped, what)

    # -------------------------------------------------------------------- producer
    def save(self, rows: int = ROWS, *, land: bool = True) -> tuple[str, bytes, Any]:
        """Name, bytes and announcement of a new encoding."""
        name = fresh()
        data = content(name, rows)
        return name, data, self.tell("save", name=name, data=data, land=land)

    def grants(self) -> list[str]:
        return self.tell("grants")

    def no_grants(self) -> bool:
        """Whether it holds no grant and no pin."""
        return not self.grants() and not any(pin > 0 for pin in self.tell("pins").values())

    # --------------------------------------------------------------------- process
    def died(self) -> bool:
        """Whether it ends by itself, with an error."""
        self.process.join(PATIENCE_S)
        return bool(self.process.exitcode)

    def stop(self) -> None:
        processes.stop(self.process.pid)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.close()

    def close(self) -> None:
        """End it in good order, so that its region goes too; kill it if it does not."""
        self._pipe.close()
        try:
            if self.process.is_alive():
                # It may end by itself just now.
                with contextlib.suppress(ProcessLookupError):
                    self.resume()
                self.process.join(20)
                self.process.kill()
            self.process.join()
        finally:
            # What a killed one has left behind.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm/vllm_ec_builtin-{self.process.pid}_dp0.mmap")
            self._log.close()


class Asked:
    """One request of a built-in consumer."""

    def __init__(self, builtin: Builtin, name: str, params: Any, rows: int = ROWS) -> None:
        self.builtin, self.name, self.request = builtin, name, fresh()
        builtin.tell("ask", name=name, rows=rows, request=self.request, params=params)

    @property
    def state(self) -> dict[str, Any]:
        return self.builtin.tell("state", name=self.name, request=self.request)

    def sent(self) -> None:
        """Step until it has asked the producer; it must stand still."""
        self.builtin.step_until(lambda: self.state["in_flight"], "its request")

    def admitted(self) -> dict[str, Any]:
        until(lambda: self.state["admitted"], "the admission of its request")
        return self.state


class Around:
    """A data plane that calls something before it prepares or posts a READ, once.

    Attributes:
        before_prepare: Called after the ack was accepted and before the last look at the
            fence.
        before_post: Called after that look.
        posted: Attempts whose READ was posted.
        notified: Notices that were sent without a READ.
        withhold: Whether such notices are kept back until ``let_go``, in ``withheld``.
    """

    def __init__(self) -> None:
        self.before_prepare: Callable[[], None] | None = None
        self.before_post: Callable[[], None] | None = None
        self.posted: list[int] = []
        self.notified: list[bytes] = []
        self.withhold = False
        self.withheld: list[tuple[bytes, bytes]] = []
        self._reader: Any = None

    def wrap(self, reader: Any) -> Around:
        self._reader = reader
        return self

    def prepare(self, *arguments: Any) -> None:
        call, self.before_prepare = self.before_prepare, None
        if call is not None:
            call()
        self._reader.prepare(*arguments)

    def post(self, attempt_id: int) -> None:
        call, self.before_post = self.before_post, None
        if call is not None:
            call()
        self.posted.append(attempt_id)
        self._reader.post(attempt_id)

    def notify(self, agent_metadata: bytes, notice: bytes) -> None:
        if self.withhold:
            self.withheld.append((agent_metadata, notice))
            return
        self._reader.notify(agent_metadata, notice)
        self.notified.append(notice)

    def let_go(self) -> None:
        """Send what was withheld; from one of the hooks."""
        self.withhold = False
        while self.withheld:
            self.notify(*self.withheld.pop(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class Ours(Inside):
    """Our connector's scheduler half, with hooks around its data plane and its clock.

    Attributes:
        scheduler: The delegate; requests tell it their ``items``.
    """

    clock: Clock

    def __init__(
        self,
        role: str,
        blocks: int = 128,
        *,
        port: int = 0,
        world_size: int = 1,
        **settings: float,
    ) -> None:
        self.plane = Around()
        self._turning = False
        super().__init__(
            role,
            blocks,
            bind=("127.0.0.1", port),
            facts=FACTS,
            extra=PATIENT | settings,
            wrap_reader=self.plane.wrap,
            clock=Clock(),
            world_size=world_size,
        )
        self.scheduler = ECScheduler(
            self.node,
            items=lambda request: request.items,
            element_size=FACTS.element_size,
            dtype=FACTS.dtype,
            data=self,  # type: ignore[arg-type]
            clock=self.clock,
        )

    @property
    def reads(self) -> Fetches:
        """The reader's fetches."""
        assert self.reader is not None
        return self.reader.reader.fetches

    @property
    def grants(self) -> ProducerGrants:
        """The server's grants."""
        assert self.server is not None
        assert self.server._serving is not None
        return self.server._serving.grants

    def turn(self) -> None:
        """Everybody once; nothing from within one of the hooks, which are a part of a turn."""
        if self._turning:
            return
        self._turning = True
        try:
            super().turn()
        finally:
            self._turning = False

    def after(self, seconds: float) -> None:
        """That much time goes by."""
        self.clock.advance(seconds)

    def count(self, counter: str, at_least: int = 1) -> None:
        until(lambda: self.counters()[counter] >= at_least, counter)

    def saved(self, rows: int = ROWS) -> tuple[str, bytes, Any]:
        """Name, bytes and announcement of a new encoding, without the engine around it."""
        name = fresh()
        data = content(name, rows)
        self.save(name, data)
        return name, data, self.announced(name, rows)

    def announced(self, name: str, rows: int = ROWS) -> Any:
        host, port = self.address
        told = {"peer_host": host, "peer_port": port, "size_bytes": rows * BLOCK}
        return {name: {"metadata": {}, **told, "shape": [rows, BLOCK // 2]}}

    def whole(self) -> None:
        """Wait until no READ, loan and grant is open, and no block is lost."""
        until(self.is_whole, "every block back")

    def is_whole(self) -> bool:
        self.tier.check()
        loans = self.link.loans
        return (
            all(entry.servable for entry in self.tier.entries())
            and self.tier.quarantined_blocks + self.tier.retired_blocks == 0
            and not loans
            and (self.reader is None or self.reads.idle)
            and (self.server is None or self.grants.open_grants == 0)
        )


class Dealer:
    """A peer that says exactly what a test wants."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://{address[0]}:{address[1]}")

    def ask(self, request: XferReq) -> tuple[XferAck, int]:
        """The answer, and its length."""
        self.socket.send_multipart([b"", wire.encode(request)])
        until(lambda: self.socket.poll(0), "an answer")
        frames = self.socket.recv_multipart()
        return wire.decode_ack(frames), len(frames[1])

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def plain(name: str, version: int = 2) -> XferReq:
    """A request of the old form; version 0 leaves the version out."""
    return XferReq(
        mm_hash=name, compatibility_hash=COMPAT, session_id="s", connector_version=version
    )
