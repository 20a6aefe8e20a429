\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Offers -------------------------------
\* A server in a process of its own grants entries that the engine offers, and
\* neither ever waits for the other.
\*
\* Two arrays lie in shared memory, with one slot per offered entry: the *offers*,
\* which the engine alone writes (the name and whether the slot is open), and the
\* *ledger*, which the server alone writes (until when a grant needs the entry).
\* Each slot has a lock that the kernel keeps: it orders the memory of both sides,
\* is only ever tried and never waited for, and is gone with its process. Under it
\* the server looks whether the slot is open and still has the name, and writes the
\* ledger, before it answers; under it the engine looks at the ledger, and closes
\* the slot if nothing is granted. An engine that cannot have the lock, or finds a
\* grant, evicts something else.
\*
\* Whoever READs may go on after the server is gone: its answers travel on, and a
\* copy on the same host needs nobody. So the ledger outlives the server, and the
\* next one begins with what it finds there.
\*
\* Attempts, fences and notices are PeerRead's; how a process is stopped, killed and
\* started is Processes'.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Names,          \* Encodings.
    Slots,          \* Slots of the table; each is the memory of one entry.
    Servers,        \* Processes that serve, one after the other: 1 ..
    Readers,        \* Attempts that read.
    Lease,          \* Ticks of a lease, from the grant on.
    Margin,         \* What a reader takes off: it counts from its request on.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    SlotLock,       \* The server looks and writes under the slot's lock.
    LedgerFirst,    \* It writes the ledger before it answers.
    OpenedWhole,    \* A slot is opened when the bytes have landed.
    NameChecked,    \* It looks whether the slot still has the name.
    OpenChecked,    \* It looks whether the slot is open.
    CloseLooks,     \* The engine looks at the ledger before it closes a slot.
    Inherited,      \* A server never lowers what an earlier one has written.
    LedgerKept,     \* The engine keeps the ledger when a server dies.
    OneServer,      \* A server starts when the one before has exited.
    KillStopped     \* A server that stands still is killed.

VARIABLES
    name,           \* [Slots -> Names or None]: whose the slot's memory is.
    whole,          \* [Slots -> BOOLEAN]: its bytes have landed.
    offer,          \* [Slots -> OfferStates]: shared, written by the engine.
    ledger,         \* [Slots -> 0..Lease]: shared, written by servers; ticks left.
    lock,           \* [Slots -> None or a server]: the engine holds one within a step.
    proc,           \* [Servers -> "new", "up", "stopped", "gone"]
    pc,             \* [Servers -> what it is doing, and for whom]
    grants,         \* [Servers -> set of [slot, reader, left]]: its own memory.
    found,          \* [Servers -> [Slots -> ticks]]: what it found in the ledger.
    rd,             \* [Readers -> [st, name, slot, left, good]]
    ev              \* The lifecycle events of the last step (history).

shared == <<name, whole, offer, ledger, lock>>
server == <<proc, pc, grants, found>>
core == <<shared, server, rd>>
vars == <<core, ev>>

Idle == [at |-> "idle", slot |-> None, name |-> None, reader |-> None]
NoRead == [st |-> "idle", name |-> None, slot |-> None, left |-> 0, good |-> TRUE]
\* It got nothing, and is to say so.
Dropped(n) == [NoRead EXCEPT !.st = "dropped", !.name = n]

Max(a, b) == IF a >= b THEN a ELSE b
Less(x) == IF x > 0 THEN x - 1 ELSE 0
\* The longest of a server's grants on a slot, and what it found there.
RECURSIVE Longest(_)
Longest(S) == IF S = {} THEN 0
              ELSE LET x == CHOOSE y \in S : TRUE IN Max(x, Longest(S \ {x}))
Needs(v, s, G) == Max(IF Inherited THEN found[v][s] ELSE 0,
                      Longest({g.left : g \in {h \in G : h.slot = s}}))

-----------------------------------------------------------------------------
Init ==
    /\ name = [s \in Slots |-> None]
    /\ whole = [s \in Slots |-> FALSE]
    /\ offer = [s \in Slots |-> "closed"]
    /\ ledger = [s \in Slots |-> 0]
    /\ lock = [s \in Slots |-> None]
    /\ proc = [v \in Servers |-> "new"]
    /\ pc = [v \in Servers |-> Idle]
    /\ grants = [v \in Servers |-> {}]
    /\ found = [v \in Servers |-> [s \in Slots |-> 0]]
    /\ rd = [r \in Readers |-> NoRead]
    /\ ev = {}

-----------------------------------------------------------------------------
\* The engine. Each of these is one hold of the slot's lock, which it only tries.

