\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCQuota -------------------------------
\* Bounds and symmetry for Quota, and what must be reachable.

EXTENDS Quota, TLC

CONSTANTS A, B, C, D, p, q, r

\* A takes two blocks, the others one each: in the region of four blocks all are
\* within the bounds, in a smaller one A is beyond them.
SizeMixed == [e \in Enc |-> IF e = A THEN 2 ELSE 1]
Symmetry == Permutations(Peers) \cup Permutations({B, C, D})

\* In a region of six blocks: A is beyond the bound of all grants, B beyond that of
\* a peer.
SizeLarge == [e \in Enc |-> CASE e = A -> 5 [] e = B -> 3 [] OTHER -> 1]
SymmetryLarge == Permutations(Peers) \cup Permutations({C, D})

\* Every name is another host's; or p and q are one host.
EachItsOwn == [x \in Peers |-> x]
TwoNames == [x \in Peers |-> IF x = q THEN p ELSE x]
SymmetryNames == Permutations({B, C, D})

-----------------------------------------------------------------------------
\* Two peers hold one encoding, whose blocks count once.
ReachShared == ~\E g, h \in Open : what[g] = what[h] /\ who[g] # who[h]

\* Everything that may be granted is, and the engine wants room besides.
ReachFull == ~(Blocks(Granted) = GrantQuota /\ want # None)

\* What is larger than all grants together may be is granted.
ReachLarge == ~\E e \in Granted : Large(e)

\* A producer that marks entries as it likes, to show that the invariants look.
Rogue(e) ==
    /\ \E st \in {"pinned", "stale"} : est[e] = "ready" /\ est' = [est EXCEPT ![e] = st]
    /\ UNCHANGED <<gst, who, what, want, paused>>

RogueSpec == Init /\ [][Next \/ \E e \in Enc : Rogue(e)]_vars
=============================================================================
