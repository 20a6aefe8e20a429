# SPDX-License-Identifier: Apache-2.0
"""The parent, over real processes that say whatever a test wants them to say."""

from __future__ import annotations

import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs

needs("zmq", "msgspec")

from ec_connector.processes import parent as parent_module
from ec_protocol.p2p import words
from tests.ec_connector.processes.alive import children

pytest_plugins = ["tests.ec_connector.processes.house"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


def test_who_works_is_handed_on_with_channel_pidfd_and_page(house: Any) -> None:
    made = house('told = ready(); parent.say(words.Working("h", 9, told.port or 4711))')
    made.until(lambda: made.of(words.Up), "Up")
    (up,) = made.of(words.Up)
    assert (up.kind, up.host, up.port, up.bound) == ("server", "h", 9, 4711)
    assert len(made.fds) == 3
    os.kill(up.pid, signal.SIGKILL)
    made.until(lambda: len(made.of(words.Up)) == 2, "the next")
    assert made.of(words.Up)[1].bound == 4711, "told to bind where the one before it was"
    assert "ended by itself (signal 9)" in "".join(made.troubles())


@pytest.mark.clause("EC-14.4")
def test_what_is_said_again_and_again_is_handed_on_once(house: Any) -> None:
    body = """
ready()
for _ in range(50):
    parent.say(words.Working("h", 1, 1))
for _ in range(50):
    parent.say(words.Drain("x"))
parent.say(words.Trouble(40, "done"))
"""
    made = house(body)
    made.until(lambda: any("done" in text for text in made.troubles()), "the last word")
    works = [up.process for up in made.of(words.Up)]
    leaves = [leaving.process for leaving in made.of(words.Leaving)]
    assert len(works) == len(set(works))
    assert len(leaves) == len(set(leaves))
    assert set(leaves) <= set(works)


def test_nobody_works_before_it_is_told_to(house: Any) -> None:
    body = 'parent.say(words.Working("h", 1, 1)); parent.say(words.Drain("x"))\n'
    made = house(body + 'parent.say(words.Trouble(40, "early")); ready(); wait(words.Stop)')
    made.until(lambda: sum("early" in text for text in made.troubles()) == 2, "both")
    assert made.of(words.Up) == made.of(words.Leaving) == []


def test_a_reader_does_not_say_where_servers_are(house: Any) -> None:
    made = house('ready(); parent.say(words.Working("h", 1, 99))', readers=1)
    made.until(lambda: len(made.of(words.Up)) == 2, "both kinds")
    assert {up.kind for up in made.of(words.Up)} == {"server", "reader"}
    made.parent.instance = made.spec.instance
    body_bind = made.parent.instance.bind
    for child in made.parent._children.values():
        if child.kind == "reader":
            made.parent._works(child, words.Working("h", 1, 99))
    assert made.parent.instance.bind == body_bind


@pytest.mark.parametrize("round_", range(5))
def test_last_words_are_heard_however_quickly_the_end_follows(house: Any, round_: int) -> None:
    made = house('ready(); parent.say(words.Failing("no such port")); os._exit(1)')
    made.until(lambda: made.troubles(), "the trouble")
    first = made.of(words.Trouble)[0]
    assert "no such port" in first.text
    assert first.fatal
    assert first.level == logging.ERROR


def test_last_words_between_a_look_and_the_end_are_heard(house: Any, monkeypatch) -> None:
    """The child speaks and ends after it was listened to, and before its exit is looked for."""
    made = house('ready(); parent.say(words.Failing("late")); os._exit(1)')
    hear, seen = made.parent._hear, []

    def first_deaf(child: Any) -> None:
        if child.number in seen or child.number not in made.parent.processes.numbers("working"):
            hear(child)
            return
        seen.append(child.number)  # what it says was not there yet when we listened
        child.popen.wait(60)

    monkeypatch.setattr(made.parent, "_hear", first_deaf)
    made.until(lambda: made.troubles(), "the trouble")
    assert "late" in made.troubles()[0]


def test_who_worked_once_and_fails_is_no_reason_to_give_up(house: Any) -> None:
    body = 'ready(); parent.say(words.Working()); parent.say(words.Failing("broke")); os._exit(1)'
    made = house(body)
    made.until(lambda: made.troubles(), "the trouble")
    assert "broke" in made.troubles()[0]
    assert not made.of(words.Trouble)[0].fatal


@pytest.mark.clause("EC-14.4")
def test_a_text_of_any_length_is_one_line_and_blocks_nothing(house: Any) -> None:
    body = r'parent.say(words.Failing("a\nb\r" + "x" * 65000)); time.sleep(0); os._exit(1)'
    made = house(body)
    made.until(lambda: len(made.troubles()) >= 2, "two of them")
    for text in made.troubles():
        assert len(text) <= parent_module._LINE
        assert "\n" not in text
        assert "\r" not in text
        assert "a b" in text


def test_another_version_is_killed_and_named(house: Any) -> None:
    made = house("parent.say(words.Hello(99))")
    made.until(lambda: made.troubles(), "the trouble")
    assert "speaks version 99, not ours: restart the instance" in made.troubles()[0]
    made.until(lambda: made.parent.processes.counters["exits"], "its end")
    assert made.of(words.Up) == []


def test_garbage_and_a_clock_that_lies_harm_nobody(house: Any) -> None:
    body = """
status.beat(math.inf); parent._sock.send(b"\\xc1"); parent._sock.send(b"\\xc1" * 60000)
parent.say(words.Hello(words.VERSION)); parent.say(words.Hello(words.VERSION))
status.beat(math.nan)
wait(words.Take); parent.say(words.Working("h", 1, 1))
"""
    made = house(body)
    made.until(lambda: made.of(words.Up), "Up")
    for child in made.parent._children.values():
        child.status.beat(math.inf)
        made.parent._hear(child)
    beats = [one.beat_at for one in made.parent.processes._all.values()]
    assert max(beats) <= parent_module.boottime(), "nobody has lived later than now"


@pytest.mark.clause("EC-14.4")
def test_what_an_engine_does_not_take_is_bounded(house: Any, monkeypatch) -> None:
    monkeypatch.setattr(parent_module, "_MAX_UNSAID", 10)
    body = "ready(); parent.say(words.Working())\nwhile parent.open:\n"
    made = house(body + '    parent.say(words.Trouble(30, "y" * 3000)); wait_a_bit = 0')
    made.until(lambda: made.of(words.Up), "Up")
    look = made.parent._look
    made.until(lambda: len(made.parent._unsaid) >= 10, "as many as may wait", look)
    for _ in range(100):
        look()
    assert len(made.parent._unsaid) <= 10 + 4


def test_one_that_cannot_be_watched_is_not_left_running(house: Any, monkeypatch) -> None:
    made = house("ready()")
    real = os.pidfd_open

    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    made.parent._look()
    assert made.parent._children == {}
    assert set(children(os.getpid())) <= made.others
    monkeypatch.setattr(os, "pidfd_open", real)
    made.parent._tell_engine()
    made.until(lambda: made.troubles(), "the trouble")
    assert "cannot be started" in made.troubles()[0]


def test_the_engine_may_have_one_killed(house: Any) -> None:
    made = house("ready(); parent.say(words.Working())")
    made.until(lambda: made.of(words.Up), "Up")
    made.engine.say(words.Replace(99, "who is that"))
    victim = made.of(words.Up)[0].process
    made.engine.say(words.Replace(victim, "it keeps too much"))
    made.until(lambda: len(made.of(words.Up)) == 2, "the next")
    assert made.troubles() == ["it keeps too much", f"server {victim} is killed: replaced"]


@pytest.mark.clause("EC-14.9")
def test_another_one_takes_the_place_of_a_reader_that_drains(house: Any) -> None:
    body = 'ready(); parent.say(words.Working()); parent.say(words.Drain("a READ is lost"))'
    made = house(body, bind=None, readers=1)
    made.until(lambda: len(made.of(words.Up)) == 2, "the next")
    assert made.of(words.Leaving)[0].process == made.of(words.Up)[0].process


@pytest.mark.clause("EC-9.5")
def test_those_who_come_and_go_leave_no_descriptor(house: Any) -> None:
    made = house("ready(); parent.say(words.Working())")
    descriptors = []
    for number in range(1, 5):
        made.until(lambda n=number: len(made.of(words.Up)) == n, "one that works")
        made.until(lambda: made.parent.processes.numbers("spare"), "one that stands by")
        while made.fds:
            os.close(made.fds.pop())
        descriptors.append(len(os.listdir("/proc/self/fd")))
        os.kill(made.of(words.Up)[-1].pid, signal.SIGKILL)
    assert descriptors == [descriptors[0]] * 4


def test_who_works_may_say_goodbye(house: Any, monkeypatch) -> None:
    monkeypatch.setattr(parent_module, "_GOODBYE_S", 60.0)
    made = house("ready(); parent.say(words.Working()); wait(words.Stop); os._exit(7)")
    made.until(lambda: made.of(words.Up), "Up")
    (works,) = [child.popen for child in made.parent._children.values() if child.works]
    made.parent._stopping = True
    made.parent._end()
    made.ended = True
    assert works.wait(60) == 7


@pytest.mark.clause("EC-14.13")
def test_one_that_does_not_exit_is_named_and_nobody_waits_for_it(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel cannot end it, as far as its parent can see."""
    monkeypatch.setattr(parent_module._Child, "kill", lambda child: None)
    made = house("ready(); parent.say(words.Working())", bind=None, readers=1)
    made.until(lambda: made.of(words.Up), "Up")
    first = made.of(words.Up)[0].process
    stuck = made.parent._children[first]
    made.engine.say(words.Replace(first, "it does not end"))
    made.until(lambda: len(made.of(words.Up)) == 2, "another one")
    assert words.Leaving(first, killed=True) in made.of(words.Leaving)
    process = made.parent.processes._all[first]
    process.killed_at -= made.parent.processes.timing.stall_s
    made.until(lambda: len(made.troubles()) == 3, "the report")
    assert f"(pid {stuck.popen.pid}) was killed and does not exit" in made.troubles()[2]
    made.turn()
    assert len(made.troubles()) == 3, "once"
    stuck.popen.kill()
    made.until(lambda: len(made.troubles()) == 4, "its exit")
    assert made.troubles()[3] == f"reader {first} is gone after all"
    monkeypatch.undo()


@pytest.mark.clause("EC-14.13")
def test_the_end_waits_for_no_process_that_does_not_exit(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = house("signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(1000)")
    made.until(lambda: made.parent.processes.numbers("working"), "one that works")
    monkeypatch.setattr(parent_module._Child, "kill", lambda child: None)
    children_ = list(made.parent._children.values())
    made.parent._end()
    made.ended = True
    monkeypatch.undo()
    for child in children_:
        assert child.popen.poll() is None
        child.kill()
        child.close()


def test_it_beats_while_it_runs_and_does_not_sleep_over_the_end(house: Any) -> None:
    made = house("ready()")
    beats: list[float] = []
    made.parent._sleep = lambda: (
        beats.append(made.parent._status.beat_at) or made.engine.say(words.Stop())
    )
    made.parent.run()
    made.ended = True
    assert beats[0] > 0
    assert len(beats) == 1


# ------------------------------------------------------- what it is not to blame others for
class Later:
    """The parent's clock, which jumps when a test says so; its children's does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = parent_module.boottime
        monkeypatch.setattr(parent_module, "boottime", lambda: real() + self.ahead)


@pytest.mark.clause("EC-14.11")
def test_time_that_it_slept_with_its_machine_kills_nobody(house: Any, monkeypatch) -> None:
    """It is the first to run again: no child has given a sign of life since."""
    later = Later(monkeypatch)
    made = house("ready(); parent.say(words.Working())", readers=1)
    made.until(lambda: len(made.of(words.Up)) == 2, "both")
    made.until(lambda: len(made.parent.processes.numbers("spare")) == 2, "who stands by")
    later.ahead = 3600.0
    made.turn()
    made.turn()
    assert made.parent.processes.counters["exits"] == 0
    assert made.parent.processes.numbers("killed") == []
    assert made.parent.processes.next_deadline() <= parent_module.boottime() + 20.0


@pytest.mark.clause("EC-14.11")
def test_nor_whoever_was_starting(house: Any, monkeypatch) -> None:
    later = Later(monkeypatch)
    made = house("wait(words.Take)")
    made.turn()
    assert len(made.parent.processes.numbers("starting")) == 2
    later.ahead = 3600.0
    made.turn()
    assert len(made.parent.processes.numbers("starting")) == 2


@pytest.mark.clause("EC-14.11")
def test_to_be_stopped_between_two_looks_at_the_clock_kills_nobody(house: Any, monkeypatch) -> None:
    """It reads what time it is, is stopped, and reads signs of life after that; or before."""
    later = Later(monkeypatch)
    made = house("ready(); parent.say(words.Working())")
    made.until(lambda: made.of(words.Up), "Up")
    hear = made.parent._hear

    def stopped(child: Any) -> None:
        later.ahead += 1800.0
        hear(child)
        later.ahead += 1800.0

    monkeypatch.setattr(made.parent, "_hear", stopped)
    made.turn()
    monkeypatch.undo()
    assert made.parent.processes.numbers("killed") == []


@pytest.mark.clause("EC-14.4")
def test_whom_the_engine_has_not_met_is_forgotten_when_he_is_gone(house: Any) -> None:
    """An engine that takes no steps: those who come and go meanwhile wait nowhere for it."""
    made = house("ready(); parent.say(words.Working())")
    parent = made.parent
    while parent.engine.say(words.Trouble(20, "x" * 1000)):
        pass

    def works() -> list[int]:
        return [child.popen.pid for child in parent._children.values() if child.works]

    descriptors = []
    for _ in range(5):
        made.until(works, "one that works", parent._look)
        descriptors.append(len(os.listdir("/proc/self/fd")))
        (pid,) = works()
        os.kill(pid, signal.SIGKILL)
        made.until(lambda p=pid: p not in works(), "its end", parent._look)
    assert sum(isinstance(said, words.Up) for said, _ in parent._unsaid) <= 1
    assert max(descriptors) <= descriptors[0] + 12


def test_at_the_end_only_those_who_work_are_waited_for(house: Any, monkeypatch) -> None:
    made = house("ready(); parent.say(words.Working())")
    made.until(lambda: made.of(words.Up), "Up")
    waited: list[int] = []
    wait = parent_module.wait_readable

    def say_goodbye(fd: int, seconds: float) -> bool:
        if made.parent.processes.stopping:
            return wait(fd, seconds)  # all were killed by then
        waited.append(fd)
        return False

    monkeypatch.setattr(parent_module, "wait_readable", say_goodbye)
    (works,) = [child.pidfd for child in made.parent._children.values() if child.works]
    assert len(made.parent._children) >= 2
    made.parent._stopping = True
    made.parent._end()
    made.ended = True
    assert waited == [works]


# --------------------------------------------------------------------------------- the log
def test_what_is_logged_names_process_logger_and_level(house: Any) -> None:
    """As a data process sets its log up; whatever its libraries do with theirs."""
    body = """
import logging, warnings
from ec_connector.processes import data
class Own(logging.Handler):
    def emit(self, record): parent.say(words.Trouble(50, "in a format of its own"))
nixl = logging.getLogger("nixl"); nixl.addHandler(Own()); nixl.propagate = False
data.log_to(parent); data.load_nixl = lambda package: None; data._load_nixl("nixl")
logging.getLogger("a.b").warning("no %s", "room")
logging.getLogger("nixl.deep").error("two\\nlines")
warnings.warn("old")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("c").exception("it broke")
logging.getLogger("d").debug("not this")
"""
    made = house(body + "ready()")
    made.until(lambda: any("it broke" in text for text in made.troubles()), "the last record")
    assert "in a format of its own" not in made.troubles()
    said = [m for m in made.of(words.Trouble) if m.who == made.of(words.Trouble)[0].who][:4]
    assert said[0].who in ("ec-server 1", "ec-server 2")
    assert (said[0].level, said[0].text) == (logging.WARNING, "a.b: no room")
    assert (said[1].level, said[1].text) == (logging.ERROR, "nixl.deep: two lines")
    assert said[2].text.startswith("py.warnings: ")
    assert said[3].text.startswith("c: it broke Traceback")
    assert "ZeroDivisionError" in said[3].text


# ------------------------------------------------------- what they share under a name
@pytest.mark.clause("EC-10.6")
@pytest.mark.parametrize("end", ["killed", "the instance's"])
def test_what_one_leaves_under_a_name_goes_with_it(house: Any, tmp_path: Path, end: str) -> None:
    """As UCX does for a moment with each piece of memory that it shares."""
    body = """
folder = os.environ["UCX_POSIX_DIR"]
open(os.path.join(folder, "ucx_shm"), "w").close(); os.mkdir(os.path.join(folder, "more"))
ready(); parent.say(words.Working())
"""
    made = house(body, scratch=str(tmp_path))
    made.until(lambda: made.of(words.Up), "Up")
    (up,) = made.of(words.Up)
    mine = tmp_path / str(up.process)
    assert sorted(os.listdir(mine)) == ["more", "ucx_shm"]
    if end == "killed":
        os.kill(up.pid, signal.SIGKILL)
        made.until(lambda: len(made.of(words.Up)) == 2, "the next")
        assert not mine.exists()
        assert os.listdir(tmp_path) != [], "others keep theirs"
        return
    made.parent._stopping = True
    made.parent._end()
    made.ended = True
    assert not tmp_path.exists()


def test_one_for_which_there_is_no_folder_is_not_started(house: Any, tmp_path: Path) -> None:
    made = house("ready()", scratch=str(tmp_path / "gone"))
    made.until(lambda: made.troubles(), "the trouble")
    assert "server cannot be started: [Errno 2] No such file" in made.troubles()[0]
    assert made.parent._children == {}
