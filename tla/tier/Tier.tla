\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Tier --------------------------------
\* One engine instance: the engine thread that builds steps, the worker ranks
\* that copy between GPU and region, and the tier whose entries both touch.
\*
\* What the engine does in one step, in the order of the host's hooks:
\*   BeginStep    requests are about to be scheduled               phase "plan"
\*   Reserve      has_cache_item said True: a promise for this step
\*   Evict, Alloc, PlanSave       outputs that the step will encode get blocks
\*   PlanLoad     a promised encoding will be loaded
\*   BuildMeta    scheduling is over                               phase "build"
\*   SubmitSave, SubmitLoad, or SaveSkipped, LoadSkipped for what the step
\*                dropped after all (preemption, abort)
\*   EndStep      the metadata is built: promises end              phase "out"
\* Several requests are scheduled in one step, so the actions of phase "plan"
\* come in any order. Reports of the ranks are taken at any moment, after any
\* number of further steps: that is what asynchronous scheduling amounts to.
\*
\* Every lifecycle move goes through Fire on a generated table. The safeguards
\* are constants, so that a config can remove exactly one and show what breaks.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Enc,            \* Encodings, each with its mm_hash.
    Size,           \* [Enc -> 1..]: blocks that an encoding takes.
    Blocks,         \* Blocks of the region.
    Ranks,          \* Worker ranks of the instance; every rank loads.
    Saver,          \* The one rank that saves.
    Copies,         \* Slots for copies that are planned or in flight.
    Holds,          \* Identities of bounded holds (announced, fetched, granted).
    Remote,         \* BOOLEAN: fetches write into entries too, abstractly.
    CanStop,        \* BOOLEAN: new work ends at some moment (liveness configs).
    Garbage         \* Content of a block that holds no encoding.

CONSTANTS           \* Safeguards, all BOOLEAN and TRUE except in bug configs.
    StepReservation,    \* A promise pins the entry until EndStep.
    PinLoads,           \* A load pins its entry until its last rank reported.
    EvictOnlyReady,     \* Only a ready entry is evicted.
    AllocFromFree,      \* New entries get free blocks only.
    FreeOnCancel,       \* The blocks of a cancelled entry become free.
    ReadyAfterLanded,   \* A save is servable when its rank reported, not before.
    SkipReport,         \* A rank whose encoder never ran reports that.
    WaitAllRanks,       \* A copy is over when every participating rank reported.
    RankIdentity,       \* A rank counts once, however often its report comes.
    CopyIdentity,       \* A report acts on the copy that it names.
    HolderIdentity,     \* A holder releases once, and nobody else's pin.
    BoundedHold         \* Every hold ends by itself.

ASSUME /\ Saver \in Ranks
       /\ Size \in [Enc -> 1..Cardinality(Blocks)]
       /\ Garbage \notin Enc

VARIABLES
    \* engine
    phase,      \* "out", "plan" or "build".
    asked,      \* Encodings promised in the step that is being built.
    \* tier
    est,        \* [Enc -> EntryStates]; "freed" also before the first Alloc.
    blk,        \* [Enc -> SUBSET Blocks]: blocks that the entry owns.
    free,       \* The allocator's free blocks.
    writer,     \* [Enc -> whom the entry was allocated for, until it is ready].
    pins,       \* [Enc -> Nat]: the count that the implementation goes by.
    holders,    \* Ghost: who really depends on the bytes, per encoding.
    \* copies and the ranks that carry them out
    cp,         \* [Copies -> record], see NoCopy.
    stale,      \* Reports that may come again after their copy is over.
    \* bytes
    content,    \* Ghost, [Blocks -> whose bytes are in the block].
    wrong,      \* Ghost: some load read bytes that were not its encoding.
    \* environment and history
    stopped,    \* No new work comes any more.
    ev          \* Lifecycle events that the last step fired.

engineVars == <<phase, asked>>
tierVars == <<est, blk, free, writer, pins, holders>>
copyVars == <<cp, stale>>
byteVars == <<content, wrong>>
vars == <<engineVars, tierVars, copyVars, byteVars, stopped, ev>>

-----------------------------------------------------------------------------
\* Copies

\* rk is what a rank does ("off" nothing or ended and reported, "run" copying
\* or about to, "skip" ended without the bytes, "mute" ended and silent); todo
\* are the blocks it has yet to copy. heard and nrep are what the engine knows.
NoCopy ==
    [st |-> "none", kind |-> "none", enc |-> Garbage, blocks |-> {},
     rk |-> [r \in Ranks |-> "off"], todo |-> [r \in Ranks |-> {}],
     ran |-> FALSE, heard |-> {}, nrep |-> 0, ok |-> TRUE]

