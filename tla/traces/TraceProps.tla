\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE TraceProps -----------------------------
\* What must hold in every state of a recorded run. They speak of one process p,
\* the one whose record was replayed last: nothing of the others has changed,
\* except that what p did may take away what an attempt elsewhere relies on
\* (CoveredReadInv). `touched` are the entries that the record told: of two
\* entries that it did not touch, nothing has changed either.

EXTENDS TraceRead

TypeOKInv(p) ==
    LET s == proc[p]
    IN /\ s.free \in Nat /\ s.retired \in Nat
       /\ \A i \in DOMAIN s.entries : s.entries[i].state \in EntryStates \ EntryTerminal
       /\ \A i \in DOMAIN s.copies : s.copies[i].state \in CopyStates \ CopyTerminal
       /\ \A i \in DOMAIN s.reads : s.reads[i].state \in ReadStates \ ReadTerminal
       /\ \A i \in DOMAIN s.grants : s.grants[i].state \in GrantStates
       /\ \A i \in DOMAIN s.peers : s.peers[i].state \in PeerStates \ PeerTerminal
       /\ \A i \in DOMAIN s.offers : s.offers[i].state \in OfferStates \ OfferTerminal
       /\ \A i \in DOMAIN s.loans : s.loans[i].state \in LoanStates \ LoanTerminal
       /\ \A i \in DOMAIN s.processes : s.processes[i].state \in ProcessStates \ ProcessTerminal

NoOverlapInv(p, touched) ==
    LET s == proc[p]
    IN \A i \in touched \cap DOMAIN s.entries :
         LET x == s.entries[i].extents
         IN /\ ApartInside(x)
            /\ Inside(x, Run.facts[p].total)
            /\ \A j \in DOMAIN s.entries \ {i} : Apart(x, s.entries[j].extents)
            /\ \A j \in DOMAIN s.lost : Apart(x, s.lost[j])

ConservedInv(p) ==
    LET s == proc[p]
    IN /\ s.free + s.retired + s.owned = Room(p)
       /\ s.retired = Sum([i \in DOMAIN s.lost |-> Size(s.lost[i])])

\* A name has one live entry (EC-2.1).
OneNameInv(p, touched) ==
    \A i \in touched \cap DOMAIN proc[p].entries :
        Cardinality(Live(proc[p], proc[p].entries[i].mm_hash)) <= 1

