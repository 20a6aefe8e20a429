\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCDeferral -----------------------------
\* Bounds of Deferral for TLC.
EXTENDS Deferral, FiniteSets, TLC

CONSTANTS A, B, r1, r2, r3

\* r1 and r2 want the same, r3 something else.
WantTwo == [r \in Requests |-> IF r = r3 THEN B ELSE A]

\* An engine that fails a request which could have encoded for itself, or
\* that forgets what a request is, to show that the invariants look.
Rogue(r) ==
    /\ req[r] = "waiting"
    /\ \E st \in {"failed", "lost"} : req' = [req EXCEPT ![r] = st]
    /\ UNCHANGED <<tier, left, waited, quiet, held, told>>

RogueSpec == Init /\ [][Next \/ \E r \in Requests : Rogue(r)]_vars

\* What was fetched for a request was given up before it came to load it, and
\* is fetched again.
ReachFetchedTwice ==
    [][\A n \in Names : ~(/\ tier[n] = "ready" /\ tier'[n] = "absent"
                          /\ \E r \in Requests : Waits(r) /\ Want[r] = n /\ r \notin told)]_vars
=============================================================================