Over(c) == cp[c].st \in CopyTerminal \cup {"none"}
MayTouch(c, r) == cp[c].rk[r] = "run" /\ cp[c].todo[r] # {}
Quiet(c) == Over(c) /\ \A r \in Ranks : ~MayTouch(c, r)
FreeSlot(c) == Quiet(c)     \* Models may narrow the choice: slots are alike.
Parts(c) == IF cp[c].kind = "save" THEN {Saver} ELSE Ranks

PlannedFor(e, kind) ==
    \E c \in Copies : cp[c].st = "planned" /\ cp[c].kind = kind /\ cp[c].enc = e

\* Rank r has finished with copy c and its report is under way.
Due(c, r) ==
    /\ r \in Parts(c) \ cp[c].heard
    /\ \/ cp[c].rk[r] = "skip"
       \/ cp[c].rk[r] = "run" /\ cp[c].ran /\ cp[c].todo[r] = {}

\* A report of rank r reaches the engine, which takes it for one of copy c.
\* Repeated and outdated reports are dropped unless the identities are off.
Heard(c, r) ==
    /\ cp[c].st = "in_flight"
    /\ \/ Due(c, r)
       \/ ~RankIdentity /\ r \in cp[c].heard
       \/ ~CopyIdentity /\ r \in Parts(c) \ cp[c].heard /\ <<cp[c].enc, r>> \in stale

LastRank(c, r) == ~WaitAllRanks \/ cp[c].nrep + 1 = Cardinality(Parts(c))
AllLanded(c, r) == cp[c].ok /\ ~(Due(c, r) /\ cp[c].rk[r] = "skip")
ReportGuards(c, r) ==
    (IF LastRank(c, r) THEN {"last_rank"} ELSE {})
        \cup (IF AllLanded(c, r) THEN {"all_landed"} ELSE {})

\* A copy that is over forgets all but what it was and how it ended.
Finished(c, to) == [NoCopy EXCEPT !.st = to, !.kind = cp[c].kind, !.enc = cp[c].enc]

\* Copy c after the report of r.
Reported(c, r) ==
    LET to == Fire(CopyEdges, cp[c].st, "report", ReportGuards(c, r))
        rk == IF Due(c, r) THEN [cp[c].rk EXCEPT ![r] = "off"] ELSE cp[c].rk
        quiet == \A s \in Ranks : ~(rk[s] = "run" /\ cp[c].todo[s] # {})
    IN IF to \in CopyTerminal /\ quiet
         THEN Finished(c, to)
         ELSE [cp[c] EXCEPT !.st = to, !.rk = rk, !.heard = @ \cup {r},
                            !.nrep = @ + 1, !.ok = AllLanded(c, r)]

\* The report asks for this effect: the copy goes on (""), is finished or undone.
Ends(c, r, effect) ==
    /\ CanFire(CopyEdges, cp[c].st, "report", ReportGuards(c, r))
    /\ Effect(CopyEdges, cp[c].st, "report", ReportGuards(c, r)) = effect

ReportEv(c, r) == Ev("copy", CopyEdges, cp[c].st, "report", ReportGuards(c, r))
TakeReport(c, r) ==
    /\ cp' = [cp EXCEPT ![c] = Reported(c, r)]
    /\ stale' = IF CopyIdentity \/ cp[c].kind = "save" THEN stale
                ELSE stale \cup {<<cp[c].enc, r>>}

-----------------------------------------------------------------------------
\* Entries

Servable(e) == est[e] \in {"ready", "pinned"}

\* h depends on the entry from now on; counted says whether the tier knows.
Pin(e, h, counted) ==
    /\ holders' = [holders EXCEPT ![e] = @ \cup {h}]
    /\ IF counted
         THEN /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "pin", {})]
              /\ pins' = [pins EXCEPT ![e] = @ + 1]
         ELSE UNCHANGED <<est, pins>>
PinEv(e, counted) ==
    IF counted THEN {Ev("entry", EntryEdges, est[e], "pin", {})} ELSE {}

Last(e) == IF pins[e] = 1 THEN {"last_holder"} ELSE {}
Unpin(e, h, counted) ==
    /\ holders' = [holders EXCEPT ![e] = @ \ {h}]
    /\ IF counted
         THEN /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "unpin", Last(e))]
              /\ pins' = [pins EXCEPT ![e] = @ - 1]
         ELSE UNCHANGED <<est, pins>>
UnpinEv(e, counted) ==
    IF counted THEN {Ev("entry", EntryEdges, est[e], "unpin", Last(e))} ELSE {}

\* What the table asks for when event x ends an entry in state s.
Frees(s, x) == CanFire(EntryEdges, s, x, {}) /\ Effect(EntryEdges, s, x, {}) = "free_blocks"

