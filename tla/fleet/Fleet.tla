\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Fleet -------------------------------
\* Several producers, several consumers, several encodings that compete for the
\* blocks of each; either side may die and start again at any point. An
\* instance may have both roles, and then serves what it has fetched.
\*
\* This is PeerRead for many, made small by two things:
\*
\* - Time. The only thing that matters about lease and fence is which comes
\*   first: Clocks shows that the fence of an attempt closes before its lease
\*   ends, whatever the two clocks do within their bound. So a fence is open or
\*   closed, closes at any moment, and a lease ends at any moment after that.
\* - Steps. PeerRead has one action per event; here all that happens in one
\*   call is one step, so an attempt's end and its settling are one,
\*   and every way to give up before a READ is posted is GiveUp.
\*
\* A READ delivers what its source block held when it was posted, or garbage
\* once that block was given up: whatever it copies in which order, the result
\* is this or no worse. Nothing here reads an ack's incarnation, lease or
\* attempt id, so every producer may be an old one; see FenceFirst.
EXTENDS Naturals, FiniteSets, Lifecycle

CONSTANTS
    Producers,      \* Addresses of instances that serve.
    Consumers,      \* Those of instances that fetch; may overlap.
    OldConsumers,   \* Consumers of version 1 or 2: no fence, no attempt in their notices.
    Crashing,       \* Instances that may die and start again.
    Names,          \* mm_hashes.
    Blocks,         \* Block numbers.
    Room,           \* [Nodes -> SUBSET Blocks]: those that the region has.
    MaxAttempts,    \* Attempts of all consumers together, each made once.
    MaxStarts,      \* Processes that an instance may be, one after another.
    Holding         \* Instances that hold what they announced.

CONSTANTS           \* Safeguards, all TRUE except in bug configs.
    Fence,          \* READs are posted, and bytes accepted, with the fence open only.
    FenceFirst,     \* No lease ends before the fence of its attempt (Clocks). An old
                    \* producer whose leases are shorter than assumed breaks it.
    NoticeIdentity, \* A notice ends the grant of the attempt it names only.
    OneMeaning,     \* A notice that could mean two grants ends neither.
    CountHolders,   \* An entry is held until its last holder lets go.
    ServeReadyOnly, \* Only finished encodings are granted.
    OwnMetadata,    \* A READ goes to the process that granted it, or nowhere.
    HeldQuarantine, \* Time alone makes no block free.
    KeepHandles,    \* A READ whose end is unknown is not forgotten.
    FreshSession,   \* A new process of a consumer has another session.
    FreshRegion     \* A new process of an instance has other memory.

Nodes    == Producers \cup Consumers
Attempts == 1..MaxAttempts
Starts   == 1..MaxStarts
NoBlock  == 0
Torn     == "torn"
Nobody   == "nobody"

ASSUME /\ OldConsumers \subseteq Consumers \ Producers
       /\ NoBlock \notin Blocks
       /\ Room \in [Nodes -> SUBSET Blocks]

VARIABLES
    inc,    \* [Nodes -> the process that runs there now, by number].
    blk,    \* [Nodes -> [Blocks -> record]], see FreeBlock.
    att,    \* [Attempts -> record], see NoAttempt.
    gr      \* [Attempts -> [Starts -> record]]: what that process of the asked
            \* producer did about the attempt, see NoGrant.

vars == <<inc, blk, att, gr>>

\* st is a state of the entry lifecycle, or "retired". bytes are a ghost.
FreeBlock == [st |-> "freed", name |-> Nobody, bytes |-> Torn, pins |-> 0, hold |-> FALSE]

\* st: "none"; "requested", "granted", "reading", "quarantined" as in the table;
\* "retired"; "done" and "nothing" are settled; "dead" when its process is.
\* src is the process, and at its block, whose bytes the READ copies, by the
\* grant of attempt via (its own, unless attempts share a name). result is what
\* it delivers when it ends, Nobody if it cannot.
NoAttempt ==
    [st |-> "none", con |-> Nobody, pro |-> Nobody, name |-> Nobody, to |-> NoBlock,
     open |-> FALSE, src |-> 0, at |-> NoBlock, via |-> 0, dma |-> "none", result |-> Nobody]

