\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCCircuits -----------------------------
\* Bounds and symmetry for Circuits, and what must be reachable.

EXTENDS Circuits, TLC

Doubles(n) == Power(n - 1)

Symmetry == Permutations(Good) \cup Permutations(Bad)

-----------------------------------------------------------------------------
\* The kept reader is the only one that works, with a suspect on it.
ReachOnlyKept == ~(Len(order) = 1 /\ \E p \in Producers : at[p] = order[1] /\ alone[p])

\* A good producer that was blamed shares a reader again.
ReachBack == ~\E g \in Good : blames[g] > 0 /\ left[g] = 0 /\ at[g] # None /\ ~alone[g]

\* A suspect waits for what was lent to the kept reader before it was kept.
ReachTurn == ~\E p, q \in Producers : p # q /\ left[p] > 0 /\ at[q] = ForSuspect /\ at[q] # None

\* An engine that lends where it likes, to show that TypeOK looks.
Rogue(p) ==
    /\ at[p] = None /\ \E r \in Readers \ (Works \cup drains) : at' = [at EXCEPT ![p] = r]
    /\ UNCHANGED <<order, drains, kept, alone, known, broken, lands>>
RogueSpec == Init /\ [][Next \/ \E p \in Producers : Rogue(p)]_vars
=============================================================================
