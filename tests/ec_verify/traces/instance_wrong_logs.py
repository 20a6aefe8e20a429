# SPDX-License-Identifier: Apache-2.0
"""What instances of several processes must never do, for ``test_trace_check``.

The right history with one thing changed in one process's log, or a core whose safeguard
is gone; each log alone may be a right one.
"""

from __future__ import annotations

from tests.ec_verify.traces.instance_cases import CASES, case
from tests.ec_verify.traces.instances import PRODUCER, Instances
from tests.ec_verify.traces.traced import Raw

__all__ = ["CASES"]


def later(world: Instances, node: str, record: Raw, seconds: float) -> None:
    """A record, and all that follow it in its log, are put later."""
    for other in world.streams[node]:
        if other["seq"] >= record["seq"]:
            other["t"] += seconds


def without(world: Instances, node: str, *records: Raw) -> None:
    """Records that are not there; nobody would notice it by the numbers."""
    gone = [id(record) for record in records]
    world.streams[node][:] = [r for r in world.streams[node] if id(r) not in gone]
    for number, record in enumerate(world.streams[node]):
        record["seq"] = number


def of_reader(world: Instances) -> str:
    (node,) = (n for n, records in world.streams.items() if n.startswith("c.reader") and records)
    return node


def of_server(world: Instances) -> str:
    return next(n for n, records in world.streams.items() if n.startswith("p.server") and records)


@case("no lease on the slot runs on (EC-14.2)")
def an_offer_closed_under_a_lease(world: Instances) -> None:
    """The engine does not look at the ledger."""
    world.producer.offers._needed = lambda slot, now: False  # type: ignore[method-assign]
    world.reading("a", 10)
    world.producer.save("b", 10)


@case("no lease on the slot runs on (EC-14.2)")
def an_offer_closed_under_the_lease_of_a_server_that_is_gone(world: Instances) -> None:
    """The server's death voids its offers, not its grants."""
    producer = world.producer
    world.reading("a", 10)
    producer.kill(max(producer.servers))
    for slot in range(producer.offers.ledger.slots):
        producer.offers.ledger.need(slot, 0.0)
    producer.save("b", 10)


@case("no lease on the slot runs on (EC-14.2)")
def an_offer_closed_a_second_too_early(world: Instances) -> None:
    """By the engine's own clock; the server has not ended the grant."""
    world.reading("a", 10)
    world.tick(world.timing.lease_s)
    world.producer.save("b", 10)
    node = of_server(world)
    without(world, node, world.find(node, "Expire"))
    grant = world.find(node, "Grant")["vars"]["grant:1"]
    world.find("p.engine", "Close")["args"]["now"] = grant["expires_at"] - 1.0


@case("its offer is closed (EC-14.2)")
def an_offered_entry_that_is_evicted(world: Instances) -> None:
    world.producer.save("a", 10)
    world.producer.tier.gate = None
    world.producer.save("b", 10)


@case("its slot was open, under that name (ServeReadyOnly, EC-14.2)")
def a_grant_on_a_slot_that_was_closed(world: Instances) -> None:
    """The server does not look whether the slot is open."""
    world.reading("a")
    offer = world.find("p.engine", "Offer")
    without(world, "p.engine", offer)


@case("its slot was open, under that name (ServeReadyOnly, EC-14.2)")
def a_grant_of_other_blocks_than_were_offered(world: Instances) -> None:
    world.reading("a")
    world.find(of_server(world), "Grant")["vars"]["grant:1"]["extents"] = [[3, 1]]


@case("its slot was open, under that name (ServeReadyOnly, EC-14.2)")
def a_grant_on_another_slot(world: Instances) -> None:
    world.reading("a")
    grant = world.find(of_server(world), "Grant")["vars"]["grant:1"]
    grant["entry"] = (grant["entry"] + 1) % 32


@case("the engine has lent these blocks for it (EC-14.7)")
def a_loan_taken_up_before_it_was_lent(world: Instances) -> None:
    world.fetch("a")
    later(world, "c.engine", world.find("c.engine", "Lend"), 1.0)


