\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Quota --------------------------------
\* A producer among peers that ask for everything and complete nothing (F11).
\* Grants are judged by two bounds (EC-5.10): what one peer pins, and what all of
\* them pin together. An encoding may be larger than either and is granted
\* nevertheless, or nobody could ever read it: beyond the first bound while its
\* grant is the only one of its peer, beyond the second while it is the only one
\* of all, and then with a pause before the next. Meanwhile the producer's own
\* engine wants room for encodings of its own.
\*
\* A lease may end at any moment and a peer asks again at once, so the end of
\* leases alone gives the engine nothing: that is what the bounds are for, and
\* the pause. What an ack says, and what a consumer does with it, is PeerRead's
\* part.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Enc,            \* Encodings.
    Size,           \* [Enc -> 1..]: blocks that an encoding takes.
    Capacity,       \* Blocks of the region.
    Peers,          \* Names under which somebody asks.
    Host,           \* [Peers -> who that is, as the connection proves (EC-15.1)].
    Slots,          \* Grants that can be outstanding at once, 1 ..
    PeerQuota,      \* Blocks that one peer may pin.
    GrantQuota,     \* Blocks that all grants together may pin.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    PeerShare,      \* What one peer pins is bounded.
    GrantShare,     \* What all grants together pin is bounded.
    LargeAlone,     \* An encoding beyond that bound is granted while nothing else is.
    LargePause,     \* Not so again until the engine had its turn.
    ProvenIdentity  \* A peer is who it proves to be, whatever it calls itself.

ASSUME GrantQuota < Capacity /\ \A e \in Enc : Size[e] <= Capacity
ASSUME DOMAIN Host = Peers

VARIABLES
    est,            \* [Enc -> EntryStates]; "freed" also before the first use.
    gst,            \* [Slots -> GrantStates]; "expired" also before the first use.
    who,            \* [Slots -> the peer that an outstanding grant is for]
    what,           \* [Slots -> the encoding that it pins]
    want,           \* The encoding that the engine wants room for, or None.
    paused          \* A grant beyond the bound of all has ended; no other yet.

vars == <<est, gst, who, what, want, paused>>

-----------------------------------------------------------------------------
Open == {g \in Slots : gst[g] \notin GrantTerminal}
Hosts == {Host[p] : p \in Peers}
OpenOf(h) == {g \in Open : Host[who[g]] = h}
\* What counts as one peer's: its host's, or with a broken identity the name's.
Judged(p) == IF ProvenIdentity THEN OpenOf(Host[p]) ELSE {g \in Open : who[g] = p}
Pins(e) == Cardinality({g \in Open : what[g] = e})
Granted == {what[g] : g \in Open}

RECURSIVE Blocks(_)
Blocks(S) == IF S = {} THEN 0
             ELSE LET e == CHOOSE x \in S : TRUE IN Size[e] + Blocks(S \ {e})

\* One peer's grants count one by one, also several of one encoding: each can be
\* outstanding longest. All grants together count what they really pin.
RECURSIVE Sum(_)
Sum(S) == IF S = {} THEN 0
          ELSE LET g == CHOOSE x \in S : TRUE IN Size[what[g]] + Sum(S \ {g})

Owned == Blocks({e \in Enc : est[e] # "freed"})
Servable(e) == est[e] \in {"ready", "pinned"}
Large(e) == Size[e] > GrantQuota

PeerRoom(p, e) ==
    PeerShare => Judged(p) = {} \/ Sum(Judged(p)) + Size[e] <= PeerQuota
GrantRoom(e) ==
    IF Large(e) THEN (LargeAlone => Open = {}) /\ (LargePause => ~paused)
    ELSE GrantShare => e \in Granted \/ Blocks(Granted) + Size[e] <= GrantQuota

-----------------------------------------------------------------------------
Init ==
    /\ est = [e \in Enc |-> "freed"]
    /\ gst = [g \in Slots |-> "expired"]
    /\ who = [g \in Slots |-> None]
    /\ what = [g \in Slots |-> None]
    /\ want = None
    /\ paused = FALSE

\* Action Grant. Slots are alike: the lowest one stands for all. A request beyond
\* a bound is answered NACK_NOT_READY, which changes nothing here.
Grant(p, e, g) ==
    /\ g \notin Open /\ \A f \in Slots : f < g => f \in Open
    /\ CanFire(EntryEdges, est[e], "pin", {})
    /\ PeerRoom(p, e)
    /\ GrantRoom(e)
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "pin", {})]
    /\ gst' = [gst EXCEPT ![g] = GrantInitial]
    /\ who' = [who EXCEPT ![g] = p]
    /\ what' = [what EXCEPT ![g] = e]
    /\ UNCHANGED <<want, paused>>