\* The entry owns its blocks no more. Whoever gets them next may write them at
\* once, so their bytes count as garbage from here on.
Release(e, back) ==
    /\ blk' = [blk EXCEPT ![e] = {}]
    /\ free' = IF back THEN free \cup blk[e] ELSE free
    /\ content' = [b \in Blocks |-> IF b \in blk[e] THEN Garbage ELSE content[b]]
    /\ writer' = [writer EXCEPT ![e] = "none"]

-----------------------------------------------------------------------------
Init ==
    /\ phase = "out"
    /\ asked = {}
    /\ est = [e \in Enc |-> "freed"]
    /\ blk = [e \in Enc |-> {}]
    /\ free = Blocks
    /\ writer = [e \in Enc |-> "none"]
    /\ pins = [e \in Enc |-> 0]
    /\ holders = [e \in Enc |-> {}]
    /\ cp = [c \in Copies |-> NoCopy]
    /\ stale = {}
    /\ content = [b \in Blocks |-> Garbage]
    /\ wrong = FALSE
    /\ stopped = FALSE
    /\ ev = {}

\* --------------------------------------------------------- engine: the step

\* Environment: there is work. Earlier steps may still be under way.
BeginStep ==
    /\ phase = "out"
    /\ ~stopped
    /\ phase' = "plan"
    /\ ev' = {}
    /\ UNCHANGED <<asked, tierVars, copyVars, byteVars, stopped>>

\* | spec               | trace              | code                   |
\* | e, holder "step"   | args.mm_hash       | EncodingTier.reserve   |
Reserve(e) ==
    /\ phase = "plan"
    /\ e \notin asked
    /\ CanFire(EntryEdges, est[e], "pin", {})
    /\ Pin(e, <<"step">>, StepReservation)
    /\ asked' = asked \cup {e}
    /\ ev' = PinEv(e, StepReservation)
    /\ UNCHANGED <<phase, blk, free, writer, copyVars, byteVars, stopped>>

\* The order of eviction is a matter of taste: any ready entry may go.
\* | x                  | args.mm_hash       | EncodingTier.alloc     |
Evict(x) ==
    /\ phase = "plan"
    /\ \/ CanFire(EntryEdges, est[x], "evict", {})
       \/ ~EvictOnlyReady /\ est[x] = "pinned"
    /\ est' = [est EXCEPT ![x] = IF CanFire(EntryEdges, @, "evict", {})
                                  THEN Fire(EntryEdges, @, "evict", {}) ELSE "freed"]
    /\ pins' = [pins EXCEPT ![x] = 0]
    /\ Release(x, Frees(est[x], "evict") \/ est[x] = "pinned")
    /\ ev' = IF CanFire(EntryEdges, est[x], "evict", {})
               THEN {Ev("entry", EntryEdges, est[x], "evict", {})} ELSE {}
    /\ UNCHANGED <<engineVars, holders, copyVars, wrong, stopped>>

\* A promised encoding is not allocated again: the host loads it instead.
\* | e, blk'[e]         | args.mm_hash       | EncodingTier.alloc     |
Alloc(e) ==
    /\ phase = "plan"
    /\ est[e] = "freed"
    /\ e \notin asked
    /\ \E who \in {"local"} \cup (IF Remote THEN {"remote"} ELSE {}) :
         writer' = [writer EXCEPT ![e] = who]
    /\ \E S \in SUBSET (IF AllocFromFree THEN free
                        ELSE Blocks \ UNION {blk[f] : f \in {g \in Enc : Servable(g)}}) :
         /\ Cardinality(S) = Size[e]
         /\ blk' = [blk EXCEPT ![e] = S]
         /\ free' = free \ S
    /\ est' = [est EXCEPT ![e] = EntryInitial]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, pins, holders, copyVars, byteVars, stopped>>

\* Nobody writes and nobody will.
\* | e                  | args.mm_hash       | EncodingTier.cancel    |
Cancel(e) ==
    /\ CanFire(EntryEdges, est[e], "cancel", {})
    /\ ~PlannedFor(e, "save")
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "cancel", {})]
    /\ Release(e, FreeOnCancel /\ Frees(est[e], "cancel"))
    /\ ev' = {Ev("entry", EntryEdges, est[e], "cancel", {})}
    /\ UNCHANGED <<engineVars, pins, holders, copyVars, wrong, stopped>>

\* | e, slot c          | args.mm_hash, copy | CopyTable.plan_save    |
PlanSave(e, c) ==
    /\ phase = "plan"
    /\ est[e] = EntryInitial
    /\ writer[e] = "local"
    /\ ~PlannedFor(e, "save")
    /\ FreeSlot(c)
    /\ cp' = [cp EXCEPT ![c] = [NoCopy EXCEPT !.st = CopyInitial, !.kind = "save",
                                              !.enc = e, !.blocks = blk[e]]]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, stale, byteVars, stopped>>

