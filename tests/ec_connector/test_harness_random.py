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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.world.engine import Engine
from tests.world.host import Request, request
from tests.world.peers import Remote, announcement

#: Names and their rows. Larger than the tier and the hosts' caches together.
ROWS = {"a": 1, "b": 2, "c": 3, "d": 3, "e": 4, "f": 5}
PIECES = st.lists(st.sampled_from([*ROWS.items(), *ROWS.items(), 1, 4]), max_size=5)
RARE = st.integers(0, 7).map(lambda n: n == 0)


class EngineMachine(RuleBasedStateMachine):
    """One ``ec_both`` engine without peers."""

    engine: Engine

    @initialize(
        world_size=st.sampled_from([1, 2]),
        depth=st.sampled_from([1, 2]),
        blocks=st.integers(5, 14),
        cache_rows=st.integers(5, 12),
        tokens=st.integers(3, 40),
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
    @rule(prompts=st.lists(PIECES, min_size=1, max_size=4), output_len=st.integers(1, 4))
    def add(self, prompts: list[list[int | tuple[str, int]]], output_len: int) -> None:
        host = self.engine.host
        for pieces in prompts:
            if len(host.waiting) + len(host.running) < 6:
                host.add(self.new_request(pieces, output_len))

    @rule(which=st.integers(0, 5))
    def preempt_in_the_middle_of_a_step(self, which: int) -> None:
        running = self.engine.host.running
        self.engine.schedule(running[which % len(running)] if running else None)

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

    # ----------------------------------------------------------------- interleavings
    @rule(script=st.binary(min_size=4, max_size=60))
    def move(self, script: bytes) -> None:
        """Scheduler, ranks and devices move as the script says."""
        engine = self.engine
        for byte in script:
            what, which = byte & 7, byte >> 3
            rank = which % len(engine.ranks)
            if what == 0:
                engine.schedule()
            elif what <= 2:
                engine.work(rank)
            elif what == 3:
                engine.complete()
            else:
                engine.device(rank, which // 2)
            engine.tier.check()

    @rule(steps=st.integers(1, 5))
    def whole_steps(self, steps: int) -> None:
        for _ in range(steps):
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
        prompts=st.lists(PIECES, min_size=1, max_size=4),
        output_len=st.integers(1, 3),
        has_media=st.booleans(),
        outcomes=st.lists(
            st.sampled_from(
                ["lands", "lands", "lands", "missing", "not_ready", "breaks", "silent"]
            ),
            min_size=1,
            max_size=4,
        ),
        wrong=st.sampled_from([None] * 9 + ["size_bytes", "shape", "peer_port"]),
    )
    def add_announced(
        self,
        prompts: list[list[int | tuple[str, int]]],
        output_len: int,
        has_media: bool,
        outcomes: list[str],
        wrong: str | None,
    ) -> None:
        host = self.engine.host
        named = 0
        for pieces in prompts:
            if len(host.waiting) + len(host.running) >= 6:
                return
            params: dict[str, Any] = {}
            for piece in pieces:
                if not isinstance(piece, int):
                    name, rows = piece
                    params.update(announcement(name, rows, **({wrong: 7} if wrong else {})))
                    self.engine.p2p.outcomes[name] = outcomes[named % len(outcomes)]
                    named += 1
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

    @rule(times=st.integers(1, 4))
    def steps_while_peers_answer(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()
            self.engine.p2p.play(self.engine)

    @rule()
    def play(self) -> None:
        self.engine.p2p.play(self.engine)

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.engine.now += seconds


class ClashMachine(ConsumerMachine):
    """Clients that name their media themselves, and give two things one name.

    A request that does not fit what the host has under a name fails alone; one that
    does not fit what the tier has is encoded. Nobody sees anybody else's picture.
    """

    def make(self, **shape: Any) -> Engine:
        return Engine(role="ec_both", p2p=Remote(), **shape)

    @rule(
        pieces=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=3),
        announced=st.booleans(),
        has_media=st.booleans(),
    )
    def add_clashing(self, pieces: list[tuple[str, int]], announced: bool, has_media: bool) -> None:
        if len(self.engine.host.waiting) + len(self.engine.host.running) >= 6:
            return
        params: dict[str, Any] = {}
        for name, rows in pieces if announced else ():
            params.update(announcement(name, rows))
        self.count += 1
        self.engine.host.add(
            request(f"r{self.count}", *pieces, params=params, has_media=has_media or not announced)
        )


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
TestClash = ClashMachine.TestCase
TestClash.settings = SETTINGS
TestProducer = ProducerMachine.TestCase
TestProducer.settings = SETTINGS
