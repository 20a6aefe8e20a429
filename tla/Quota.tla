\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Quota --------------------------------
\* A producer among peers that ask for everything and complete nothing (F11).
\* Grants are judged by two bounds (EC-5.10): what one peer pins, and what all of
\* them pin together, each with its first grant free. Meanwhile the producer's own
\* engine wants room for encodings of its own.
\*
\* A lease may end at any moment and a peer asks again at once, so the end of
\* leases alone gives the engine nothing: that is what the bounds are for. What an
\* ack says, and what a consumer does with it, is PeerRead's part.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Enc,            \* Encodings.
    Size,           \* [Enc -> 1..]: blocks that an encoding takes.
    Capacity,       \* Blocks of the region.
    Peers,          \* Identities that ask; one machine may have several.
    Slots,          \* Grants that can be outstanding at once, 1 ..
    PeerQuota,      \* Blocks that one peer may pin.
    GrantQuota,     \* Blocks that all grants together may pin.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    PeerShare,      \* What one peer pins is bounded.
    GrantShare      \* What all grants together pin is bounded.

VARIABLES
    est,            \* [Enc -> EntryStates]; "freed" also before the first use.
    gst,            \* [Slots -> GrantStates]; "expired" also before the first use.
    who,            \* [Slots -> the peer that an outstanding grant is for]
    what,           \* [Slots -> the encoding that it pins]
    want            \* The encoding that the engine wants room for, or None.

vars == <<est, gst, who, what, want>>

-----------------------------------------------------------------------------
Open == {g \in Slots : gst[g] \notin GrantTerminal}
OpenOf(p) == {g \in Open : who[g] = p}
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

PeerRoom(p, e) ==
    PeerShare => OpenOf(p) = {} \/ Sum(OpenOf(p)) + Size[e] <= PeerQuota
GrantRoom(e) ==
    GrantShare => Granted \subseteq {e} \/ e \in Granted
                  \/ Blocks(Granted) + Size[e] <= GrantQuota

-----------------------------------------------------------------------------
Init ==
    /\ est = [e \in Enc |-> "freed"]
    /\ gst = [g \in Slots |-> "expired"]
    /\ who = [g \in Slots |-> None]
    /\ what = [g \in Slots |-> None]
    /\ want = None

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
    /\ UNCHANGED want

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
       /\ UNCHANGED want

\* Actions Complete, which no peer owes anybody, and Expire.
Complete(g) == Ends(g, "complete", {"names_this_attempt"})
Expire(g) == Ends(g, "expire", {})

\* The engine: it wants an encoding, evicts while there is no room, and saves.
Want(e) ==
    /\ want = None
    /\ est[e] = "freed"
    /\ want' = e
    /\ UNCHANGED <<est, gst, who, what>>

Evict(x) ==
    /\ want # None
    /\ Owned + Size[want] > Capacity
    /\ CanFire(EntryEdges, est[x], "evict", {})
    /\ est' = [est EXCEPT ![x] = Fire(EntryEdges, @, "evict", {})]
    /\ UNCHANGED <<gst, who, what, want>>

Save ==
    /\ want # None
    /\ Owned + Size[want] <= Capacity
    /\ LET begun == Fire(EntryEdges, EntryInitial, "begin_write", {})
       IN est' = [est EXCEPT ![want] = Fire(EntryEdges, begun, "write_landed", {})]
    /\ want' = None
    /\ UNCHANGED <<gst, who, what>>

Next ==
    \/ \E p \in Peers, e \in Enc, g \in Slots : Grant(p, e, g)
    \/ \E g \in Slots : Complete(g)
    \/ \E g \in Slots : Expire(g)
    \/ \E e \in Enc : Want(e)
    \/ \E x \in Enc : Evict(x)
    \/ Save

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

\* EC-2.4: pinned means granted to somebody.
PinSafetyInv == \A e \in Enc : est[e] = "pinned" <=> Pins(e) > 0

\* EC-5.10, the two bounds themselves.
PeerShareInv ==
    \A p \in Peers : Sum(OpenOf(p)) <= PeerQuota \/ Cardinality(OpenOf(p)) = 1
GrantShareInv == Blocks(Granted) <= GrantQuota \/ Cardinality(Granted) = 1

\* F11, what the bounds are for. Grants never pin the tier solid ...
NotSolidInv == Blocks(Granted) < Capacity

\* ... and one peer alone never takes what is there for the others.
OthersServedInv ==
    \A p, q \in Peers, e \in Enc :
        (p # q /\ Open = OpenOf(p) /\ Servable(e) /\ Size[e] <= GrantQuota - PeerQuota)
            => Granted \cap {e} # {} \/ Blocks(Granted) + Size[e] <= GrantQuota

\* The engine gets the room that the bounds leave, whatever the peers do.
RoomProp ==
    \A e \in Enc : Size[e] <= Capacity - GrantQuota => (want = e ~> want # e)
=============================================================================