\* One load serves all requests of the step.
\* | e, slot c          | args.mm_hash, copy | CopyTable.plan_load    |
PlanLoad(e, c) ==
    /\ phase = "plan"
    /\ e \in asked
    /\ CanFire(EntryEdges, est[e], "pin", {})
    /\ ~PlannedFor(e, "load")
    /\ FreeSlot(c)
    /\ cp' = [cp EXCEPT ![c] = [NoCopy EXCEPT !.st = CopyInitial, !.kind = "load",
                                              !.enc = e, !.blocks = blk[e]]]
    /\ Pin(e, <<"load", c>>, PinLoads)
    /\ ev' = PinEv(e, PinLoads)
    /\ UNCHANGED <<engineVars, blk, free, writer, stale, byteVars, stopped>>

BuildMeta ==
    /\ phase = "plan"
    /\ phase' = "build"
    /\ ev' = {}
    /\ UNCHANGED <<asked, tierVars, copyVars, byteVars, stopped>>

\* | slot c             | args.copy          | CopyTable.submit       |
SubmitSave(c) ==
    /\ phase = "build"
    /\ cp[c].kind = "save"
    /\ CanFire(CopyEdges, cp[c].st, "submit", {})
    /\ Effect(CopyEdges, cp[c].st, "submit", {}) = "begin"
    /\ LET e == cp[c].enc
           early == Fire(EntryEdges, est[e], "begin_write", {})
       IN /\ CanFire(EntryEdges, est[e], "begin_write", {})
          /\ est' = [est EXCEPT ![e] =
                        IF ReadyAfterLanded THEN early
                        ELSE Fire(EntryEdges, early, "write_landed", {})]
          /\ ev' = {Ev("copy", CopyEdges, cp[c].st, "submit", {}),
                    Ev("entry", EntryEdges, est[e], "begin_write", {})}
    /\ cp' = [cp EXCEPT ![c].st = Fire(CopyEdges, @, "submit", {}),
                        ![c].rk[Saver] = "run",
                        ![c].todo[Saver] = cp[c].blocks]
    /\ UNCHANGED <<engineVars, blk, free, writer, pins, holders, stale, byteVars, stopped>>

\* | slot c             | args.copy          | CopyTable.submit       |
SubmitLoad(c) ==
    /\ phase = "build"
    /\ cp[c].kind = "load"
    /\ CanFire(CopyEdges, cp[c].st, "submit", {})
    /\ Effect(CopyEdges, cp[c].st, "submit", {}) = "begin"
    /\ cp' = [cp EXCEPT ![c].st = Fire(CopyEdges, @, "submit", {}),
                        ![c].rk = [r \in Ranks |-> "run"],
                        ![c].todo = [r \in Ranks |-> cp[c].blocks],
                        ![c].ran = TRUE]
    /\ ev' = {Ev("copy", CopyEdges, cp[c].st, "submit", {})}
    /\ UNCHANGED <<engineVars, tierVars, stale, byteVars, stopped>>

\* Everything planned is submitted or dropped, every allocation is planned or
\* cancelled; the promises end.
\* | asked              |                    | EncodingTier.end_step  |
EndStep ==
    /\ phase = "build"
    /\ \A c \in Copies : cp[c].st # "planned"
    /\ \A e \in Enc : ~(est[e] = EntryInitial /\ writer[e] = "local")
    /\ phase' = "out"
    /\ asked' = {}
    /\ holders' = [e \in Enc |-> holders[e] \ {<<"step">>}]
    /\ IF StepReservation
         THEN /\ est' = [e \in Enc |-> IF e \in asked
                            THEN Fire(EntryEdges, est[e], "unpin", Last(e)) ELSE est[e]]
              /\ pins' = [e \in Enc |-> IF e \in asked THEN pins[e] - 1 ELSE pins[e]]
              /\ ev' = UNION {UnpinEv(e, TRUE) : e \in asked}
         ELSE UNCHANGED <<est, pins>> /\ ev' = {}
    /\ UNCHANGED <<blk, free, writer, copyVars, byteVars, stopped>>

\* ------------------------------------------------ engine: how a copy ended

\* | slot c, rank r     | args.copy          | CopyTable.report       |
RankReport(c, r) ==
    /\ Heard(c, r)
    /\ Ends(c, r, "")
    /\ TakeReport(c, r)
    /\ ev' = {ReportEv(c, r)}
    /\ UNCHANGED <<engineVars, tierVars, byteVars, stopped>>

\* | slot c             | args.copy          | CopyTable.report       |
SaveLanded(c, r) ==
    /\ cp[c].kind = "save"
    /\ Heard(c, r)
    /\ Ends(c, r, "finish")
    /\ LET e == cp[c].enc
       IN /\ CanFire(EntryEdges, est[e], "write_landed", {})
          /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "write_landed", {})]
          /\ writer' = [writer EXCEPT ![e] = "none"]
          /\ ev' = {ReportEv(c, r), Ev("entry", EntryEdges, est[e], "write_landed", {})}
    /\ TakeReport(c, r)
    /\ UNCHANGED <<engineVars, blk, free, pins, holders, byteVars, stopped>>

