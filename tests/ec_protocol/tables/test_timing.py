# SPDX-License-Identifier: Apache-2.0
"""Timers: defaults, refused values, and each inequality broken once by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ec_protocol.errors import ConfigError, SpecError
from ec_protocol.p2p import wire
from ec_protocol.tables import timing
from ec_protocol.tables.timing import MAX_TIMER_S, Timing, inequalities, timer_specs

pytestmark = pytest.mark.clause("EC-7.2")

NAMES = tuple(field.name for field in dataclasses.fields(Timing))

#: Inequality -> timers that break it and no earlier one, and the nearest that do not.
BROKEN: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "T1": ({"lease_s": 2.75}, {}),
    "T2": ({"lease_s": 22.25}, {"lease_s": 22.5}),
    "T3": ({"quarantine_s": 19.75}, {"quarantine_s": 20.0}),
    "T4": ({"heartbeat_interval_s": 4.0}, {"heartbeat_interval_s": 3.75}),
    "T5": ({"heartbeat_ttl_s": 3.75}, {"heartbeat_ttl_s": 4.0}),
    "T6": ({"fetch_budget_s": 21.75}, {"fetch_budget_s": 22.0}),
    "T7": ({"retry_interval_s": 23.25}, {"retry_interval_s": 23.0}),
    "T8": ({"min_read_s": 20.25}, {"min_read_s": 20.0}),
    "T9": ({"retry_max_interval_s": 25.0}, {"retry_max_interval_s": 24.75}),
    "T10": ({"drain_s": 56.25}, {"drain_s": 56.0}),
}


def test_defaults_are_those_of_the_table() -> None:
    made = Timing()
    assert {name: getattr(made, name) for name in NAMES} == {
        name: spec.default for name, spec in timer_specs().items()
    }
    assert (made.ack_timeout_s, made.read_timeout_s, made.quarantine_s) == (2.0, 20.0, 60.0)
    assert (made.lease_s, made.heartbeat_interval_s) == (30.0, 2.0)
    assert (made.heartbeat_timeout_s, made.heartbeat_ttl_s) == (4.0, 8.0)


def test_every_timer_has_a_key_of_its_own_and_a_meaning() -> None:
    specs = timer_specs().values()
    assert len({spec.key for spec in specs}) == len(specs)
    assert all(spec.doc.endswith(".") for spec in specs)


def test_the_broken_examples_cover_every_inequality() -> None:
    assert list(BROKEN) == [item.id for item in inequalities()]


@pytest.mark.parametrize("ident", BROKEN)
def test_a_broken_inequality_is_named_with_its_pair_and_the_fix(ident: str) -> None:
    wrong, _ = BROKEN[ident]
    item = next(i for i in inequalities() if i.id == ident)
    with pytest.raises(ConfigError) as caught:
        Timing(**wrong)
    message = str(caught.value)
    values = {**{n: s.default for n, s in timer_specs().items()}, **wrong}
    assert f"timers break {ident}: {item} does not hold" in message
    for name in item.left + item.right:
        assert f"{timer_specs()[name].key}={values[name]:g}" in message
    raised = " or ".join(timer_specs()[n].key for n in item.right)
    lowered = " or ".join(timer_specs()[n].key for n in item.left)
    assert message.endswith(f"Raise {raised}, or lower {lowered}.")
    assert item.why in message


@pytest.mark.parametrize("ident", BROKEN)
def test_the_nearest_sound_timers_are_accepted(ident: str) -> None:
    wrong, right = BROKEN[ident]
    made = Timing(**right)
    for name, value in right.items():
        assert getattr(made, name) == value
    with pytest.raises(ValueError):
        Timing(**wrong)


def test_t1_is_strict() -> None:
    """T1's border cannot be reached with T2 intact, so it is asked directly."""
    item = inequalities()[0]
    values = {n: s.default for n, s in timer_specs().items()}
    assert not item.holds({**values, "lease_s": 2.75})
    assert item.holds({**values, "lease_s": 2.75 + 2**-40})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value",
    [0, 0.0, -1, -1e-9, math.inf, -math.inf, math.nan, 86400.5, pytest.param(10**400, id="huge")],
)
def test_not_a_positive_number_up_to_a_day(name: str, value: float) -> None:
    key = timer_specs()[name].key
    with pytest.raises(ConfigError, match=f"^{key}=.*: expected a positive number of seconds"):
        Timing(**{name: value})


