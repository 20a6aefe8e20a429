\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Timing -------------------------------
\* Generated from spec/timing.toml by `ec-protocol generate`: do not edit.
\*
\* t is a record of timers, all in the same unit. Sound(t): a process may start with
\* them.
EXTENDS Integers

TimerNames == {
    "ack_timeout_s",
    "read_timeout_s",
    "quarantine_s",
    "lease_s",
    "lease_margin_s",
    "min_read_s",
    "retry_interval_s",
    "retry_max_interval_s",
    "fetch_budget_s",
    "announce_hold_s",
    "fetched_hold_s",
    "heartbeat_interval_s",
    "heartbeat_timeout_s",
    "heartbeat_ttl_s",
    "start_s",
    "stall_s",
    "lived_s",
    "drain_s"}

\* An ack that comes at its last moment must still leave time for a READ.
T1(t) == t.ack_timeout_s + t.lease_margin_s + t.min_read_s < t.lease_s

\* A READ that ends within its timeout must also end within its lease, or good bytes would be thrown away.
T2(t) == t.ack_timeout_s + t.read_timeout_s + t.lease_margin_s <= t.lease_s

\* Retiring blocks sooner than a READ may take would retire healthy ones.
T3(t) == t.read_timeout_s <= t.quarantine_s

\* At least one heartbeat must fit before silence counts.
T4(t) == t.heartbeat_interval_s < t.heartbeat_timeout_s

\* The peer must not give us up before we would give it up.
T5(t) == t.heartbeat_timeout_s <= t.heartbeat_ttl_s

\* One whole attempt must fit into the budget.
T6(t) == t.ack_timeout_s + t.read_timeout_s <= t.fetch_budget_s

\* A retry whose ack cannot be waited for is not made, so without this none ever would be.
T7(t) == t.ack_timeout_s + t.retry_interval_s <= t.fetch_budget_s

\* The least time given to a READ cannot exceed the most.
T8(t) == t.min_read_s <= t.read_timeout_s

\* A pause is cut to what the budget leaves; one that is longer can only be a mistake.
T9(t) == t.retry_max_interval_s < t.fetch_budget_s

\* A reader whose READ is lost, and that then stands still, must be gone before its blocks are given up.
T10(t) == t.drain_s + t.stall_s <= t.quarantine_s

Sound(t) ==
    /\ T1(t)
    /\ T2(t)
    /\ T3(t)
    /\ T4(t)
    /\ T5(t)
    /\ T6(t)
    /\ T7(t)
    /\ T8(t)
    /\ T9(t)
    /\ T10(t)
=============================================================================
