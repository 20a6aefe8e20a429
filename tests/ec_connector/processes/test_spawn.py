# SPDX-License-Identifier: Apache-2.0
"""What a process of ours is when it begins: named, alone, and unable to do what it need not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.needs import needs

needs("zmq", "msgspec")

from ec_connector.processes.channel import Channel, channel_pair
from ec_connector.processes.memory import STATUS_BYTES, Shared
from ec_connector.processes.spawn import start
from ec_connector.processes.spec import DataSpec, command, write_spec
from ec_protocol.p2p import words
from tests.ec_connector.network.played import data_spec

pytestmark = pytest.mark.clause("EC-14.1")

_SETTLED = """
import ctypes, os, resource, signal, sys
from ec_connector.processes.spawn import MAX_FILES, settle
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)  # whatever the session has
settle("ec-test", int(sys.argv[1]), dies_with_parent=bool(int(sys.argv[2])))
dies_by = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(dies_by))  # PR_GET_PDEATHSIG
ignored = [signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)]
core = resource.getrlimit(resource.RLIMIT_CORE)
files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= MAX_FILES
print(open("/proc/self/comm").read().strip(), dies_by.value, all(ignored), core, files)
"""


def settled(parent: int, dies: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _SETTLED, str(parent), str(int(dies))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("dies", [True, False])
def test_it_has_a_name_dies_with_its_parent_and_leaves_signals_to_the_engine(dies: bool) -> None:
    done = settled(os.getpid(), dies)
    assert done.returncode == 0, done.stderr
    by = int(signal.SIGKILL) if dies else 0
    assert done.stdout == f"ec-test {by} True (0, 0) True\n"


def test_one_whose_parent_is_gone_already_does_nothing() -> None:
    """The death of its parent was before it asked to be told of that."""
    done = settled(os.getpid() + 1, True)
    assert (done.returncode, done.stdout) == (0, "")


def test_nothing_is_imported_from_where_the_host_was_started(tmp_path: Path) -> None:
    (tmp_path / "lies_here.py").write_text("print('from here')", encoding="utf-8")
    argv = command("lies_here", 0, [])
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "from here" not in done.stdout
    assert "No module named" in done.stderr


def test_what_it_is_told_is_for_it_alone() -> None:
    fd = write_spec(data_spec("reader"))
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_one_that_cannot_work_says_why_and_ends_with_a_status(tmp_path: Path) -> None:
    """Its region cannot be mapped."""
    ours, theirs = channel_pair()
    engine, its_engine = channel_pair()
    status = Shared.create("ec-test", STATUS_BYTES)
    region = os.open(tmp_path, os.O_RDONLY)
    told = data_spec("reader", nixl="no_such_package")
    spec = DataSpec(
        instance=told.instance,
        kind="reader",
        process=7,
        parent_pid=os.getpid(),
        parent=theirs.fileno(),
        engine=its_engine.fileno(),
        status=status.fd,
        region=region,
    )
    fd = write_spec(spec)
    argv = command("ec_connector.processes.data", fd, [])
    child = start(argv, [fd, *spec.fds], dict(os.environ))
    for end in (theirs, its_engine):
        end.close()
    for number in (fd, region):
        os.close(number)
    assert child.wait(60) == 1
    parent = Channel(ours, words.FromData)
    (failing,) = [m for m in parent.hear() if isinstance(m, words.Failing)]
    assert failing.error
    parent.close()
    engine.close()
    status.close()
