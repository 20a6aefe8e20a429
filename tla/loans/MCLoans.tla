\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCLoans -------------------------------
\* Symmetry and view for Loans, and what must be reachable.

EXTENDS LoansStore, TLC

Symmetry == Permutations(Names) \cup Permutations(Blocks)

\* All but the history.
View == core

Never(x) == FALSE /\ UNCHANGED vars

NobodyStops == \A r \in Readers : ~stopped[r]

-----------------------------------------------------------------------------
\* A reader drains with a lost READ while another one works.
ReachTakenOver ==
    ~\E q, r \in Readers : proc[q] = "draining" /\ LostAt(q) # {} /\ proc[r] = "working"

\* The engine has seen the exit, has lent the block again, and then hears the old reader.
ReachLateWord ==
    ~\E r \in Readers, l \in Loans :
        /\ proc[r] = "exited" /\ out[r] # <<>> /\ loan[Head(out[r])[2]] = "returned"
        /\ loan[l] = "lent" /\ at[l] = at[Head(out[r])[2]]

\* Blocks come back after they were retired.
ReachReclaimed ==
    ~\E l \in Loans : loan[l] = "retired" /\ gone[to[l]]

\* An engine that takes what it likes, to show that the invariants look.
Rogue(l) ==
    /\ entry[l] = "saving" /\ entry' = [entry EXCEPT ![l] = "ready"]
    /\ ev' = {}
    /\ UNCHANGED <<name, at, retired, loan, to, bytes, proc, reader, dma>>
RogueSpec == Init /\ [][Next \/ \E l \in Loans : Rogue(l)]_vars

\* An engine that gives one block to two.
Greedy(k, l) ==
    /\ entry[k] = "saving" /\ entry[l] = "freed" /\ loan[l] = "returned"
    /\ entry' = [entry EXCEPT ![l] = "saving"] /\ at' = [at EXCEPT ![l] = at[k]]
    /\ ev' = {}
    /\ UNCHANGED <<name, retired, loan, to, bytes, proc, reader, dma>>
GreedySpec == Init /\ [][Next \/ \E k, l \in Loans : Greedy(k, l)]_vars

\* A parent that takes a reader back which it has killed.
Risen(r) ==
    /\ proc[r] = "killed" /\ proc' = [proc EXCEPT ![r] = "working"]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, reader, dma>>
RisenSpec == Init /\ [][Next \/ \E r \in Readers : Risen(r)]_vars

\* An engine that lends to whom it knows to be gone.
Ghost(l, r) ==
    /\ loan[l] = "none" /\ proc[r] = "exited"
    /\ loan' = [loan EXCEPT ![l] = LoanInitial] /\ to' = [to EXCEPT ![l] = r]
    /\ ev' = {}
    /\ UNCHANGED <<entry, name, at, retired, bytes, proc, reader, dma>>
GhostSpec == Init /\ [][Next \/ \E l \in Loans, r \in Readers : Ghost(l, r)]_vars

\* A table without the edges of one event.
DeafCanFire(edges, s, x, G) ==
    x # "exited" /\ \E d \in edges : /\ d.from = s /\ d.event = x
                                    /\ d.needs \subseteq G /\ d.forbids \cap G = {}

\* A reader that says everything twice.
Chatters(r, l) ==
    /\ Alive(r) /\ to[l] = r /\ Len(out[r]) <= 2 * Cardinality(Loans)
    /\ out' = [out EXCEPT ![r] = Append(@, <<"failed", l>>)]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, work, inbox, dma>>
ChatterSpec == Init /\ [][Next \/ \E r \in Readers, l \in Loans : Chatters(r, l)]_vars

RogueType(l) ==
    /\ entry[l] = "saving" /\ entry' = [entry EXCEPT ![l] = "stale"]
    /\ ev' = {}
    /\ UNCHANGED <<name, at, retired, loan, to, bytes, proc, reader, dma>>
RogueTypeSpec == Init /\ [][Next \/ \E l \in Loans : RogueType(l)]_vars
=============================================================================
