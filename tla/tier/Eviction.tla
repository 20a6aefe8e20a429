\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Eviction -------------------------------
\* In which order a tier gives up its entries, and for whom (EC-2.5, EC-2.6). In
\* Tier.tla any ready entry may go at any moment; here it is the one that landed
\* first, taken from a queue that entries enter when their table says so, and only
\* for an allocation that succeeds.
\*
\* The queue is lazy, as in the code: an entry that is pinned stays in it and is
\* passed over when its turn comes. `line` is what the queue ought to say: all
\* servable entries, in the order in which they landed.

EXTENDS Lifecycle, Naturals, Sequences, FiniteSets

CONSTANTS
    Enc,            \* Encodings.
    Size,           \* [Enc -> 1..]: blocks that an encoding takes.
    Capacity,       \* Blocks of the region.
    MaxPins         \* Holders that an entry can have at once.

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    OldestFirst,    \* The queue is in the order of landing.
    AllOrNothing    \* An allocation that cannot succeed evicts nothing.

VARIABLES
    est,            \* [Enc -> EntryStates]; "freed" also before the first use.
    pins,           \* [Enc -> 0..MaxPins]
    line,           \* Servable entries in the order of landing.
    queue           \* Entries that have an item in the queue.

vars == <<est, pins, line, queue>>

-----------------------------------------------------------------------------
RECURSIVE Blocks(_)
Blocks(S) == IF S = {} THEN 0
             ELSE LET e == CHOOSE x \in S : TRUE IN Size[e] + Blocks(S \ {e})

Live == {e \in Enc : est[e] # "freed"}
Free == Capacity - Blocks(Live)
Evictable == {e \in Enc : CanFire(EntryEdges, est[e], "evict", {})}

\* What stands in the queue and may go.
Waiting == {e \in queue : e \in Evictable}
In(e) == \E i \in DOMAIN line : line[i] = e
Place(e) == CHOOSE i \in DOMAIN line : line[i] = e
Older(x, y) == In(x) /\ In(y) /\ Place(x) < Place(y)

Without(seq, S) == SelectSeq(seq, LAMBDA x : x \notin S)

\* The entry enters the queue where its edge asks for that.
Queued(e, event, G) ==
    IF Effect(EntryEdges, est[e], event, G) = "enqueue" THEN queue \cup {e} ELSE queue

\* The entries that give way to `need` blocks: no more than it takes, and the
\* oldest ones.
GiveWay(S, need) ==
    /\ Free + Blocks(S) >= need
    /\ \A x \in S : Free + Blocks(S \ {x}) < need \/ \E y \in S : Older(x, y)
    /\ OldestFirst => \A x \in S, y \in Waiting : Older(y, x) => y \in S

-----------------------------------------------------------------------------
Init ==
    /\ est = [e \in Enc |-> "freed"]
    /\ pins = [e \in Enc |-> 0]
    /\ line = <<>>
    /\ queue = {}

\* Actions Evict and Alloc are one step of the engine.
Evicted(S) ==
    [e \in Enc |-> IF e \in S THEN Fire(EntryEdges, est[e], "evict", {}) ELSE est[e]]

Alloc(e) ==
    /\ est[e] = "freed"
    /\ \E S \in SUBSET Waiting :
         /\ GiveWay(S, Size[e])
         /\ est' = [Evicted(S) EXCEPT ![e] = EntryInitial]
         /\ line' = Without(line, S)
         /\ queue' = queue \ S
    /\ UNCHANGED pins

\* An allocation for which there is no room, whatever gives way.
AllocFails(e) ==
    /\ est[e] = "freed"
    /\ Free + Blocks(Evictable) < Size[e]
    /\ LET S == IF AllOrNothing THEN {} ELSE Waiting
       IN /\ est' = Evicted(S)
          /\ line' = Without(line, S)
          /\ queue' = queue \ S
    /\ UNCHANGED pins

BeginWrite(e) ==
    /\ CanFire(EntryEdges, est[e], "begin_write", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "begin_write", {})]
    /\ UNCHANGED <<pins, line, queue>>

WriteLands(e) ==
    /\ CanFire(EntryEdges, est[e], "write_landed", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "write_landed", {})]
    /\ line' = Append(line, e)
    /\ queue' = Queued(e, "write_landed", {})
    /\ UNCHANGED pins

Cancel(e) ==
    /\ CanFire(EntryEdges, est[e], "cancel", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "cancel", {})]
    /\ UNCHANGED <<pins, line, queue>>

Pin(e) ==
    /\ pins[e] < MaxPins
    /\ CanFire(EntryEdges, est[e], "pin", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "pin", {})]
    /\ pins' = [pins EXCEPT ![e] = @ + 1]
    /\ UNCHANGED <<line, queue>>

Unpin(e) ==
    LET G == IF pins[e] = 1 THEN {"last_holder"} ELSE {}
    IN /\ pins[e] > 0
       /\ CanFire(EntryEdges, est[e], "unpin", G)
       /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "unpin", G)]
       /\ pins' = [pins EXCEPT ![e] = @ - 1]
       /\ queue' = Queued(e, "unpin", G)
       /\ UNCHANGED line

\* The queue looks at an item whose entry is pinned, and drops it.
PassOver(e) ==
    /\ e \in queue
    /\ est[e] = "pinned"
    /\ queue' = queue \ {e}
    /\ UNCHANGED <<est, pins, line>>

Next ==
    \/ \E e \in Enc : Alloc(e)
    \/ \E e \in Enc : AllocFails(e)
    \/ \E e \in Enc : BeginWrite(e)
    \/ \E e \in Enc : WriteLands(e)
    \/ \E e \in Enc : Cancel(e)
    \/ \E e \in Enc : Pin(e)
    \/ \E e \in Enc : Unpin(e)
    \/ \E e \in Enc : PassOver(e)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ est \in [Enc -> {"allocated", "saving", "ready", "pinned", "freed"}]
    /\ pins \in [Enc -> 0..MaxPins]
    /\ \A e \in Enc : est[e] = "pinned" <=> pins[e] > 0
    /\ queue \subseteq Enc
    /\ \A e \in Enc : In(e) <=> est[e] \in {"ready", "pinned"}

\* Every ready entry stands in the queue, or its blocks are never had again.
QueuedInv == \A e \in Enc : est[e] = "ready" => e \in queue

\* EC-2.5: nothing that landed earlier is passed over, and nothing held goes.
OldestFirstProp ==
    [][\A x \in Enc : (In(x) /\ est'[x] = "freed") =>
         /\ est[x] = "ready"
         /\ \A y \in Enc : (est[y] = "ready" /\ Older(y, x)) => est'[y] = "freed"]_vars

\* EC-2.6: entries give way to an allocation that succeeds, or not at all.
AllOrNothingProp ==
    [][\A x \in Enc : (In(x) /\ est'[x] = "freed") =>
         \E e \in Enc : est[e] = "freed" /\ est'[e] # "freed"]_vars

\* EC-2.6: with room enough to be made, an allocation is not refused.
RoomIsFoundInv ==
    \A e \in Enc :
        (est[e] = "freed" /\ Free + Blocks({x \in Enc : est[x] = "ready"}) >= Size[e])
            => \E S \in SUBSET Waiting : GiveWay(S, Size[e])

\* To be violated: an entry that was passed over while it was pinned goes later.
ReachPassedOver == \A e \in Enc : ~(est[e] = "pinned" /\ e \notin queue)
=============================================================================
