\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE MCFleet ------------------------------
\* Bounds, view and symmetry of Fleet for TLC.
EXTENDS FleetStore, TLC

\* Either all blocks, or one for each producer and all for each consumer.
Everywhere == [x \in Nodes |-> Blocks]
First == CHOOSE b \in Blocks : TRUE
OneServed == [x \in Nodes |-> IF x \in Producers THEN {First} ELSE Blocks]

Symmetry == Permutations(Producers) \cup Permutations(Consumers)
                \cup Permutations(Names) \cup Permutations(Blocks)
SymmetryServed == Permutations(Producers) \cup Permutations(Consumers)
                      \cup Permutations(Names)
SymmetryMixed == Permutations(Names) \cup Permutations(Blocks)
SymmetryBoth  == Permutations(Nodes) \cup SymmetryMixed

\* What can still make a difference. A settled attempt that its producer has
\* answered, and whose grant is over, is forgotten; of a grant that is over only
\* that there was one is kept, as long as its ack may be wanted; a notice
\* matters to its own grant alone, unless a safeguard is off or the consumer old.
Loose(a) == Old(a) \/ ~NoticeIdentity \/ ~FreshSession
LastStart(x) == inc[x] = MaxStarts \/ x \notin Crashing

SeenGrant(a, i) ==
    LET g == gr[a][i]
        now == inc[att[a].pro]
    IN  IF att[a].st = "none" \/ (i < now /\ att[a].st # "requested") THEN NoGrant
        ELSE [st |-> IF g.st \in {"completed", "expired"} /\ ~Loose(a) THEN "over" ELSE g.st,
              at |-> IF g.st = "granted" \/ att[a].st = "requested" THEN g.at ELSE NoBlock,
              note |-> g.note /\ i = now /\ (g.st = "granted" \/ Loose(a)),
              taken |-> g.taken]

Settled(a) == att[a].st \in {"done", "nothing", "dead"} /\ ~Moving(a)
Gone(a) ==
    /\ Settled(a) /\ ~Loose(a)
    /\ LastStart(att[a].pro)
    /\ gr[a][inc[att[a].pro]].st \in {"completed", "expired"}

View ==
    <<inc, blk,
      [a \in Attempts |->
          IF Gone(a) THEN [NoAttempt EXCEPT !.st = "gone"]
          ELSE IF Settled(a) /\ att[a].st # "dead" THEN [att[a] EXCEPT !.st = "over", !.to = NoBlock]
          ELSE att[a]],
      [a \in Attempts |-> [i \in Starts |-> IF Gone(a) THEN NoGrant ELSE SeenGrant(a, i)]]>>

\* Each lacks one fairness: a timer that never runs out.
NoGiveUpSpec == Spec /\ FairnessBut("GiveUp")
NoRetireSpec == Spec /\ FairnessBut("Retire")
NoExpireSpec == Spec /\ FairnessBut("Expire")
NoCancelSpec == Spec /\ FairnessBut("Cancel")

-----------------------------------------------------------------------------
\* Instances that take short cuts beside the protocol, to show that the
\* invariants look: a name gets a second entry, an entry goes back, a state
\* that no table knows.
Rogue(x, b) ==
    /\ \E st \in {"allocated", "stale"}, n \in Names :
         blk' = [blk EXCEPT ![x][b] = [FreeBlock EXCEPT !.st = st, !.name = n]]
    /\ UNCHANGED <<inc, att, gr>>

RogueSpec == Init /\ [][Next \/ \E x \in Nodes, b \in Blocks : Rogue(x, b)]_vars

-----------------------------------------------------------------------------
\* What must be reachable; each is to be violated.

\* Two consumers read one entry of one producer at once.
ReachShared ==
    ~\E a, o \in Attempts : /\ att[a].con # att[o].con /\ att[a].pro = att[o].pro
                            /\ Moving(a) /\ Moving(o) /\ att[a].name = att[o].name
                            /\ att[a].at = att[o].at /\ att[a].st = "reading" /\ att[o].st = "reading"

\* What was fetched is served on.
ReachChain ==
    ~\E a, o \in Attempts : att[a].st = "done" /\ att[o].st = "done" /\ att[o].pro = att[a].con
                            /\ att[o].name = att[a].name

\* A retry goes to another producer, with the same block.
ReachOtherProducer ==
    ~\E a, o \in Attempts : /\ a < o /\ att[o].st = "reading" /\ att[a].con = att[o].con
                            /\ att[a].pro # att[o].pro /\ att[a].name = att[o].name

\* A dead consumer's READ is still moving while its successor's is accepted.
ReachOrphanRead ==
    ~\E a, o \in Attempts : /\ att[a].st = "dead" /\ Moving(a)
                            /\ att[o].st = "done" /\ att[o].con = att[a].con

\* A READ out of the memory of a dead process is accepted: it was posted in time.
ReachLegacy ==
    ~\E a \in Attempts : att[a].st = "reading" /\ att[a].dma = "completed" /\ att[a].open
                         /\ inc[att[a].pro] > 1 /\ gr[a][1].st = "expired"
=============================================================================
