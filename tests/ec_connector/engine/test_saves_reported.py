# SPDX-License-Identifier: Apache-2.0
"""When a save is reported: with its own step if it can be, else with the very next one.

The host asks for a step's reports right after it has *queued* the encoder, and once per
step. A device then has the encoder, the save behind it, and perhaps the language model
still to run, so its save cannot have ended; the next time anybody asks is the next step.
Waiting instead would stop the host for the whole encoder, every step. What remains to be
shown is that the report comes with the first question after the save's end, and that the
question is asked although no request wants a step.
"""

from __future__ import annotations

from tests.world.engine import engine
from tests.world.host import request


def test_on_a_device_the_report_hook_runs_before_the_encoder_has():
    with engine() as e:
        e.host.add(request("r", ("a", 3)))
        assert e.schedule()
        assert e.work()
        (rank,) = e.ranks
        assert rank.outputs[0].report is None
        kinds = [op.kind for op in rank.device.queued]
        assert kinds[0] == "compute", "the encoder itself has not run when it is asked"
        assert kinds.index("end_save") > 0
        rank.device.run_all()
        e.complete()
        e.drain()


def test_it_is_reported_with_the_first_step_after_its_end_and_an_idle_engine_makes_that_step():
    with engine() as e:
        e.host.add(request("r", ("a", 3)))
        e.step()  # to its end, on the device too
        assert len(e.host.finished) == 1
        assert not e.host.waiting
        assert not e.host.running
        entry = e.tier.get("a")
        assert entry.state == "saving"
        assert e.scheduler.has_pending_push_work(), "or nobody would ever ask again"
        assert e.host.wants_step
        e.step()  # an empty step
        assert entry.state == "ready"
        assert not e.scheduler.has_pending_push_work()
        e.host.to_announce = 0
        assert not e.host.wants_step
        e.drain()


def test_a_device_that_is_slower_than_the_steps_is_asked_until_it_is_done():
    """The encoder has run and the model too; only the copy takes longer than both."""
    with engine(depth=2) as e:
        e.host.add(request("r", ("a", 3), output_len=3))
        (rank,) = e.ranks
        for _ in range(4):
            e.schedule()
            e.work()
            for op in list(rank.device.runnable()):
                if op.kind == "compute":
                    rank.device.run(op)
            e.complete()
        entry = e.tier.get("a")
        assert (entry.state, e.scheduler.has_pending_push_work()) == ("saving", True)
        asked = 0
        while entry.state == "saving":
            rank.device.run_all()
            e.step()
            asked += 1
        assert asked <= e.depth + 1, "at most the steps that were under way, and one more"
        e.drain()


def test_on_a_cpu_it_is_reported_with_the_step_that_made_it():
    with engine(kind="cpu") as e:
        e.host.add(request("r", ("a", 3)))
        e.step()
        entry = e.tier.get("a")
        assert entry.state in ("ready", "pinned")
        assert not e.scheduler.has_pending_push_work()
        e.drain()
