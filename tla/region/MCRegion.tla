\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCRegion ------------------------------
\* Bounds, symmetry and views for Region, and what must be reachable.

EXTENDS Region, TLC

CONSTANTS P1, P2, P3, P4, P5, S

\* P1, P2 and P5 are processes of one start, P3 and P4 of the next.
Second == {P3, P4}
TwoStarts == [p \in Procs |-> IF p \in Second THEN 2 ELSE 1]
SameName == [s \in Starts |-> "a"]
OwnNames == [s \in Starts |-> IF s = 1 THEN "a" ELSE "b"]

Symmetry ==
    Permutations(Files) \cup Permutations(Procs \ Second) \cup Permutations(Procs \cap Second)

\* Without the history, and without what a file was that nobody can reach.
View ==
    LET alive(f) == Exists(f)
    IN <<path, st, [f \in Files |-> IF alive(f) THEN <<start[f], whole[f], word[f]>> ELSE None],
         lockVars, procVars, guard>>

-----------------------------------------------------------------------------
\* A guard waits for a straggler of the old start while the new start is up.
ReachSuccessor ==
    ~\E p, q \in Procs : /\ pc[p] = "up" /\ pc[q] = "up" /\ fd[p] # fd[q]

\* Somebody has the exclusive lock of a file whose name is another file's.
ReachLateReaper ==
    ~\E f \in Files : /\ excl[f] # None /\ Exists(f)
                      /\ path[NameFor(f)] \notin {f, None}

\* A joiner has the lock of a file that has lost its name.
ReachLateJoiner ==
    ~\E p \in Procs : pc[p] = "recheck" /\ path[Name(p)] # fd[p]

\* A late process is refused while others of its start map a file without a name.
ReachRefused ==
    ~\E p, q \in Procs : /\ pc[p] = "refused" /\ pc[q] = "up" /\ word[fd[q]] = "draining"
                         /\ path[Name(q)] = None

-----------------------------------------------------------------------------
\* A move that no table has, to show that TypeOK and EdgesProp look.
Rogue(f) ==
    /\ st[f] = "live"
    /\ st' = [st EXCEPT ![f] = "lost"]
    /\ ev' = {}
    /\ UNCHANGED <<path, start, whole, word, lockVars, procVars, guard>>

RogueSpec == Init /\ [][Next \/ \E f \in Files : Rogue(f)]_vars

\* A file that is called draining while its word says that it is live.
Mistaken(f) ==
    /\ st[f] = "live"
    /\ st' = [st EXCEPT ![f] = "draining"]
    /\ ev' = {Ev("region", RegionEdges, "live", "drain", {})}
    /\ UNCHANGED <<path, start, whole, word, lockVars, procVars, guard>>

MistakenSpec == Init /\ [][Next \/ \E f \in Files : Mistaken(f)]_vars

\* A table in which nobody dies.
DeafCanFire(edges, s, x, G) ==
    x # "holders_died" /\ \E d \in edges : /\ d.from = s /\ d.event = x
                                           /\ d.needs \subseteq G /\ d.forbids \cap G = {}
=============================================================================
