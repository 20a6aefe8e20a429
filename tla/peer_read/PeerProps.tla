\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE PeerProps -----------------------------
\* What must hold of PeerRead. The names are those of the invariants of the
\* design; each has a config in which it fails.
EXTENDS PeerRead

-----------------------------------------------------------------------------
\* Invariants.

TypeOK ==
    /\ entry \in [Slots -> EntryStates]
    /\ names \in [Slots -> Encodings \cup {Nothing}]
    /\ at \in [Slots -> Blocks \cup Incs \cup {NoBlock}]
    /\ \A s \in Slots : entry[s] = "freed" <=> names[s] = Nothing /\ at[s] = NoBlock
    /\ free \subseteq Blocks \cup {inc}
    /\ retired \in [Blocks -> Attempts \cup {0}]
    /\ bytes \in [Blocks \cup Incs -> Encodings \cup {Torn}]
    /\ read \in [Attempts -> ReadStates \cup {"absent"}]
    /\ fence \in [Attempts -> 0 .. (Lease - Margin)]
    /\ slot \in [Attempts -> Slots]
    /\ dst \in [Attempts -> Blocks \cup {NoBlock}]
    /\ src \in [Attempts -> Incs \cup {Wild}]
    /\ handle \in [Attempts -> BOOLEAN]
    /\ session \in {0} \cup Incs
    /\ dma \in [Attempts -> {"none"} \cup Moving \cup Over]
    /\ seen \in [Attempts -> Encodings \cup {Torn, Nothing}]
    /\ net \subseteq Messages
    /\ inc \in Incs
    /\ pins \in 0 .. MaxAttempts
    /\ grant \in [Attempts -> GrantStates \cup {"absent"}]
    /\ lease \in [Attempts -> 0 .. Lease]

\* EC-2.2: a ready or pinned entry holds the encoding that it names, all of it.
NoWrongBytesInv ==
    \A s \in Slots : entry[s] \in {"ready", "pinned"} => bytes[at[s]] = names[s]

\* EC-6.2: a block that a READ may still write is in nobody's hands but that
\* READ's. (The source of a READ may be reused once its lease is over: those
\* bytes are not accepted.)
NoReuseUnderDMAInv ==
    \A a \in Attempts : dma[a] \in Moving =>
        /\ dst[a] \notin free
        /\ \A s \in Sinks : at[s] = dst[a] =>
               slot[a] = s /\ entry[s] \in {"saving", "quarantined"}
        /\ \A b \in Attempts \ {a} : dma[b] \in Moving => dst[b] # dst[a]

\* EC-2.4: each grant holds one pin, and pinned means held.
PinSafetyInv ==
    /\ pins = Cardinality({a \in Attempts : grant[a] = "granted"})
    /\ pins > 0 <=> entry[Origin] = "pinned"

\* EC-5.4: a grant is on an entry that holds what was asked for.
ServeReadyOnlyInv ==
    \A a \in Attempts : grant[a] = "granted" =>
        entry[Origin] = "pinned" /\ names[Origin] \in Asked(a)

\* EC-5.3: bytes are accepted only before the fence. (The fence of a done
\* attempt stands still.)
FencedAcceptInv == \A a \in Attempts : read[a] = "done" => fence[a] > 0

\* EC-5.1: no lease ends before the fence of its attempt. This is all that Fleet
\* knows about time; Clocks shows it for two clocks that run at any rates.
FenceFirstInv ==
    \A a \in Attempts : grant[a] = "expired" => ~(read[a] \in Fenced /\ fence[a] > 0)

\* EC-5.5, EC-5.6: nothing happened to an attempt or a grant but what a message
\* that names it, or its own side, asked for.
AttemptIdentityInv ==
    \A a \in Attempts :
        /\ read[a] \in {"granted", "reading", "done"} => \E m \in Acks("ok") : m.of = a
        /\ grant[a] = "completed" => Notice(a, inc) \in net