\* The OK ack is under way, for ever, once st is not "none". note: the notice
\* of this grant is under way to that process. taken: an old consumer, which
\* cannot tell its attempts apart, has had the ack; the network repeats none.
NoGrant == [st |-> "none", at |-> NoBlock, note |-> FALSE, taken |-> FALSE]

Servable(x, b) == blk[x][b].st \in {"ready", "pinned"}
Indexed(x, b)  == blk[x][b].st \notin {"freed", "quarantined", "retired"}
Has(x, n)      == \E b \in Blocks : Indexed(x, b) /\ blk[x][b].name = n
Waiting(a)     == att[a].st \in {"requested", "granted", "reading"}
Tied(a, x, b)  == att[a].con = x /\ att[a].to = b
Busy(x, b)     == \E a \in Attempts : Tied(a, x, b) /\ (Waiting(a) \/ att[a].st = "quarantined")
Moving(a)      == att[a].dma = "moving"
Old(a)         == att[a].con \in OldConsumers

\* Block b of x gets other bytes: a READ out of it delivers garbage.
Spoil(atts, x, b) ==
    [a \in Attempts |->
        IF /\ atts[a].dma = "moving" /\ atts[a].result # Nobody
           /\ atts[a].pro = x /\ atts[a].src = inc[x] /\ atts[a].at = b
        THEN [atts[a] EXCEPT !.result = Torn] ELSE atts[a]]

\* An entry is given up; whoever gets its block next may write at once.
Release(x, b) == blk' = [blk EXCEPT ![x][b] = FreeBlock]

-----------------------------------------------------------------------------
Init ==
    /\ inc = [x \in Nodes |-> 1]
    /\ blk = [x \in Nodes |-> [b \in Blocks |-> FreeBlock]]
    /\ att = [a \in Attempts |-> NoAttempt]
    /\ gr = [a \in Attempts |-> [i \in Starts |-> NoGrant]]

-----------------------------------------------------------------------------
\* Tiers.

\* An encoder will write: Alloc and SubmitSave of Tier.
SaveBegin(x, n, b) ==
    /\ x \in Producers /\ b \in Room[x]
    /\ blk[x][b].st = "freed"
    /\ ~Has(x, n)
    /\ blk' = [blk EXCEPT ![x][b] = [FreeBlock EXCEPT !.st = "saving", !.name = n]]
    /\ UNCHANGED <<inc, att, gr>>

Saving(x, b) == blk[x][b].st = "saving" /\ ~Busy(x, b)

SaveEnd(x, b) ==
    /\ Saving(x, b)
    /\ blk' = [blk EXCEPT ![x][b].st = "ready", ![x][b].bytes = blk[x][b].name]
    /\ UNCHANGED <<inc, att, gr>>

SaveSkipped(x, b) ==
    /\ Saving(x, b)
    /\ Release(x, b)
    /\ att' = Spoil(att, x, b)
    /\ UNCHANGED <<inc, gr>>

Evict(x, b) ==
    /\ blk[x][b].st = "ready"
    /\ Release(x, b)
    /\ att' = Spoil(att, x, b)
    /\ UNCHANGED <<inc, gr>>

\* Nobody waits any more.
Cancel(x, b) ==
    /\ blk[x][b].st = "allocated"
    /\ ~Busy(x, b)
    /\ Release(x, b)
    /\ UNCHANGED <<inc, att, gr>>

Pinned(r)   == [r EXCEPT !.pins = @ + 1, !.st = "pinned"]
Unpinned(r) == [r EXCEPT !.pins = @ - 1,
                         !.st = IF r.pins = 1 \/ ~CountHolders THEN "ready" ELSE @]

Hold(x, b) ==
    /\ x \in Holding
    /\ Servable(x, b)
    /\ ~blk[x][b].hold
    /\ blk' = [blk EXCEPT ![x][b] = [Pinned(blk[x][b]) EXCEPT !.hold = TRUE]]
    /\ UNCHANGED <<inc, att, gr>>

ReleaseHold(x, b) ==
    /\ blk[x][b].hold
    /\ blk' = [blk EXCEPT ![x][b] = [Unpinned(blk[x][b]) EXCEPT !.hold = FALSE]]
    /\ UNCHANGED <<inc, att, gr>>

-----------------------------------------------------------------------------
\* Consumers.

