\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCTimers ------------------------------
\* Timers for TLC: the settings to choose from, and what must be reachable.
EXTENDS Timers

Even(n) == {2 * i : i \in 1..n}

FetchSettings ==
    [ack_timeout_s: {4}, read_timeout_s: Even(3), quarantine_s: {4, 6},
     lease_s: {6, 8, 10, 12}, lease_margin_s: {2}, min_read_s: Even(3),
     retry_interval_s: Even(2), retry_max_interval_s: {4}, fetch_budget_s: {6, 8, 10},
     announce_hold_s: {2}, fetched_hold_s: {2},
     heartbeat_interval_s: {2}, heartbeat_timeout_s: {4}, heartbeat_ttl_s: {6},
     start_s: {2}, stall_s: {2}, lived_s: {2}, drain_s: {2}]

PeerSettings ==
    [ack_timeout_s: {2}, read_timeout_s: {4}, quarantine_s: {8},
     lease_s: {12}, lease_margin_s: {2}, min_read_s: {2},
     retry_interval_s: {2}, retry_max_interval_s: {4}, fetch_budget_s: {12},
     announce_hold_s: {2}, fetched_hold_s: {2},
     heartbeat_interval_s: Even(4), heartbeat_timeout_s: Even(4), heartbeat_ttl_s: Even(4),
     start_s: {2}, stall_s: {2}, lived_s: {2}, drain_s: {2}]

\* Put in the place of an inequality, it is dropped.
Dropped(any) == TRUE

\* A fetch that goes back to an earlier request, to show that TypeOK looks.
Rogue ==
    /\ st = "waiting"
    /\ sent' = now + 1
    /\ UNCHANGED <<t, now, st, first, fence, posted, lost, next, peer>>

RogueSpec == Init /\ [][FetchNext \/ Rogue]_vars

\* Each bound itself is allowed, where the inequality includes it.
ReachT2 == t.ack_timeout_s + t.read_timeout_s + t.lease_margin_s # t.lease_s
ReachT3 == t.read_timeout_s # t.quarantine_s
ReachT5 == t.heartbeat_timeout_s # t.heartbeat_ttl_s
ReachT6 == t.ack_timeout_s + t.read_timeout_s # t.fetch_budget_s
ReachT7 == t.ack_timeout_s + t.retry_interval_s # t.fetch_budget_s
ReachT8 == t.min_read_s # t.read_timeout_s

\* A second attempt whose READ is accepted, and one that outlives its request.
ReachSecond == ~(st = "done" /\ ~first)
ReachOutlives == ~(st = "done" /\ now > Deadline)
=============================================================================
