# SPDX-License-Identifier: Apache-2.0
"""Gives each mutant of a table to the Python core and runs the core's tests.

The dispatcher that the core moves objects by is compiled from the tables, so a
mutant of a table is put into the dispatcher in place, the way the loader would have
made it. Tests that compare the dispatcher with the tables are left out: what is asked
is whether somebody who only sees what the core *does* would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ec_protocol.tables.dispatch import DISPATCH, Dispatcher
from ec_protocol.tables.lifecycle import Lifecycle
from ec_protocol.tables.machines import build_machine
from ec_verify.mutants.models import FAILED, KILLED, SURVIVED, Result
from ec_verify.mutants.operators import ACTIONS, TIMING, Mutant
from ec_verify.mutants.trials import Outcome, Trial, run_trials

#: Tables that the core's own classes move by. The region is moved by `ec_connector`,
#: in other processes, and its state is a word in a file.
TABLES: Final = ("entry", "read", "grant", "copy", "peer", ACTIONS, TIMING)

#: Which tests are the likeliest to notice, by table.
_FIRST: Final[Mapping[str, tuple[str, ...]]] = {
    "entry": ("test_tier.py", "test_copies.py", "test_consumer_reads.py"),
    "read": ("test_consumer_reads.py", "test_consumer_acks.py", "test_consumer.py"),
    "grant": ("test_producer.py",),
    "copy": ("test_copies.py",),
    "peer": ("test_peers.py", "test_consumer_peers.py"),
    ACTIONS: ("test_actions.py",),
    TIMING: ("test_timing.py",),
}


def applicable(mutant: Mutant) -> bool:
    """Whether the core reads what the mutant changes.

    It does not read the ``terminal`` lists: a last state is one without edges. Of the
    effects it reads those of READs, where one event has several; all others are carried
    out by the one method that fires the event.
    """
    if mutant.operator in ("effect", "drop-effect"):
        return mutant.lifecycle == "read"
    return mutant.lifecycle in TABLES and mutant.operator != "terminal"


def apply_table(table: Lifecycle) -> None:
    """Make the running core move by this table; for a forked process only."""
    target = DISPATCH[table.name]
    source = Dispatcher(table, build_machine(table))
    for slot in Dispatcher.__slots__:
        setattr(target, slot, getattr(source, slot))


def _apply_actions(mutant: Mutant) -> None:
    from ec_protocol import trace

    actions = mutant.actions
    vars(trace)["load_actions"] = lambda: actions


def _apply_timing(mutant: Mutant) -> None:
    from ec_protocol.tables import timing

    vars(timing)["inequalities"] = lambda: mutant.timing


def _change(mutant: Mutant) -> Callable[[], None]:
    if mutant.actions is not None:
        return partial(_apply_actions, mutant)
    if mutant.timing is not None:
        return partial(_apply_timing, mutant)
    if mutant.table is None:
        raise ValueError(f"{mutant.id} changes nothing")
    return partial(apply_table, mutant.table)


def run_core(
    mutants: Sequence[Mutant],
    root: Path,
    *,
    jobs: int,
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Judge mutants by the core's tests.

    Args:
        mutants: What to run; all of them ``applicable``.
        root: The checkout.
        jobs: How many at once.
        done: Told of each result.

    Returns:
        The results in the order of ``mutants``.

    Raises:
        ECError: The tests cannot be run, or fail without any change.
    """
    trials = [Trial(m.id, _change(m), _FIRST[m.lifecycle]) for m in mutants]

    def result(index: int, outcome: Outcome) -> Result:
        killed = outcome.killed_by
        if outcome.broken:
            return Result(
                mutants[index], FAILED, None, None, outcome.seconds, detail=outcome.broken
            )
        name = killed.partition("::")[2] or killed if killed else None
        file = Path(killed.partition("::")[0]).name if killed else None
        verdict = SURVIVED if killed is None else KILLED
        return Result(mutants[index], verdict, name, file, outcome.seconds)

    outcomes = run_trials(
        trials, root, parallel=jobs, done=lambda index, outcome: done(result(index, outcome))
    )
    return [result(index, outcomes[index]) for index in range(len(mutants))]