@pytest.mark.clause("EC-8.8")
def test_every_lease_that_can_be_configured_fits_into_an_ack() -> None:
    longest = Timing(lease_s=MAX_TIMER_S).lease_s
    ack = wire.XferAck(mm_hash="h", status=0, lease_s=longest)
    assert wire.decode_ack([b"", wire.encode(ack)]).lease_s == longest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["2", None, True, [2.0], b"2", 2j])
def test_not_a_number(name: str, value: Any) -> None:
    key = timer_specs()[name].key
    with pytest.raises(ConfigError, match=f"^{key}=.*: expected seconds as a number"):
        Timing(**{name: value})


def test_whole_numbers_are_seconds_too() -> None:
    assert Timing(lease_s=40, quarantine_s=90).lease_s == 40


@given(st.fixed_dictionaries({}, optional={n: st.floats(0.001, 200.0) for n in NAMES}))
def test_timers_are_accepted_exactly_when_every_inequality_holds(values: dict[str, float]) -> None:
    complete = {**{n: s.default for n, s in timer_specs().items()}, **values}
    broken = [item.id for item in inequalities() if not item.holds(complete)]
    if not broken:
        Timing(**values)
        return
    with pytest.raises(ConfigError, match=f"timers break {broken[0]}:"):
        Timing(**values)


@pytest.mark.parametrize(
    "change", [{"left": ["ack_timeout"]}, {"right": ["lease"]}, {"op": ">"}, {"op": "=="}]
)
def test_an_inequality_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    document = timing._document()
    row = {**document["inequalities"][0], **change}
    monkeypatch.setattr(timing, "_document", lambda: {**document, "inequalities": [row]})
    inequalities.cache_clear()
    try:
        with pytest.raises(SpecError, match=r"timing\.toml T1"):
            inequalities()
    finally:
        inequalities.cache_clear()


@pytest.mark.clause("EC-5.1")
def test_the_fence_is_the_lease_from_sending_less_the_margin() -> None:
    made = Timing()
    assert made.fence(1000.0, 30.0) == 1029.5
    assert made.fence(1000.0, 0.0) == 999.5
    assert Timing(lease_margin_s=2.0).fence(10.0, 5.0) == 13.0


def test_timers_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Timing().lease_s = 1.0  # type: ignore[misc]


# -------------------------------------------------------------------------- back-off
@pytest.mark.clause("EC-5.8")
def test_pauses_double_up_to_the_longest_and_are_spread_by_a_quarter() -> None:
    timing = Timing(retry_interval_s=0.02, retry_max_interval_s=0.25)
    steps = [0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]
    for retries, step in enumerate(steps):
        pauses = [timing.retry_pause(retries, f"session.{n}") for n in range(200)]
        assert all(step <= pause <= step * 1.25 for pause in pauses)
        if retries:
            assert min(pauses) < step * 1.03
            assert max(pauses) > step * 1.22
    assert timing.retry_pause(100_000, "s") <= 0.25 * 1.25
    assert timing.retry_pause(3, "s.1") == timing.retry_pause(3, "s.1")


@pytest.mark.clause("EC-5.8")
def test_a_long_interval_is_kept_whatever_the_longest_is() -> None:
    timing = Timing(retry_interval_s=2.0, retry_max_interval_s=0.25)
    assert all(2.0 <= timing.retry_pause(n, "s") <= 2.5 for n in range(5))