\* The step dropped the save before a worker knew, or its rank reported that
\* the bytes are not there. Either way nobody writes any more.
\* | slot c             | args.copy          | CopyTable.skip, report |
SaveSkipped(c) ==
    /\ cp[c].kind = "save"
    /\ LET e == cp[c].enc
           clean == Fire(EntryEdges, est[e], "write_ended", {})
       IN \/ /\ phase = "build"
             /\ CanFire(CopyEdges, cp[c].st, "skip", {})
             /\ Effect(CopyEdges, cp[c].st, "skip", {}) = "undo"
             /\ cp' = [cp EXCEPT ![c] =
                          Finished(c, Fire(CopyEdges, cp[c].st, "skip", {}))]
             /\ UNCHANGED stale
             /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "cancel", {})]
             /\ ev' = {Ev("copy", CopyEdges, cp[c].st, "skip", {}),
                       Ev("entry", EntryEdges, est[e], "cancel", {})}
             /\ Release(e, FreeOnCancel /\ Frees(est[e], "cancel"))
          \/ \E r \in Ranks :
             /\ Heard(c, r)
             /\ Ends(c, r, "undo")
             /\ CanFire(EntryEdges, est[e], "write_ended", {})
             /\ TakeReport(c, r)
             /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, clean, "cancel", {})]
             /\ ev' = {ReportEv(c, r),
                       Ev("entry", EntryEdges, est[e], "write_ended", {}),
                       Ev("entry", EntryEdges, clean, "cancel", {})}
             /\ Release(e, FreeOnCancel /\ Frees(clean, "cancel"))
    /\ UNCHANGED <<engineVars, pins, holders, wrong, stopped>>

\* | slot c             | args.copy          | CopyTable.report       |
LoadLanded(c, r) ==
    /\ cp[c].kind = "load"
    /\ Heard(c, r)
    /\ Ends(c, r, "finish")
    /\ TakeReport(c, r)
    /\ Unpin(cp[c].enc, <<"load", c>>, PinLoads)
    /\ ev' = {ReportEv(c, r)} \cup UnpinEv(cp[c].enc, PinLoads)
    /\ UNCHANGED <<engineVars, blk, free, writer, byteVars, stopped>>

\* A planned load whose request is gone before the metadata is built (preemption,
\* abort), or one that some rank could not copy and that has ended on all. The
\* entry was there for it either way: PromiseKeptInv.
\* | slot c             | args.copy          | CopyTable.skip, report |
LoadSkipped(c) ==
    /\ cp[c].kind = "load"
    /\ \/ /\ phase = "build"
          /\ CanFire(CopyEdges, cp[c].st, "skip", {})
          /\ Effect(CopyEdges, cp[c].st, "skip", {}) = "undo"
          /\ cp' = [cp EXCEPT ![c] =
                       Finished(c, Fire(CopyEdges, cp[c].st, "skip", {}))]
          /\ UNCHANGED stale
          /\ ev' = {Ev("copy", CopyEdges, cp[c].st, "skip", {})}
                      \cup UnpinEv(cp[c].enc, PinLoads)
       \/ \E r \in Ranks :
          /\ Heard(c, r)
          /\ Ends(c, r, "undo")
          /\ TakeReport(c, r)
          /\ ev' = {ReportEv(c, r)} \cup UnpinEv(cp[c].enc, PinLoads)
    /\ Unpin(cp[c].enc, <<"load", c>>, PinLoads)
    /\ UNCHANGED <<engineVars, blk, free, writer, byteVars, stopped>>

\* ------------------------------------------------------------ engine: holds

\* | e, h               | args.mm_hash, holder | EncodingTier.hold    |
Hold(e, h) ==
    /\ ~stopped
    /\ <<"hold", h>> \notin holders[e]
    /\ CanFire(EntryEdges, est[e], "pin", {})
    /\ Pin(e, <<"hold", h>>, TRUE)
    /\ ev' = PinEv(e, TRUE)
    /\ UNCHANGED <<engineVars, blk, free, writer, copyVars, byteVars, stopped>>

\* Used, given up or out of time: two of them may happen to one hold.
\* | e, h               | args.mm_hash, holder | EncodingTier.release_hold |
ReleaseHold(e, h) ==
    /\ IF HolderIdentity THEN <<"hold", h>> \in holders[e] ELSE est[e] = "pinned"
    /\ CanFire(EntryEdges, est[e], "unpin", Last(e))
    /\ Unpin(e, <<"hold", h>>, TRUE)
    /\ ev' = UnpinEv(e, TRUE)
    /\ UNCHANGED <<engineVars, blk, free, writer, copyVars, byteVars, stopped>>

