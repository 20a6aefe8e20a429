# SPDX-License-Identifier: Apache-2.0
"""Random traffic through whole engine steps, with an oracle.

Hypothesis chooses the requests and every interleaving of scheduler, ranks, devices,
aborts, preemptions and, with a consumer, how each READ ends. At all times the tier's
invariants hold; every encoding that a rank's model looks at has the right bits; and
an engine that is left alone becomes idle with no copy, no pin and no block missing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.harness.content import Request, request
from tests.harness.engine import Engine
from tests.harness.remote import Remote, announcement

#: Names and their rows. Larger than the tier and the hosts' caches together.
ROWS = {"a": 1, "b": 2, "c": 3, "d": 3, "e": 4, "f": 5}
PIECES = st.lists(st.integers(1, 6) | st.sampled_from(sorted(ROWS.items())), max_size=5)
RARE = st.integers(0, 7).map(lambda n: n == 0)


class EngineMachine(RuleBasedStateMachine):
    """One ``ec_both`` engine without peers."""

    engine: Engine

    @initialize(
        world_size=st.sampled_from([1, 2]),
        depth=st.sampled_from([1, 2]),
        blocks=st.integers(5, 14),
        cache_rows=st.integers(5, 12),
        tokens=st.integers(3, 24),
    )
    def start(self, world_size: int, depth: int, blocks: int, cache_rows: int, tokens: int) -> None:
        self.engine = self.make(
            world_size=world_size,
            depth=depth,
            blocks=blocks,
            cache_rows=cache_rows,
            encoder_rows=cache_rows,
            tokens=tokens,
        )
        self.count = 0

    def make(self, **shape: Any) -> Engine:
        return Engine(**shape)

    def new_request(self, pieces: list[int | tuple[str, int]], output_len: int) -> Request:
        self.count += 1
        return request(f"r{self.count}", *pieces, output_len=output_len)

    # -------------------------------------------------------------------- the host
    @rule(pieces=PIECES, output_len=st.integers(1, 4))
    def add(self, pieces: list[int | tuple[str, int]], output_len: int) -> None:
        host = self.engine.host
        if len(host.waiting) + len(host.running) < 6:
            host.add(self.new_request(pieces, output_len))

    @rule(preempt=RARE, which=st.integers(0, 5))
    def schedule(self, preempt: bool, which: int) -> None:
        running = self.engine.host.running
        victim = running[which % len(running)] if preempt and running else None
        self.engine.schedule(victim)

    @rule(which=st.integers(0, 5))
    def abort(self, which: int) -> None:
        alive = self.engine.host.waiting + self.engine.host.running
        if alive:
            self.engine.host.abort(alive[which % len(alive)])

    @rule(which=st.integers(0, 5))
    def preempt_between_steps(self, which: int) -> None:
        running = self.engine.host.running
        if running:
            self.engine.host.preempt(running[which % len(running)])

    @rule()
    def finish_and_reset_encoder_cache(self) -> None:
        """What comes next has to be loaded from the tier, or encoded again."""
        for _ in range(40):
            if not self.engine.host.running and not self.engine.flight:
                self.engine.reset_encoder_cache()
                return
            self.engine.step()

    # ------------------------------------------------------------------- the workers
    @rule(number=st.integers(0, 1))
    def work(self, number: int) -> None:
        self.engine.work(number % len(self.engine.ranks))

    @rule(number=st.integers(0, 1), choices=st.lists(st.integers(0, 30), min_size=1, max_size=6))
    def device(self, number: int, choices: list[int]) -> None:
        for choice in choices:
            self.engine.device(number % len(self.engine.ranks), choice)

    @rule()
    def complete(self) -> None:
        self.engine.complete()

    @rule()
    def whole_step(self) -> None:
        self.engine.step()

    # --------------------------------------------------------------------- the oracle
    @invariant()
    def tier_is_sound(self) -> None:
        if hasattr(self, "engine"):
            self.engine.tier.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            self.engine.drain()
            finished = self.engine.host.finished + self.engine.host.failed
            assert len(finished) == self.count, "every request has ended"
        finally:
            self.engine.close()


class ConsumerMachine(EngineMachine):
    """A consumer: some requests name encodings elsewhere, some have no media."""

    def make(self, **shape: Any) -> Engine:
        return Engine(role="ec_consumer", p2p=Remote(), **shape)

    @rule(
        pieces=PIECES,
        output_len=st.integers(1, 3),
        has_media=st.booleans(),
        outcome=st.sampled_from(["lands", "lands", "missing", "not_ready", "breaks", "silent"]),
        wrong=st.sampled_from([None, None, None, "size_bytes", "shape", "peer_port"]),
    )
    def add_announced(
        self,
        pieces: list[int | tuple[str, int]],
        output_len: int,
        has_media: bool,
        outcome: str,
        wrong: str | None,
    ) -> None:
        host = self.engine.host
        if len(host.waiting) + len(host.running) >= 6:
            return
        params: dict[str, Any] = {}
        for piece in pieces:
            if not isinstance(piece, int):
                name, rows = piece
                change = {wrong: 7} if wrong else {}
                params.update(announcement(name, rows, **change))
                self.engine.p2p.outcomes[name] = outcome
        self.count += 1
        host.add(
            request(
                f"r{self.count}",
                *pieces,
                output_len=output_len,
                params=params,
                has_media=has_media,
            )
        )

    @rule()
    def play(self) -> None:
        self.engine.p2p.play(self.engine)

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.engine.now += seconds


class ProducerMachine(EngineMachine):
    """A producer with peers: what it announces is held for a while."""

    def make(self, **shape: Any) -> Engine:
        return Engine(role="ec_producer", p2p=Remote(), **shape)

    @invariant()
    def announcements_are_whole(self) -> None:
        if hasattr(self, "engine"):
            for done in self.engine.host.finished:
                for said in (done.announced or {}).values():
                    assert bool(said["metadata"]) == ("peer_host" in said), "AnnounceWhole"


# Each example opens and removes a region; what is not found in so many is looked for
# with HYPOTHESIS_PROFILE=thorough.
SETTINGS = settings(
    max_examples=max(40, settings.default.max_examples // 2) if settings.default else 40,
    stateful_step_count=50,
)

TestEngine = EngineMachine.TestCase
TestEngine.settings = SETTINGS
TestConsumer = ConsumerMachine.TestCase
TestConsumer.settings = SETTINGS
TestProducer = ProducerMachine.TestCase
TestProducer.settings = SETTINGS
