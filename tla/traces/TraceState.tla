\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE TraceState -----------------------------
\* What a recorded run of real processes looks like to TLC, and how one record
\* is compared with what the specification says must happen.
\*
\* TraceData is written by `ec-protocol trace check` and has the runs; each is
\*   log      records of all its processes, in an order that respects causality
\*   facts    [process -> what it never changes: sizes, timers, incarnation]
\*   granted  <<session, mm_hash>> of every grant that the log has
\*   incarnations  of its processes that grant
\*   sessions [session -> <<process, attempt>>] of every attempt that the log has
\*   family   [process -> [engine, parents, data]]: the processes of its instance that
\*            are in the run; data is [number -> server or reader]
\*   taken    <<reader, loan>> of every loan that a reader took up
\*   strangers [name -> encoding] of what is kept by the word of a stranger
\*   mutants  changed copies of the log: from record `first` on come `lines`
\*            instead, and then the log again from record `resume`
\* A record says who did what (p, act, arguments), which lifecycle events it
\* fired, and every variable of every object that it touched. So the state is
\* a function of the log, and each record has one possible successor or none.
\*
\* When there is none, Blame has printed the conjunct that failed.

EXTENDS Lifecycle, Integers, Sequences, FiniteSets, TLC

\* TraceData puts the runs into a register of TLC. As a constant they would be walked
\* through for every expression that mentions them, when TLC asks what it depends on.
Runs == TLCGet(1)

VARIABLES
    run,    \* Which run is replayed; chosen in the initial state.
    mut,    \* Which mutant of it; 0 is the log as it was recorded.
    pos,    \* The next record of the log.
    rep,    \* The next of the mutant's own records, 0 outside of them.
    last,   \* Process of the last record, and the entries that it told.
    proc    \* [process -> its state], see Start.

where == <<run, mut, pos, rep, last>>
vars == <<where, proc>>

Run == Runs[run]
Processes == DOMAIN Run.facts

\* What kind of process one is follows from what it is built of. An engine that grants
\* and reads by itself is one too; it has no family.
\* |                    | facts.shelf.total       | SharedShelf.num_blocks      |
\* |                    | facts.shelf.slots       | OfferTable.slots            |
\* |                    | facts.lent.total        | LentBlocks.num_blocks       |
Serves(p) == Run.facts[p].kind = "server"
Reads(p) == Run.facts[p].kind = "reader"
\* Blocks of its region; a parent has none.
Room(p) == IF Run.facts[p].total < 0 THEN 0 ELSE Run.facts[p].total
\* | facts.instance     | facts.instance.name     | InstanceSpec.incarnation    |
\* | facts.number       | facts.instance.process  | DataSpec.process            |
Number(p) == Run.facts[p].number
EngineOf(p) == Run.family[p].engine
ParentsOf(p) == Run.family[p].parents
Data(p) == Run.family[p].data
Mutant == Run.mutants[mut]

\* The record that comes next.
Current == IF rep = 0 THEN Run.log[pos] ELSE Mutant.lines[rep]
AtEnd == rep = 0 /\ pos > Len(Run.log)

\* Times are whole units of each process's own clock, rounded: two may be off
\* by one each, and a sum of two by as much again.
Tol == 2
AtMost(a, b) == a <= b + Tol
Near(a, b) == AtMost(a, b) /\ AtMost(b, a)

-----------------------------------------------------------------------------
\* Saying why

Blame(what, expected, logged) ==
    PrintT(<<"@blame", run, mut, pos, rep, what, expected, logged>>) /\ FALSE
\* IF, since TLC tries both sides of a disjunction.
Guard(what, holds) == IF holds THEN TRUE ELSE Blame(what, "", "")
Fits(what, fits, expected, logged) == IF fits THEN TRUE ELSE Blame(what, expected, logged)
Is(what, expected, logged) == Fits(what, expected = logged, expected, logged)

\* Objects of one kind that the record touched: the expected ones, and every
\* logged field of each as expected. Expected objects may have ghost fields.
Same(kind, expected, logged) ==
    /\ Is(<<kind, "touched">>, DOMAIN expected, DOMAIN logged)
    /\ \A i \in DOMAIN logged : \A f \in DOMAIN logged[i] :
         Is(<<kind, i, f>>, expected[i][f], logged[i][f])

-----------------------------------------------------------------------------
\* State of one process