\* Environment: a save or a fetch begins, and ends, in memory that nobody else uses.
Begin(s, n) ==
    /\ name[s] = None /\ offer[s] \in OfferTerminal
    /\ \A t \in Slots : name[t] # n
    /\ name' = [name EXCEPT ![s] = n]
    /\ whole' = [whole EXCEPT ![s] = FALSE]
    /\ ev' = {}
    /\ UNCHANGED <<offer, ledger, lock, server, rd>>

Land(s) ==
    /\ name[s] # None /\ ~whole[s]
    /\ whole' = [whole EXCEPT ![s] = TRUE]
    /\ ev' = {}
    /\ UNCHANGED <<name, offer, ledger, lock, server, rd>>

\* Action Expect: the slot has a name, and no bytes yet.
Expect(s) ==
    /\ name[s] # None
    /\ offer[s] \in OfferTerminal
    /\ lock[s] = None
    /\ offer' = [offer EXCEPT ![s] = OfferInitial]
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, ledger, lock, server, rd>>

\* Action Offer. What was not expected is so in the same step; that makes no difference
\* here.
Offer(s) ==
    /\ CanFire(OfferEdges, offer[s], "open", {})
    /\ name[s] # None /\ (OpenedWhole => whole[s])
    /\ lock[s] = None
    /\ offer' = [offer EXCEPT ![s] = Fire(OfferEdges, @, "open", {})]
    /\ ev' = {Ev("offer", OfferEdges, offer[s], "open", {})}
    /\ UNCHANGED <<name, whole, ledger, lock, server, rd>>

\* Memory that is used for something else spoils what is being copied out of it.
Spoilt(s) == [r \in Readers |-> IF rd[r].st = "copying" /\ rd[r].slot = s
                                  THEN [rd[r] EXCEPT !.good = FALSE] ELSE rd[r]]

\* Action Close, with the eviction that it is for.
Close(s) ==
    LET G == IF CloseLooks /\ ledger[s] > 0 THEN {"granted"} ELSE {}
    IN  /\ CanFire(OfferEdges, offer[s], "close", G)
        /\ lock[s] = None
        /\ offer' = [offer EXCEPT ![s] = Fire(OfferEdges, @, "close", G)]
        /\ name' = [name EXCEPT ![s] = None]
        /\ rd' = Spoilt(s)
        /\ ev' = {Ev("offer", OfferEdges, offer[s], "close", G)}
        /\ UNCHANGED <<whole, ledger, lock, server>>

\* What was never offered needs no leave of anybody, and what is expected neither: nobody
\* was granted it. Its slot may still say "coming" for a while, and is closed later.
Evict(s) ==
    /\ name[s] # None
    /\ offer[s] \in OfferTerminal \cup {"coming"}
    /\ name' = [name EXCEPT ![s] = None]
    /\ rd' = Spoilt(s)
    /\ ev' = {}
    /\ UNCHANGED <<whole, offer, ledger, lock, server>>

-----------------------------------------------------------------------------
\* A server: one request at a time, between any two steps of which it may stop or die.

Runs(v, at) == proc[v] = "up" /\ pc[v].at = at
Goes(v, at) == pc' = [pc EXCEPT ![v].at = at]

\* A reader asks; its fence counts from here. That the server believes the name to be
\* in slot s may be long out of date.
Ask(v, r, n, s) ==
    /\ Runs(v, "idle")
    /\ rd[r].st = "idle"
    /\ SlotLock => lock[s] = None
    /\ lock' = IF SlotLock THEN [lock EXCEPT ![s] = v] ELSE lock
    /\ pc' = [pc EXCEPT ![v] = [at |-> "locked", slot |-> s, name |-> n, reader |-> r]]
    /\ rd' = [rd EXCEPT ![r] = [NoRead EXCEPT !.st = "asked", !.name = n, !.slot = s,
                                              !.left = Lease - Margin]]
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, offer, ledger, proc, grants, found>>

Unlock(v) == [s \in Slots |-> IF lock[s] = v THEN None ELSE lock[s]]

Refuse(v) ==
    /\ Runs(v, "locked")
    /\ ~(offer[pc[v].slot] = "open" /\ name[pc[v].slot] = pc[v].name)
    /\ pc' = [pc EXCEPT ![v] = Idle]
    /\ lock' = Unlock(v)
    /\ rd' = [rd EXCEPT ![pc[v].reader] = Dropped(pc[v].name)]
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, offer, ledger, proc, grants, found>>

Look(v) ==
    /\ Runs(v, "locked")
    /\ offer[pc[v].slot] = "open" \/ ~OpenChecked
    /\ name[pc[v].slot] = pc[v].name \/ ~NameChecked
    /\ Goes(v, IF LedgerFirst THEN "looked" ELSE "answered early")
    /\ rd' = IF LedgerFirst THEN rd ELSE [rd EXCEPT ![pc[v].reader].st = "granted"]
    /\ ev' = {}
    /\ UNCHANGED <<shared, proc, grants, found>>