@case("the engine has lent these blocks for it (EC-14.7)")
def a_loan_of_other_blocks_than_were_lent(world: Instances) -> None:
    world.fetch("a")
    for record in world.streams[of_reader(world)]:
        for key, variables in record["vars"].items():
            if key.startswith("entry:"):
                variables["extents"] = [[5, 1]]


@case("the engine has lent these blocks for it (EC-14.7)")
def a_loan_to_another_reader(world: Instances) -> None:
    world.fetch("a")
    for record in world.streams["c.engine"]:
        for key, variables in record["vars"].items():
            if key.startswith("loan:"):
                variables["reader"] = 7 - variables["reader"]


@case("the reader has said so (EC-14.7, EC-14.8)")
def a_landing_that_the_reader_did_not_say(world: Instances) -> None:
    """The engine takes the word before the READ is done."""
    world.fetch("a")
    node = of_reader(world)
    later(world, node, world.find(node, "ReadDone"), 1.0)


@case("the reader has said so (EC-14.7, EC-14.8)")
def a_failure_of_what_is_still_being_read(world: Instances) -> None:
    """The blocks come back while the READ writes."""
    loan, _ = world.reading("a")
    world.consumer.loans.heard(loan.reader, "failed", loan.loan_id, world.clock())


@case("the reader has said so (EC-14.7, EC-14.8)")
def a_loss_that_the_reader_did_not_say(world: Instances) -> None:
    loan, _ = world.reading("a")
    world.consumer.loans.heard(loan.reader, "lost", loan.loan_id, world.clock())


@case("the reader has said so (EC-14.7, EC-14.8)")
def a_proof_that_the_reader_did_not_give(world: Instances) -> None:
    loan, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.consumer.loans.heard(loan.reader, "proven", loan.loan_id, world.clock())


@case("its exit was not seen before (EC-14.8)")
def a_proof_before_the_exit(world: Instances) -> None:
    """A signal that was sent proves nothing: the reader goes on."""
    loan, key = world.reading("a")
    reader = world.consumer.readers[loan.reader]
    world.consumer.loans.exited(loan.reader, world.clock())
    reader.fetches.read_done(world.posted[key][1].attempt_id, world.clock())


@case("it has taken its place, and is not gone (EC-14.6)")
def a_server_that_grants_after_its_exit(world: Instances) -> None:
    producer = world.producer
    producer.save("a")
    old = producer.server
    producer.kill(max(producer.servers))
    producer.servers[max(producer.servers) + 1] = old
    world.reading("a")


@case("it has taken its place, and is not gone (EC-14.6)")
def a_server_that_grants_before_its_place(world: Instances) -> None:
    world.fetch("a")
    take = next(r for r in world.streams["p.parent"] if r["action"] == "TakePlace")
    later(world, "p.parent", take, 1.0)


@case("the server before it has exited (EC-14.6)")
def two_servers_at_once(world: Instances) -> None:
    processes = world.producer.processes
    processes._runs_another = lambda number: False  # type: ignore[method-assign]
    working = processes.numbers("working", "server")[0]
    processes.beat(working, world.now)
    world.now += world.timing.stall_s
    for number in world.living(world.producer):
        if number != working:
            processes.beat(number, world.now)
    world.producer.look()


@case("a reader that has taken its place")
def blocks_lent_to_a_reader_without_a_place(world: Instances) -> None:
    consumer = world.consumer
    consumer.loans.working(consumer.processes.numbers("spare", "reader"))
    consumer.waiters.fetch("a", PRODUCER, 64, None, "r", world.clock())


@case("a reader whose READ is lost gets no new work (EC-14.9)")
def new_work_for_a_reader_whose_read_is_lost(world: Instances) -> None:
    loan, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.consumer.loans._working = [loan.reader]
    world.consumer.waiters.fetch("b", ("other", 1), 64, None, "r", world.clock())


