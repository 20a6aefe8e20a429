# SPDX-License-Identifier: Apache-2.0
"""Traces of random schedules show a core whose safeguard is gone, and nothing else has to.

The schedules of ``test_stateful`` with their own oracle switched off: the core is changed
in one place, and TLC must reject some trace, for the reason that the safeguard is for.
(F2 is too rare for a handful of random schedules: ``test_trace_check`` plays it.) The same
with the core as it is, or as somebody has changed it: ``pytest
tests/ec_verify/traces/test_trace_walks.py``.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from ec_protocol.p2p.attempts import Attempts
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.tier.encodings import EncodingTier
from ec_verify.models.runner import TlcRunner
from ec_verify.traces.check import check_runs
from ec_verify.traces.load import make_run
from tests.ec_verify.traces.test_trace_walks import schedules
from tests.ec_verify.traces.traced import Raw, TracedMachine

# Slow: TLC rejects the traces of a core without one safeguard at a time.
pytestmark = [pytest.mark.clause("EC-1.3"), pytest.mark.timeout(600), pytest.mark.slow]

#: How many traces of schedules in which the fault has made a difference, and in how many
#: lots of schedules they are looked for.
WANTED, LOTS = 2, 12


class Blind(TracedMachine):
    """Looks at nothing: only the trace tells."""

    different: ClassVar[bool] = False
    telling: ClassVar[list[list[Raw]]] = []

    def invariants(self) -> None:
        """Not an invariant of hypothesis here."""

    def teardown(self) -> None:
        with contextlib.suppress(Exception):
            super().teardown()
        if Blind.different:
            Blind.telling.append(self.records)
        Blind.different = False


def noted(right: Any, wrong: Any) -> Any:
    """The wrong value; takes note if that makes a difference."""
    Blind.different |= bool(right != wrong)
    return wrong


@dataclass(frozen=True)
class Fault:
    """One place of the core that is changed.

    Attributes:
        owner: The class.
        method: Its method.
        old: What stands there once.
        new: What is there instead of it, through ``noted``.
        conjunct: How the reason begins for which TLC rejects a trace.
    """

    owner: type
    method: str
    old: str
    new: str
    conjunct: str

    def put(self, patch: pytest.MonkeyPatch) -> None:
        method = inspect.unwrap(getattr(self.owner, self.method))
        source = textwrap.dedent(inspect.getsource(method))
        assert source.count(self.old) == 1, f"{self.method} does not have it once: {self.old}"
        names: dict[str, Any] = {**method.__globals__, "noted": noted}
        exec("from __future__ import annotations\n" + source.replace(self.old, self.new), names)
        patch.setattr(self.owner, self.method, names[self.method])


FAULTS = {
    "F1: a READ is posted without time for it": Fault(
        Attempts,
        "_fence_open",
        "now + self.timing.min_read_s < attempt.fence",
        "noted(now + self.timing.min_read_s < attempt.fence, True)",
        "fence_open",
    ),
    "F3: bytes are accepted after the fence": Fault(
        Attempts,
        "read_done",
        "now < attempt.fence",
        "noted(now < attempt.fence, True)",
        "in_lease",
    ),
    "F5: a quarantine that keeps no blocks": Fault(
        EncodingTier,
        "write_lost",
        "self._quarantined[entry.entry_id] = entry",
        "self._quarantined[entry.entry_id] = entry; self._space.free(noted((), entry.extents))",
        "tier free",
    ),
    "F5: a quarantine that ends at once": Fault(
        Attempts,
        "tick",
        "now >= attempt.lost_at + timing.quarantine_s",
        "noted(now >= attempt.lost_at + timing.quarantine_s, True)",
        "quarantine_s since the READ was lost",
    ),
    "a lease that ends too early": Fault(
        ProducerGrants,
        "tick",
        "g.expires_at <= now",
        "noted(g.expires_at <= now, g.expires_at - self.timing.lease_s / 2 <= now)",
        "the lease is over",
    ),
}


@pytest.fixture(scope="module")
def rejected() -> dict[str, Counter[str]]:
    """By fault the conjuncts for which traces were rejected; all in one start of TLC."""
    runs = []
    for name, fault in FAULTS.items():
        Blind.telling.clear()
        with pytest.MonkeyPatch.context() as patch:
            fault.put(patch)
            for number in range(LOTS):
                if len(Blind.telling) >= WANTED:
                    break
                schedules(number, Blind)
        chosen = enumerate(Blind.telling[:WANTED])
        runs += [make_run(f"{name}/{i}", [(f"{name}/{i}", r)]) for i, r in chosen]
    conjuncts: dict[str, Counter[str]] = {name: Counter() for name in FAULTS}
    for report in check_runs(runs, TlcRunner()):
        if report.rejection is not None:
            conjuncts[report.name.rpartition("/")[0]][report.rejection.conjunct] += 1
    return conjuncts


@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_safeguard_shows_in_the_traces(
    rejected: dict[str, Counter[str]], name: str
) -> None:
    wanted = FAULTS[name].conjunct
    assert any(conjunct.startswith(wanted) for conjunct in rejected[name]), rejected[name]
