\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE TraceTier ------------------------------
\* Entries and copies of one process: the actions of Tier.tla, for any number of
\* encodings, blocks, copies and ranks. r is the record, r.p its process.
\*
\* Beside each action: | spec variable | trace field | code attribute |. The tier
\* itself is in every record that touches an entry:
\* | free               | vars.tier.free          | EncodingTier.free_blocks    |
\* | retired            | vars.tier.retired       | EncodingTier.retired_blocks |
\* | facts.total        | vars.tier.total         | EncodingTier.num_blocks     |
\* | facts.total        | facts.tier.total        | EncodingTier.num_blocks     |

EXTENDS TraceState

\* The entry that the record is about, by its name.
HasEntry(r) == Is("live entries of the name", 1, Cardinality(Live(proc[r.p], r.name)))
EntryId(r) == TheOne(Live(proc[r.p], r.name))
EntryRec(r) == proc[r.p].entries[EntryId(r)]

EntryMove(i, e, event, G) == Moved("entry", i, EntryEdges, e.state, event, G)
EntryAfter(e, event, G) == [e EXCEPT !.state = Fire(EntryEdges, e.state, event, G)]

Pinned(e, h) == [EntryAfter(e, "pin", {}) EXCEPT !.holders = @ \cup {h}]
LastHolder(e, h) == IF e.holders = {h} THEN {"last_holder"} ELSE {}
Unpinned(e, h) == [EntryAfter(e, "unpin", LastHolder(e, h)) EXCEPT !.holders = @ \ {h}]

\* | entries[id]        | vars.entry:ID           | Entry.variables             |
\* | .mm_hash           | .mm_hash                | Entry.mm_hash               |
\* | .state             | .state                  | Entry.state                 |
\* | .extents           | .extents                | Entry.extents               |
\* | .holders           | .holders                | Entry.holders               |
\* | .writer            | .writer                 | Entry.writer                |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
\* | r.blocks           | args.blocks             | Entry.num_blocks            |
\* The blocks are the environment's choice; they must be free ones (NoOverlap). A reader's
\* entry has the number of its loan, and the blocks that the engine has lent.
\* | facts.total        | facts.lent.total        | LentBlocks.num_blocks       |
Alloc(r) ==
    LET s == proc[r.p]
        id == IF Reads(r.p) THEN TheOne(DOMAIN r.entries) ELSE s.last.entry + 1
        E == EngineOf(r.p)
    IN /\ Is("number of entries made", 1, Cardinality(DOMAIN r.entries))
       /\ Is("ids of entries made", {id}, DOMAIN r.entries)
       /\ Guard("a number that was not used before (EC-14.7)", id > s.last.entry)
       /\ Guard("the engine has lent these blocks for it (EC-14.7)",
                Reads(r.p) /\ E # "" =>
                    /\ id \in DOMAIN proc[E].loans
                    /\ LET l == proc[E].loans[id]
                       IN /\ l.state = LoanInitial
                          /\ l.reader = Number(r.p)
                          /\ l.name = r.name
                          /\ l.entry \in DOMAIN proc[E].entries
                          /\ proc[E].entries[l.entry].extents = r.entries[id].extents)
       /\ Guard("the name has no live entry (EC-2.1)", Live(s, r.name) = {})
       /\ LET x == r.entries[id].extents
          IN /\ Is("blocks", r.blocks, Size(x))
             /\ Guard("some blocks are wanted", r.blocks > 0)
             /\ Guard("blocks of the region", Inside(x, Run.facts[r.p].total))
             /\ Guard("blocks that nobody owns (NoOverlap, EC-2.1)",
                      /\ ApartInside(x)
                      /\ \A f \in DOMAIN s.entries : Apart(x, s.entries[f].extents)
                      /\ \A f \in DOMAIN s.lost : Apart(x, s.lost[f]))
             /\ Change(r, [Nothing EXCEPT
                    !.entries = id :> [mm_hash |-> r.name, state |-> EntryInitial,
                                       extents |-> x, holders |-> {}, writer |-> <<>>,
                                       bytes |-> ""],
                    !.free = 0 - r.blocks,
                    !.last = [entry |-> id]], {})

