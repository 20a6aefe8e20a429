\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCAnnounce ------------------------------
\* Bounds for Announce.

EXTENDS Announce

CONSTANTS A, B

\* Two requests for one encoding, one for another.
TwoOfOne == [r \in Requests |-> IF r = 3 THEN B ELSE A]

\* A producer that marks entries as it likes, to show that the invariants look.
Rogue(e) ==
    /\ \E st \in {"pinned", "stale"} : est[e] = "ready" /\ est' = [est EXCEPT ![e] = st]
    /\ UNCHANGED <<saving, wanted, said>>

RogueSpec == Init /\ [][Next \/ \E e \in Enc : Rogue(e)]_vars
=============================================================================
