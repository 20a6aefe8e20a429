\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCPeer -------------------------------
\* Bounds, symmetry and view for Peer, and what must be reachable.

EXTENDS Peer, TLC

Symmetry == Permutations(Sessions)
View == <<consumerVars, processVars>>

\* For the comparison with the tables: the last attempt is there only to bring
\* the ack of another process.
OneObject == read[MaxReads].st \in {"none", "requested"}

-----------------------------------------------------------------------------
\* A READ of the former process is in doubt while one of the new process is done.
ReachOverlap ==
    ~\E r, q \in Reads : /\ read[r].st = "quarantined" /\ read[q].st = "done"
                         /\ read[r].meta < read[q].meta

\* An ack of a process that is gone arrives when its successor is known.
ReachLateAck ==
    ~\E a \in acks : /\ a[2] < inc[read[a[1]].ses] /\ peer[read[a[1]].ses] = "live"

-----------------------------------------------------------------------------
\* A table entry that no lifecycle knows, to show that TypeOK looks.
Rogue(s) ==
    /\ peer[s] = "down"
    /\ peer' = [peer EXCEPT ![s] = "gone"]
    /\ ev' = {}
    /\ UNCHANGED <<inc, current, read, processVars>>

RogueSpec == Init /\ [][Next \/ \E s \in Sessions : Rogue(s)]_vars
=============================================================================
