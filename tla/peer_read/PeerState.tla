\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE PeerState -----------------------------
\* Constants, variables and table moves of PeerRead; its actions are in
\* PeerRead.tla, what must hold of them in PeerProps.tla.
\*
\* Slots hold entries: slot 0 is the producer's, the others the consumer's.
\* A block stands for all blocks of one encoding. The producer's region has one
\* block per incarnation, named by the number of that incarnation, so that the
\* memory of a dead process is never the memory of its successor.
EXTENDS Naturals, FiniteSets, Lifecycle

CONSTANTS
    Encodings,      \* contents that exist; an mm_hash is its encoding's name
    Blocks,         \* the consumer's blocks
    MaxAttempts,    \* attempt ids are 1 .. MaxAttempts, used once each
    MaxIncs,        \* incarnations of the producer, 1 .. MaxIncs
    Lease,          \* ticks a grant pins its entry, by the producer's clock
    Margin,         \* ticks the consumer takes off the lease
    MinRead,        \* ticks that must be left when a READ is posted
    Drift,          \* ticks that the producer's clock may be ahead by in a lease
    LocalSaves,     \* slots that are also filled by saves of their own engine
    Altering        \* bytes may change under way, which nothing honest does

\* Safeguards. All TRUE is the protocol; each expected-failure config sets one
\* of them (the fence counts as one) to FALSE.
CONSTANTS
    PostFence,          \* a READ is accepted for posting, and posted, only with the fence open
    AcceptFence,        \* bytes are accepted only with the fence not yet reached
    FenceFromSend,      \* the fence is counted from sending the request, not from its ack
    AckIdentity,        \* an ack acts on the attempt it names only
    NoticeIdentity,     \* a completion notice releases the grant of the attempt it names only
    ReleaseOnce,        \* a notice for a grant that is over releases nothing
    ServeReadyOnly,     \* grants are made on ready or pinned entries only
    IncarnationCheck,   \* descriptors are used with the incarnation that sent them only
    KeepHandles,        \* losing the peer keeps the handles of its READs
    ProofRequired,      \* only a transfer that is over counts as ended
    HeldQuarantine,     \* the end of the quarantine time does not make blocks free
    CountRetired,       \* retired blocks are kept account of
    RetryOwnsBlocks,    \* blocks that are kept for a retry are not free
    LeaseEnds,          \* a grant ends with its lease, notice or not
    CancelUnasked,      \* an entry that nobody asks for any more is given up
    Checksum            \* where bytes may change, they are compared with their checksum

VARIABLES
    \* Regions. Functions of slots, then of blocks.
    entry,      \* state of the entry in the slot; "freed" also when there is none
    names,      \* the encoding that the entry's mm_hash names, or Nothing
    at,         \* the entry's block, or NoBlock
    free,       \* blocks that may be handed out, of both regions
    retired,    \* consumer's blocks: the attempt that may still write it, or 0
    bytes,      \* ghost: the encoding whose bytes fill the block, or Torn
    \* Consumer. Functions of attempts.
    read,       \* state of the attempt, or "absent" when it was not made yet
    fence,      \* ticks until lease - margin has passed since the request was sent
    slot,       \* slot of the destination entry while the attempt is tied to it, else 0
    dst,        \* destination block of the READ while its handle is held, else NoBlock
    src,        \* incarnation in whose memory the descriptors lie, 0 for none
    handle,     \* the READ's handle is held
    session,    \* incarnation that the consumer thinks it talks to, 0 for none
    \* The data plane. Functions of attempts.
    dma,        \* "none", "posted", "copying", "completed", "stopped"
    seen,       \* what a copying DMA has read, or Nothing
    \* The network: every message ever sent. It is never emptied, which stands
    \* for loss, delay, reordering and repetition all at once.
    net,
    \* Producer. grant and lease are functions of attempts.
    inc,        \* the running incarnation
    pins,       \* holders of the producer's entry
    grant,      \* state of the grant, or "absent"
    lease,      \* ticks until the grant expires
    \* History: lifecycle events that the last step fired.
    ev

tiers    == <<entry, names, at, free, retired, bytes>>
consumer == <<read, fence, slot, dst, src, handle, session>>
plane    == <<dma, seen>>
producer == <<inc, pins, grant, lease>>
vars     == <<tiers, consumer, plane, net, producer, ev>>

-----------------------------------------------------------------------------
Attempts   == 1 .. MaxAttempts
Incs       == 1 .. MaxIncs
Origin     == 0                                 \* the producer's slot
Sinks      == 1 .. Cardinality(Blocks)          \* the consumer's slots
Slots      == {Origin} \cup Sinks
NoBlock    == 0
Wild       == 0                                 \* descriptors that match nothing
Nothing    == "nothing"
Torn       == "torn"

Fenced     == {"requested", "granted", "reading"}       \* the fence still runs
Open       == ReadStates \ {"quarantined", "settled"}   \* the entry waits for the attempt
Moving     == {"posted", "copying"}                     \* bytes may still be written
Over       == {"completed", "stopped"}

Req(a, h)        == [type |-> "req", of |-> a, names |-> h]
Ack(t, a, h, i)  == [type |-> t, of |-> a, names |-> h, inc |-> i]
Notice(a, i)     == [type |-> "notice", of |-> a, inc |-> i]
AckTypes         == {"ok", "retry", "refused"}
Acks(t)          == {m \in net : m.type = t}
Asked(a)         == {m.names : m \in {r \in net : r.type = "req" /\ r.of = a}}