Ends(g, event, G) ==
    LET e == what[g]
        last == IF Pins(e) = 1 THEN {"last_holder"} ELSE {}
    IN /\ g \in Open
       /\ CanFire(GrantEdges, gst[g], event, G)
       /\ gst' = [gst EXCEPT ![g] = Fire(GrantEdges, @, event, G)]
       /\ est' = IF Effect(GrantEdges, gst[g], event, G) = "unpin"
                   THEN [est EXCEPT ![e] = Fire(EntryEdges, @, "unpin", last)] ELSE est
       /\ who' = [who EXCEPT ![g] = None]
       /\ what' = [what EXCEPT ![g] = None]
       /\ paused' = (paused \/ Large(e))
       /\ UNCHANGED want

\* Actions Complete, which no peer owes anybody, and Expire.
Complete(g) == Ends(g, "complete", {"names_this_attempt"})
Expire(g) == Ends(g, "expire", {})

\* The engine: it wants an encoding, evicts while there is no room, and saves.
Want(e) ==
    /\ want = None
    /\ est[e] = "freed"
    /\ want' = e
    /\ UNCHANGED <<est, gst, who, what, paused>>

Evict(x) ==
    /\ want # None
    /\ Owned + Size[want] > Capacity
    /\ CanFire(EntryEdges, est[x], "evict", {})
    /\ est' = [est EXCEPT ![x] = Fire(EntryEdges, @, "evict", {})]
    /\ UNCHANGED <<gst, who, what, want, paused>>

Save ==
    /\ want # None
    /\ Owned + Size[want] <= Capacity
    /\ LET begun == Fire(EntryEdges, EntryInitial, "begin_write", {})
       IN est' = [est EXCEPT ![want] = Fire(EntryEdges, begun, "write_landed", {})]
    /\ want' = None
    /\ UNCHANGED <<gst, who, what, paused>>

\* The pause is as long as a lease, which is longer than the engine takes to make
\* room and save: while it could do either, the pause goes on.
EngineCould ==
    /\ want # None
    /\ \/ Owned + Size[want] <= Capacity
       \/ \E x \in Enc : CanFire(EntryEdges, est[x], "evict", {})

PauseEnds ==
    /\ paused
    /\ ~EngineCould
    /\ paused' = FALSE
    /\ UNCHANGED <<est, gst, who, what, want>>

Next ==
    \/ \E p \in Peers, e \in Enc, g \in Slots : Grant(p, e, g)
    \/ \E g \in Slots : Complete(g)
    \/ \E g \in Slots : Expire(g)
    \/ \E e \in Enc : Want(e)
    \/ \E x \in Enc : Evict(x)
    \/ Save
    \/ PauseEnds

Spec == Init /\ [][Next]_vars

\* The engine goes on, and every lease ends; nobody has to complete anything.
Fairness ==
    /\ WF_vars(Save \/ \E x \in Enc : Evict(x))
    /\ \A g \in Slots : WF_vars(Expire(g))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ est \in [Enc -> {"freed", "ready", "pinned"}]
    /\ gst \in [Slots -> {"granted", "completed", "expired"}]
    /\ \A g \in Slots : IF gst[g] = "granted" THEN who[g] \in Peers /\ what[g] \in Enc
                        ELSE who[g] = None /\ what[g] = None
    /\ want \in Enc \cup {None}
    /\ paused \in BOOLEAN

\* EC-2.4: pinned means granted to somebody.
PinSafetyInv == \A e \in Enc : est[e] = "pinned" <=> Pins(e) > 0

\* EC-5.10 and EC-15.1, the two bounds themselves: of one host, under whatever
\* names, and of all. Beyond the first is only a host's only grant, beyond the second only the only grant that there is.
PeerShareInv ==
    \A h \in Hosts : Sum(OpenOf(h)) <= PeerQuota \/ Cardinality(OpenOf(h)) = 1
GrantShareInv == Blocks(Granted) <= GrantQuota \/ Cardinality(Open) = 1

\* F11, what the bounds are for. Grants never pin the tier solid, except by one
\* encoding that takes all of it ...
NotSolidInv == Blocks(Granted) < Capacity \/ \E e \in Granted : Size[e] = Capacity

\* ... and one peer alone never takes what is there for the others: what the bound
\* of all leaves beside its own bound, or beside the largest encoding that it was
\* granted, if that alone is more.
OthersServedInv ==
    \A h, i \in Hosts, e \in Enc :
        (/\ h # i /\ Open = OpenOf(h) /\ Servable(e)
         /\ Size[e] + PeerQuota <= GrantQuota
         /\ \A x \in Granted : Size[e] + Size[x] <= GrantQuota)
            => e \in Granted \/ Blocks(Granted) + Size[e] <= GrantQuota

\* The engine gets the room that the bounds leave, whatever the peers do and however
\* large what they ask for.
RoomProp ==
    \A e \in Enc : Size[e] <= Capacity - GrantQuota => (want = e ~> want # e)
=============================================================================
