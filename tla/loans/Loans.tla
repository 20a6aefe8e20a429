\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Loans --------------------------------
\* The engine lends the blocks of an entry to a reader, a process of its own, which
\* runs the whole fetch into them and says how it ended.
\*
\* The engine never waits: it reads messages when it takes a step, which may be much
\* later, and learns from the kernel that a reader is gone. A READ that was posted can
\* write for as long as the reader's process is there, also after the reader has given
\* it up and after the process was sent a signal. Its exit is the proof that nothing of
\* it writes any more (EC-14.8). A reader whose READ does not end gets no new work and
\* is killed when its grace is over; a spare, which is ready, takes its place.
\*
\* Several peers per reader are several fetches at once, any of which may hang. What an
\* attempt does within a fetch - request, fence, READ, retry - is PeerRead's.

EXTENDS Lifecycle, Naturals, Sequences, FiniteSets

CONSTANTS
    Names,          \* Encodings.
    Blocks,         \* Blocks of the region; an entry has one.
    Loans,          \* Loans, 1 ..: numbers that are never used again.
    Readers,        \* Reader processes, 1 ..: each starts once.
    Junk,           \* Bytes of a READ that was cut short or came too late.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    LoanNamed,      \* A message acts on the loan that it names, and only while it is open.
    ExitProves,     \* Only the exit of a reader proves; a signal that was sent does not.
    OwnFds,         \* Nobody else holds the descriptors through which it reads.
    LostKept,       \* A lost READ's blocks wait for a proof; time alone retires them.
    OverdueLost,    \* What a reader does not come back with counts as lost after a time ...
    OverdueKept,    \* ... and its blocks wait for a proof too.
    KernelKills,    \* (No safeguard:) the kernel carries out what it is told.
    ReadsEnd,       \* "Landed" and "failed" are said when no READ is under way.
    KillHung,       \* A reader with a lost READ is killed when its grace is over.
    KillStopped,    \* A reader that stands still is killed.
    Spared          \* A spare takes the place of a reader that drains or is gone.

VARIABLES
    entry,          \* [Loans -> EntryStates]: the entry that the loan is for.
    name,           \* [Loans -> Names or None]
    at,             \* [Loans -> Blocks or None]: what was lent; the entry's until it is freed.
    retired,        \* Blocks out of use.
    loan,           \* [Loans -> LoanStates or "none"]
    to,             \* [Loans -> the reader or None]
    bytes,          \* [Blocks -> Names or Junk]: what lies there.
    proc,           \* [Readers -> ProcessStates or "none"]: as its parent knows.
    gone,           \* [Readers -> BOOLEAN]: it has exited, whoever knows.
    stopped,        \* [Readers -> BOOLEAN]: it stands still.
    work,           \* [Readers -> Loans it has taken and not answered]
    inbox,          \* [Readers -> loans that are on their way to it]
    out,            \* [Readers -> sequence of <<word, loan>>]: on its way to the engine.
    dma,            \* Loans whose READ may write.
    ev              \* The lifecycle events of the last step (history).

engine == <<entry, name, at, retired, loan, to>>
reader == <<gone, stopped, work, inbox, out>>
core == <<engine, bytes, proc, reader, dma>>
vars == <<core, ev>>