\* Action Grant: the ledger says so before anybody is told.
Grant(v) ==
    LET s == pc[v].slot
        own == grants[v] \cup {[slot |-> s, reader |-> pc[v].reader, left |-> Lease]}
    IN  /\ proc[v] = "up" /\ pc[v].at \in {"looked", "answered early"}
        /\ grants' = [grants EXCEPT ![v] = own]
        /\ ledger' = [ledger EXCEPT ![s] = Needs(v, s, own)]
        /\ lock' = Unlock(v)
        /\ Goes(v, IF LedgerFirst THEN "written" ELSE "idle")
        /\ ev' = {}
        /\ UNCHANGED <<name, whole, offer, proc, found, rd>>

Answer(v) ==
    /\ Runs(v, "written")
    /\ pc' = [pc EXCEPT ![v] = Idle]
    /\ rd' = [rd EXCEPT ![pc[v].reader].st = "granted"]
    /\ ev' = {}
    /\ UNCHANGED <<shared, proc, grants, found>>

\* Action Complete and Expire: a grant ends, and what the ledger says falls to what is
\* left. Without a lock: the engine that sees the old figure is only more careful.
GrantEnds(v, g, own) ==
    /\ g \in grants[v]
    /\ Runs(v, "idle")
    /\ grants' = [grants EXCEPT ![v] = own]
    /\ ledger' = [ledger EXCEPT ![g.slot] = Needs(v, g.slot, own)]
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, offer, lock, proc, pc, found, rd>>

Complete(v, g) == rd[g.reader].st = "done" /\ GrantEnds(v, g, grants[v] \ {g})
Expire(v, g) == g.left = 0 /\ GrantEnds(v, g, grants[v] \ {g})

-----------------------------------------------------------------------------
\* Processes.

Start(v) ==
    /\ proc[v] = "new"
    /\ \A w \in Servers : w < v => proc[w] # "new" /\ (OneServer => proc[w] = "gone")
    /\ proc' = [proc EXCEPT ![v] = "up"]
    /\ found' = [found EXCEPT ![v] = ledger]
    /\ ev' = {}
    /\ UNCHANGED <<shared, pc, grants, rd>>

Stop(v) ==
    /\ proc[v] = "up"
    /\ proc' = [proc EXCEPT ![v] = "stopped"]
    /\ ev' = {}
    /\ UNCHANGED <<shared, pc, grants, found, rd>>

Continue(v) ==
    /\ proc[v] = "stopped"
    /\ proc' = [proc EXCEPT ![v] = "up"]
    /\ ev' = {}
    /\ UNCHANGED <<shared, pc, grants, found, rd>>

\* The kernel takes its locks away. Who was asked by it gets no answer.
Exit(v) ==
    /\ proc[v] \in {"up", "stopped"}
    /\ proc' = [proc EXCEPT ![v] = "gone"]
    /\ pc' = [pc EXCEPT ![v] = Idle]
    /\ grants' = [grants EXCEPT ![v] = {}]
    /\ found' = [found EXCEPT ![v] = [s \in Slots |-> 0]]
    /\ lock' = Unlock(v)
    /\ ledger' = IF LedgerKept THEN ledger ELSE [s \in Slots |-> 0]
    /\ rd' = IF pc[v].reader # None /\ rd[pc[v].reader].st = "asked"
               THEN [rd EXCEPT ![pc[v].reader] = Dropped(pc[v].name)] ELSE rd
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, offer>>

-----------------------------------------------------------------------------
\* Readers, and the clock of the host. Nothing that a reader does needs the server.

Copy(r) ==
    /\ rd[r].st = "granted"
    /\ rd[r].left > 0
    /\ rd' = [rd EXCEPT ![r].st = "copying",
                        ![r].good = (whole[rd[r].slot] /\ name[rd[r].slot] = rd[r].name)]
    /\ ev' = {}
    /\ UNCHANGED <<shared, server>>

\* Inside its fence a reader accepts what it has; after it, nothing.
Finish(r) ==
    /\ rd[r].st = "copying"
    /\ rd' = [rd EXCEPT ![r] = IF rd[r].left > 0 THEN [@ EXCEPT !.st = "done", !.left = 0]
                               ELSE Dropped(rd[r].name)]
    /\ ev' = {}
    /\ UNCHANGED <<shared, server>>

\* It does not even begin, whatever it was granted.
Drop(r) ==
    /\ rd[r].st = "granted"
    /\ rd' = [rd EXCEPT ![r] = Dropped(rd[r].name)]
    /\ ev' = {}
    /\ UNCHANGED <<shared, server>>