-----------------------------------------------------------------------------
\* Environment: worker ranks

\* The encoder of the save's step ran: the source bytes are on the GPU.
EncoderRuns(c) ==
    /\ cp[c].st = "in_flight"
    /\ cp[c].kind = "save"
    /\ ~cp[c].ran
    /\ cp[c].rk[Saver] = "run"
    /\ cp' = [cp EXCEPT ![c].ran = TRUE]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, stale, byteVars, stopped>>

\* It never will: the request was aborted, failed or found in the GPU's cache.
EncoderSkipped(c) ==
    /\ cp[c].st = "in_flight"
    /\ cp[c].kind = "save"
    /\ ~cp[c].ran
    /\ cp[c].rk[Saver] = "run"
    /\ cp' = [cp EXCEPT ![c].rk[Saver] = IF SkipReport THEN "skip" ELSE "mute",
                        ![c].todo[Saver] = {}]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, stale, byteVars, stopped>>

\* One block, in any order, at any moment.
RankCopies(c, r, b) ==
    /\ cp[c].rk[r] = "run"
    /\ cp[c].ran
    /\ b \in cp[c].todo[r]
    /\ cp' = [cp EXCEPT ![c].todo[r] = @ \ {b}]
    /\ IF cp[c].kind = "save"
         THEN content' = [content EXCEPT ![b] = cp[c].enc] /\ UNCHANGED wrong
         ELSE wrong' = (wrong \/ content[b] # cp[c].enc) /\ UNCHANGED content
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, stale, stopped>>

\* The copy of rank r ended early, for good; some bytes may have moved.
RankFails(c, r) ==
    /\ cp[c].rk[r] = "run"
    /\ cp[c].ran
    /\ cp[c].todo[r] # {}
    /\ cp' = [cp EXCEPT ![c].rk[r] = "skip", ![c].todo[r] = {}]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, stale, byteVars, stopped>>

\* Environment: a fetch, seen from the tier. PeerRead has the protocol behind
\* it; here a READ that provably ended either landed or did not.
RemoteBegins(e) ==
    /\ writer[e] = "remote"
    /\ CanFire(EntryEdges, est[e], "begin_write", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "begin_write", {})]
    /\ ev' = {Ev("entry", EntryEdges, est[e], "begin_write", {})}
    /\ UNCHANGED <<engineVars, blk, free, writer, pins, holders, copyVars, byteVars, stopped>>

RemoteCopies(e, b) ==
    /\ writer[e] = "remote"
    /\ est[e] = "saving"
    /\ b \in blk[e]
    /\ content[b] # e
    /\ content' = [content EXCEPT ![b] = e]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, copyVars, wrong, stopped>>

RemoteLands(e) ==
    /\ writer[e] = "remote"
    /\ est[e] = "saving"
    /\ \A b \in blk[e] : content[b] = e
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "write_landed", {})]
    /\ writer' = [writer EXCEPT ![e] = "none"]
    /\ ev' = {Ev("entry", EntryEdges, est[e], "write_landed", {})}
    /\ UNCHANGED <<engineVars, blk, free, pins, holders, copyVars, byteVars, stopped>>

RemoteEnds(e) ==
    /\ writer[e] = "remote"
    /\ est[e] = "saving"
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "write_ended", {})]
    /\ ev' = {Ev("entry", EntryEdges, est[e], "write_ended", {})}
    /\ UNCHANGED <<engineVars, blk, free, writer, pins, holders, copyVars, byteVars, stopped>>

\* Environment: no new work from here on.
Stop ==
    /\ CanStop
    /\ ~stopped
    /\ stopped' = TRUE
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, copyVars, byteVars>>

Idle ==
    /\ phase = "out"
    /\ \A e \in Enc : est[e] \in {"ready", "freed"}
    /\ \A c \in Copies : Over(c)

\* The engine sleeps.
Sleep ==
    /\ stopped
    /\ Idle
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, tierVars, copyVars, byteVars, stopped>>

