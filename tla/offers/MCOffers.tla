\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCOffers ------------------------------
\* Symmetry and view for Offers, and what must be reachable.

EXTENDS OffersStore, TLC

Symmetry == Permutations(Names) \cup Permutations(Readers)

\* All but the history.
View == core

-----------------------------------------------------------------------------
\* A reader copies what a server granted that is gone, and the next one serves.
ReachAfterDeath ==
    ~\E r \in Readers, v, w \in Servers :
        rd[r].st = "copying" /\ rd[r].left > 0 /\ proc[v] = "gone" /\ proc[w] = "up"

\* A slot that the engine cannot have, because a server stands still in the middle.
ReachLocked == ~\E s \in Slots : lock[s] # None /\ proc[lock[s]] = "stopped"

\* A server that went on after its slot had been closed behind its back.
ReachRefused == ~\E v \in Servers : pc[v].at = "locked" /\ offer[pc[v].slot] = "closed"

\* An engine that takes what it likes, to show that TypeOK looks.
Rogue(s) == name' = [name EXCEPT ![s] = None] /\ ev' = {} /\ UNCHANGED <<whole, offer, ledger, lock, server, rd>>
RogueSpec == Init /\ [][Next \/ \E s \in Slots : Rogue(s)]_vars

\* An engine that opens a slot which it has closed.
Again(s) ==
    /\ offer[s] = "closed" /\ name[s] # None /\ offer' = [offer EXCEPT ![s] = "open"]
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, ledger, lock, server, rd>>
AgainSpec == Init /\ [][Next \/ \E s \in Slots : Again(s)]_vars

\* An engine that closes a slot and leaves it as if something came.
Ajar(s) ==
    /\ offer[s] = "open" /\ offer' = [offer EXCEPT ![s] = "coming"]
    /\ name' = [name EXCEPT ![s] = None]
    /\ ev' = {<<"offer", "open", "close", "coming">>}
    /\ UNCHANGED <<whole, ledger, lock, server, rd>>
AjarSpec == Init /\ [][Next \/ \E s \in Slots : Ajar(s)]_vars

\* A table without the edges of one event.
DeafCanFire(edges, s, x, G) ==
    x # "close" /\ \E d \in edges : /\ d.from = s /\ d.event = x
                                    /\ d.needs \subseteq G /\ d.forbids \cap G = {}
=============================================================================
