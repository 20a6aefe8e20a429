# SPDX-License-Identifier: Apache-2.0
"""What the reader asks of its library, over one that does what a test says."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.network.data import reader as reader_module
from ec_connector.network.data.base import BadAgentMetadata, DataPlaneError
from ec_connector.network.data.reader import NixlReader
from ec_protocol.errors import LocalProtocolError

NBYTES = 4096
#: Of a layout that is not checked: every blob is a peer of its own.
PIECES = (((0, 64),), ((1 << 20, 64),))


class Handle:
    def __init__(self) -> None:
        self.released = False

    def release(self) -> None:
        self.released = True


class Nixl:
    """The library: states of READs and errors are put in, calls are kept."""

    def __init__(self) -> None:
        self.state = "PROC"
        self.errors: dict[str, Exception] = {}
        self.known: list[str] = []
        self.removed: list[str] = []
        self.handles: list[Handle] = []
        self.progressed = 0

    def _may_fail(self, what: str) -> None:
        if what in self.errors:
            raise self.errors[what]

    def get_xfer_descs(self, pieces: Any, memory: str) -> Any:
        return pieces

    def initialize_xfer(self, *args: Any) -> Handle:
        self.handles.append(Handle())
        return self.handles[-1]

    def transfer(self, handle: Handle) -> str:
        self._may_fail("transfer")
        return self.state

    def check_xfer_state(self, handle: Handle) -> str:
        self._may_fail("check")
        return self.state

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self.progressed += 1
        return {}

    def send_notif(self, peer: str, notice: bytes) -> None:
        self._may_fail("notify")

    def add_remote_agent(self, blob: bytes) -> bytes:
        self._may_fail("add")
        self.known.append(blob.decode())
        return blob

    def remove_remote_agent(self, name: str) -> None:
        self.removed.append(name)


class Agent:
    def __init__(self, *args: Any) -> None:
        self.nixl = Nixl()
        self.destroyed = False

    def metadata(self) -> bytes:
        raise BadAgentMetadata("another layout")

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> NixlReader:
    monkeypatch.setattr(reader_module, "Agent", Agent)
    return NixlReader("r", 1 << 30, NBYTES)


def nixl(reader: NixlReader) -> Nixl:
    found = reader._nixl
    assert isinstance(found, Nixl)
    return found


def prepared(reader: NixlReader, attempt: int = 1, peer: bytes = b"p") -> None:
    reader.prepare(attempt, peer, *PIECES, 0, b"notice")


def failed(reader: NixlReader, attempt: int = 1) -> None:
    prepared(reader, attempt)
    reader.post(attempt)
    nixl(reader).errors["check"] = RuntimeError("remote is gone")
    assert [event.outcome for event in reader.poll()] == ["error"]
    del nixl(reader).errors["check"]


# ----------------------------------------------------------------------- one READ
@pytest.mark.clause("EC-6.4")
@pytest.mark.parametrize("how", ["post", "poll"])
def test_the_handle_of_a_read_that_failed_is_kept(reader: NixlReader, how: str) -> None:
    if how == "post":
        prepared(reader)
        nixl(reader).errors["transfer"] = RuntimeError("no")
        with pytest.raises(DataPlaneError):
            reader.post(1)
    else:
        failed(reader)
    with pytest.raises(LocalProtocolError, match="kept until there is a proof"):
        reader.release(1)
    with pytest.raises(LocalProtocolError, match="READ 1 is failed, not prepared"):
        reader.discard(1)
    assert not nixl(reader).handles[0].released


@pytest.mark.clause("EC-6.4")
def test_an_abandoned_read_says_that_it_is_done_and_not_that_it_failed(reader: NixlReader) -> None:
    for attempt, (state, wanted) in enumerate((("DONE", ["done"]), ("ERR", [])), 1):
        prepared(reader, attempt)
        nixl(reader).state = "PROC"
        reader.post(attempt)
        reader.abandon(attempt)
        nixl(reader).state = state
        assert [event.outcome for event in reader.poll()] == wanted
    reader.release(1)
    assert [handle.released for handle in nixl(reader).handles] == [True, False]


def test_a_state_that_is_none_is_a_failure(reader: NixlReader) -> None:
    prepared(reader)
    nixl(reader).state = "WHO KNOWS"
    with pytest.raises(DataPlaneError, match="the backend reports WHO KNOWS"):
        reader.post(1)


# --------------------------------------------------------------------- producers
@pytest.mark.clause("EC-9.3")
def test_an_endpoint_that_broke_is_made_anew(reader: NixlReader) -> None:
    failed(reader)
    with pytest.raises(DataPlaneError, match="READs of the former p are not over"):
        prepared(reader, 2)
    nixl(reader).state = "DONE"
    reader._reads[1].state = "done"  # the proof came by other ways
    reader.release(1)
    prepared(reader, 2)
    assert nixl(reader).removed == ["p"]
    assert nixl(reader).known == ["p", "p"]


def test_one_whose_notice_could_not_be_sent_is_made_anew_too(reader: NixlReader) -> None:
    nixl(reader).errors["notify"] = RuntimeError("no")
    with pytest.raises(DataPlaneError):
        reader.notify(b"p", b"n")
    prepared(reader)
    assert nixl(reader).known == ["p", "p"]


@pytest.mark.clause("EC-9.5")
def test_producers_without_reads_are_bounded_and_the_longest_quiet_goes(
    reader: NixlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_MAX_IDLE_PEERS", 3)
    prepared(reader, 1, b"busy")
    for number in range(6):
        reader.notify(b"p%d" % number, b"n")
        reader.notify(b"p0", b"n")
    assert sorted(reader._peers) == ["busy", "p0", "p4", "p5"]
    assert nixl(reader).removed == ["p1", "p2", "p3"]


def test_a_notice_is_progressed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "Agent", Agent)
    now = [1000.0]
    reader = NixlReader("r", 1 << 30, NBYTES, clock=lambda: now[0])
    assert not reader.sending
    reader.notify(b"p", b"n")
    reader.poll()
    assert (reader.sending, nixl(reader).progressed) == (True, 1)
    now[0] += reader_module._NOTICE_S
    reader.poll()
    assert (reader.sending, nixl(reader).progressed) == (False, 1)


def test_closing_lets_go_of_everything(reader: NixlReader) -> None:
    prepared(reader)
    handle, agent = nixl(reader).handles[0], reader._agent
    reader.close()
    reader.close()
    assert handle.released
    assert isinstance(agent, Agent)
    assert agent.destroyed
    with pytest.raises(DataPlaneError, match="is closed"):
        prepared(reader, 2)


@pytest.mark.parametrize("local", [((-1, 64),), ((NBYTES - 63, 64),), ((0, 0),), ()])
def test_no_byte_outside_the_region_is_asked_for(reader: NixlReader, local: Any) -> None:
    remote = tuple((1 << 20, nbytes) for _, nbytes in local)
    with pytest.raises(LocalProtocolError):
        reader.prepare(1, b"p", local, remote, 0, b"n")
    assert nixl(reader).handles == []
