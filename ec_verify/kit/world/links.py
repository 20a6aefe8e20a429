# SPDX-License-Identifier: Apache-2.0
"""How the kit reaches an adapter: in process, as a subprocess, or out of a recording.

Every operation and its answer goes into the case's history, which is how a failure can
be looked at, and judged again, without the implementation.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ec_protocol.errors import ECError
from ec_verify.kit.adapter import OPERATIONS, Factory, Result, Unsupported

#: Exit status of an adapter command, or of one of its operations: not supported.
EXIT_UNSUPPORTED = 127
#: Longest time that one operation of a subprocess may take, real seconds.
ANSWER_S = 30.0


class ImplementationError(Exception):
    """The implementation raised, died or answered nonsense: a failure of its own."""


class HistoryError(ECError):
    """A history does not fit what the kit asks now: it cannot be judged again."""


class Link(ABC):
    """One instance of the implementation under test."""

    @abstractmethod
    def call(self, op: str, args: dict[str, Any]) -> Result:
        """Carry out an operation.

        Returns:
            Its result, with the outputs under ``out``.

        Raises:
            Unsupported: The implementation cannot do that.
            ImplementationError: It failed.
        """

    def kill(self) -> None:  # noqa: B027 - an instance in process is just dropped
        """End the instance at once, as SIGKILL does."""


class InProcess(Link):
    """An adapter object in this process: an ``Adapter``, or any object with its methods.

    Of an object that is none, a method that is missing or raises ``NotImplementedError`` is
    not supported, and what it sends it hands out by ``drain``, if it sends anything.
    """

    def __init__(self, factory: Factory) -> None:
        self._adapter = factory()

    def call(self, op: str, args: dict[str, Any]) -> Result:
        """See ``Link.call``."""
        method = getattr(self._adapter, op, None)
        if op not in OPERATIONS or method is None:
            raise Unsupported(op)
        try:
            result = dict(method(**args) or {})
        except (Unsupported, NotImplementedError) as exc:
            raise Unsupported(str(exc) or op) from exc
        except Exception as exc:
            raise ImplementationError(f"{op} raised {type(exc).__name__}: {exc}") from exc
        drain = getattr(self._adapter, "drain", None)
        result["out"] = [] if drain is None else list(drain())
        return result

    def kill(self) -> None:
        """Drop the adapter; ``close`` gives it the chance to free what a test would leak."""
        close = getattr(self._adapter, "close", None)
        if close is not None:
            close()


class Subprocess(Link):
    """An adapter command that speaks JSON lines: one request line, one answer line.

    A request is ``{"op": name, "args": {...}}``. An answer is ``{"result": {...},
    "out": [...]}``, ``{"unsupported": text}`` or ``{"error": text}``.
    """

    def __init__(self, command: str | Sequence[str]) -> None:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as exc:
            raise ImplementationError(f"cannot run {words}: {exc}") from exc
        self._buffer = b""

    def call(self, op: str, args: dict[str, Any]) -> Result:
        """See ``Link.call``."""
        line = json.dumps({"op": op, "args": args}, separators=(",", ":")).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            answer = json.loads(self._read_line(op))
        except (OSError, ValueError, ImplementationError) as exc:
            if self._exit_status() == EXIT_UNSUPPORTED:
                raise Unsupported(op) from exc
            raise ImplementationError(f"{op}: {exc}") from exc
        if not isinstance(answer, dict):
            raise ImplementationError(f"{op}: expected an object, got {answer!r:.200}")
        if "unsupported" in answer:
            raise Unsupported(str(answer["unsupported"]))
        if "error" in answer:
            raise ImplementationError(f"{op}: {answer['error']}")
        result = answer.get("result") or {}
        if not isinstance(result, dict):
            raise ImplementationError(f"{op}: result {result!r:.200} is no object")
        return {**result, "out": answer.get("out", [])}

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read_line(self, op: str) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + ANSWER_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise ImplementationError(f"no answer within {ANSWER_S:g} s")
                chunk = self._process.stdout.read(1 << 16)
                if not chunk:
                    raise ImplementationError(f"exit status {self._exit_status()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _exit_status(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return None


class Recorded(Link):
    """Answers out of a history instead of an implementation."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self._records = records

    def call(self, op: str, args: dict[str, Any]) -> Result:
        """See ``Link.call``.

        Raises:
            HistoryError: The kit asks something else than it did then.
        """
        if not self._records:
            raise HistoryError(f"the history has no answer to {op} {args}")
        record = self._records.pop(0)
        if record["op"] != op or record["args"] != args:
            raise HistoryError(
                f"then the kit asked {record['op']} {record['args']}, now {op} {args}"
            )
        if "unsupported" in record:
            raise Unsupported(record["unsupported"])
        if "error" in record:
            raise ImplementationError(record["error"])
        return dict(record["result"])


class Recorder(Link):
    """Passes operations on to a link and writes them down.

    Args:
        link: The instance.
        node: Its name in the case.
        history: Where to append to.
    """

    def __init__(self, link: Link, node: str, history: list[dict[str, Any]]) -> None:
        self._link = link
        self._node = node
        self._history = history

    def call(self, op: str, args: dict[str, Any]) -> Result:
        """See ``Link.call``."""
        record: dict[str, Any] = {"node": self._node, "op": op, "args": args}
        self._history.append(record)
        try:
            record["result"] = self._link.call(op, args)
        except Unsupported as exc:
            record["unsupported"] = str(exc)
            raise
        except ImplementationError as exc:
            record["error"] = str(exc)
            raise
        return dict(record["result"])

    def kill(self) -> None:
        """End the instance at once."""
        self._link.kill()
