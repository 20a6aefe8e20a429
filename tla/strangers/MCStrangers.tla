\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCStrangers -----------------------------
\* Bounds for Strangers.

EXTENDS Strangers, TLC

CONSTANTS r1, r2, r3, r4, evil, other, friend

\* One names a stranger, one another stranger, one who has authenticated, one nobody.
EachAnother ==
    [r \in Requests |->
        CASE r = r1 -> evil [] r = r2 -> other [] r = r3 -> friend [] OTHER -> None]

\* An instance that gives away and waits for what it likes, to show that the invariants look.
Rogue ==
    /\ \/ given' = [given EXCEPT ![r4] = "nothing"] /\ UNCHANGED waits
       \/ waits' = [waits EXCEPT ![r4] = Place(evil)] /\ UNCHANGED given
    /\ UNCHANGED <<tier, word, rank, shown>>

RogueSpec == Init /\ [][Next \/ Rogue]_vars
=============================================================================
