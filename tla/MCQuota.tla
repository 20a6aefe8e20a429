\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCQuota -------------------------------
\* Bounds and symmetry for Quota, and what must be reachable.

EXTENDS Quota, TLC

CONSTANTS A, B, C, D

\* A takes half of the region of four blocks, the others one block each.
SizeMixed == [e \in Enc |-> IF e = A THEN 2 ELSE 1]
Symmetry == Permutations(Peers) \cup Permutations({B, C, D})

-----------------------------------------------------------------------------
\* Two peers hold one encoding, whose blocks count once.
ReachShared == ~\E g, h \in Open : what[g] = what[h] /\ who[g] # who[h]

\* Everything that may be granted is, and the engine wants room besides.
ReachFull == ~(Blocks(Granted) = GrantQuota /\ want # None)

\* A producer that marks entries as it likes, to show that the invariants look.
Rogue(e) ==
    /\ \E st \in {"pinned", "stale"} : est[e] = "ready" /\ est' = [est EXCEPT ![e] = st]
    /\ UNCHANGED <<gst, who, what, want>>

RogueSpec == Init /\ [][Next \/ \E e \in Enc : Rogue(e)]_vars
=============================================================================