@case("all that was lent to a reader that is gone comes back at once (EC-14.8)")
def a_loan_that_outlives_its_reader(world: Instances) -> None:
    consumer = world.consumer
    loan, _ = world.reading("a")
    world.reading("b", waiter="r2")
    only = {loan.loan_id: loan}
    everything, consumer.loans._loans = consumer.loans._loans, only
    consumer.loans.exited(loan.reader, world.clock())
    consumer.loans._loans = everything
    consumer.save("c")


@case("what is proven comes back at once (EC-6.3)")
def retired_blocks_that_do_not_come_back(world: Instances) -> None:
    consumer = world.consumer
    _, key = world.reading("a")
    world.lose(key)
    world.hear()
    world.tick(world.timing.quarantine_s)
    consumer.tier.reclaim = lambda entry_id: 0  # type: ignore[method-assign]
    world.prove(key)
    world.hear()
    consumer.save("c")


@case("quarantine_s since the READ was lost (EC-14.9)")
def a_loan_that_is_retired_too_early(world: Instances) -> None:
    consumer = world.consumer
    loan, key = world.reading("a")
    world.lose(key)
    world.hear()
    consumer.loans._move(loan, "retire", "RetireLoan", world.clock())


@case("granted before it is acknowledged")
def an_ack_of_a_server_that_did_not_grant(world: Instances) -> None:
    """Across instances as ever: a READ's grant is in the producer's server's log."""
    world.reading("a")
    node = of_server(world)
    grant = world.find(node, "Grant")
    world.fetch("b", waiter="r2")
    without(world, node, grant)
    for record in world.streams[node]:
        for name in ("facts",):
            record.setdefault(name, grant["facts"])


@case("a number that was not used before (EC-14.7)")
def a_loan_that_is_taken_up_twice(world: Instances) -> None:
    loan = world.lend("missing")
    reader = world.consumer.readers[loan.reader]
    where = (loan.wanted.nbytes, loan.entry.extents, loan.wanted.deadline, world.clock())
    reader.lend(loan.loan_id, "missing", PRODUCER, *where)


@case("at most twice as many as are wanted")
def more_processes_than_are_wanted(world: Instances) -> None:
    processes = world.consumer.processes
    processes._lacking = lambda kind: 1  # type: ignore[method-assign]
    for _ in range(10):
        world.consumer.look()


@case("clocks do not go back")
def records_out_of_the_order_of_their_clock(world: Instances) -> None:
    """In one file, which has an order already: one of the parent's comes last."""
    world.fetch("a")
    world.in_one_file()
    last = world.streams["p.parent"][-1]
    world.all.remove(last)
    world.all.append(last)


@case("an entry that is being written")
def an_entry_expected_after_it_has_landed(world: Instances) -> None:
    world.producer.save("a")
    world.find("p.engine", "Expect")
    records = world.streams["p.engine"]
    actions = [record["action"] for record in records]
    expect, landed = actions.index("Expect"), actions.index("SaveLanded")
    times = [record["t"] for record in records]
    records.insert(landed, records.pop(expect))
    for number, record in enumerate(records):
        record["seq"], record["t"] = number, times[number]
    facts = [record.pop("facts") for record in records if "facts" in record]
    records[0]["facts"] = facts[0]


@case("the bytes have landed (ServeReadyOnly, EC-14.2)")
def an_offer_before_the_bytes(world: Instances) -> None:
    entry = world.producer.begin_save("a")
    world.producer.offers.offer(entry)


@case("WordsInv")
def wrong_bytes_that_a_reader_says_have_landed(world: Instances) -> None:
    """The producer's clock runs away, and with it its leases (EC-A.2)."""
    _, key = world.reading("a", 10)
    world.now += 40.0
    world.producer.server.tick(world.clock())
    world.producer.catch_up()
    world.producer.save("b", 10)
    world.now -= 40.0
    world.finish(key, notice=False)
    world.in_one_file()
