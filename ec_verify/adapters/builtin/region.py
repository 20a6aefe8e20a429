# SPDX-License-Identifier: Apache-2.0
"""Real processes that hold regions of vLLM's class: the adapter's ``region`` operation.

Forked, since importing vLLM takes seconds. Its files lie in ``/dev/shm`` itself, whatever
is asked; a prefix keeps those of a case apart, and is left out of what the kit is told.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ec_verify.adapters.builtin.stage import PACKAGE
from ec_verify.adapters.ours.region_actions import RegionActions
from ec_verify.kit.adapter import Unsupported

_SHM: Final = Path("/dev/shm")
_NAME: Final = "vllm_ec_"
_numbers = itertools.count(1)


class Regions(RegionActions):
    """The processes of one case, by name, and their files."""

    def __init__(self) -> None:
        self._prefix = f"kit{os.getpid():x}x{next(_numbers):x}-"
        self._running: dict[str, tuple[Any, Connection]] = {}

    def do_open(
        self,
        who: str,
        instance: str,
        dp_rank: int = 0,
        blocks: int = 8,
        block_size_bytes: int = 4096,
        guard: bool = False,
        start: str | None = None,
    ) -> dict[str, Any]:
        """A process opens the region of an instance; starts of one id are not told apart."""
        if guard:
            raise Unsupported("a guard: only the next start could clean up, see EC-10.3")
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_hold, args=(theirs,))
        process.start()
        self._running[who] = (process, ours)
        engine_id = f"{self._prefix}{instance}_dp{dp_rank}"
        answer = self._ask(who, "open", (engine_id, blocks, block_size_bytes))
        if "path" in answer:
            answer["name"] = self._told(Path(answer["path"]).name)
        return answer

    def do_write(self, who: str, data: str) -> dict[str, Any]:
        """A process writes the first bytes of its region."""
        return self._ask(who, "write", bytes.fromhex(data))

    def do_read(self, who: str) -> dict[str, Any]:
        """A process reads the first bytes of its region."""
        return self._ask(who, "read", None)

    def do_close(self, who: str, unlink: bool = True) -> dict[str, Any]:
        """A process ends in good order; whoever made the file removes it, unasked."""
        answer = self._ask(who, "close", None)
        process, _ = self._running.pop(who)
        process.join()
        return answer

    def do_kill(self, who: str) -> dict[str, Any]:
        """SIGKILL."""
        process, _ = self._running.pop(who)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        return {}

    def names(self) -> list[str]:
        """See ``RegionActions.names``."""
        return [self._told(path.name) for path in self._files()]

    def do_plant(self, name: str, text: str) -> dict[str, Any]:
        """Somebody else's file."""
        self._path(name).write_text(text, encoding="utf-8")
        return {}

    def do_text(self, name: str) -> dict[str, Any]:
        """What is in a file."""
        return {"text": self._path(name).read_text(encoding="utf-8")}

    def do_imports(self) -> dict[str, Any]:
        """What is imported without peer-to-peer reads.

        Raises:
            Unsupported: vLLM imports zmq and msgspec with or without a connector.
        """
        raise Unsupported("what vLLM itself imports says nothing about its connector")

    def close(self) -> None:
        """End every process and remove the files."""
        for who in list(self._running):
            self.do_kill(who)
        for path in self._files():
            path.unlink(missing_ok=True)

    # ------------------------------------------------------------------- internals
    def _ask(self, who: str, do: str, argument: Any) -> dict[str, Any]:
        _, pipe = self._running[who]
        pipe.send((do, argument))
        try:
            answer: dict[str, Any] = pipe.recv()
        except EOFError:
            return {"error": f"process {who} ended"}
        return answer

    def _files(self) -> list[Path]:
        return list(_SHM.glob(f"{_NAME}{self._prefix}*"))

    def _path(self, name: str) -> Path:
        return _SHM / f"{_NAME}{self._prefix}{name.removeprefix(_NAME)}"

    def _told(self, name: str) -> str:
        return _NAME + name.removeprefix(_NAME + self._prefix)


def _hold(pipe: Connection) -> None:
    """A process with one region: obeys until its pipe ends."""
    module: Any = importlib.import_module(f"{PACKAGE}.ec_shared_region")
    # It waits half a minute for a file to grow; nobody here makes one grow.
    ticks = itertools.count()
    module.time = SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=lambda _: None)
    region: Any = None
    with contextlib.suppress(EOFError):
        while True:
            do, argument = pipe.recv()
            answer: dict[str, Any] = {}
            try:
                if do == "open":
                    region = module.ECSharedRegion(*argument)
                    answer = {
                        "path": region._mmap_path,
                        "mode": f"{os.stat(region._mmap_path).st_mode & 0o7777:04o}",
                        "created": region._is_creator,
                        "usable": region.num_blocks * region.block_size_bytes,
                    }
                elif do == "write":
                    region._mmap_obj[: len(argument)] = argument
                elif do == "read":
                    answer = {"data": bytes(region._mmap_obj[:4]).hex()}
                elif do == "close":
                    region.cleanup()
            except Exception as exc:
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            pipe.send(answer)
            if do == "close":
                return