-----------------------------------------------------------------------------
Next ==
    \/ BeginStep
    \/ \E e \in Enc : Reserve(e)
    \/ \E e \in Enc : Evict(e)
    \/ \E e \in Enc : Alloc(e)
    \/ \E e \in Enc : Cancel(e)
    \/ \E e \in Enc, c \in Copies : PlanSave(e, c)
    \/ \E e \in Enc, c \in Copies : PlanLoad(e, c)
    \/ BuildMeta
    \/ \E c \in Copies : SubmitSave(c)
    \/ \E c \in Copies : SubmitLoad(c)
    \/ EndStep
    \/ \E c \in Copies, r \in Ranks : RankReport(c, r)
    \/ \E c \in Copies, r \in Ranks : SaveLanded(c, r)
    \/ \E c \in Copies : SaveSkipped(c)
    \/ \E c \in Copies, r \in Ranks : LoadLanded(c, r)
    \/ \E c \in Copies : LoadSkipped(c)
    \/ \E e \in Enc, h \in Holds : Hold(e, h)
    \/ \E e \in Enc, h \in Holds : ReleaseHold(e, h)
    \/ \E c \in Copies : EncoderRuns(c)
    \/ \E c \in Copies : EncoderSkipped(c)
    \/ \E c \in Copies, r \in Ranks, b \in Blocks : RankCopies(c, r, b)
    \/ \E c \in Copies, r \in Ranks : RankFails(c, r)
    \/ \E e \in Enc : RemoteBegins(e)
    \/ \E e \in Enc, b \in Blocks : RemoteCopies(e, b)
    \/ \E e \in Enc : RemoteLands(e)
    \/ \E e \in Enc : RemoteEnds(e)
    \/ Stop
    \/ Sleep

Spec == Init /\ [][Next]_vars

\* The engine thread finishes the step that it began; a copy that is in flight
\* goes on at some rank, or a report of it is taken; a hold ends. Nothing obliges
\* anybody to begin a step, to ask, to allocate or to hold.
EngineGoesOn ==
    \/ BuildMeta
    \/ EndStep
    \/ phase = "build" /\ \E e \in Enc : Cancel(e)
    \/ \E c \in Copies : cp[c].st = "planned" /\ (\/ SubmitSave(c) \/ SaveSkipped(c)
                                                 \/ SubmitLoad(c) \/ LoadSkipped(c))

CopyGoesOn(c) ==
    /\ cp[c].st = "in_flight"
    /\ \/ EncoderRuns(c) \/ EncoderSkipped(c) \/ SaveSkipped(c) \/ LoadSkipped(c)
       \/ \E r \in Ranks : \/ RankReport(c, r) \/ SaveLanded(c, r) \/ LoadLanded(c, r)
                           \/ RankFails(c, r) \/ \E b \in Blocks : RankCopies(c, r, b)

Fairness ==
    /\ WF_vars(EngineGoesOn)
    /\ \A c \in Copies : WF_vars(CopyGoesOn(c))
    /\ BoundedHold => \A e \in Enc, h \in Holds : WF_vars(ReleaseHold(e, h))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
\* Invariants; the ids without "Inv" are those of the design.

Holder == {<<"step">>} \cup {<<"load", c>> : c \in Copies} \cup {<<"hold", h>> : h \in Holds}

CopyRecord ==
    [st : CopyStates \cup {"none"}, kind : {"none", "save", "load"},
     enc : Enc \cup {Garbage}, blocks : SUBSET Blocks,
     rk : [Ranks -> {"off", "run", "skip", "mute"}], todo : [Ranks -> SUBSET Blocks],
     ran : BOOLEAN, heard : SUBSET Ranks, nrep : 0..Cardinality(Ranks), ok : BOOLEAN]

TypeOK ==
    /\ phase \in {"out", "plan", "build"}
    /\ asked \subseteq Enc
    /\ est \in [Enc -> EntryStates]
    /\ blk \in [Enc -> SUBSET Blocks]
    /\ free \subseteq Blocks
    /\ writer \in [Enc -> {"none", "local", "remote"}]
    /\ \A e \in Enc : pins[e] \in 0..Cardinality(Holder) /\ holders[e] \subseteq Holder
    /\ \A c \in Copies : cp[c] \in CopyRecord
    /\ stale \subseteq Enc \X Ranks
    /\ content \in [Blocks -> Enc \cup {Garbage}]
    /\ wrong \in BOOLEAN
    /\ stopped \in BOOLEAN

\* A block belongs to one live entry at most, and a live entry has its blocks.
NoOverlapInv ==
    /\ \A e, f \in Enc : e # f => blk[e] \cap blk[f] = {}
    /\ \A e \in Enc : blk[e] \cap free = {}
    /\ \A e \in Enc : Cardinality(blk[e]) = IF est[e] = "freed" THEN 0 ELSE Size[e]

\* No block is lost. Nothing is retired here: that takes a READ (PeerRead).
ConservedInv == free \cup UNION {blk[e] : e \in Enc} = Blocks

\* What is served is what its name says, and every load got that.
NoWrongBytesInv ==
    /\ \A e \in Enc : Servable(e) => \A b \in blk[e] : content[b] = e
    /\ ~wrong

\* While a rank may still touch the blocks of a copy they belong to its entry.
NoReuseUnderDMAInv ==
    \A c \in Copies, r \in Ranks : MayTouch(c, r) => cp[c].blocks = blk[cp[c].enc]

