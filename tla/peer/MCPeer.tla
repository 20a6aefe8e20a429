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

\* A session that is forgotten, but not its incarnation.
Keeps(s) ==
    /\ peer[s] = "down" /\ inc[s] # 0
    /\ NoReads(s) # {}
    /\ peer' = [peer EXCEPT ![s] = "drained"]
    /\ ev' = {Ev("peer", PeerEdges, "down", "drain", NoReads(s))}
    /\ UNCHANGED <<inc, current, read, processVars>>

KeepsSpec == Init /\ [][Next \/ \E s \in Sessions : Keeps(s)]_vars

\* A session that is called live before anybody was heard.
Eager(s) ==
    /\ peer[s] = "connecting"
    /\ peer' = [peer EXCEPT ![s] = "live"]
    /\ ev' = {}
    /\ UNCHANGED <<inc, current, read, processVars>>

EagerSpec == Init /\ [][Next \/ \E s \in Sessions : Eager(s)]_vars

\* A table without a way to close a session.
DeafCanFire(edges, s, x, G) ==
    x # "close" /\ \E d \in edges : /\ d.from = s /\ d.event = x
                                    /\ d.needs \subseteq G /\ d.forbids \cap G = {}
=============================================================================