\* Terminal objects are dropped; `last` remembers that their ids are taken. A reader's
\* entry is one loan's part of the engine's: it is over when its bytes have landed.
\*   entries, copies, reads, grants, peers, offers, loans, processes
\*                    [id -> variables], see the actions
\*   free, retired    block counts of the tier
\*   lost             [entry id -> extents] of retired entries
\*   owned, held, given   blocks of live and quarantined entries, of those that holds
\*                    keep, of those that grants pin: kept up to date from the entries
\*                    that a record touches, since adding up all of them each time is slow
\*   by_peer          [identity -> blocks of its grants, each grant counted]
\*   shared           notices that several outstanding grants have had together, until the
\*                    last of these grants ends
\*   late             [notice -> until when it may come late from an old peer whose lease
\*                    ran out, and must not end another grant]
\*   holds            numbers that holds have had: they do not rise, and none comes again
\*   making           Evict has begun to make room for an Alloc
\*   closed           the producer is shutting down
\*   gone             numbers of data processes whose exit the engine has acted on; of a
\*                    parent, of those that had a place and whose exit it has seen
\*   words            [loan -> what the reader has said of it], while the engine has it open
\*   back             retired entry whose blocks come back next, or 0
\*   seq, clock       of the last record
Start ==
    [entries |-> <<>>, copies |-> <<>>, reads |-> <<>>, grants |-> <<>>,
     peers |-> <<>>, offers |-> <<>>, loans |-> <<>>, processes |-> <<>>,
     gone |-> {}, words |-> <<>>, back |-> 0,
     free |-> 0, retired |-> 0, lost |-> <<>>,
     owned |-> 0, held |-> 0, given |-> 0, by_peer |-> <<>>,
     shared |-> {}, late |-> <<>>, holds |-> {},
     last |-> [entry |-> 0, copy |-> 0, read |-> 0, grant |-> 0, peer |-> 0,
               step |-> 0, offer |-> 0, loan |-> 0, process |-> 0],
     making |-> FALSE, closed |-> FALSE, seq |-> -1, clock |-> -1000000000]

\* Blocks: an entry's extents are <<first block, count>> in the order of its bytes.
Sum(f) ==
    LET D == DOMAIN f
        RECURSIVE Add(_, _)
        Add(todo, sum) ==
            IF todo = {} THEN sum
            ELSE LET i == CHOOSE j \in todo : TRUE IN Add(todo \ {i}, sum + f[i])
    IN Add(D, 0)
Size(extents) == Sum([i \in DOMAIN extents |-> extents[i][2]])
Apart(x, y) ==
    \A i \in DOMAIN x, j \in DOMAIN y :
        x[i][1] + x[i][2] <= y[j][1] \/ y[j][1] + y[j][2] <= x[i][1]
ApartInside(x) ==
    \A i, j \in DOMAIN x :
        i < j => x[i][1] + x[i][2] <= x[j][1] \/ x[j][1] + x[j][2] <= x[i][1]
Inside(x, total) == \A i \in DOMAIN x : x[i][1] >= 0 /\ x[i][2] > 0 /\ x[i][1] + x[i][2] <= total