\* The tier's count is the number of those who depend on the entry, and only a
\* pinned entry has any.
PinSafetyInv ==
    \A e \in Enc : /\ pins[e] = Cardinality(holders[e])
                   /\ (holders[e] # {}) <=> (est[e] = "pinned")

\* What the step was promised stays there until the metadata is built, and can
\* still be loaded: PlanLoad never lacks it. Whether the load is then wanted, and
\* whether every rank can copy, is another matter: LoadSkipped.
PromiseKeptInv ==
    \A e \in asked : Servable(e) /\ \A b \in blk[e] : content[b] = e

\* Progress, the part that one state shows: whatever is unfinished still has
\* somebody who will finish it.
NoStuckInv ==
    /\ \A e \in Enc :
         /\ (est[e] = "saving" /\ writer[e] = "local")
              => \E c \in Copies : cp[c].st = "in_flight" /\ cp[c].enc = e
         /\ (est[e] = "allocated" /\ writer[e] = "local") => phase # "out"
         /\ <<"step">> \in holders[e] => phase # "out"
         /\ \A c \in Copies : <<"load", c>> \in holders[e] => ~Over(c) /\ cp[c].enc = e
    /\ \A c \in Copies :
         cp[c].st = "in_flight" => \E r \in Parts(c) \ cp[c].heard : cp[c].rk[r] # "mute"

\* EC-4.1, EC-4.5: a copy is said to have landed only if it was handed over and every
\* rank has done its part, and to be skipped only if it was not, or one has not.
CopyOutcomeProp ==
    [][\A c \in Copies :
        LET lacking == {r \in Parts(c) : cp[c].rk[r] # "off" /\ ~(cp[c].rk[r] = "run" /\ cp[c].todo[r] = {})}
            known == cp[c].st = "in_flight" /\ cp[c].ok /\ lacking = {}
        IN /\ (cp[c].st # "landed" /\ cp'[c].st = "landed") => known
           /\ (cp[c].st # "skipped" /\ cp'[c].st = "skipped") => ~known]_vars

\* EC-1.2: what ranks, requests and writers do at any time is never an error. A step
\* may drop what it planned until it has handed it over, reports come from each rank
\* with either news, a writer ends in any way, and whoever wants bytes that are there
\* may have them.
ReceptiveInv ==
    /\ \A c \in Copies :
         /\ cp[c].st = "planned" =>
              \A x \in {"submit", "skip"} : CanFire(CopyEdges, cp[c].st, x, {})
         /\ cp[c].st = "in_flight" =>
              \A G \in SUBSET {"last_rank", "all_landed"} :
                  CanFire(CopyEdges, cp[c].st, "report", G)
    /\ \A e \in Enc :
         /\ est[e] = "allocated" =>
              \A x \in {"begin_write", "cancel"} : CanFire(EntryEdges, est[e], x, {})
         /\ est[e] = "saving" =>
              \A x \in {"write_landed", "write_ended", "write_lost"} :
                  CanFire(EntryEdges, est[e], x, {})
         /\ Servable(e) => CanFire(EntryEdges, est[e], "pin", {})

\* Each lifecycle variable moves along edges of its table, by the events that
\* the step recorded; one action may fire two events on one entry.
Along(table, name, from, to) ==
    \/ \E d \in table : d.from = from /\ d.to = to /\ <<name, from, d.event, to>> \in ev'
    \/ \E d, f \in table : /\ d.from = from /\ d.to = f.from /\ f.to = to
                           /\ <<name, from, d.event, d.to>> \in ev'
                           /\ <<name, f.from, f.event, to>> \in ev'

EdgesProp ==
    [][/\ \A e \in Enc : est'[e] # est[e] =>
            \/ est[e] = "freed" /\ est'[e] = "allocated"
            \/ Along(EntryEdges, "entry", est[e], est'[e])
       /\ \A c \in Copies : cp'[c].st # cp[c].st =>
            \/ Over(c) /\ cp'[c].st = "planned"
            \/ Along(CopyEdges, "copy", cp[c].st, cp'[c].st)]_vars

\* Progress, with FairSpec: an entry becomes ready or freed, a copy ends, a hold
\* ends, and without new work the engine goes idle.
EntrySettles(e) ==
    est[e] \in {"allocated", "saving"} ~> est[e] \in {"ready", "pinned", "freed"}
CopyEnds(c) == ~Over(c) ~> Over(c)
HoldEnds(e, h) == <<"hold", h>> \in holders[e] ~> <<"hold", h>> \notin holders[e]
GoesIdle == stopped ~> Idle

ProgressProp ==
    /\ \A e \in Enc : EntrySettles(e)
    /\ \A c \in Copies : CopyEnds(c)
    /\ \A e \in Enc, h \in Holds : HoldEnds(e, h)
    /\ GoesIdle
=============================================================================