Owned == {at[s] : s \in {t \in Slots : entry[t] # "freed"}}
Out   == {b \in Blocks : retired[b] # 0}

\* EC-2.1: every block is free, owned or retired, and one of them only.
ConservedInv ==
    /\ free \cup Owned \cup Out = Blocks \cup {inc}
    /\ free \cap Owned = {}
    /\ (free \cup Owned) \cap Out = {}

\* EC-2.1: no block belongs to two entries, and no name has two live ones.
NoOverlapInv ==
    \A s, t \in Slots : (s # t /\ entry[s] # "freed" /\ entry[t] # "freed") =>
        /\ at[s] # at[t]
        /\ (s \in Sinks /\ t \in Sinks /\ Indexed(s) /\ Indexed(t)) => names[s] # names[t]

\* EC-6.4: what is quarantined or retired can still be proven over.
HandleKeptInv ==
    \A a \in Attempts : (read[a] = "quarantined" \/ a \in {retired[b] : b \in Out}) => handle[a]

\* EC-9.3: descriptors that a READ was given are those of its own ack.
IncarnationInv ==
    \A a \in Attempts : read[a] \in {"granted", "reading"} =>
        \E m \in Acks("ok") : m.of = a /\ m.inc = src[a]

\* EC-6.1, EC-6.4: what each state of an attempt says of its handle and of the entry
\* that is tied to it.
StateMeansInv ==
    \A a \in Attempts :
        /\ read[a] \in {"requested", "granted", "retryable", "failed"} =>
             ~handle[a] /\ dma[a] = "none" /\ slot[a] # 0 /\ entry[slot[a]] = "allocated"
        /\ read[a] = "reading" => handle[a] /\ slot[a] # 0 /\ entry[slot[a]] = "saving"
        /\ read[a] = "quarantined" =>
             handle[a] /\ slot[a] # 0 /\ entry[slot[a]] = "quarantined"
        /\ read[a] = "done" => ~handle[a] /\ dma[a] = "none" /\ slot[a] = 0
        /\ read[a] \in {"absent", "settled"} => slot[a] = 0

\* EC-5.11: a notice is sent for a grant that was made, and to the process that made it.
NoticedInv ==
    \A n \in net : n.type = "notice" => \E m \in Acks("ok") : m.of = n.of /\ m.inc = n.inc

-----------------------------------------------------------------------------
\* Properties.

EdgeStep(edges, from, to) == \E d \in edges : d.from = from /\ d.to = to

\* EC-1.1: lifecycle variables move along table edges only; objects begin in their
\* initial state; those of the producer vanish with its process.
EdgesOnlyProp ==
    [][/\ \A s \in Slots :
            \/ entry'[s] = entry[s]
            \/ EdgeStep(EntryEdges, entry[s], entry'[s])
            \/ entry[s] = "freed" /\ entry'[s] = "allocated"
            \/ s = Origin /\ inc' # inc
       /\ \A a \in Attempts :
            \/ read'[a] = read[a]
            \/ EdgeStep(ReadEdges, read[a], read'[a])
            \/ read[a] = "absent" /\ read'[a] = "requested"
       /\ \A a \in Attempts :
            \/ grant'[a] = grant[a]
            \/ EdgeStep(GrantEdges, grant[a], grant'[a])
            \/ grant[a] = "absent" /\ grant'[a] = "granted"
            \/ inc' # inc]_vars

\* EC-5.6: the nack of another attempt makes nobody try again.
AttemptIdentityProp ==
    [][\A a \in Attempts :
        (read[a] = "requested" /\ read'[a] = "retryable")
            => \E m \in Acks("ok") \cup Acks("retry") : m.of = a]_vars

\* EC-5.2: an ack is accepted, and a READ posted, only with enough of the lease left.
FencedPostProp ==
    [][\A a \in Attempts :
        /\ (read[a] # "granted" /\ read'[a] = "granted") => fence'[a] > MinRead
        /\ (read[a] # "reading" /\ read'[a] = "reading") => fence[a] > MinRead]_vars

\* EC-5.9, EC-8.5: an attempt is tried again only because its producer said so, or
\* because time ran out on a grant; any other failure falls back.
RetryProp ==
    [][\A a \in Attempts :
        (read[a] # "retryable" /\ read'[a] = "retryable")
            => fence[a] <= MinRead \/ \E m \in Acks("retry") : m.of = a]_vars

\* EC-5.12: whoever may try again does not fall back.
TriedAgainProp ==
    [][\A x \in ev' :
        /\ (x[1] = "read" /\ x[3] = "ack_retry") => x[4] = "retryable"
        /\ (x[1] = "read" /\ x[3] \in {"ack_ok", "post_read", "read_done"}) =>
             x[4] \in {"granted", "reading", "done", "retryable"}]_vars

\* EC-5.12: an attempt goes on with every event, never back; what became of it stands, and
\* nothing settles before.
Stage(s) == CASE s = "absent"    -> 0
              [] s = "requested" -> 1
              [] s = "granted"   -> 2
              [] s = "reading"   -> 3
              [] s = "settled"   -> 5
              [] OTHER           -> 4

OnwardProp ==
    [][/\ \A a \in Attempts : read'[a] # read[a] =>
            /\ Stage(read'[a]) > Stage(read[a])
            /\ read'[a] = "settled" => Stage(read[a]) = 4
       /\ (\E x \in ev' : x[1] = "read") => read' # read]_vars

\* EC-5.9, EC-6.2: the blocks of an attempt that failed do not stay allocated, and those of
\* one that is no longer in doubt not quarantined. (A retryable one may leave them to the
\* next attempt or not: ReachRetrySameBlocks, ReachGivesUp.)
SettledProp ==
    [][\A a \in Attempts :
        (read[a] \in {"failed", "quarantined"} /\ read'[a] = "settled")
            => entry'[slot[a]] = "freed"]_vars

\* EC-5.11: to a peer that is lost nothing is said.
LostProp == [][(\E x \in ev' : x[1] = "read" /\ x[3] = "peer_lost") => net' = net]_vars

\* EC-5.11: whoever will not use a grant says so, unless its peer is lost.
ReleasedProp ==
    [][\A a \in Attempts :
        (/\ read'[a] \notin {read[a], "reading"}
         /\ \/ read[a] = "granted"
            \/ read[a] = "requested" /\ \E x \in ev' : x[3] = "ack_ok" /\ x[4] = "retryable"
         /\ ~\E x \in ev' : x[3] = "peer_lost" \/ x[4] = "granted")
            => \E i \in Incs : Notice(a, i) \in net']_vars

\* EC-5.5: without its notice a grant ends with its lease, and not before.
ExpiryProp ==
    [][\A a \in Attempts :
        (grant[a] = "granted" /\ grant'[a] = "expired") => lease[a] <= Drift]_vars

\* EC-2.2, EC-2.3: bytes come to be served only by a write that ended, and what is served
\* stays as it is until nobody holds it and it is given up.
WrittenProp ==
    [][\A s \in Slots :
        LET served == {"ready", "pinned"} IN
        /\ (entry[s] \notin served /\ entry'[s] \in served) => entry[s] = "saving"
        /\ (entry[s] = "ready" /\ entry'[s] \notin served) => entry'[s] = "freed"
        /\ (entry[s] = "pinned" /\ inc' = inc) => entry'[s] \in served]_vars

\* EC-6.1: an attempt whose READ is lost has its blocks quarantined, and no other has.
QuarantineProp ==
    [][\A a \in Attempts :
        (read[a] = "reading" /\ read'[a] # "reading" /\ dma[a] \in Moving)
            => read'[a] = "quarantined" /\ entry'[slot[a]] = "quarantined"]_vars

\* EC-1.2: what the world does at any time is never an error. Acks come while one is
\* waited for; peers are lost, requests aborted, and timers run out, whenever they like.
ReceptiveInv ==
    \A a \in Attempts :
        /\ read[a] = "requested" =>
             \A e \in {"ack_retry", "ack_refused", "ack_timeout", "peer_lost", "abort"} :
                 CanRead(a, e, {})
        /\ read[a] = "granted" =>
             \A e \in {"post_failed", "peer_lost", "abort"} : CanRead(a, e, {})
        /\ read[a] = "reading" => \A e \in LostEvents \cup {"read_corrupt"} : CanRead(a, e, {})
        /\ read[a] = "quarantined" => \A e \in {"dma_ended", "retire"} : CanRead(a, e, {})
        /\ \A G \in SUBSET {"fence_open", "in_lease"} :
             /\ read[a] = "requested" => CanRead(a, "ack_ok", G)
             /\ read[a] = "granted" => CanRead(a, "post_read", G)
             /\ read[a] = "reading" => CanRead(a, "read_done", G)

\* Nothing but the clock, the engine, and the reader's timers is fair: no
\* message need arrive, no DMA need move, no producer need answer. `but` names
\* what goes wrong in a config that must fail.
FairnessBut(but) ==
    /\ but # "Tick" => WF_vars(Tick)
    /\ \A s \in Sinks : (but # "Cancel" => WF_vars(Cancel(s))) /\ WF_vars(SaveEnd(s))
    /\ \A a \in Attempts :
         /\ but # "AckTimeout" => WF_vars(AckTimeout(a))
         /\ but # "PostRead" => WF_vars(PostRead(a))
         /\ but # "ReadTimeout" => WF_vars(ReadLost(a, "read_timeout"))
         /\ but # "Retire" => WF_vars(Retire(a))
         /\ but # "Settle" => WF_vars(\E again \in BOOLEAN : Settle(a, again))
         /\ but # "Expire" => WF_vars(Expire(a))

Fairness == FairnessBut("")

FairSpec == Spec /\ Fairness

AttemptsSettleProp ==
    \A a \in Attempts : read[a] = "requested" ~> read[a] = "settled"

QuarantinesEndProp ==
    \A a \in Attempts : read[a] = "quarantined" ~> read[a] = "settled"

GrantsEndProp ==
    \A a \in Attempts : grant[a] = "granted" ~> grant[a] # "granted"

\* Every entry that the consumer allocates becomes ready or is freed.
EntriesEndProp ==
    \A s \in Sinks : entry[s] = "allocated" ~> entry[s] \in {"ready", "freed"}

\* In the end nothing is under way: both sides may sleep.
GoesIdleProp ==
    <>[](\A a \in Attempts : read[a] \in {"absent", "settled"} /\ grant[a] # "granted")

ProgressProp ==
    AttemptsSettleProp /\ QuarantinesEndProp /\ GrantsEndProp /\ EntriesEndProp
=============================================================================