GiveUp(r) ==
    /\ rd[r].st \in {"done", "dropped"}
    /\ \A v \in Servers : \A g \in grants[v] : g.reader # r
    /\ \A v \in Servers : pc[v].reader # r
    /\ rd' = [rd EXCEPT ![r] = NoRead]
    /\ ev' = {}
    /\ UNCHANGED <<shared, server>>

Tick ==
    /\ ledger' = [s \in Slots |-> Less(ledger[s])]
    /\ grants' = [v \in Servers |-> {[g EXCEPT !.left = Less(@)] : g \in grants[v]}]
    /\ found' = [v \in Servers |-> [s \in Slots |-> Less(found[v][s])]]
    /\ rd' = [r \in Readers |-> [rd[r] EXCEPT !.left = Less(@)]]
    /\ <<ledger, grants, found, rd>>' # <<ledger, grants, found, rd>>
    /\ ev' = {}
    /\ UNCHANGED <<name, whole, offer, lock, proc, pc>>

ServerStep(v) ==
    \/ Refuse(v) \/ Look(v) \/ Grant(v) \/ Answer(v)
    \/ \E g \in grants[v] : Complete(v, g) \/ Expire(v, g)

Next ==
    \/ \E s \in Slots : Expect(s) \/ Offer(s) \/ Close(s) \/ Evict(s)
    \/ \E s \in Slots, n \in Names : Begin(s, n)
    \/ \E s \in Slots : Land(s)
    \/ \E v \in Servers, r \in Readers, n \in Names, s \in Slots : Ask(v, r, n, s)
    \/ \E v \in Servers : Refuse(v)
    \/ \E v \in Servers : Look(v)
    \/ \E v \in Servers : Grant(v)
    \/ \E v \in Servers : Answer(v)
    \/ \E v \in Servers : \E g \in grants[v] : Complete(v, g)
    \/ \E v \in Servers : \E g \in grants[v] : Expire(v, g)
    \/ \E v \in Servers : Start(v) \/ Stop(v) \/ Continue(v) \/ Exit(v)
    \/ \E r \in Readers : Copy(r) \/ Finish(r) \/ Drop(r) \/ GiveUp(r)
    \/ Tick

Spec == Init /\ [][Next]_vars

\* Time passes, servers that run go on, and one that stands still is killed. Nobody has
\* to ask, to copy or to say that it is done.
Fairness ==
    /\ WF_core(Tick)
    /\ \A v \in Servers : SF_core(ServerStep(v))
    /\ KillStopped => \A v \in Servers : WF_core(proc[v] = "stopped" /\ Exit(v))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ name \in [Slots -> Names \cup {None}]
    /\ offer \in [Slots -> OfferStates]
    /\ ledger \in [Slots -> 0 .. Lease]
    /\ lock \in [Slots -> Servers \cup {None}]
    /\ proc \in [Servers -> {"new", "up", "stopped", "gone"}]
    /\ \A s \in Slots : offer[s] = "open" => name[s] # None

\* EC-2.2 and EC-14.2: what a reader accepts is what it asked for.
AcceptedInv == \A r \in Readers : rd[r].st = "done" => rd[r].good

\* EC-14.2: whoever may still accept what it reads is in the ledger.
CoveredInv ==
    \A r \in Readers :
        rd[r].st \in {"granted", "copying"} /\ rd[r].left > 0
            => ledger[rd[r].slot] >= rd[r].left /\ name[rd[r].slot] = rd[r].name

\* EC-14.6: one server at a time has the table.
OneServerInv == \A v, w \in Servers : {proc[v], proc[w]} \subseteq {"up", "stopped"} => v = w

\* EC-1.1: offers move along their table.
EdgesProp ==
    [][\A s \in Slots : offer'[s] # offer[s] =>
         \/ offer[s] \in OfferTerminal /\ offer'[s] = OfferInitial
         \/ \E d \in OfferEdges : /\ d.from = offer[s] /\ d.to = offer'[s]
                                  /\ <<"offer", offer[s], d.event, offer'[s]>> \in ev']_vars

\* EC-14.2: what is closed is closed, or its slot would have no name any more, and could get
\* none.
ClosedProp == [][\A x \in ev' : x[3] = "close" => x[4] = "closed"]_vars

\* EC-1.2: an entry lands, is to go, and goes, whatever was said of it before.
ReceptiveInv ==
    \A s \in Slots :
        /\ offer[s] = "coming" => CanFire(OfferEdges, offer[s], "open", {})
        /\ offer[s] \notin OfferTerminal =>
             /\ CanFire(OfferEdges, offer[s], "close", {})
             /\ ~CanFire(OfferEdges, offer[s], "close", {"granted"})

\* EC-14.5: what is not granted anew can be closed sooner or later, whatever servers and
\* readers do. To be checked with one reader: it asks again when its grant is over.
FreeProp == \A s \in Slots : []<>(ledger[s] = 0 /\ lock[s] = None)
=============================================================================
