\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCEviction ------------------------------
\* Bounds for Eviction.

EXTENDS Eviction

CONSTANTS A, B, C, D

\* The others fill the region of three blocks; A takes two of them.
SizeMixed == [e \in Enc |-> IF e = A THEN 2 ELSE 1]

\* A tier that loses entries from its queue, or marks them as it likes, to show
\* that the invariants look.
Rogue(e) ==
    /\ est[e] = "ready"
    /\ \/ est' = [est EXCEPT ![e] = "stale"] /\ UNCHANGED queue
       \/ queue' = queue \ {e} /\ UNCHANGED est
    /\ UNCHANGED <<pins, line>>

RogueSpec == Init /\ [][Next \/ \E e \in Enc : Rogue(e)]_vars
=============================================================================
