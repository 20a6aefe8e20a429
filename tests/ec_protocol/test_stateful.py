# SPDX-License-Identifier: Apache-2.0
"""Random schedules (``tests.world.schedules``), and random races about leases."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.world.schedules import PICK, ConnectorMachine

SETTINGS = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestConnector = ConnectorMachine.TestCase
TestConnector.settings = SETTINGS


class RaceMachine(ConnectorMachine):
    """One producer, one consumer, one name to fight over: races about leases.

    The producer has room for two of the three encodings, so whatever is let go is
    soon overwritten; there are few rules, so that long races come up often.
    """

    plan_save = has_cache_item = plan_load = build_meta_rule = encoder_writes = None
    produce_rule = report_save = report_load = announce = ensure_rule = None
    fetch_rule = lease_passes = reuse_rule = advance_rule = tick_rule = carry_out_rule = None
    request_finished_rule = peer_event_rule = None

    @initialize(old=st.booleans(), rates=st.tuples(*[st.sampled_from([0.995, 1.0, 1.005])] * 4))
    def build(self, old: bool, rates: tuple[float, ...]) -> None:
        self.start(old, rates, 3, {"a"})

    @rule(stage=st.integers(2, 5), waiter=st.sampled_from(["r1", "r2"]), pick=PICK)
    def fetch_race(self, stage: int, waiter: str, pick: int) -> None:
        self.fetch_until("C1", pick, 1, waiter, stage)

    @rule(first=st.integers(0, 2), lease=st.booleans())
    def producer_moves_on(self, first: int, lease: bool) -> None:
        """Other encodings come to the producer, before or after its leases ended."""
        if lease:
            self.end_leases(1)
        self.reuse_blocks("P1", first)

    @rule(first=st.integers(0, 2))
    def consumer_moves_on(self, first: int) -> None:
        self.reuse_blocks("C1", first)

    @rule(seconds=st.sampled_from([0.03, 2.0, 20.1, 60.1]), tick=st.booleans())
    def time_passes(self, seconds: float, tick: bool) -> None:
        self.world.time += seconds
        if tick:
            self.world.tick(self.world.nodes["C1"])

    @rule()
    def consumer_runs(self) -> None:
        for _ in range(4):
            self.world.run_command(self.world.nodes["C1"])

    @rule(kind=st.sampled_from(["lost", "restart", "leave"]))
    def trouble(self, kind: str) -> None:
        if kind == "leave":
            self.request_finished("C1", "r1")
        else:
            self.peer_event("C1", 1, kind)


TestRaces = RaceMachine.TestCase
TestRaces.settings = settings(SETTINGS, stateful_step_count=30, max_examples=400)