Request(a, c, p, n, b) ==
    /\ att[a].st = "none"
    /\ \A o \in Attempts : o < a => att[o].st # "none"
    /\ c # p
    /\ att' = [att EXCEPT ![a] = [NoAttempt EXCEPT !.st = "requested", !.con = c, !.pro = p,
                                      !.name = n, !.to = b, !.open = c \notin OldConsumers]]

\* Alloc and RequestRead, in one step.
Fetch(a, c, p, n, b) ==
    /\ b \in Room[c]
    /\ blk[c][b].st = "freed"
    /\ ~Has(c, n)
    /\ Request(a, c, p, n, b)
    /\ blk' = [blk EXCEPT ![c][b] = [FreeBlock EXCEPT !.st = "allocated", !.name = n]]
    /\ UNCHANGED <<inc, gr>>

\* With the blocks of the attempt before, from the same producer or another.
RequestRead(a, c, p, b) ==
    /\ blk[c][b].st = "allocated"
    /\ ~Busy(c, b)
    /\ Request(a, c, p, blk[c][b].name, b)
    /\ UNCHANGED <<inc, blk, gr>>

FenceCloses(a) ==
    /\ Waiting(a)
    /\ att[a].open
    /\ att' = [att EXCEPT ![a].open = FALSE]
    /\ UNCHANGED <<inc, blk, gr>>

\* Attempt o has the same name on the wire as a: an old consumer, or a new
\* process that took over the session of a dead one.
Alias(o, a) ==
    /\ att[o].con = att[a].con /\ att[o].pro = att[a].pro /\ att[o].name = att[a].name
    /\ Old(a) \/ (~FreshSession /\ att[o].st = "dead" /\ att[a].st # "dead")

\* The notice of a goes to process i, if that is still there.
Noted(a, i) == [gr EXCEPT ![a][i].note = @ \/ i = inc[att[a].pro]]
Taken(grants, a, i) == [grants EXCEPT ![a][i].taken = Old(a)]
Ended(r, st) == [r EXCEPT !.st = st, !.open = FALSE, !.src = 0, !.at = NoBlock, !.via = 0]

\* An ack of process i, for a; with the fence closed its grant goes back.
AckOk(a, o, i) ==
    /\ att[a].st = "requested"
    /\ o = a \/ Alias(o, a)
    /\ gr[o][i].st # "none"
    /\ ~gr[o][i].taken
    /\ IF att[a].open \/ ~Fence \/ Old(a)
         THEN /\ att' = [att EXCEPT ![a].st = "granted", ![a].src = i, ![a].at = gr[o][i].at,
                                  ![a].via = o]
              /\ gr' = Taken(gr, o, i)
         ELSE /\ att' = [att EXCEPT ![a] = Ended(@, "nothing")]
              /\ gr' = Noted(o, i)
    /\ UNCHANGED <<inc, blk>>

\* AckRetry, AckRefused, AckTimeout, PeerLost, Abort, PostFailed and the closed
\* fence: nothing was posted. The grant is given back, or not (a lost peer).
GiveUp(a) ==
    /\ att[a].st \in {"requested", "granted"}
    /\ att' = [att EXCEPT ![a] = Ended(@, "nothing")]
    /\ \/ UNCHANGED gr
       \/ att[a].src # 0 /\ gr' = Noted(att[a].via, att[a].src)
    /\ UNCHANGED <<inc, blk>>

\* An ack that nobody waits for: its grant goes back.
DropAck(a, i) ==
    /\ gr[a][i].st = "granted"
    /\ ~gr[a][i].note /\ ~gr[a][i].taken
    /\ \/ att[a].st \in {"done", "nothing", "quarantined", "retired"}
       \/ att[a].st \in {"granted", "reading"} /\ att[a].src # i
    /\ gr' = Taken(Noted(a, i), a, i)
    /\ UNCHANGED <<inc, blk, att>>

\* Without OwnMetadata the READ goes to whoever is there now.
PostRead(a) ==
    /\ att[a].st = "granted"
    /\ att[a].open \/ ~Fence \/ Old(a)
    /\ LET r == att[a]
           there == r.src = inc[r.pro]
           src == IF OwnMetadata THEN r.src ELSE inc[r.pro]
       IN  att' = [att EXCEPT ![a].st = "reading", ![a].dma = "moving", ![a].src = src,
                              ![a].result = IF there \/ ~OwnMetadata
                                            THEN blk[r.pro][r.at].bytes ELSE Nobody]
    /\ blk' = [blk EXCEPT ![att[a].con][att[a].to].st = "saving"]
    /\ UNCHANGED <<inc, gr>>

