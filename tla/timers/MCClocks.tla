\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCClocks ------------------------------
\* Clocks for TLC, and what must be reachable in it.
EXTENDS Clocks

\* A producer whose clock jumps, to show that TypeOK looks.
Rogue ==
    /\ grant = "running"
    /\ theirs' = Lease + 1
    /\ UNCHANGED <<st, mine, grant, ahead>>

RogueSpec == Init /\ [][Next \/ Rogue]_vars

\* The whole margin is used up: the lease ends just when the fence closes.
ReachAllOfMargin == ~(grant = "over" /\ st = "reading" /\ mine = Bound)
=============================================================================