Working == {r \in Readers : proc[r] = "working"}
OpenLoans == {l \in Loans : loan[l] \in LoanStates \ LoanTerminal}
Owned == {at[l] : l \in {m \in Loans : entry[m] # "freed"}}
Free == Blocks \ (Owned \cup retired)
LostAt(r) == {l \in Loans : to[l] = r /\ loan[l] \in {"lost", "retired"}}

-----------------------------------------------------------------------------
Init ==
    /\ entry = [l \in Loans |-> "freed"]
    /\ name = [l \in Loans |-> None]
    /\ at = [l \in Loans |-> None]
    /\ retired = {}
    /\ loan = [l \in Loans |-> "none"]
    /\ to = [l \in Loans |-> None]
    /\ bytes = [b \in Blocks |-> Junk]
    /\ proc = [r \in Readers |-> "none"]
    /\ gone = [r \in Readers |-> FALSE]
    /\ stopped = [r \in Readers |-> FALSE]
    /\ work = [r \in Readers |-> {}]
    /\ inbox = [r \in Readers |-> {}]
    /\ out = [r \in Readers |-> <<>>]
    /\ dma = {}
    /\ ev = {}

-----------------------------------------------------------------------------
\* The engine.

\* Action Lend, with the entry that is made for it.
Lend(l, n, b, r) ==
    /\ loan[l] = "none" /\ \A k \in Loans : k < l => loan[k] # "none"
    /\ r \in Working
    /\ b \in Free
    /\ \A k \in Loans : name[k] = n => entry[k] \in {"freed", "quarantined"}
    /\ entry' = [entry EXCEPT ![l] = Fire(EntryEdges, EntryInitial, "begin_write", {})]
    /\ name' = [name EXCEPT ![l] = n]
    /\ at' = [at EXCEPT ![l] = b]
    /\ loan' = [loan EXCEPT ![l] = LoanInitial]
    /\ to' = [to EXCEPT ![l] = r]
    /\ inbox' = [inbox EXCEPT ![r] = @ \cup {l}]
    /\ ev' = {Ev("entry", EntryEdges, EntryInitial, "begin_write", {})}
    /\ UNCHANGED <<retired, bytes, proc, gone, stopped, work, out, dma>>

\* What a loan's event does to its entry.
EntryAfter(l, event) ==
    LET effect == Effect(LoanEdges, loan[l], event, {})
    IN CASE effect = "accept" -> Fire(EntryEdges, entry[l], "write_landed", {})
         [] effect = "take_back" -> Fire(EntryEdges, Fire(EntryEdges, entry[l], "write_ended", {}),
                                         "cancel", {})
         [] effect = "quarantine" -> Fire(EntryEdges, entry[l], "write_lost", {})
         [] effect = "free" -> Fire(EntryEdges, entry[l], "dma_ended", {})
         [] effect = "retire" -> Fire(EntryEdges, entry[l], "retire", {})
         [] OTHER -> entry[l]

EntryMoves(l, event) ==
    LET effect == Effect(LoanEdges, loan[l], event, {})
        E(s, e) == Ev("entry", EntryEdges, s, e, {})
    IN CASE effect = "accept" -> {E(entry[l], "write_landed")}
         [] effect = "take_back" -> {E(entry[l], "write_ended"),
                                     E(Fire(EntryEdges, entry[l], "write_ended", {}), "cancel")}
         [] effect = "quarantine" -> {E(entry[l], "write_lost")}
         [] effect = "free" -> {E(entry[l], "dma_ended")}
         [] effect = "retire" -> {E(entry[l], "retire")}
         [] OTHER -> {}

EventsOf(S, event) ==
    {Ev("loan", LoanEdges, loan[l], event, {}) : l \in S}
        \cup UNION {EntryMoves(l, event) : l \in S}

Of(S, event, effect) == {at[l] : l \in {k \in S : Effect(LoanEdges, loan[k], event, {}) = effect}}

Moves(S, event) ==
    /\ \A l \in S : CanFire(LoanEdges, loan[l], event, {})
    /\ loan' = [l \in Loans |-> IF l \in S THEN Fire(LoanEdges, loan[l], event, {}) ELSE loan[l]]
    /\ entry' = [l \in Loans |-> IF l \in S THEN EntryAfter(l, event) ELSE entry[l]]
    /\ retired' = (retired \ Of(S, event, "reclaim")) \cup Of(S, event, "retire")
    /\ UNCHANGED <<name, at, to>>

\* Who a message is taken for: the loan that it names, or whoever has the name now.
Meant(r, m) ==
    IF LoanNamed THEN {l \in {m[2]} : to[l] = r}
    ELSE {l \in Loans : name[l] = name[m[2]] /\ loan[l] \in {"lent", "lost", "retired"}}

\* A word of a reader is read. What names no open loan is dropped.
Hear(r, word) ==
    /\ LET m == Head(out[r])
           S == {l \in Meant(r, m) : loan[l] \in LoanStates /\ CanFire(LoanEdges, loan[l], word, {})}
       IN Moves(S, word) /\ ev' = EventsOf(S, word)
    /\ out' = [out EXCEPT ![r] = Tail(@)]
    /\ UNCHANGED <<bytes, proc, gone, stopped, work, inbox, dma>>

Said(r, word) == out[r] # <<>> /\ Head(out[r])[1] = word

Landed(r) == Said(r, "landed") /\ Hear(r, "landed")
Failed(r) == Said(r, "failed") /\ Hear(r, "failed")
Lost(r) == Said(r, "lost") /\ Hear(r, "lost")
Proven(r) == Said(r, "proven") /\ Hear(r, "proven")

\* The kernel says that the reader is gone: to the engine and to the parent, each of
\* which has a pidfd of it. What it said before may still be on its way.
Exited(r) ==
    /\ proc[r] \in ProcessStates \ {"exited"}
    /\ gone[r] \/ (~ExitProves /\ proc[r] = "killed")
    /\ proc' = [proc EXCEPT ![r] = Fire(ProcessEdges, @, "exited", {})]
    /\ Moves({l \in OpenLoans : to[l] = r}, "exited")
    /\ ev' = EventsOf({l \in OpenLoans : to[l] = r}, "exited")
              \cup {Ev("process", ProcessEdges, proc[r], "exited", {})}
    /\ inbox' = [inbox EXCEPT ![r] = {}]
    /\ UNCHANGED <<bytes, gone, stopped, work, out, dma>>

\* At any moment: the bound is Timers'. Without the safeguard the
\* blocks are free then.
RetireLoan(l) ==
    /\ loan[l] = "lost"
    /\ ev' = IF LostKept THEN EventsOf({l}, "retire") ELSE {}
    /\ IF LostKept THEN Moves({l}, "retire")
       ELSE /\ entry' = [entry EXCEPT ![l] = "freed"]
            /\ loan' = [loan EXCEPT ![l] = "returned"]
            /\ UNCHANGED <<name, at, retired, to>>
    /\ UNCHANGED <<bytes, proc, reader, dma>>

\* Likewise. The reader was killed and is still there, or has not been heard of. Whatever
\* it says later of this loan names one that is not lent any more.
Overdue(l) ==
    /\ OverdueLost
    /\ loan[l] = "lent"
    /\ IF OverdueKept THEN Moves({l}, "overdue") /\ ev' = EventsOf({l}, "overdue")
       ELSE Moves({l}, "failed") /\ ev' = EventsOf({l}, "failed")
    /\ UNCHANGED <<bytes, proc, reader, dma>>

\* What landed gives way to something else, and is nobody's any more.
Evict(l) ==
    /\ entry[l] = "ready"
    /\ entry' = [entry EXCEPT ![l] = Fire(EntryEdges, @, "evict", {})]
    /\ name' = [name EXCEPT ![l] = None]
    /\ ev' = {Ev("entry", EntryEdges, entry[l], "evict", {})}
    /\ UNCHANGED <<at, retired, loan, to, bytes, proc, reader, dma>>

-----------------------------------------------------------------------------
\* The parent of the readers.

StartProcess(r) ==
    /\ proc[r] = "none" /\ \A q \in Readers : q < r => proc[q] # "none"
    /\ proc' = [proc EXCEPT ![r] = ProcessInitial]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, reader, dma>>

ProcessReady(r) ==
    /\ proc[r] = "starting" /\ ~gone[r] /\ ~stopped[r]
    /\ proc' = [proc EXCEPT ![r] = Fire(ProcessEdges, @, "ready", {})]
    /\ ev' = {Ev("process", ProcessEdges, proc[r], "ready", {})}
    /\ UNCHANGED <<engine, bytes, reader, dma>>

TakePlace(r) ==
    /\ proc[r] = "spare"
    /\ Working = {}
    /\ proc' = [proc EXCEPT ![r] = Fire(ProcessEdges, @, "take", {})]
    /\ ev' = {Ev("process", ProcessEdges, proc[r], "take", {})}
    /\ UNCHANGED <<engine, bytes, reader, dma>>

DrainProcess(r) ==
    /\ proc[r] = "working"
    /\ LostAt(r) # {}
    /\ proc' = [proc EXCEPT ![r] = Fire(ProcessEdges, @, "drain", {})]
    /\ ev' = {Ev("process", ProcessEdges, proc[r], "drain", {})}
    /\ UNCHANGED <<engine, bytes, reader, dma>>

\* When its grace is over, or it stands still, or for no reason at all.
KillProcess(r) ==
    /\ proc[r] \in ProcessStates
    /\ CanFire(ProcessEdges, proc[r], "kill", {})
    /\ proc' = [proc EXCEPT ![r] = Fire(ProcessEdges, @, "kill", {})]
    /\ ev' = {Ev("process", ProcessEdges, proc[r], "kill", {})}
    /\ UNCHANGED <<engine, bytes, reader, dma>>

-----------------------------------------------------------------------------
\* A reader.

Alive(r) == proc[r] \in ProcessStates /\ ~gone[r]
Runs(r) == Alive(r) /\ ~stopped[r]

TakeLoan(r, l) ==
    /\ Runs(r)
    /\ l \in inbox[r]
    /\ inbox' = [inbox EXCEPT ![r] = @ \ {l}]
    /\ work' = [work EXCEPT ![r] = @ \cup {l}]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, out, dma>>

Post(r, l) ==
    /\ Runs(r)
    /\ l \in work[r] /\ l \notin dma
    /\ dma' = dma \cup {l}
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, reader>>

Says(r, word, l) == out' = [out EXCEPT ![r] = Append(@, <<word, l>>)]

\* The READ writes: the right bytes, or others when the peer is gone or its lease over.
\* It writes into the block that was lent, whoever owns it by now.
Write(l, x) ==
    /\ l \in dma
    /\ x \in {name[l], Junk}
    /\ bytes' = [bytes EXCEPT ![at[l]] = x]
    /\ ev' = {}
    /\ UNCHANGED <<engine, proc, reader, dma>>

\* The READ ends inside its lease, with the right bytes in place.
SaysLanded(r, l) ==
    /\ Runs(r)
    /\ l \in work[r]
    /\ l \in dma /\ bytes[at[l]] = name[l]
    /\ dma' = IF ReadsEnd THEN dma \ {l} ELSE dma
    /\ work' = [work EXCEPT ![r] = @ \ {l}]
    /\ Says(r, "landed", l)
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, inbox>>

\* An attempt ends without its bytes and another may be made.
Again(r, l) ==
    /\ Runs(r)
    /\ l \in work[r] \cap dma
    /\ dma' = dma \ {l}
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, reader>>

SaysFailed(r, l) ==
    /\ Runs(r)
    /\ l \in work[r] /\ (ReadsEnd => l \notin dma)
    /\ work' = [work EXCEPT ![r] = @ \ {l}]
    /\ Says(r, "failed", l)
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, inbox, dma>>

\* The READ timed out or lost its peer; it may be under way for ever.
SaysLost(r, l) ==
    /\ Runs(r)
    /\ l \in work[r] \cap dma
    /\ work' = [work EXCEPT ![r] = @ \ {l}]
    /\ Says(r, "lost", l)
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, inbox, dma>>

\* A lost READ ends after all.
SaysProven(r, l) ==
    /\ Runs(r)
    /\ to[l] = r /\ l \in dma /\ l \notin work[r]
    /\ dma' = dma \ {l}
    /\ Says(r, "proven", l)
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, stopped, work, inbox>>

Stop(r) ==
    /\ Runs(r)
    /\ stopped' = [stopped EXCEPT ![r] = TRUE]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, gone, work, inbox, out, dma>>

\* It exits: killed, or by itself at any moment. Its READs end with it, if the
\* descriptors do; what it has said stays where it is.
ExitProcess(r) ==
    /\ Alive(r)
    /\ gone' = [gone EXCEPT ![r] = TRUE]
    /\ dma' = IF OwnFds THEN {l \in dma : to[l] # r} ELSE dma
    /\ work' = [work EXCEPT ![r] = {}]
    /\ ev' = {}
    /\ UNCHANGED <<engine, bytes, proc, stopped, inbox, out>>

-----------------------------------------------------------------------------
ReaderStep(r) ==
    \/ ProcessReady(r)
    \/ \E l \in Loans : TakeLoan(r, l) \/ SaysFailed(r, l) \/ SaysLost(r, l)

Next ==
    \/ \E l \in Loans, n \in Names, b \in Blocks, r \in Readers : Lend(l, n, b, r)
    \/ \E r \in Readers : Landed(r) \/ Failed(r) \/ Lost(r) \/ Proven(r)
    \/ \E r \in Readers : Exited(r)
    \/ \E l \in Loans : Overdue(l) \/ RetireLoan(l) \/ Evict(l)
    \/ \E r \in Readers : StartProcess(r) \/ ProcessReady(r) \/ TakePlace(r) \/ DrainProcess(r) \/ KillProcess(r)
    \/ \E r \in Readers, l \in Loans : TakeLoan(r, l) \/ Post(r, l)
    \/ \E l \in Loans, x \in Names \cup {Junk} : Write(l, x)
    \/ \E r \in Readers, l \in Loans : SaysLanded(r, l) \/ Again(r, l) \/ SaysFailed(r, l)
    \/ \E r \in Readers, l \in Loans : SaysLost(r, l) \/ SaysProven(r, l)
    \/ \E r \in Readers : Stop(r) \/ ExitProcess(r)

Spec == Init /\ [][Next]_vars

\* The engine takes steps and looks at the clock, a reader that runs ends each fetch
\* somehow, the kernel carries out what it is told, and the parent does its part. No READ
\* need ever end.
Fairness ==
    /\ \A r \in Readers :
        /\ WF_core(Landed(r) \/ Failed(r) \/ Lost(r) \/ Proven(r))
        /\ WF_core(Exited(r))
        /\ WF_core(ReaderStep(r))
        /\ WF_core(StartProcess(r)) /\ WF_core(DrainProcess(r))
        /\ Spared => SF_core(TakePlace(r))
        /\ KernelKills => WF_core(proc[r] = "killed" /\ ExitProcess(r))
        /\ KillHung => WF_core(proc[r] = "draining" /\ KillProcess(r))
        /\ KillStopped => WF_core(stopped[r] /\ KillProcess(r))
    /\ \A l \in Loans : WF_core(RetireLoan(l))
    /\ \A r \in Readers, l \in Loans : WF_core(proc[r] = "killed" /\ to[l] = r /\ Overdue(l))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ entry \in [Loans -> EntryStates]
    /\ name \in [Loans -> Names \cup {None}]
    /\ at \in [Loans -> Blocks \cup {None}]
    /\ loan \in [Loans -> LoanStates \cup {"none"}]
    /\ to \in [Loans -> Readers \cup {None}]
    /\ bytes \in [Blocks -> Names \cup {Junk}]
    /\ proc \in [Readers -> ProcessStates \cup {"none"}]
    /\ dma \subseteq Loans

\* EC-2.1.
ConservedInv ==
    /\ \A k, l \in Loans : k # l /\ entry[k] # "freed" /\ entry[l] # "freed" => at[k] # at[l]
    /\ Owned \cap retired = {}

\* EC-2.2: what is served is what its name says.
NoWrongBytesInv == \A l \in Loans : entry[l] = "ready" => bytes[at[l]] = name[l]

\* EC-14.8, NoReuseUnderDMA: who may still write owns what it writes to, and nothing
\* that is served.
NoReuseUnderDMAInv ==
    \A l \in dma : entry[l] \in {"saving", "quarantined"} \/ at[l] \in retired

\* EC-1.1: loans and processes move along their tables.
EdgesProp ==
    [][/\ \A l \in Loans : loan'[l] # loan[l] =>
           \/ loan[l] = "none" /\ loan'[l] = LoanInitial
           \/ \E d \in LoanEdges : /\ d.from = loan[l] /\ d.to = loan'[l]
                                   /\ <<"loan", loan[l], d.event, loan'[l]>> \in ev'
       /\ \A r \in Readers : proc'[r] # proc[r] =>
           \/ proc[r] = "none" /\ proc'[r] = ProcessInitial
           \/ \E d \in ProcessEdges : /\ d.from = proc[r] /\ d.to = proc'[r]
                                      /\ <<"process", proc[r], d.event, proc'[r]>> \in ev']_vars

\* EC-14.7 to EC-14.9: what each event of a loan means for its blocks. Accepted bytes are
\* served, a lost READ's blocks are kept, and what came back is free or served.
MeansInv ==
    \A l \in Loans :
        /\ loan[l] = "lent" => entry[l] = "saving"
        /\ loan[l] = "lost" => entry[l] = "quarantined"
        /\ loan[l] = "retired" => entry[l] = "freed" /\ at[l] \in retired
        /\ loan[l] = "returned" => entry[l] \in {"ready", "freed"}
    /\ retired = {at[k] : k \in {j \in Loans : loan[j] = "retired"}}

\* EC-14.9: of a reader that has exited nothing is left open.
ExitedInv == \A l \in OpenLoans : proc[to[l]] # "exited"

\* EC-14.9: who drains or was killed is lent nothing.
NoNewWorkProp == [][\A l \in Loans : loan[l] = "none" /\ loan'[l] # "none"
                        => proc[to'[l]] = "working"]_vars

\* EC-1.2: what readers say, and that they are gone, is never an error.
ReceptiveInv ==
    /\ \A l \in Loans :
        /\ loan[l] = "lent" =>
             \A e \in {"landed", "failed", "lost", "exited", "overdue"} : CanFire(LoanEdges, loan[l], e, {})
        /\ loan[l] \in {"lost", "retired"} =>
             \A e \in {"proven", "exited"} : CanFire(LoanEdges, loan[l], e, {})
        /\ loan[l] = "lost" => CanFire(LoanEdges, loan[l], "retire", {})
        \* What cannot follow is an error: there is nothing to prove or to retire, or it is too late.
        /\ loan[l] = "lent" => \A e \in {"proven", "retire"} : ~CanFire(LoanEdges, loan[l], e, {})
        /\ loan[l] = "retired" =>
             \A e \in {"landed", "failed", "lost", "overdue"} : ~CanFire(LoanEdges, loan[l], e, {})
    /\ \A r \in Readers :
        /\ proc[r] \in ProcessStates \ {"exited"} => CanFire(ProcessEdges, proc[r], "exited", {})
        /\ proc[r] \in ProcessStates \ {"killed", "exited"} =>
             CanFire(ProcessEdges, proc[r], "kill", {})

\* EC-14.4: what waits for an engine that takes no step has a bound.
BoundedInv == \A r \in Readers : Len(out[r]) <= 2 * Cardinality({l \in Loans : to[l] = r})

\* EC-14.9 and EC-14.13: nobody waits for ever, also if the kernel cannot end a process,
\* whose blocks are then counted. Every loan comes back if it can.
ReturnedProp == \A l \in Loans : loan[l] = "lent" ~> loan[l] # "lent"
CountedProp == \A l \in Loans : loan[l] = "lost" ~> loan[l] # "lost"
QuarantineEndsProp == \A l \in Loans : loan[l] \in {"lost", "retired"} ~> loan[l] = "returned"

\* EC-14.9: while a reader is left that can work, one does.
ServedProp == \A r \in Readers : proc[r] = "spare" ~> (Working # {} \/ proc[r] # "spare")
=============================================================================