\* Pinned means held, and every holder is somebody who has not released (EC-2.4).
PinSafetyInv(p, touched) ==
    LET s == proc[p]
    IN \A i \in touched \cap DOMAIN s.entries :
         LET e == s.entries[i]
         IN /\ (e.state = "pinned") = (e.holders # {})
            /\ \A h \in e.holders :
                 /\ h[1] = "load" => h[2] \in Copying(s, i, "load")
                 /\ h[1] = "grant" => h[2] \in Given(s) /\ s.grants[h[2]].entry = i

\* Whatever may touch blocks finds their entry in the state that allows it.
NoReuseUnderDMAInv(p) ==
    LET s == proc[p]
    IN /\ \A c \in DOMAIN s.copies :
            LET k == s.copies[c]
            IN /\ k.entry \in DOMAIN s.entries
               /\ LET e == s.entries[k.entry]
                  IN \/ k.kind = "load" /\ e.state = "pinned" /\ <<"load", c>> \in e.holders
                     \/ k.kind = "save" /\ k.state = CopyInitial /\ e.state = EntryInitial
                     \/ k.kind = "save" /\ k.state = "in_flight" /\ e.state = "saving"
                          /\ e.writer = <<"save", c>>
       /\ \A a \in DOMAIN s.reads :
            LET x == s.reads[a]
            IN x.state \in {"reading", "quarantined"} =>
                 /\ x.entry \in DOMAIN s.entries
                 /\ s.entries[x.entry].state = IF x.state = "reading" THEN "saving" ELSE "quarantined"
                 /\ s.entries[x.entry].writer = <<"read", a>>
       /\ \A l \in DOMAIN s.loans :
            LET x == s.loans[l]
            IN IF x.state = "retired" THEN x.entry \in DOMAIN s.lost
               ELSE /\ x.entry \in DOMAIN s.entries
                    /\ s.entries[x.entry].state = IF x.state = "lent" THEN "saving" ELSE "quarantined"
                    /\ s.entries[x.entry].writer = <<"loan", l>>

\* Attempts that may still write, or be tried again, have blocks that nobody else has.
DestinationInv(p) ==
    LET s == proc[p]
    IN \A a \in DOMAIN s.reads :
         s.reads[a].state \in {"requested", "granted", "retryable", "failed"} =>
            /\ s.reads[a].entry \in DOMAIN s.entries
            /\ s.entries[s.reads[a].entry].state = EntryInitial
            /\ Writers(s, s.reads[a].entry) = {a}

ServeReadyOnlyInv(p) ==
    LET s == proc[p]
    IN Serves(p) \/ \A g \in Given(s) :
         /\ s.grants[g].entry \in DOMAIN s.entries
         /\ s.entries[s.grants[g].entry].state = "pinned"
         /\ <<"grant", g>> \in s.entries[s.grants[g].entry].holders

\* What is served is what its name says.
NoWrongBytesInv(p, touched) ==
    \A i \in touched \cap DOMAIN proc[p].entries :
        LET e == proc[p].entries[i] IN Servable(e) => e.bytes = Encoding(e.mm_hash)

\* What a reader says has landed is that too.
WordsInv(p) ==
    \A l \in DOMAIN proc[p].words :
        LET w == proc[p].words[l] IN "landed" \in w.said => w.bytes = Encoding(w.name)

FencedAcceptInv(p) ==
    \A a \in DOMAIN proc[p].reads :
        LET x == proc[p].reads[a]
        IN /\ x.state = "done" => AtMost(x.seen, x.fence)
           /\ x.state = "reading" => AtMost(x.posted_at + Run.facts[p].min_read, x.fence)

\* Sessions are the peers' own choice, so different attempts may have one notice; it
\* could then mean any of them, and ends none (`shared`, Complete).
AttemptIdentityInv(p) ==
    LET s == proc[p]
    IN /\ \A a, b \in DOMAIN s.reads : a # b => s.reads[a].session # s.reads[b].session
       /\ \A g, h \in Given(s) :
            g # h /\ s.grants[g].attempt # 0 /\ s.grants[g].attempt = s.grants[h].attempt =>
                s.grants[g].notice # s.grants[h].notice

PromiseKeptInv(p, touched) ==
    LET s == proc[p]
    IN \A i \in touched \cap DOMAIN s.entries :
         HoldersOf(s.entries[i], "step") # {} => s.entries[i].state = "pinned"

\* Holds and grants keep no more than their shares (EC-3.6, EC-5.10). Each of a peer's
\* grants counts, and each entry once of all; the only grant of either may be larger.
\* | facts.max_blocks   | facts.holds.max_blocks  | HoldTable.max_blocks        |
SharesInv(p) ==
    LET s == proc[p]
        f == Run.facts[p]
    IN /\ s.held > 0 => s.held <= f.max_blocks
       /\ Cardinality(Given(s)) > 1 => s.given <= f.grant_quota
       /\ \A g \in Given(s) :
            LET identity == s.grants[g].identity
            IN Cardinality(GivenTo(s, identity)) > 1 => s.by_peer[identity] <= f.quota

\* A server that is gone ends no grant; so of a server's grants the lease itself counts, by
\* the clock that the engine has too.
Ended(y, p) == Serves(y[1]) /\ AtMost(GrantOf(y).expires_at, proc[p].clock)

\* While a READ may be accepted and its grant lasts, the blocks that it reads are
\* the named encoding's and stay so. Looks from the one side at the other.
CoveredReadInv(p) ==
    \A q \in Processes : \A a \in DOMAIN proc[q].reads :
        LET x == proc[q].reads[a]
        IN x.state = "reading" =>
             \A y \in Outstanding(x) :
                 p \in {y[1], Home(y)} /\ GrantOf(y).home # 0 /\ ~Ended(y, p) =>
                    LET g == GrantOf(y) entries == proc[Home(y)].entries
                    IN /\ g.home \in DOMAIN entries
                       /\ LET e == entries[g.home]
                          IN /\ IF Serves(y[1]) THEN Servable(e) ELSE e.state = "pinned"
                             /\ e.mm_hash = Encoding(x.mm_hash)
                             /\ x.source # <<>> => e.extents = x.source

\* While a lease runs, its entry stays where it is, whether or not the server that gave it
\* is still there, and whoever reads (EC-14.2, EC-14.6).
KeptInv(p) ==
    LET E == EngineOf(p)
    IN \A v \in ServersOf(E) : \A g \in Given(proc[v]) :
         LET x == proc[v].grants[g]
         IN x.home # 0 /\ ~AtMost(x.expires_at, proc[p].clock) =>
              /\ x.home \in DOMAIN proc[E].entries
              /\ Servable(proc[E].entries[x.home])
              /\ proc[E].entries[x.home].extents = x.extents

\* What stands open in the table, or has stood so, is servable: its memory is not the
\* engine's alone (EC-14.2). A slot has one entry, and an entry one slot.
OfferedInv(p) ==
    LET s == proc[p]
    IN /\ \A o \in DOMAIN s.offers :
            s.offers[o].state # OfferInitial =>
                /\ s.offers[o].entry \in DOMAIN s.entries
                /\ Servable(s.entries[s.offers[o].entry])
       /\ \A o, q \in DOMAIN s.offers : o # q => s.offers[o].slot # s.offers[q].slot

\* Where a reader that is not gone may have a READ write, the engine has lent to it
\* (EC-14.7, EC-14.8). Looks from either side at the other.
LentInv(p) ==
    LET E == EngineOf(p)
    IN E # "" /\ (p = E \/ Reads(p)) =>
         \A n \in DOMAIN Data(E) \ proc[E].gone :
            LET q == Data(E)[n]
            IN \A a \in DOMAIN proc[q].reads :
                 proc[q].reads[a].state \in {"reading", "quarantined"} =>
                    /\ proc[q].reads[a].entry \in DOMAIN proc[E].loans
                    /\ proc[E].loans[proc[q].reads[a].entry].reader = n

\* One server at a time has the table (EC-14.6).
OneServerInv(p) ==
    Cardinality({i \in OfKind(proc[p], "server") : proc[p].processes[i].placed}) <= 1

\* One session an address; two while one replaces the other (EC-9.2).
OneSessionInv(p) ==
    \A i \in DOMAIN proc[p].peers : Cardinality(Usable(proc[p], proc[p].peers[i].key)) <= 2

=============================================================================