Still(r) == [r EXCEPT !.dma = "none", !.result = Nobody, !.src = 0, !.at = NoBlock, !.via = 0]

\* In time the entry is ready, too late its block can be used again.
ReadDone(a) ==
    /\ att[a].st = "reading"
    /\ att[a].dma = "completed"
    /\ LET in == att[a].open \/ ~Fence \/ Old(a)
       IN  /\ att' = [att EXCEPT ![a] = Still(Ended(@, IF in THEN "done" ELSE "nothing"))]
           /\ blk' = [blk EXCEPT ![att[a].con][att[a].to] =
                         IF in THEN [@ EXCEPT !.st = "ready"]
                         ELSE [@ EXCEPT !.st = "allocated", !.bytes = Torn]]
    /\ UNCHANGED <<inc, gr>>

\* read_error, read_timeout and peer_lost, with reason or without.
ReadLost(a) ==
    /\ att[a].st = "reading"
    /\ att' = [att EXCEPT ![a] = IF KeepHandles
                                 THEN [@ EXCEPT !.st = "quarantined", !.open = FALSE]
                                 ELSE Still(Ended(@, "nothing"))]
    /\ blk' = [blk EXCEPT ![att[a].con][att[a].to].st = "quarantined"]
    /\ UNCHANGED <<inc, gr>>

\* A proof: DmaEnded, or Reclaim after retirement.
DmaEnded(a) ==
    /\ att[a].st \in {"quarantined", "retired"}
    /\ att[a].dma \in {"completed", "stopped"}
    /\ IF HeldQuarantine \/ att[a].st = "quarantined"
         THEN Release(att[a].con, att[a].to) ELSE UNCHANGED blk
    /\ att' = [att EXCEPT ![a] = Still(Ended(@, "nothing"))]
    /\ UNCHANGED <<inc, gr>>

Retire(a) ==
    /\ att[a].st = "quarantined"
    /\ att' = [att EXCEPT ![a].st = "retired"]
    /\ blk' = [blk EXCEPT ![att[a].con][att[a].to] =
                  IF HeldQuarantine THEN [FreeBlock EXCEPT !.st = "retired"] ELSE FreeBlock]
    /\ UNCHANGED <<inc, gr>>

-----------------------------------------------------------------------------
\* Data plane. A READ may take for ever, and end whatever became of its attempt
\* and its process.

DmaFinish(a) ==
    /\ Moving(a)
    /\ att[a].result # Nobody
    /\ LET r == att[a]
           done == [att EXCEPT ![a].dma = IF r.st = "dead" THEN "none" ELSE "completed",
                               ![a].result = Nobody, ![a].src = 0, ![a].at = NoBlock, ![a].via = 0]
       IN  /\ gr' = Noted(r.via, r.src)
           /\ IF r.to = NoBlock \/ blk[r.con][r.to].st \notin {"saving", "ready", "pinned"}
                THEN att' = done /\ UNCHANGED blk
                ELSE /\ blk' = [blk EXCEPT ![r.con][r.to].bytes = r.result]
                     /\ att' = Spoil(done, r.con, r.to)
    /\ UNCHANGED inc

\* Aborted, broken, or its endpoint is gone.
DmaStop(a) ==
    /\ Moving(a)
    /\ att' = [att EXCEPT ![a].dma = IF att[a].st = "dead" THEN "none" ELSE "stopped",
                          ![a].result = Nobody, ![a].src = 0, ![a].at = NoBlock, ![a].via = 0]
    /\ UNCHANGED <<inc, blk, gr>>

-----------------------------------------------------------------------------
\* Producers. A request is answered once by each process, also when its
\* attempt, or the process that made it, is over.

Grant(a, b) ==
    /\ att[a].st # "none"
    /\ LET p == att[a].pro
           i == inc[p]
       IN  /\ gr[a][i].st = "none"
           /\ blk[p][b].name = att[a].name
           /\ Servable(p, b) \/ (~ServeReadyOnly /\ blk[p][b].st \in {"allocated", "saving"})
           /\ gr' = [gr EXCEPT ![a][i] = [NoGrant EXCEPT !.st = "granted", !.at = b]]
           /\ blk' = [blk EXCEPT ![p][b] =
                         IF Servable(p, b) THEN Pinned(@) ELSE [@ EXCEPT !.pins = @ + 1]]
    /\ UNCHANGED <<inc, att>>