\* The live entries that have the name: one or none (EC-2.1).
Live(s, name) ==
    {i \in DOMAIN s.entries : s.entries[i].mm_hash = name /\ s.entries[i].state # "quarantined"}
TheOne(S) == CHOOSE i \in S : TRUE
Servable(e) == e.state \in {"ready", "pinned"}
HoldersOf(e, kind) == {h \in e.holders : h[1] = kind}
Writers(s, entry) ==
    {a \in DOMAIN s.reads : s.reads[a].entry = entry /\ s.reads[a].state # "settled"}
Copying(s, entry, kind) ==
    {c \in DOMAIN s.copies : s.copies[c].entry = entry /\ s.copies[c].kind = kind}

-----------------------------------------------------------------------------
\* One record

\* A lifecycle event as a record tells it, and that the tables have it.
Moved(lc, id, edges, state, event, G) ==
    [lifecycle |-> lc, id |-> id, event |-> event, guards |-> G,
     from |-> state, to |-> Fire(edges, state, event, G)]
Table(edges, state, event, G) ==
    Fits("the table has this edge (EC-1.1)", CanFire(edges, state, event, G),
         {d.event : d \in {x \in edges : x.from = state}}, <<state, event, G>>)

\* Guards and event that the record tells for its (only) object of a lifecycle.
Told(r, lc) == {i \in DOMAIN r.fired : r.fired[i].lifecycle = lc}
ToldOne(r, lc) == Is(<<lc, "events told">>, 1, Cardinality(Told(r, lc)))
ToldGuards(r, lc) == r.fired[TheOne(Told(r, lc))].guards
ToldEvent(r, lc) == r.fired[TheOne(Told(r, lc))].event

\* A guard that compares times is as the record tells; the times must allow it.
Judged(what, told, a, b) ==
    Guard(what, IF told THEN AtMost(a, b) ELSE AtMost(b, a))

\* What an action changes; nothing, unless said otherwise.
Nothing ==
    [entries |-> <<>>, copies |-> <<>>, reads |-> <<>>, grants |-> <<>>,
     peers |-> <<>>, offers |-> <<>>, loans |-> <<>>, processes |-> <<>>,
     gone |-> {}, back |-> 0,
     free |-> 0, retired |-> 0, lost |-> <<>>, found |-> 0,
     late |-> <<>>, holds |-> {}, last |-> <<>>, making |-> FALSE, closed |-> FALSE]

Without(f, terminal) ==
    IF \E i \in DOMAIN f : f[i].state \in terminal
      THEN [i \in {j \in DOMAIN f : f[j].state \notin terminal} |-> f[i]]
      ELSE f

\* What a stranger sends is kept under a name of its own; the encoding is another (EC-15.8).
Encoding(name) == IF name \in DOMAIN Run.strangers THEN Run.strangers[name] ELSE name

\* A grant that is over is remembered until its attempt is settled.
Key(a) == <<a.session, Encoding(a.mm_hash)>>
Forgotten(g) ==
    /\ g.state \in GrantTerminal
    /\ \A q \in Processes : \A a \in DOMAIN proc[q].reads : Key(proc[q].reads[a]) # g.notice
Remembered(grants) ==
    IF \E i \in DOMAIN grants : Forgotten(grants[i])
      THEN [i \in {j \in DOMAIN grants : ~Forgotten(grants[j])} |-> grants[i]]
      ELSE grants

\* What the entries that are touched add to a sum, or take from it.
Over(p) == EntryTerminal \cup (IF Reads(p) THEN {"ready"} ELSE {})
BlocksOf(e, over) == IF e.state \in over THEN 0 ELSE Size(e.extents)
Blocks(e) == BlocksOf(e, EntryTerminal)
BlocksHeld(e) == IF HoldersOf(e, "hold") = {} THEN 0 ELSE Blocks(e)
BlocksGiven(e) == IF HoldersOf(e, "grant") = {} THEN 0 ELSE Blocks(e)
More(s, entries, W(_)) ==
    Sum([i \in DOMAIN entries |->
            W(entries[i]) - (IF i \in DOMAIN s.entries THEN W(s.entries[i]) ELSE 0)])

\* A record touches a grant when it begins and when it ends.
ByPeer(s, grants) ==
    IF DOMAIN grants = {} THEN s.by_peer
    ELSE LET g == grants[TheOne(DOMAIN grants)]
             before == IF g.identity \in DOMAIN s.by_peer THEN s.by_peer[g.identity] ELSE 0
             size == Size(g.extents)
         IN (g.identity :> IF g.state = GrantInitial THEN before + size ELSE before - size)
                @@ s.by_peer

\* The grants that are outstanding.
Given(s) == {g \in DOMAIN s.grants : s.grants[g].state = GrantInitial}

\* The same of a server, which has no entries: two grants on one slot are on one entry,
\* unless the slot was closed and filled again after the lease of the first.
Beside(s, i, g) ==
    {j \in Given(s) \ {i} : s.grants[j].entry = g.entry /\ s.grants[j].extents = g.extents}
MoreGiven(s, grants) ==
    IF DOMAIN grants = {} THEN 0
    ELSE LET i == TheOne(DOMAIN grants)
             g == grants[i]
         IN IF Beside(s, i, g) # {} THEN 0
            ELSE IF g.state = GrantInitial THEN Size(g.extents) ELSE 0 - Size(g.extents)

\* What a reader has said of its loans, which follows from what became of their entries:
\* the word goes to the engine after it was recorded. It is remembered while the engine
\* may not have heard it.
Word(s, c, i) ==
    IF i = c.found THEN "proven"
    ELSE LET state == c.entries[i].state
         IN CASE state = "ready" -> "landed"
              [] state = "quarantined" -> "lost"
              [] state = "freed" /\ i \in DOMAIN c.lost -> ""
              [] state = "freed" /\ s.entries[i].state = "quarantined" -> "proven"
              [] state = "freed" -> "failed"
              [] OTHER -> ""
Words(p, s, c) ==
    LET told == DOMAIN c.entries \cup (IF c.found = 0 THEN {} ELSE {c.found})
        fresh == {i \in told : Word(s, c, i) # ""}
        heard == IF EngineOf(p) = "" THEN {} ELSE DOMAIN proc[EngineOf(p)].loans
        before(i) == IF i \in DOMAIN s.words THEN s.words[i].said ELSE {}
    IN [i \in (DOMAIN s.words \cap heard) \cup fresh |->
          IF i \notin fresh THEN s.words[i]
          ELSE IF i = c.found
            THEN IF i \in DOMAIN s.words THEN [s.words[i] EXCEPT !.said = @ \cup {"proven"}]
                 ELSE [said |-> {"proven"}, name |-> "", bytes |-> ""]
          ELSE [said |-> before(i) \cup {Word(s, c, i)}, name |-> c.entries[i].mm_hash,
                bytes |-> c.entries[i].bytes]]

\* A grant that begins or ends beside others with its notice makes, or leaves, it shared.
Shared(s, grants) ==
    IF DOMAIN grants = {} THEN s.shared
    ELSE LET i == TheOne(DOMAIN grants)
             n == grants[i].notice
         IN IF \E j \in Given(s) \ {i} : s.grants[j].notice = n
              THEN s.shared \cup {n}
              ELSE s.shared \ {n}

\* The record tells exactly the change c and the lifecycle events `moved`.
Change(r, c, moved) ==
    LET s == proc[r.p]
        reads == c.reads @@ s.reads
        tier == [free |-> s.free + c.free, retired |-> s.retired + c.retired,
                 total |-> Run.facts[r.p].total]
        peers == [i \in DOMAIN c.peers |->
                    [attempts |-> {a \in DOMAIN reads : reads[a].peer = i}] @@ c.peers[i]]
    IN /\ Is("fired", moved, {r.fired[i] : i \in DOMAIN r.fired})
       /\ Is("number of events fired", Cardinality(moved), Len(r.fired))
       /\ Same("entry", c.entries, r.entries)
       /\ Same("copy", c.copies, r.copies)
       /\ Same("read", c.reads, r.reads)
       /\ Same("grant", c.grants, r.grants)
       /\ Same("peer", peers, r.peers)
       /\ Same("offer", c.offers, r.offers)
       /\ Same("loan", c.loans, r.loans)
       /\ Same("process", c.processes, r.processes)
       /\ Is("tier told", DOMAIN c.entries # {} \/ c.found # 0, r.tier # <<>>)
       /\ IF r.tier = <<>> THEN TRUE
          ELSE \A f \in DOMAIN tier : Is(<<"tier", f>>, tier[f], r.tier[1][f])
       /\ proc' = [proc EXCEPT ![r.p] =
            [entries |-> Without(c.entries @@ s.entries, Over(r.p)),
             copies |-> Without(c.copies @@ s.copies, CopyTerminal),
             reads |-> Without(reads, ReadTerminal),
             grants |-> Remembered(c.grants @@ s.grants),
             peers |-> Without(c.peers @@ s.peers, PeerTerminal),
             offers |-> Without(c.offers @@ s.offers, OfferTerminal),
             loans |-> Without(c.loans @@ s.loans, LoanTerminal),
             processes |-> Without(c.processes @@ s.processes, ProcessTerminal),
             gone |-> s.gone \cup c.gone,
             words |-> IF Reads(r.p) THEN Words(r.p, s, c) ELSE <<>>,
             back |-> c.back,
             owned |-> s.owned + More(s, c.entries, LAMBDA e : BlocksOf(e, Over(r.p))),
             held |-> s.held + More(s, c.entries, BlocksHeld),
             given |-> s.given + (IF Serves(r.p) THEN MoreGiven(s, c.grants)
                                  ELSE More(s, c.entries, BlocksGiven)),
             by_peer |-> ByPeer(s, c.grants),
             shared |-> Shared(s, c.grants),
             late |-> c.late @@ s.late,
             holds |-> IF c.holds = {} THEN s.holds ELSE s.holds \cup c.holds,
             free |-> tier.free,
             retired |-> tier.retired,
             lost |-> [i \in (DOMAIN c.lost \cup DOMAIN s.lost) \ {c.found} |->
                         (c.lost @@ s.lost)[i]],
             last |-> c.last @@ s.last,
             making |-> c.making,
             closed |-> s.closed \/ c.closed,
             seq |-> r.seq,
             clock |-> r.t]]

=============================================================================
