\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCGrace -------------------------------
\* Grace for TLC: the settings to choose from, and what must be reachable.
EXTENDS Grace

Few(n) == 1 .. n

GraceSettings ==
    [ack_timeout_s: {1}, read_timeout_s: {1}, quarantine_s: Few(6),
     lease_s: {9}, lease_margin_s: {1}, min_read_s: {1},
     retry_interval_s: {1}, retry_max_interval_s: {1}, fetch_budget_s: {9},
     announce_hold_s: {1}, fetched_hold_s: {1},
     heartbeat_interval_s: {1}, heartbeat_timeout_s: {2}, heartbeat_ttl_s: {3},
     start_s: {1}, stall_s: Few(4), lived_s: {1}, drain_s: Few(4)]

\* Put in the place of an inequality, it is dropped.
Dropped(any) == TRUE

\* A sign of life from the future, to show that TypeOK looks.
Rogue ==
    /\ Open /\ beat' = now + 1
    /\ UNCHANGED <<t, now, st, drained>>

RogueSpec == Init /\ [][Next \/ Rogue]_vars

\* The bound itself is allowed.
ReachT10 == t.drain_s + t.stall_s # t.quarantine_s
\* The reader is killed in the last tick before its blocks would be given up.
ReachLastTick == ~(st = "gone" /\ now = t.quarantine_s - 1)
=============================================================================
