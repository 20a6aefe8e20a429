\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCNames -------------------------------
\* Bounds for Names.

EXTENDS Names, TLC

CONSTANTS S, T, A, B

\* A server that gives away what it likes, to show that the invariants look.
Rogue(s) ==
    /\ asked[s] # Idle
    /\ \E p \in Pictures \cup {"nothing"} : given' = [given EXCEPT ![s] = p]
    /\ UNCHANGED <<count, tier, asked>>

RogueSpec == Init /\ [][Next \/ \E s \in Servers : Rogue(s)]_vars

Renamed == Permutations(Pictures)
=============================================================================
