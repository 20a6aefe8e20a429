# SPDX-License-Identifier: Apache-2.0
"""The parent of an instance's data processes: ``python -m ec_connector.processes.parent``.

A small process that the engine starts and that does what the engine cannot do while it
computes: it starts data processes, sees that they live, kills those that do not, and
starts others (``ec_protocol.processes`` decides). It touches no network and no memory of
the region. Each data process that works is handed on to the engine: its channel, a pidfd
by which the engine learns of its end first-hand, and its status page.

It acts for itself: whether the engine takes a step is nothing to it (EC-14.10). When the
engine is gone, it kills them all and ends; when it is gone itself, they die by their
parent-death signal, which its one thread makes reliable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from typing import Any, Final

import msgspec

from ec_connector.clock import boottime
from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.devices import VARIABLE
from ec_connector.processes.environment import sharing_in
from ec_connector.processes.memory import STATUS_BYTES, Shared, StatusPage
from ec_connector.processes.spawn import settle, start, wait_readable
from ec_connector.processes.spec import DataSpec, ParentSpec, command, read_spec, write_spec
from ec_connector.region.scratch import remove
from ec_protocol.errors import RemoteProtocolError
from ec_protocol.p2p import words
from ec_protocol.processes import (
    Command,
    KillProcess,
    Kind,
    Processes,
    StartProcess,
    TakePlace,
    Wanted,
    beat_interval,
)
from ec_protocol.trace import NdjsonSink, Recorder, Trace

#: How long the data processes have to say goodbye when the instance ends.
_GOODBYE_S: Final = 1.0
#: Messages for the engine that may wait; then those of the log are dropped. Of others
#: there are no more than a few for each process that runs.
_MAX_UNSAID: Final = 256
#: Longest text for the engine's log, in characters.
_LINE: Final = 4096


class _Child:
    """One data process, as far as the operating system has it."""

    def __init__(self, parent: _Parent, number: int, kind: Kind) -> None:
        self.number = number
        self.kind = kind
        spec = parent.spec
        ours, theirs = channel_pair()
        self.engine_end, its_engine_end = channel_pair()
        status = Shared.create(f"ec-status-{number}", STATUS_BYTES)
        serves = kind == "server"
        data = DataSpec(
            instance=parent.instance,
            kind=kind,
            process=number,
            parent_pid=os.getpid(),
            parent=theirs.fileno(),
            engine=its_engine_end.fileno(),
            status=status.fd,
            region=spec.region_for_server if serves else spec.region,
            table=spec.table if serves else -1,
            ledger=spec.ledger if serves else -1,
        )
        instance = parent.instance
        devices = instance.server_devices if serves else instance.reader_devices
        more = {VARIABLE: devices} if devices else {}
        self.scratch = instance.scratch and f"{instance.scratch}/{number}"
        fd, popen = -1, None
        try:
            if self.scratch:
                os.mkdir(self.scratch, 0o700)
                more = {**more, **sharing_in(self.scratch)}
            fd = write_spec(data)
            title = [kind, str(number), parent.instance.engine_id]
            argv = command("ec_connector.processes.data", fd, title)
            popen = start(argv, [fd, *data.fds], {**more, **os.environ})
            self.pidfd = os.pidfd_open(popen.pid)
        except BaseException:
            if popen is not None:  # no process that nobody watches
                popen.kill()
                popen.wait()
            ours.close()
            self.engine_end.close()
            status.close()
            remove(self.scratch)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
            theirs.close()
            its_engine_end.close()
        self.popen: subprocess.Popen[bytes] = popen
        self.channel = Channel(ours, words.FromData)
        self.status = StatusPage(status)
        self.works = False
        self.drains = False
        self.failed = ""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        self.popen.wait()
        os.close(self.pidfd)
        self.channel.close()
        self.engine_end.close()
        self.status.shared.close()
        remove(self.scratch)


class _Parent:
    def __init__(self, spec: ParentSpec) -> None:
        self.spec = spec
        self.instance = spec.instance
        self.engine = Channel.from_fd(spec.engine, words.ToParent)
        self._engine_pidfd = os.pidfd_open(self.instance.engine_pid)
        wanted: dict[Kind, Wanted] = {}
        if self.instance.serves:
            wanted["server"] = Wanted(1, 1)
        if self.instance.readers:
            wanted["reader"] = Wanted(self.instance.readers, 1)
        self.processes = Processes(
            wanted, self.instance.timers(), self._recorder(), first=spec.first
        )
        self._children: dict[int, _Child] = {}
        self._unsaid: list[tuple[Any, tuple[int, ...]]] = []
        self._stopping = False
        self._beat_s = beat_interval(self.processes.timing)
        self._awake_at = boottime()
        self._status = StatusPage(Shared(spec.status, writable=True))

    def _recorder(self) -> Recorder:
        path = self.instance.trace_file
        if path is None:
            return Recorder(None)
        stem, dot, suffix = path.partition(".ndjson")
        parent = "parent" if self.spec.first == 1 else f"parent-{self.spec.first}"
        own = f"{stem}.{parent}{dot}{suffix}" if dot else f"{path}.{parent}"
        trace = Trace(f"{self.instance.engine_id}.parent", boottime, NdjsonSink(own))
        trace.facts("instance", name=self.instance.incarnation, process=0)
        return Recorder(trace)

    # ----------------------------------------------------------------------- the loop
    def run(self) -> None:
        """Until the engine is gone, or says so."""
        while not self._over():
            self._look()
            self._tell_engine()
            if not self._over():
                self._sleep()
        self._end()

    def _over(self) -> bool:
        return self._stopping or not self.engine.open or self._engine_exited()

    def _wake(self) -> float:
        """A sign of life, and what time it is.

        What has passed beyond the longest sleep it stood still itself, and the others may
        have: a machine that was suspended, a terminal that stopped all of them (EC-14.11).
        """
        now = boottime()
        late = now - self._awake_at - self._beat_s
        if late > 0:
            self.processes.stood_still(late, now)
        self._awake_at = now
        self._status.beat(now)
        return now

    def _look(self) -> None:
        # Before anybody's sign of life is read: who is stopped in between judges by a
        # time at which it had still been fresh.
        now = self._wake()
        for message in self.engine.hear():
            if isinstance(message, words.Stop):
                self._stopping = True
            elif message.process in self._children:
                self._trouble(logging.ERROR, message.reason)
                self.processes.condemn(message.process, "replaced")
        for child in list(self._children.values()):
            self._hear(child)
        # Exits last: what they said before they went is heard first.
        for child in list(self._children.values()):
            if child.popen.poll() is not None:
                self._hear(child)  # what it said between that look and its end
                self._exited(child)
        for process in self.processes.tick(now):
            self._do(process, now)

    def _hear(self, child: _Child) -> None:
        number = child.number
        for message in child.channel.hear():
            now = boottime()
            if isinstance(message, words.Hello):
                if message.version != words.VERSION:
                    text = f"{child.kind} {number} speaks version {message.version}, not ours"
                    self._trouble(logging.ERROR, text + ": restart the instance")
                    self.processes.condemn(number, "other_version")
                    continue
                with contextlib.suppress(RemoteProtocolError):
                    self.processes.ready(number, now)
            elif isinstance(message, words.Working):
                # Said once, and when it was told to: who knows what runs there.
                if not child.works and number in self.processes.numbers("working"):
                    child.works = True
                    self._works(child, message)
            elif isinstance(message, words.Drain):
                self.processes.drain(number, now)
                if child.works and not child.drains:
                    child.drains = True
                    self._say(words.Leaving(number))
            elif isinstance(message, words.Failing):
                child.failed = message.error
            else:
                self._trouble(message.level, message.text, who=f"ec-{child.kind} {number}")
        # What it says there is its own affair; it cannot have lived later than now.
        self.processes.beat(number, min(child.status.beat_at, boottime()))

    def _works(self, child: _Child, message: words.Working) -> None:
        if child.kind == "server" and message.bound and self.instance.bind is not None:
            # Whoever serves after it is to be found where it was.
            bind = (self.instance.bind[0], message.bound)
            self.instance = msgspec.structs.replace(self.instance, bind=bind)
        where = (message.host, message.port, message.bound, message.key)
        up = words.Up(child.number, child.kind, child.popen.pid, *where)
        self._say(up, child.engine_end.fileno(), child.pidfd, child.status.shared.fd)

    def _exited(self, child: _Child) -> None:
        del self._children[child.number]
        self._unsay(child.number)
        code = child.popen.returncode
        now = boottime()
        ours = child.number in self.processes.numbers("killed")
        if child.number in self.processes.stuck:
            self._trouble(logging.WARNING, f"{child.kind} {child.number} is gone after all")
        self.processes.exited(child.number, now)
        if not ours:
            how = f"signal {-code}" if code < 0 else f"exit {code}"
            text = f"{child.kind} {child.number} ended by itself ({child.failed or how})"
            # It said why it cannot work, so the next one could not either.
            self._trouble(logging.ERROR, text, fatal=bool(child.failed) and not child.works)
        child.close()

    def _do(self, what: Command, now: float) -> None:
        if isinstance(what, StartProcess):
            try:
                self._children[what.process] = _Child(self, what.process, what.kind)
            except OSError as exc:
                self.processes.exited(what.process, now)
                self._trouble(logging.ERROR, f"{what.kind} cannot be started: {exc}")
        elif isinstance(what, TakePlace):
            bind = self.instance.bind
            port = bind[1] if what.kind == "server" and bind is not None else 0
            self._children[what.process].channel.say(words.Take(port))
        elif isinstance(what, KillProcess):
            child = self._children[what.process]
            child.kill()
            level = logging.INFO if what.reason == "drained" else logging.ERROR
            self._trouble(level, f"{child.kind} {child.number} is killed: {what.reason}")
            if child.works:
                self._say(words.Leaving(child.number, killed=True))
        else:
            child = self._children[what.process]
            text = f"{child.kind} {child.number} (pid {child.popen.pid}) was killed and does not "
            text += "exit: what it has been lent, or has granted, stays out of use until it does"
            self._trouble(logging.ERROR, text)

    # ----------------------------------------------------------------------- the engine
    def _trouble(
        self, level: int, text: str, *, who: str = "ec-parent", fatal: bool = False
    ) -> None:
        if len(self._unsaid) >= _MAX_UNSAID and not fatal:
            return  # an engine that does not step reads no log either
        # One line, and one that fits into a message: a child may say anything.
        text = " ".join(text[:_LINE].encode(errors="replace").decode().splitlines())
        self._say(words.Trouble(level, text, fatal=fatal, who=who))

    def _say(self, message: Any, *fds: int) -> None:
        # Numbers of our own: the child may be gone before the engine reads.
        self._unsaid.append((message, tuple(os.dup(fd) for fd in fds)))

    def _unsay(self, process: int) -> None:
        """Who is gone by now needs no introduction: what waits for an engine has a bound."""
        waits = self._unsaid
        self._unsaid = []
        for message, fds in waits:
            if isinstance(message, words.Trouble) or message.process != process:
                self._unsaid.append((message, fds))
                continue
            for fd in fds:
                os.close(fd)

    def _tell_engine(self) -> None:
        while self._unsaid:
            message, fds = self._unsaid[0]
            if not self.engine.say(message, fds):
                return
            del self._unsaid[0]
            for fd in fds:
                os.close(fd)

    def _engine_exited(self) -> bool:
        return wait_readable(self._engine_pidfd, 0.0)

    def _sleep(self) -> None:
        """Until somebody says something or ends, or something is due."""
        poll = select.poll()
        for fd in (self.engine.fileno(), self._engine_pidfd):
            poll.register(fd, select.POLLIN)
        for child in self._children.values():
            poll.register(child.pidfd, select.POLLIN)
            if child.channel.open:
                poll.register(child.channel.fileno(), select.POLLIN)
        now = self._awake_at
        deadline = self.processes.next_deadline()
        until = float("inf") if deadline is None else deadline
        if self._unsaid:
            until = min(until, now + self._beat_s)
        while not poll.poll(max(1.0, min(self._beat_s, until - now) * 1000)):
            now = self._wake()
            if now >= until:
                return

    def _end(self) -> None:
        """Let them say goodbye if the engine did, kill them, and see that they are gone."""
        # Who does not work has nothing to say, and may not listen yet.
        works = [child for child in self._children.values() if child.works and self._stopping]
        for child in works:
            child.channel.say(words.Stop())
        until = boottime() + _GOODBYE_S
        for child in works:
            wait_readable(child.pidfd, until - boottime())
        self.processes.stop()
        for what in self.processes.tick(boottime()):
            self._do(what, boottime())
        # Not for ever: one that the kernel cannot end is the engine's to report (EC-14.13).
        until = boottime() + _GOODBYE_S
        for child in list(self._children.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.popen.wait(max(0.0, until - boottime()))
                child.close()
        # The engine does the same, if it is there.
        remove(self.instance.scratch)


def main(argv: list[str]) -> None:
    """Entry point of the process."""
    spec: ParentSpec = read_spec(int(argv[1]), ParentSpec)
    # The thread of the engine that started it may end before the engine does.
    settle("ec-parent", spec.instance.engine_pid, dies_with_parent=False)
    # What the engine gave us is passed on by name, and to nobody by accident.
    for fd in spec.fds:
        os.set_inheritable(fd, False)
    if spec.version != words.VERSION:
        # It was installed while the engine ran.
        text = f"the engine speaks version {spec.version}, what is installed now speaks "
        text += f"{words.VERSION}: restart the instance"
        engine = Channel.from_fd(spec.engine, words.ToParent)
        engine.say(words.Trouble(logging.ERROR, text, fatal=True, who="ec-parent"))
        return
    _Parent(spec).run()


if __name__ == "__main__":
    main(sys.argv)
