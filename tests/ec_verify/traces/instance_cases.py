# SPDX-License-Identifier: Apache-2.0
"""What instances of several processes do, for ``test_trace_check``.

What they must never do is in ``instance_wrong_logs``.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.ec_verify.traces.instances import PRODUCER, Instances

Scenario = Callable[[Instances], None]
#: Conjunct, or the start of it, by which the traces are rejected; None: they are accepted.
CASES: dict[str, tuple[Scenario, str | None]] = {}


def case(conjunct: str | None) -> Callable[[Scenario], Scenario]:
    def note(scenario: Scenario) -> Scenario:
        CASES[scenario.__name__] = (scenario, conjunct)
        return scenario

    return note


@case(None)
def a_fetch_by_a_reader(world: Instances) -> None:
    world.fetch("a", 3)


@case(None)
def a_fetch_that_fails(world: Instances) -> None:
    world.lend("missing")
    world.hear()


@case(None)
def a_read_that_is_lost_and_proven(world: Instances) -> None:
    _, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.prove(key)
    world.hear()


@case(None)
def a_read_that_is_proven_after_its_retirement(world: Instances) -> None:
    _, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.tick(world.timing.quarantine_s)
    world.hear()
    world.prove(key)
    world.hear()


@case(None)
def a_read_that_is_lost_and_ends_with_its_reader(world: Instances) -> None:
    loan, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.consumer.processes.drain(loan.reader, world.clock())
    world.consumer.kill(loan.reader)


@case(None)
def a_loan_that_is_retired_and_ends_with_its_reader(world: Instances) -> None:
    loan, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.tick(world.timing.quarantine_s)
    world.consumer.kill(loan.reader)


@case(None)
def a_reader_that_was_killed_and_does_not_exit_for_long(world: Instances) -> None:
    """What it was lent counts as lost; another one fetches, and then it exits."""
    consumer = world.consumer
    loan, _ = world.reading("a")
    consumer.processes.condemn(loan.reader, "replaced")
    consumer.look()
    consumer.loans.killed(loan.reader, world.clock())
    for _ in range(4):
        world.tick(world.timing.stall_s / 3)
    assert loan.state == "lost"
    world.fetch("b", waiter="r2")
    world.tick(world.timing.quarantine_s)
    assert loan.state == "retired"
    consumer.kill(loan.reader)
    consumer.save("c")


@case(None)
def a_loan_that_the_reader_cannot_be_told_of(world: Instances) -> None:
    consumer = world.consumer
    consumer.waiters.fetch("a", PRODUCER, 64, None, "r", world.clock())
    (lend,) = consumer.loans.drain()
    consumer.loans.unsaid(lend.loan.loan_id, world.clock())  # type: ignore[union-attr]


@case(None)
def a_loan_that_brought_other_bytes(world: Instances) -> None:
    """The READ is over, so the blocks come back at once."""
    loan, key = world.reading("a")
    number, command = world.posted.pop(key)
    fetches = world.consumer.readers[number].fetches
    fetches.read_corrupt(command.attempt_id, world.clock())
    world.network()
    world.notify(command.notice)
    world.hear()
    assert loan.state == "returned"
    assert world.consumer.tier.get("a") is None
    world.consumer.save("a")


@case(None)
def a_fetch_that_is_lent_again(world: Instances) -> None:
    """Its reader dies, and another one fetches the same."""
    loan, _ = world.reading("a")
    world.consumer.kill(loan.reader)
    world.tell()
    world.finish(world.post())
    world.hear()
    entry = world.consumer.tier.get("a")
    assert entry is not None
    assert entry.servable


@case(None)
def blocks_lent_to_a_reader_that_is_gone_already(world: Instances) -> None:
    """Its parent has seen its end a moment before the engine does."""
    consumer = world.consumer
    for number in consumer.processes.numbers("working", "reader"):
        consumer.processes.exited(number, world.clock())
    consumer.waiters.fetch("a", PRODUCER, 64, None, "r", world.clock())
    (lend,) = consumer.loans.drain()
    for number in (lend.reader, *consumer.readers):
        consumer.readers.pop(number, None)
        consumer.loans.exited(number, world.clock())
    consumer.start()


@case(None)
def every_end_of_an_offer(world: Instances) -> None:
    """Given up, evicted; made at once for what was not expected."""
    producer = world.producer
    producer.begin_save("given-up")
    producer.end_save("given-up", landed=False)
    producer.save("a", 8)
    producer.save("b", 8)
    producer.save("c", 12)
    producer.save("d", 8)
    copy = producer.copies.plan_save("e", 64)
    assert copy is not None
    producer.copies.submit(copy)
    producer.copies.report(copy.copy_id, 0, landed=True)
    producer.catch_up()


@case(None)
def an_eviction_after_the_lease(world: Instances) -> None:
    """A granted entry stays while its lease runs, whoever else wants the room."""
    world.reading("a", 10)
    producer = world.producer
    assert producer.copies.plan_save("b", 10 * 64) is None
    world.tick(world.timing.lease_s)
    producer.save("b", 10)


@case(None)
def a_server_that_dies_under_a_read(world: Instances) -> None:
    """Its grant is kept until the lease ends, and the reader accepts what it has."""
    producer = world.producer
    _, key = world.reading("a", 10)
    producer.kill(max(producer.servers))
    assert producer.copies.plan_save("b", 10 * 64) is None
    world.finish(key, notice=False)
    world.hear()
    world.tick(world.timing.lease_s)
    producer.save("b", 10)


@case(None)
def processes_that_end_in_every_state(world: Instances) -> None:
    """Before they are ready, standing by, working, draining, killed; and at the end."""
    consumer = world.consumer
    processes, clock = consumer.processes, world.clock
    spare = processes.numbers("spare", "reader")[0]
    processes.exited(spare, clock())
    consumer.look()
    processes.exited(processes.numbers("starting", "reader")[0], clock())
    first, second = processes.numbers("working", "reader")
    processes.drain(first, clock())
    consumer.kill(first)
    processes.drain(second, clock())
    world.now += world.timing.drain_s
    for number in world.living(consumer):
        if number != second:
            processes.beat(number, world.now)
    consumer.look()
    assert processes.numbers("killed") == [second]
    consumer.kill(second)
    processes.exited(max(consumer.servers), clock())
    world.now += 60.0
    for number in world.living(consumer):
        processes.beat(number, world.now)
    consumer.look()
    processes.stop()
    consumer.look()


@case(None)
def a_server_takes_its_place_after_the_one_before(world: Instances) -> None:
    producer = world.producer
    producer.save("a")
    world.fetch("a")
    producer.kill(max(producer.servers))
    world.fetch("b", waiter="r2")