Messages ==
    [type : {"req"}, of : Attempts, names : Encodings]
        \cup [type : AckTypes, of : Attempts, names : Encodings, inc : Incs]
        \cup [type : {"notice"}, of : Attempts, inc : {Wild} \cup Incs]

RegionOf(s) == IF s = Origin THEN {inc} ELSE Blocks
Busy(s)     == s \in Sinks /\ \E a \in Attempts : slot[a] = s
Indexed(s)  == entry[s] \notin {"freed", "quarantined"}

-----------------------------------------------------------------------------
\* Moves along the tables. The edges are looked up by their `from` state first:
\* the same edges, found sooner.
EntryFrom == [s \in EntryStates |-> {d \in EntryEdges : d.from = s}]
ReadFrom  == [s \in ReadStates \cup {"absent"} |-> {d \in ReadEdges : d.from = s}]
GrantFrom == [s \in GrantStates \cup {"absent"} |-> {d \in GrantEdges : d.from = s}]

\* Guards of a read whose fence is f ticks away.
ReadG(f) == (IF f > MinRead \/ ~PostFence THEN {"fence_open"} ELSE {})
            \cup (IF f > 0 \/ ~AcceptFence THEN {"in_lease"} ELSE {})

CanRead(a, e, G) == CanFire(ReadFrom[read[a]], read[a], e, G)
EvRead(a, e, G)  == Ev("read", ReadFrom[read[a]], read[a], e, G)

\* Attempt a moves; its fence runs on from f ticks as long as it matters.
ReadStep(a, e, G, f) ==
    LET to == Fire(ReadFrom[read[a]], read[a], e, G)
    IN  /\ read' = [read EXCEPT ![a] = to]
        /\ fence' = [fence EXCEPT ![a] = IF to \in Fenced \cup {"done"} THEN f ELSE 0]

ReadEffect(a, e, G) == Effect(ReadFrom[read[a]], read[a], e, G)

\* The grant of attempt a by incarnation i is given back where the edge says so.
Released(a, e, G, i) ==
    IF ReadEffect(a, e, G) = "release_grant" THEN {Notice(a, i)} ELSE {}

CanEntry(s, e, G) == CanFire(EntryFrom[entry[s]], entry[s], e, G)
EvEntry(s, e, G)  == Ev("entry", EntryFrom[entry[s]], entry[s], e, G)

\* The entry in slot s moves. An entry that is freed leaves its slot, and its
\* block goes where the edge says; retired blocks are the caller's business.
EntryStep(s, e, G) ==
    LET to == Fire(EntryFrom[entry[s]], entry[s], e, G)
    IN  /\ entry' = [entry EXCEPT ![s] = to]
        /\ names' = [names EXCEPT ![s] = IF to = "freed" THEN Nothing ELSE @]
        /\ at' = [at EXCEPT ![s] = IF to = "freed" THEN NoBlock ELSE @]

EntryEffect(s, e, G) == Effect(EntryFrom[entry[s]], entry[s], e, G)
FreeAfter(s, e, G)   == IF EntryEffect(s, e, G) = "free_blocks" THEN free \cup {at[s]} ELSE free

\* What the effect of a read edge asks of the entry in slot s: the entry event that does
\* it, "" for none. An event that the entry's state has no edge for is an error of TLC.
Asks(effect) == CASE effect = "promote"       -> "write_landed"
                  [] effect = "drop_bytes"    -> "write_ended"
                  [] effect = "fall_back"     -> "write_lost"
                  [] OTHER                    -> ""
EntryDoes(s, e)   == IF e = "" THEN UNCHANGED <<entry, names, at>> ELSE EntryStep(s, e, {})
EvEntryDoes(s, e) == IF e = "" THEN {} ELSE {EvEntry(s, e, {})}

\* The producer's entry loses one holder.
UnpinG == IF pins = 1 THEN {"last_holder"} ELSE {}
Unpin  == /\ CanEntry(Origin, "unpin", UnpinG)
          /\ EntryStep(Origin, "unpin", UnpinG)
          /\ pins' = pins - 1

\* A block that is given up may be overwritten by its next owner at once, so
\* nothing is left of its bytes, nor of what a DMA is just reading from it.
Gone(s)   == [bytes EXCEPT ![at[s]] = Torn]
Spoilt(b) == [a \in Attempts |-> IF dma[a] = "copying" /\ src[a] = b THEN Torn ELSE seen[a]]

-----------------------------------------------------------------------------
Init ==
    /\ entry = [s \in Slots |-> "freed"]
    /\ names = [s \in Slots |-> Nothing]
    /\ at = [s \in Slots |-> NoBlock]
    /\ free = Blocks \cup {1}
    /\ retired = [b \in Blocks |-> 0]
    /\ bytes = [b \in Blocks \cup Incs |-> Torn]
    /\ read = [a \in Attempts |-> "absent"]
    /\ fence = [a \in Attempts |-> 0]
    /\ slot = [a \in Attempts |-> 0]
    /\ dst = [a \in Attempts |-> NoBlock]
    /\ src = [a \in Attempts |-> Wild]
    /\ handle = [a \in Attempts |-> FALSE]
    /\ session = 0
    /\ dma = [a \in Attempts |-> "none"]
    /\ seen = [a \in Attempts |-> Nothing]
    /\ net = {}
    /\ inc = 1
    /\ pins = 0
    /\ grant = [a \in Attempts |-> "absent"]
    /\ lease = [a \in Attempts |-> 0]
    /\ ev = {}
=============================================================================