EndGrant(a, i, st, grants) ==
    /\ gr' = [grants EXCEPT ![a][i].st = st]
    /\ blk' = [blk EXCEPT ![att[a].pro][gr[a][i].at] = Unpinned(@)]

\* Other attempts that a notice with the wire name of a could mean.
Others(a, i) ==
    {o \in Attempts \ {a} : /\ Alias(o, a) \/ Alias(a, o)
                            /\ gr[o][i].st \in {"granted", "expired"}}

\* The notice of o ends the grant of a.
Complete(a, o) ==
    /\ att[a].st # "none" /\ att[o].st # "none"
    /\ gr[a][inc[att[a].pro]].st = "granted"
    /\ LET i == inc[att[a].pro]
       IN  /\ gr[o][i].note
           /\ \/ o = a
              \/ att[o].pro = att[a].pro /\ (Alias(o, a) \/ Alias(a, o))
              \/ /\ ~NoticeIdentity
                 /\ att[o].con = att[a].con /\ att[o].pro = att[a].pro
                 /\ att[o].name = att[a].name
           /\ OneMeaning => Others(a, i) = {}
           /\ EndGrant(a, i, "completed", [gr EXCEPT ![o][i].note = FALSE])
    /\ UNCHANGED <<inc, att>>

\* The lease is over: not before the fence of a consumer that has one.
Expire(a) ==
    /\ att[a].st # "none"
    /\ FenceFirst => ~(Waiting(a) /\ att[a].open)
    /\ LET i == inc[att[a].pro]
       IN  gr[a][i].st = "granted" /\ EndGrant(a, i, "expired", gr)
    /\ UNCHANGED <<inc, att>>

-----------------------------------------------------------------------------
\* The process of x dies, and another takes its address. What it granted, what
\* it fetched and its memory go with it; READs out of that memory that have
\* begun may still deliver it, READs into it write where nobody looks.
Crash(x) ==
    /\ x \in Crashing
    /\ inc[x] < MaxStarts
    /\ inc' = [inc EXCEPT ![x] = @ + 1]
    /\ blk' = [blk EXCEPT ![x] = [b \in Blocks |-> FreeBlock]]
    /\ gr' = [a \in Attempts |-> [i \in Starts |->
                 IF att[a].pro = x
                 THEN [gr[a][i] EXCEPT !.st = IF @ = "granted" THEN "expired" ELSE @,
                                       !.note = FALSE]
                 ELSE gr[a][i]]]
    /\ att' = [a \in Attempts |->
                 IF att[a].con # x \/ att[a].st \in {"none", "done", "nothing", "dead"}
                 THEN att[a]
                 ELSE LET r == [att[a] EXCEPT !.st = "dead", !.open = FALSE,
                                              !.to = IF FreshRegion THEN NoBlock ELSE @]
                      IN  IF Moving(a) THEN r ELSE Still(r)]

-----------------------------------------------------------------------------
Next ==
    \/ \E x \in Producers, n \in Names, b \in Blocks : SaveBegin(x, n, b)
    \/ \E x \in Nodes, b \in Blocks :
         \/ SaveEnd(x, b) \/ SaveSkipped(x, b) \/ Evict(x, b) \/ Cancel(x, b)
         \/ Hold(x, b) \/ ReleaseHold(x, b)
    \/ \E a \in Attempts, c \in Consumers, p \in Producers, b \in Blocks :
         \/ RequestRead(a, c, p, b)
         \/ \E n \in Names : Fetch(a, c, p, n, b)
    \/ \E a, o \in Attempts, i \in Starts : AckOk(a, o, i)
    \/ \E a \in Attempts, i \in Starts : DropAck(a, i)
    \/ \E a \in Attempts :
         \/ FenceCloses(a) \/ GiveUp(a) \/ PostRead(a) \/ ReadDone(a) \/ ReadLost(a)
         \/ DmaEnded(a) \/ Retire(a) \/ DmaFinish(a) \/ DmaStop(a) \/ Expire(a)
    \/ \E a \in Attempts, b \in Blocks : Grant(a, b)
    \/ \E a, o \in Attempts : Complete(a, o)
    \/ \E x \in Nodes : Crash(x)

Spec == Init /\ [][Next]_vars
=============================================================================
