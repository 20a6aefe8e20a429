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
    IN /\ s.free + s.retired + s.owned = Run.facts[p].total
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
    IN \A g \in Given(s) :
         /\ s.grants[g].entry \in DOMAIN s.entries
         /\ s.entries[s.grants[g].entry].state = "pinned"
         /\ <<"grant", g>> \in s.entries[s.grants[g].entry].holders

\* What is served is what its name says.
NoWrongBytesInv(p, touched) ==
    \A i \in touched \cap DOMAIN proc[p].entries :
        Servable(proc[p].entries[i]) => proc[p].entries[i].bytes = proc[p].entries[i].mm_hash

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

\* While a READ may be accepted and its grant lasts, the blocks that it reads are
\* the named encoding's and stay so. Looks from the one side at the other.
CoveredReadInv(p) ==
    \A q \in Processes : \A a \in DOMAIN proc[q].reads :
        LET x == proc[q].reads[a]
        IN x.state = "reading" =>
             \A y \in Outstanding(x) :
                 y[1] = p =>
                    LET g == GrantOf(y)
                    IN /\ g.entry \in DOMAIN proc[p].entries
                       /\ LET e == proc[p].entries[g.entry]
                          IN /\ e.state = "pinned"
                             /\ e.mm_hash = x.mm_hash
                             /\ x.source # <<>> => e.extents = x.source

\* One session an address; two while one replaces the other (EC-9.2).
OneSessionInv(p) ==
    \A i \in DOMAIN proc[p].peers : Cardinality(Usable(proc[p], proc[p].peers[i].key)) <= 2

=============================================================================