\* | r.name             | args.mm_hash            | EncodingTier.alloc          |
Evict(r) ==
    /\ HasEntry(r)
    /\ LET i == EntryId(r) e == EntryRec(r)
       IN /\ Table(EntryEdges, e.state, "evict", {})
          /\ Guard("its offer is closed (EC-14.2)",
                   \A o \in DOMAIN proc[r.p].offers : proc[r.p].offers[o].entry # i)
          /\ Change(r, [Nothing EXCEPT
                 !.entries = i :> EntryAfter(e, "evict", {}),
                 !.free = Size(e.extents),
                 !.making = TRUE], {EntryMove(i, e, "evict", {})})

\* | r.name             | args.mm_hash            | EncodingTier.cancel         |
Cancel(r) ==
    /\ HasEntry(r)
    /\ LET s == proc[r.p] i == EntryId(r) e == EntryRec(r)
       IN /\ Table(EntryEdges, e.state, "cancel", {})
          /\ Guard("nobody is going to write it", Copying(s, i, "save") = {} /\ Writers(s, i) = {})
          /\ Change(r, [Nothing EXCEPT
                 !.entries = i :> EntryAfter(e, "cancel", {}),
                 !.free = Size(e.extents)], {EntryMove(i, e, "cancel", {})})

\* | r.name             | args.mm_hash            | EncodingTier.reserve        |
Reserve(r) ==
    /\ HasEntry(r)
    /\ LET s == proc[r.p] i == EntryId(r) e == EntryRec(r)
           h == <<"step", s.last.step + 1>>
       IN /\ Guard("promised once a step", HoldersOf(e, "step") = {})
          /\ Table(EntryEdges, e.state, "pin", {})
          /\ Change(r, [Nothing EXCEPT
                 !.entries = i :> Pinned(e, h),
                 !.last = [step |-> h[2]]], {EntryMove(i, e, "pin", {})})

\* |                    |                         | EncodingTier.end_step       |
EndStep(r) ==
    LET s == proc[r.p]
        promised == {i \in DOMAIN s.entries : HoldersOf(s.entries[i], "step") # {}}
        h(i) == TheOne(HoldersOf(s.entries[i], "step"))
    IN /\ Guard("something was promised", promised # {})
       /\ \A i \in promised : Table(EntryEdges, s.entries[i].state, "unpin",
                                    LastHolder(s.entries[i], h(i)))
       /\ Change(r, [Nothing EXCEPT
              !.entries = [i \in promised |-> Unpinned(s.entries[i], h(i))]],
              {EntryMove(i, s.entries[i], "unpin", LastHolder(s.entries[i], h(i))) :
                  i \in promised})

\* A hold gets its number when it is asked for, which may be before the bytes land: the
\* numbers of holds that begin do not rise.
\* | r.holder           | args.holder             | HoldTable.hold              |
Hold(r) ==
    /\ HasEntry(r)
    /\ LET s == proc[r.p] i == EntryId(r) e == EntryRec(r)
       IN /\ Is("kind of the holder", "hold", r.holder[1])
          /\ Guard("a holder of nothing else (EC-2.4)",
                   \A f \in DOMAIN s.entries : r.holder \notin s.entries[f].holders)
          /\ Guard("a number that was not used before (EC-2.4)", r.holder[2] \notin s.holds)
          /\ Table(EntryEdges, e.state, "pin", {})
          /\ Change(r, [Nothing EXCEPT
                 !.entries = i :> Pinned(e, r.holder),
                 !.holds = {r.holder[2]}], {EntryMove(i, e, "pin", {})})

\* | r.holder           | args.holder             | HoldTable.release           |
ReleaseHold(r) ==
    /\ HasEntry(r)
    /\ LET i == EntryId(r) e == EntryRec(r) h == r.holder
       IN /\ Guard("a hold that is kept (EC-2.4)", h \in HoldersOf(e, "hold"))
          /\ Table(EntryEdges, e.state, "unpin", LastHolder(e, h))
          /\ Change(r, [Nothing EXCEPT !.entries = i :> Unpinned(e, h)],
                    {EntryMove(i, e, "unpin", LastHolder(e, h))})

\* | r.id               | args.entry              | Entry.entry_id              |
\* | r.blocks           | args.blocks             | Entry.num_blocks            |
Reclaim(r) ==
    LET s == proc[r.p]
    IN /\ Guard("retired blocks under that id", r.id \in DOMAIN s.lost)
       /\ Is("blocks", Size(s.lost[r.id]), r.blocks)
       /\ Guard("what was just proven", s.back \in {0, r.id})
       /\ Change(r, [Nothing EXCEPT !.free = r.blocks, !.retired = 0 - r.blocks,
                                    !.found = r.id], {})

-----------------------------------------------------------------------------
\* Copies

CopyMove(c, k, event, G) == Moved("copy", c, CopyEdges, k.state, event, G)
CopyAfter(k, event, G) == [k EXCEPT !.state = Fire(CopyEdges, k.state, event, G)]
HasCopy(r, kind) ==
    /\ Guard("a copy that is not over (EC-4.4)", r.id \in DOMAIN proc[r.p].copies)
    /\ Is("kind", kind, proc[r.p].copies[r.id].kind)
    /\ Is("name of its entry", r.name, proc[r.p].entries[proc[r.p].copies[r.id].entry].mm_hash)
CopyRec(r) == proc[r.p].copies[r.id]

\* | copies[id]         | vars.copy:ID            | Copy.variables              |
\* | .kind              | .kind                   | Copy.kind                   |
\* | .entry             | .entry                  | Entry.entry_id              |
\* | .state             | .state                  | Copy.state                  |
\* | .waiting           | .waiting                | Copy.waiting                |
\* | .all_landed        | .all_landed             | Copy.all_landed             |
\* | r.id               | args.copy               | Copy.copy_id                |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
PlanSave(r) ==
    LET s == proc[r.p] id == s.last.copy + 1
    IN /\ HasEntry(r)
       /\ Is("copy", id, r.id)
       /\ Is("state of the entry", EntryInitial, EntryRec(r).state)
       /\ Guard("nobody else is going to write it",
                Copying(s, EntryId(r), "save") = {} /\ Writers(s, EntryId(r)) = {})
       /\ Change(r, [Nothing EXCEPT
              !.copies = id :> [kind |-> "save", entry |-> EntryId(r), state |-> CopyInitial,
                                waiting |-> {0}, all_landed |-> TRUE],
              !.last = [copy |-> id]], {})

\* | facts.ranks        | facts.copies.ranks      | CopyTable.world_size        |
PlanLoad(r) ==
    LET s == proc[r.p] id == s.last.copy + 1 h == <<"load", id>>
    IN /\ HasEntry(r)
       /\ Is("copy", id, r.id)
       /\ LET i == EntryId(r) e == EntryRec(r)
          IN /\ Guard("promised in this step (PromiseKept, EC-3.3)", HoldersOf(e, "step") # {})
             /\ Table(EntryEdges, e.state, "pin", {})
             /\ Change(r, [Nothing EXCEPT
                    !.entries = i :> Pinned(e, h),
                    !.copies = id :> [kind |-> "load", entry |-> i, state |-> CopyInitial,
                                      waiting |-> 0 .. (Run.facts[r.p].ranks - 1),
                                      all_landed |-> TRUE],
                    !.last = [copy |-> id]], {EntryMove(i, e, "pin", {})})

\* | entries[id].writer | vars.entry:ID.writer    | Entry.writer                |
SubmitSave(r) ==
    /\ HasCopy(r, "save")
    /\ LET s == proc[r.p] k == CopyRec(r) i == k.entry e == s.entries[i]
       IN /\ Table(CopyEdges, k.state, "submit", {})
          /\ Table(EntryEdges, e.state, "begin_write", {})
          /\ Change(r, [Nothing EXCEPT
                 !.copies = r.id :> CopyAfter(k, "submit", {}),
                 !.entries = i :> [EntryAfter(e, "begin_write", {}) EXCEPT
                                     !.writer = <<"save", r.id>>]],
                 {CopyMove(r.id, k, "submit", {}), EntryMove(i, e, "begin_write", {})})

\* | r.id               | args.copy               | CopyTable.submit            |
SubmitLoad(r) ==
    /\ HasCopy(r, "load")
    /\ LET k == CopyRec(r)
       IN /\ Table(CopyEdges, k.state, "submit", {})
          /\ Change(r, [Nothing EXCEPT !.copies = r.id :> CopyAfter(k, "submit", {})],
                    {CopyMove(r.id, k, "submit", {})})

\* The last rank's report. What it says of itself decides, with all before it.
LastReport(k, landed) ==
    [CopyAfter(k, "report", landed) EXCEPT
        !.waiting = {}, !.all_landed = "all_landed" \in landed]
ReportGuards(landed) == {"last_rank"} \cup (IF landed THEN {"all_landed"} ELSE {})
IsLast(k) == Is("ranks that have not reported", 1, Cardinality(k.waiting))

\* | r.id               | args.copy               | CopyTable.report            |
RankReport(r) ==
    /\ HasCopy(r, "load")
    /\ Is("copies touched", {r.id}, DOMAIN r.copies)
    /\ LET k == CopyRec(r)
           left == r.copies[r.id].waiting
           landed == r.copies[r.id].all_landed
           G == IF landed THEN {"all_landed"} ELSE {}
       IN /\ Guard("one rank that had not reported (EC-4.1)",
                   \E rank \in k.waiting : left = k.waiting \ {rank} /\ left # {})
          /\ Guard("what a rank did not copy stays not copied", landed => k.all_landed)
          /\ Table(CopyEdges, k.state, "report", G)
          /\ Change(r, [Nothing EXCEPT
                 !.copies = r.id :> [CopyAfter(k, "report", G) EXCEPT
                                       !.waiting = left, !.all_landed = landed]],
                 {CopyMove(r.id, k, "report", G)})

\* | entries[id].bytes  | (ghost)                 | the bytes in shared memory  |
SaveLanded(r) ==
    /\ HasCopy(r, "save")
    /\ LET s == proc[r.p] k == CopyRec(r) i == k.entry e == s.entries[i] G == ReportGuards(TRUE)
       IN /\ IsLast(k)
          /\ Guard("every rank copied (EC-4.5)", k.all_landed)
          /\ Table(CopyEdges, k.state, "report", G)
          /\ Table(EntryEdges, e.state, "write_landed", {})
          /\ Change(r, [Nothing EXCEPT
                 !.copies = r.id :> LastReport(k, G),
                 !.entries = i :> [EntryAfter(e, "write_landed", {}) EXCEPT
                                     !.writer = <<>>, !.bytes = e.mm_hash]],
                 {CopyMove(r.id, k, "report", G), EntryMove(i, e, "write_landed", {})})

\* A planned save that its step did not carry, or a report of no bytes.
\* | r.id               | args.copy               | CopyTable.skip              |
SaveSkipped(r) ==
    /\ HasCopy(r, "save")
    /\ LET s == proc[r.p] k == CopyRec(r) i == k.entry e == s.entries[i]
           early == k.state = CopyInitial
           event == IF early THEN "skip" ELSE "report"
           G == IF early THEN {} ELSE ReportGuards(FALSE)
           ended == IF early THEN e ELSE [EntryAfter(e, "write_ended", {}) EXCEPT !.writer = <<>>]
       IN /\ IF early THEN TRUE ELSE IsLast(k)
          /\ Table(CopyEdges, k.state, event, G)
          /\ IF early THEN TRUE ELSE Table(EntryEdges, e.state, "write_ended", {})
          /\ Table(EntryEdges, ended.state, "cancel", {})
          /\ Change(r, [Nothing EXCEPT
                 !.copies = r.id :> IF early THEN CopyAfter(k, event, G) ELSE LastReport(k, G),
                 !.entries = i :> EntryAfter(ended, "cancel", {}),
                 !.free = Size(e.extents)],
                 {CopyMove(r.id, k, event, G), EntryMove(i, ended, "cancel", {})}
                     \cup (IF early THEN {} ELSE {EntryMove(i, e, "write_ended", {})}))

\* A load's end, in whatever way, takes its holder with it.
LoadOver(r, event, G, k2) ==
    LET s == proc[r.p] k == CopyRec(r) i == k.entry e == s.entries[i] h == <<"load", r.id>>
    IN /\ Table(CopyEdges, k.state, event, G)
       /\ Guard("the load holds its entry (EC-4.2)", h \in e.holders)
       /\ Table(EntryEdges, e.state, "unpin", LastHolder(e, h))
       /\ Change(r, [Nothing EXCEPT !.copies = r.id :> k2, !.entries = i :> Unpinned(e, h)],
              {CopyMove(r.id, k, event, G), EntryMove(i, e, "unpin", LastHolder(e, h))})

\* | r.id               | args.copy               | CopyTable.report            |
LoadLanded(r) ==
    /\ HasCopy(r, "load")
    /\ LET k == CopyRec(r) G == ReportGuards(TRUE)
       IN /\ IsLast(k)
          /\ Guard("every rank copied", k.all_landed)
          /\ LoadOver(r, "report", G, LastReport(k, G))

\* | r.id               | args.copy               | CopyTable.report            |
LoadSkipped(r) ==
    /\ HasCopy(r, "load")
    /\ LET k == CopyRec(r) G == ReportGuards(FALSE)
       IN IF k.state = CopyInitial
            THEN LoadOver(r, "skip", {}, CopyAfter(k, "skip", {}))
            ELSE IsLast(k) /\ LoadOver(r, "report", G, LastReport(k, G))

=============================================================================
