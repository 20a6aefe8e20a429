\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE FleetStore -----------------------------
\* Fleet refines ContentStore: the mapping, as in PeerStore, but with as many
\* regions as there are instances. Old consumers have no fence and get no
\* promise, so their regions and their fetches are left out.
EXTENDS Fleet

Kept == Nodes \ OldConsumers
Serving(x) == {b \in Blocks : Servable(x, b)}

Delivered(c, n) ==
    LET found == {b \in Serving(c) : blk[c][b].name = n}
    IN  IF found = {} THEN n ELSE blk[c][CHOOSE b \in found : TRUE].bytes

Store == INSTANCE ContentStore WITH
    Places <- Kept,
    Ops <- Attempts,
    Garbage <- Torn,
    serves <- [x \in Kept |-> {<<blk[x][b].name, blk[x][b].bytes>> : b \in Serving(x)}],
    op <- [a \in Attempts |->
              CASE att[a].st = "none" \/ Old(a) -> [st |-> "idle"]
                [] att[a].st \in {"requested", "granted", "reading"} ->
                       [st |-> "asked", at |-> att[a].con, name |-> att[a].name]
                [] att[a].st = "done" ->
                       [st |-> "got", name |-> att[a].name,
                        bytes |-> Delivered(att[a].con, att[a].name)]
                [] OTHER -> [st |-> "nothing", name |-> att[a].name]]

StoreSpec == Store!StoreSpec

-----------------------------------------------------------------------------
\* Invariants; the ids without "Inv" are those of the design.

TypeOK ==
    /\ inc \in [Nodes -> Starts]
    /\ \A x \in Nodes, b \in Blocks :
         /\ blk[x][b].st \in EntryStates \cup {"retired"}
         /\ blk[x][b].name \in Names \cup {Nobody}
         /\ blk[x][b].bytes \in Names \cup {Torn}
         /\ blk[x][b].pins \in 0..(MaxAttempts + 1)
         /\ blk[x][b].hold \in BOOLEAN
    /\ \A a \in Attempts :
         /\ att[a].st \in ReadStates \cup {"none", "retired", "nothing", "dead"}
         /\ att[a].con \in Consumers \cup {Nobody} /\ att[a].pro \in Producers \cup {Nobody}
         /\ att[a].to \in Blocks \cup {NoBlock} /\ att[a].at \in Blocks \cup {NoBlock}
         /\ att[a].src \in {0} \cup Starts
         /\ att[a].dma \in {"none", "moving", "completed", "stopped"}
         /\ att[a].result \in Names \cup {Torn, Nobody}
         /\ \A i \in Starts : gr[a][i].st \in GrantStates \cup {"none"}

NoWrongBytesInv ==
    \A x \in Kept, b \in Blocks : Servable(x, b) => blk[x][b].bytes = blk[x][b].name

\* A block has one owner because it has one record; a name has one live entry,
\* and an attempt that is tied to a block is the only one.
NoOverlapInv ==
    /\ \A x \in Nodes, b, d \in Blocks :
         b # d /\ Indexed(x, b) /\ Indexed(x, d) => blk[x][b].name # blk[x][d].name
    /\ \A a, o \in Attempts :
         (a # o /\ (Waiting(a) \/ Moving(a)) /\ (Waiting(o) \/ Moving(o)) /\ att[a].con = att[o].con)
             => att[a].to # att[o].to \/ att[a].to = NoBlock

NoReuseUnderDMAInv ==
    \A a \in Attempts : Moving(a) /\ att[a].to # NoBlock =>
        blk[att[a].con][att[a].to].st \in {"saving", "quarantined", "retired"}

\* No block is lost: whatever is in no reader's, writer's or holder's hands is
\* free, servable, or can be given up.
ConservedInv ==
    \A x \in Nodes, b \in Blocks :
        /\ \A st \in {"quarantined", "retired"} :
             blk[x][b].st = st => \E a \in Attempts : Tied(a, x, b) /\ att[a].st = st
        /\ Busy(x, b) => blk[x][b].st \in {"allocated", "saving", "quarantined"}

Grants(x, b) ==
    {a \in Attempts : att[a].pro = x /\ gr[a][inc[x]].st = "granted" /\ gr[a][inc[x]].at = b}

PinSafetyInv ==
    \A x \in Nodes, b \in Blocks :
        /\ blk[x][b].pins = Cardinality(Grants(x, b)) + (IF blk[x][b].hold THEN 1 ELSE 0)
        /\ blk[x][b].pins > 0 <=> blk[x][b].st = "pinned"

ServeReadyOnlyInv ==
    \A x \in Producers, b \in Blocks : \A a \in Grants(x, b) :
        blk[x][b].st = "pinned" /\ blk[x][b].name = att[a].name

\* Bytes are accepted with the fence open only.
FencedAcceptProp ==
    [][\A a \in Attempts : att[a].st = "reading" /\ att'[a].st = "done" => att[a].open \/ Old(a)]_vars

\* A notice ends the grant that it was sent for, also those of old consumers.
AttemptIdentityProp ==
    [][\A a \in Attempts, i \in Starts :
          gr[a][i].st = "granted" /\ gr'[a][i].st = "completed" => gr[a][i].note]_vars

\* EC-1.1: entries move along edges of the table; they begin allocated (or,
\* with an encoder at work, saving), and vanish with their process.
Follows(from, to) ==
    \/ from = to
    \/ \E d \in EntryEdges : d.from = from /\ d.to = to
    \/ from = "freed" /\ to \in {"allocated", "saving"}
    \/ from = "saving" /\ to = "freed"
    \/ from = "quarantined" /\ to = "retired"
    \/ from = "retired" /\ to = "freed"
EdgesOnlyProp ==
    [][\A x \in Nodes, b \in Blocks :
          inc'[x] # inc[x] \/ Follows(blk[x][b].st, blk'[x][b].st)]_vars

-----------------------------------------------------------------------------
\* Progress, when either side may die at any point. Fair are the timers and
\* engines of whoever lives: no message need arrive, no READ need move or end.
\* `but` names what is missing in a config that must fail.
FairnessBut(but) ==
    /\ \A a \in Attempts :
         /\ WF_vars(FenceCloses(a))
         /\ but # "GiveUp" => WF_vars(GiveUp(a))
         /\ WF_vars(ReadLost(a))
         /\ but # "Retire" => WF_vars(Retire(a))
         /\ but # "Expire" => WF_vars(Expire(a))
    /\ \A x \in Nodes, b \in Blocks :
         /\ but # "Cancel" => WF_vars(Cancel(x, b))
         /\ WF_vars(SaveEnd(x, b) \/ SaveSkipped(x, b))
         /\ WF_vars(ReleaseHold(x, b))

FairSpec == Spec /\ FairnessBut("")

AttemptsEndProp == \A a \in Attempts : Waiting(a) ~> ~Waiting(a)

QuarantinesEndProp ==
    \A a \in Attempts : att[a].st = "quarantined" ~> att[a].st # "quarantined"

\* Also those that a dead consumer leaves behind.
GrantsEndProp ==
    \A a \in Attempts, i \in Starts : gr[a][i].st = "granted" ~> gr[a][i].st # "granted"

EntriesEndProp ==
    \A x \in Nodes, b \in Blocks :
        blk[x][b].st \in {"allocated", "saving"} ~> blk[x][b].st \notin {"allocated", "saving"}
=============================================================================
