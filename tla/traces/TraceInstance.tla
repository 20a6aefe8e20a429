\* SPDX-License-Identifier: Apache-2.0
---------------------------- MODULE TraceInstance ----------------------------
\* An instance of several processes: what its engine offers to the server and lends
\* to readers, and which of them its parent has. The actions of Offers.tla and
\* Loans.tla, for any number of slots, loans and processes. Servers and readers
\* themselves are in TraceRead.tla.
\*
\* The clock of an instance is one (EC-7.1 speaks of two hosts), and its records come
\* in the order of it (Trace.tla). So what one of its processes tells must fit what the
\* others had told by then. Of a process that left no trace everything is believed.

EXTENDS TraceTier

\* The servers of an engine's instance whose traces are in the run.
ServersOf(E) == {q \in Processes : Serves(q) /\ EngineOf(q) = E /\ E # ""}

-----------------------------------------------------------------------------
\* Offers

OfferMove(o, x, event, G) == Moved("offer", o, OfferEdges, x.state, event, G)
OfferAfter(x, event) == [x EXCEPT !.state = Fire(OfferEdges, @, event, {})]
HasOffer(r) ==
    /\ Guard("an offer that is not closed", r.id \in DOMAIN proc[r.p].offers)
    /\ Is("name of its entry", proc[r.p].offers[r.id].name, r.name)
OfferRec(r) == proc[r.p].offers[r.id]

\* A slot for an entry that has none yet. Which one is the hash's choice.
\* | facts.slots        | facts.offers.slots      | OfferTable.slots            |
NewOffer(r) ==
    LET s == proc[r.p]
        slot == r.offers[r.id].slot
    IN /\ Is("offer", s.last.offer + 1, r.id)
       /\ Is("offers touched", {r.id}, DOMAIN r.offers)
       /\ Guard("a slot of the table", slot < Run.facts[r.p].slots)
       /\ Guard("a slot that is closed (EC-14.2)",
                \A o \in DOMAIN s.offers : s.offers[o].slot # slot)
       /\ Guard("an entry has one slot",
                \A o \in DOMAIN s.offers : s.offers[o].entry # EntryId(r))
Entered(r) ==
    [state |-> OfferInitial, slot |-> r.offers[r.id].slot, entry |-> EntryId(r),
     name |-> r.name]

\* | offers[id]         | vars.offer:ID           | Offer.variables             |
\* | .state             | .state                  | Offer.state                 |
\* | .slot              | .slot                   | Offer.slot                  |
\* | .entry             | .entry                  | Entry.entry_id              |
\* | r.id               | args.offer              | Offer.offer_id              |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
Expect(r) ==
    /\ HasEntry(r)
    /\ NewOffer(r)
    /\ Guard("an entry that is being written", EntryRec(r).state \in {"allocated", "saving"})
    /\ Change(r, [Nothing EXCEPT
           !.offers = r.id :> Entered(r),
           !.last = [offer |-> r.id]], {})

\* What was not expected is offered in one step.
\* | r.id               | args.offer              | Offer.offer_id              |
Offer(r) ==
    LET s == proc[r.p]
        known == r.id \in DOMAIN s.offers
    IN /\ HasEntry(r)
       /\ IF known THEN HasOffer(r) /\ Is("its entry", OfferRec(r).entry, EntryId(r))
          ELSE NewOffer(r)
       /\ Guard("the bytes have landed (ServeReadyOnly, EC-14.2)", Servable(EntryRec(r)))
       /\ LET x == IF known THEN OfferRec(r) ELSE Entered(r)
          IN /\ Table(OfferEdges, x.state, "open", {})
             /\ Change(r, [Nothing EXCEPT
                    !.offers = r.id :> OfferAfter(x, "open"),
                    !.last = IF known THEN <<>> ELSE [offer |-> r.id]],
                    {OfferMove(r.id, x, "open", {})})

\* Judged by what the servers have recorded, and not by the ledger, which is theirs too.
\* | r.now              | args.now                | Offers.close                |
Close(r) ==
    /\ HasOffer(r)
    /\ LET x == OfferRec(r)
       IN /\ Guard("no lease on the slot runs on (EC-14.2)",
                   \A v \in ServersOf(r.p) : \A g \in Given(proc[v]) :
                       proc[v].grants[g].entry = x.slot =>
                           AtMost(proc[v].grants[g].expires_at, r.now))
          /\ Table(OfferEdges, x.state, "close", {})
          /\ Change(r, [Nothing EXCEPT
                 !.offers = r.id :> OfferAfter(x, "close"),
                 !.making = proc[r.p].making],
                 {OfferMove(r.id, x, "close", {})})

-----------------------------------------------------------------------------
\* Loans

HasLoan(r) ==
    /\ Guard("a loan that is open (EC-14.7)", r.id \in DOMAIN proc[r.p].loans)
    /\ Is("name of its entry", proc[r.p].loans[r.id].name, r.name)
LoanRec(r) == proc[r.p].loans[r.id]

\* The reader has a trace in the run, and its parent has one.
Traced1(E, number) == number \in DOMAIN Data(E)
Placed(E, number, kind) ==
    ParentsOf(E) # {} =>
        \E q \in ParentsOf(E) :
            /\ number \in DOMAIN proc[q].processes
            /\ proc[q].processes[number].placed
            /\ proc[q].processes[number].kind = kind

\* It had its place, though the parent may have seen its end before the engine does.
HadPlace(E, number) ==
    \/ Placed(E, number, "reader")
    \/ \E q \in ParentsOf(E) : number \in proc[q].gone

\* | loans[id]          | vars.loan:ID            | Loan.variables              |
\* | .state             | .state                  | Loan.state                  |
\* | .entry             | .entry                  | Entry.entry_id              |
\* | .reader            | .reader                 | Loan.reader                 |
\* | .lost_at           | .lost_at                | Loan.lost_at                |
\* | r.id               | args.loan               | Loan.loan_id                |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
\* | r.now              | args.now                | Loans (argument)            |
Lend(r) ==
    LET s == proc[r.p] id == s.last.loan + 1
    IN /\ Is("loan", id, r.id)
       /\ Is("loans touched", {id}, DOMAIN r.loans)
       /\ HasEntry(r)
       /\ LET i == EntryId(r) e == EntryRec(r) reader == r.loans[id].reader
          IN /\ Table(EntryEdges, e.state, "begin_write", {})
             /\ Guard("nobody else writes the entry (EC-2.3)",
                      Copying(s, i, "save") = {} /\ Writers(s, i) = {})
             /\ Guard("a reader that is not gone (EC-14.8)", reader \notin s.gone)
             /\ Guard("a reader whose READ is lost gets no new work (EC-14.9)",
                      \A l \in DOMAIN s.loans :
                          s.loans[l].reader = reader => s.loans[l].state = LoanInitial)
             /\ Guard("a reader that has taken its place", HadPlace(r.p, reader))
             /\ Change(r, [Nothing EXCEPT
                    !.entries = i :> [EntryAfter(e, "begin_write", {}) EXCEPT
                                        !.writer = <<"loan", id>>],
                    !.loans = id :> [state |-> LoanInitial, entry |-> i, reader |-> reader,
                                     lost_at |-> r.now, name |-> r.name],
                    !.last = [loan |-> id]],
                    {EntryMove(i, e, "begin_write", {})})

\* The bytes that a reader says have landed (NoWrongBytes).
Brought(r) ==
    LET reader == LoanRec(r).reader
    IN IF Traced1(r.p, reader) THEN proc[Data(r.p)[reader]].words[r.id].bytes
       ELSE Encoding(r.name)

\* A loan's event, and what it does to its entry.
LoanMoved(r, event) ==
    LET s == proc[r.p] l == LoanRec(r) i == l.entry
        effect == Effect(LoanEdges, l.state, event, {})
        moved == Moved("loan", r.id, LoanEdges, l.state, event, {})
        c == [Nothing EXCEPT
                !.loans = r.id :> [l EXCEPT !.state = Fire(LoanEdges, @, event, {}),
                                            !.lost_at = IF effect = "quarantine" THEN r.now ELSE @],
                !.gone = IF event = "exited" THEN {l.reader} ELSE {}]
    IN /\ Table(LoanEdges, l.state, event, {})
       /\ CASE effect = "reclaim" -> Change(r, [c EXCEPT !.back = i], {moved})
            [] effect = "accept" ->
                 LET e == s.entries[i]
                 IN /\ Table(EntryEdges, e.state, "write_landed", {})
                    /\ Change(r, [c EXCEPT
                           !.entries = i :> [EntryAfter(e, "write_landed", {}) EXCEPT
                                               !.writer = <<>>, !.bytes = Brought(r)]],
                           {moved, EntryMove(i, e, "write_landed", {})})
            [] effect = "take_back" ->
                 LET e == s.entries[i]
                     ended == [EntryAfter(e, "write_ended", {}) EXCEPT !.writer = <<>>]
                 IN /\ Table(EntryEdges, e.state, "write_ended", {})
                    /\ Table(EntryEdges, ended.state, "cancel", {})
                    /\ Change(r, [c EXCEPT
                           !.entries = i :> EntryAfter(ended, "cancel", {}),
                           !.free = Size(e.extents)],
                           {moved, EntryMove(i, e, "write_ended", {}),
                            EntryMove(i, ended, "cancel", {})})
            [] effect = "quarantine" ->
                 LET e == s.entries[i]
                 IN /\ Table(EntryEdges, e.state, "write_lost", {})
                    /\ Change(r, [c EXCEPT !.entries = i :> EntryAfter(e, "write_lost", {})],
                           {moved, EntryMove(i, e, "write_lost", {})})
            [] effect = "free" ->
                 LET e == s.entries[i]
                 IN /\ Table(EntryEdges, e.state, "dma_ended", {})
                    /\ Change(r, [c EXCEPT
                           !.entries = i :> [EntryAfter(e, "dma_ended", {}) EXCEPT !.writer = <<>>],
                           !.free = Size(e.extents)],
                           {moved, EntryMove(i, e, "dma_ended", {})})
            [] effect = "retire" ->
                 LET e == s.entries[i]
                 IN /\ Table(EntryEdges, e.state, "retire", {})
                    /\ Change(r, [c EXCEPT
                           !.entries = i :> EntryAfter(e, "retire", {}),
                           !.retired = Size(e.extents),
                           !.lost = i :> e.extents],
                           {moved, EntryMove(i, e, "retire", {})})

\* A word that is heard was said: the reader's trace has what it follows from. That a
\* loan failed the engine also says by itself, when it could not tell the reader of it.
Heard(r, word) ==
    /\ HasLoan(r)
    /\ LET reader == LoanRec(r).reader
           q == Data(r.p)[reader]
       IN /\ Guard("its reader is not gone (EC-14.7)", reader \notin proc[r.p].gone)
          /\ Guard("the reader has said so (EC-14.7, EC-14.8)",
                   Traced1(r.p, reader) =>
                       \/ r.id \in DOMAIN proc[q].words /\ word \in proc[q].words[r.id].said
                       \/ word = "failed" /\ <<q, r.id>> \notin Run.taken)
    /\ LoanMoved(r, word)

\* | r.id               | args.loan               | Loan.loan_id                |
Landed(r) == Heard(r, "landed")

\* | r.id               | args.loan               | Loan.loan_id                |
Failed(r) == Heard(r, "failed")

\* | r.now              | args.now                | Loans (argument)            |
Lost(r) == Heard(r, "lost")

\* | r.id               | args.loan               | Loan.loan_id                |
Proven(r) == Heard(r, "proven")

\* When it is too early costs a fetch and no more, so the time is not judged.
\* | r.now              | args.now                | Loans (argument)            |
Overdue(r) == HasLoan(r) /\ LoanMoved(r, "overdue")

\* | facts.loan_quarantine | facts.loans.quarantine_s | Timing.quarantine_s     |
RetireLoan(r) ==
    /\ HasLoan(r)
    /\ Guard("quarantine_s since the READ was lost (EC-14.9)",
             AtMost(LoanRec(r).lost_at + Run.facts[r.p].loan_quarantine, r.now))
    /\ LoanMoved(r, "retire")

-----------------------------------------------------------------------------
\* Processes, as their parent has them.

HasProcess(r) == Guard("a process that is not gone", r.id \in DOMAIN proc[r.p].processes)
OfKind(s, kind) == {i \in DOMAIN s.processes : s.processes[i].kind = kind}

\* | processes[id]      | vars.process:ID         | _Process.variables          |
\* | .state             | .state                  | _Process.state              |
\* | .kind              | .kind                   | _Process.kind               |
\* | r.id               | args.process            | _Process.number             |
\* | facts.first        | facts.processes.first   | ParentSpec.first            |
\* | facts.servers      | facts.processes.servers | Wanted.working              |
\* | facts.readers      | facts.processes.readers | Wanted.working              |
StartProcess(r) ==
    LET s == proc[r.p] f == Run.facts[r.p]
        id == IF s.last.process = 0 THEN f.first ELSE s.last.process + 1
    IN /\ Is("process", id, r.id)
       /\ Is("processes touched", {id}, DOMAIN r.processes)
       /\ LET kind == r.processes[id].kind
          IN /\ Guard("server or reader", kind \in {"server", "reader"})
             /\ Guard("at most twice as many as are wanted",
                      Cardinality(OfKind(s, kind)) <
                          (IF kind = "server" THEN f.servers ELSE f.readers))
             /\ Change(r, [Nothing EXCEPT
                    !.processes = id :> [state |-> ProcessInitial, kind |-> kind, placed |-> FALSE],
                    !.last = [process |-> id]], {})

ProcessMoved(r, event) ==
    /\ HasProcess(r)
    /\ LET x == proc[r.p].processes[r.id]
       IN /\ Table(ProcessEdges, x.state, event, {})
          /\ Change(r, [Nothing EXCEPT
                 !.processes = r.id :> [x EXCEPT !.state = Fire(ProcessEdges, @, event, {}),
                                                 !.placed = @ \/ event = "take"],
                 !.gone = IF event = "exited" /\ x.placed THEN {r.id} ELSE {}],
                 {Moved("process", r.id, ProcessEdges, x.state, event, {})})

\* | r.id               | args.process            | _Process.number             |
ProcessReady(r) == ProcessMoved(r, "ready")

\* | r.id               | args.process            | _Process.number             |
TakePlace(r) ==
    /\ HasProcess(r)
    /\ Guard("the server before it has exited (EC-14.6)",
             LET s == proc[r.p]
             IN s.processes[r.id].kind = "server" =>
                  \A i \in OfKind(s, "server") \ {r.id} : ~s.processes[i].placed)
    /\ ProcessMoved(r, "take")

\* | r.id               | args.process            | _Process.number             |
DrainProcess(r) == ProcessMoved(r, "drain")

\* | r.id               | args.process            | _Process.number             |
KillProcess(r) == ProcessMoved(r, "kill")

\* The engine and the parent are told by the kernel, each by itself: to the engine a loan
\* comes back, the parent may start another one.
\* | r.id               | args.loan               | Loan.loan_id                |
\* | r.id               | args.process            | _Process.number             |
Exited(r) ==
    IF DOMAIN r.processes # {} THEN ProcessMoved(r, "exited")
    ELSE HasLoan(r) /\ LoanMoved(r, "exited")

=============================================================================
