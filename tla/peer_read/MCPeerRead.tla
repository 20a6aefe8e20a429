\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE MCPeerRead -----------------------------
\* Bounds and checks of PeerRead for TLC.
EXTENDS PeerProps, PeerStore, TLC

\* Everything but the history of the last step.
View == <<tiers, consumer, plane, net, producer>>

\* Blocks and encodings have no order.
Symmetry == Permutations(Blocks) \cup Permutations(Encodings)

\* For the config whose graph is compared with the tables. A second attempt is
\* there only to hold a second grant, and the producer restarts never.
OneObject == read[MaxAttempts] \in {"absent", "requested"}

\* READs that take no time, so that only what comes before posting can outlast
\* the lease.
QuickReads == (\E a \in Attempts : read[a] = "reading") => fence' = fence /\ lease' = lease

\* Each lacks one fairness: a timer that never runs out, an engine that never
\* comes back to what is over.
NoTickSpec        == Spec /\ FairnessBut("Tick")
NoAckTimeoutSpec  == Spec /\ FairnessBut("AckTimeout")
NoPostSpec        == Spec /\ FairnessBut("PostRead")
NoReadTimeoutSpec == Spec /\ FairnessBut("ReadTimeout")
NoRetireSpec      == Spec /\ FairnessBut("Retire")
NoSettleSpec      == Spec /\ FairnessBut("Settle")

\* For the config in which a request comes again after its grant is over (EC-5.7 speaks
\* of one that is outstanding): the attempt is granted anew, with a whole lease.
FreshAgain(a) == \/ grant[a] = "absent" /\ Unanswered(a)
                 \/ grant[a] \in GrantTerminal

-----------------------------------------------------------------------------
\* What must be reachable, or the invariants would hold of nothing. Each of
\* these is to be violated.

ReachDone        == \A a \in Attempts : read[a] # "done"
ReachQuarantined == \A a \in Attempts : read[a] # "quarantined"
ReachRetired     == Out = {}
ReachTwoGrants   == pins < 2

\* Bytes of a quarantined READ land while its encoding is ready again elsewhere.
ReachLandsBeside ==
    \A a \in Attempts, s \in Sinks :
        ~(/\ read[a] = "quarantined" /\ dma[a] = "completed"
          /\ entry[s] = "ready" /\ names[s] \in Asked(a))

\* An attempt is done whose producer is not the process that was asked first.
ReachDoneAfterRestart ==
    \A a \in Attempts :
        ~(read[a] = "done" /\ session > 1 /\ \E m \in Acks("ok") : m.inc = 1)

\* A READ ended after its fence.
ReachLateDone ==
    [][\A a \in Attempts : ~(read[a] = "reading" /\ read'[a] = "retryable")]_vars

\* The fence turned away a READ whose ack had been accepted.
ReachPostRefused ==
    [][\A a \in Attempts : ~(read[a] = "granted" /\ read'[a] = "retryable")]_vars

\* A retryable attempt leaves its entry, blocks and all, to the next one.
ReachRetrySameBlocks ==
    [][\A a \in Attempts, s \in Sinks :
        ~(/\ slot[a] = s
          /\ read[a] = "retryable" /\ read'[a] = "settled"
          /\ entry'[s] = "allocated")]_vars

\* A retryable attempt is given up, and its blocks with it.
ReachGivesUp ==
    [][\A a \in Attempts, s \in Sinks :
        ~(/\ slot[a] = s
          /\ read[a] = "retryable" /\ read'[a] = "settled"
          /\ entry'[s] = "freed")]_vars

\* A proof came after retirement.
ReachReclaimed == [][\A b \in Blocks : retired'[b] = 0 => retired[b] = 0]_vars

-----------------------------------------------------------------------------
\* A consumer that takes a short cut beside the tables, to show that TypeOK and
\* EdgesOnlyProp see it.
Rogue(a) ==
    /\ read[a] = "requested"
    /\ read' = [read EXCEPT ![a] = "done"]
    /\ fence' = [fence EXCEPT ![a] = Lease]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, slot, dst, src, handle, session, plane, net, producer>>

RogueSpec == Init /\ [][Next \/ \E a \in Attempts : Rogue(a)]_vars

\* Short cuts, each of which one property is there to see: a refusal is tried again, a
\* grant is dropped without a word, an attempt that failed is taken up again, a lost READ
\* leaves its blocks as they are.
Moves(a, from, to) ==
    /\ read[a] = from
    /\ read' = [read EXCEPT ![a] = to]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, fence, slot, dst, src, handle, session, plane, net, producer>>

HastySpec == Init /\ [][Next \/ \E a \in Attempts : Moves(a, "requested", "retryable")]_vars
SilentSpec == Init /\ [][Next \/ \E a \in Attempts : Moves(a, "granted", "failed")]_vars
ReviveSpec == Init /\ [][Next \/ \E a \in Attempts : Moves(a, "failed", "retryable")]_vars
CarelessSpec == Init /\ [][Next \/ \E a \in Attempts : Moves(a, "reading", "quarantined")]_vars

\* Likewise with what the step says that it fired: an answer that leaves the attempt
\* waiting, one that asks to come again and is taken for a refusal, a notice to a peer
\* that is lost, and one for a grant that was never made.
Says(a, from, e, to, said) ==
    /\ read[a] = from
    /\ read' = [read EXCEPT ![a] = to]
    /\ net' = net \cup said
    /\ ev' = {<<"read", from, e, to>>}
    /\ UNCHANGED <<tiers, fence, slot, dst, src, handle, session, plane, producer>>

WaitsSpec == Init /\ [][Next \/ \E a \in Attempts : Says(a, "requested", "ack_retry", "requested", {})]_vars
MeekSpec == Init /\ [][Next \/ \E a \in Attempts : Says(a, "requested", "ack_retry", "failed", {})]_vars
ChattySpec ==
    Init /\ [][Next \/ \E a \in Attempts :
                   Says(a, "granted", "peer_lost", "failed", {Notice(a, src[a])})]_vars
GuessingSpec ==
    Init /\ [][Next \/ \E a \in Attempts :
                   Says(a, "requested", "abort", "failed", {Notice(a, 1)})]_vars

\* An attempt that has failed settles, and its blocks stay allocated.
Leaves(a) ==
    /\ read[a] = "failed"
    /\ read' = [read EXCEPT ![a] = "settled"]
    /\ slot' = [slot EXCEPT ![a] = 0]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, fence, dst, src, handle, session, plane, net, producer>>

LeavesSpec == Init /\ [][Next \/ \E a \in Attempts : Leaves(a)]_vars

\* A producer that does not wait for the end of the lease.
Early(a) == grant[a] = "granted" /\ EndGrant(a, "expire", {})
EarlySpec == Init /\ [][Next \/ \E a \in Attempts : Early(a)]_vars

\* An engine that saves an encoding again over the bytes that are served.
Overwrites(s) ==
    /\ entry[s] = "ready"
    /\ entry' = [entry EXCEPT ![s] = "saving"]
    /\ ev' = {}
    /\ UNCHANGED <<names, at, free, retired, bytes, consumer, plane, net, producer>>
OverwriteSpec == Init /\ [][Next \/ \E s \in Slots : Overwrites(s)]_vars

\* A consumer that has no answer to an abort.
DeafCanRead(a, e, G) == e # "abort" /\ CanFire(ReadFrom[read[a]], read[a], e, G)
=============================================================================
