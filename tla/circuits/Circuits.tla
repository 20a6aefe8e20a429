\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Circuits ------------------------------
\* Whose fetches may share a reader, and who is left alone (EC-9.4, EC-14.14).
\*
\* A reader is a process, and a producer can end it: a READ from it is lost, so that the
\* reader is replaced, or the reader dies under it. What the engine knows of producers it
\* knows for all readers. Whose READ was lost is *blamed*; so is everybody who was being
\* read from when a reader died by itself, since nobody can tell who did it. Who was blamed
\* is *suspect*: one reader is kept for suspects, one of them at a time, so that its next
\* death shows. So many fetches must land there before it shares a reader again, and twice
\* as many the next time. Whose doing it certainly was, again and again, *rests*, and so
\* does who could not be reached.
\*
\* Good producers do no harm. Bad ones break a fetch whenever they like, or let it land
\* to be trusted again. What a fetch is, and what becomes of its blocks, is Loans'.

EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Good, Bad,      \* Producers.
    Readers,        \* Places of readers; each has one process after another.
    Harms,          \* So often it was certainly its doing: then it rests.
    MaxBlames,      \* Blames are counted so far.
    Need(_),        \* So many fetches must land after so many blames.
    MostLands,      \* Fetches from bad producers that land, in all.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    SuspectAlone,   \* Who was blamed does not share a reader.
    EmptyFirst,     \* A suspect gets the kept reader when nobody else's fetch is on it.
    KeptStays,      \* The kept reader stays the same while it works.
    Forgives,       \* What lands alone counts.
    Remembered,     \* Who is trusted again is known to have been blamed.
    OwnBlame,       \* A lost READ is its own producer's doing and nobody else's.
    RestOfAll       \* Who rests, rests for every reader.

Producers == Good \cup Bad

VARIABLES
    order,          \* Readers that work, the oldest first.
    drains,         \* Readers whose READ was lost: no new work.
    kept,           \* The reader that is kept for suspects, or None.
    at,             \* [Producers -> where a fetch from it is under way, or None]
    alone,          \* [Producers -> BOOLEAN]: it was lent as a suspect's.
    blames,         \* [Producers -> 0 .. MaxBlames]
    left,           \* [Producers -> fetches that must land yet]
    harms,          \* [Producers -> 0 .. Harms]: what was certainly its doing, since
                    \* it was trusted last.
    rests,          \* [Producers -> BOOLEAN]
    broken,         \* [Good -> fetches that others have broken] (history).
    lands           \* Fetches from bad producers that landed (history).

known == <<blames, left, harms, rests>>
vars == <<order, drains, kept, at, alone, known, broken, lands>>

Works == {order[i] : i \in 1 .. Len(order)}
On(r) == {p \in Producers : at[p] = r}
Suspect(p) == SuspectAlone /\ left[p] > 0

Least(a, b) == IF a <= b THEN a ELSE b
Without(r) == SelectSeq(order, LAMBDA x : x # r)

-----------------------------------------------------------------------------
Init ==
    /\ order = <<>> /\ drains = {}
    /\ kept = None
    /\ at = [p \in Producers |-> None]
    /\ alone = [p \in Producers |-> FALSE]
    /\ blames = [p \in Producers |-> 0]
    /\ left = [p \in Producers |-> 0]
    /\ harms = [p \in Producers |-> 0]
    /\ rests = [p \in Producers |-> FALSE]
    /\ broken = [p \in Good |-> 0]
    /\ lands = 0

\* One of several is kept, or the only one while a suspect is on it. The youngest has had
\* the least time to be lent to.
Kept ==
    LET stays == /\ kept \in Works
                 /\ Len(order) >= 2 \/ \E p \in On(kept) : alone[p]
    IN IF KeptStays /\ stays THEN kept
       ELSE IF Len(order) >= 2 THEN order[Len(order)] ELSE None

\* A suspect may also have the only one.
ForSuspect == IF Kept # None THEN Kept ELSE IF Len(order) = 1 THEN order[1] ELSE None

Lend(p, r) ==
    /\ at[p] = None
    /\ ~rests[p] \/ ~RestOfAll
    /\ r \in Works
    /\ IF Suspect(p) THEN r = ForSuspect /\ (EmptyFirst => On(r) = {}) ELSE r # Kept
    /\ kept' = IF Suspect(p) THEN r ELSE Kept
    /\ at' = [at EXCEPT ![p] = r]
    /\ alone' = [alone EXCEPT ![p] = Suspect(p)]
    /\ UNCHANGED <<order, drains, known, broken, lands>>

\* It landed, in company or alone.
Land(p) ==
    /\ at[p] # None
    /\ p \in Bad => lands < MostLands
    /\ at' = [at EXCEPT ![p] = None]
    /\ left' = [left EXCEPT ![p] = IF Forgives /\ alone[p] /\ @ > 0 THEN @ - 1 ELSE @]
    /\ blames' = [blames EXCEPT ![p] = IF ~Remembered /\ left'[p] = 0 THEN 0 ELSE @]
    /\ harms' = [harms EXCEPT ![p] = IF alone[p] /\ left'[p] = 0 THEN 0 ELSE @]
    /\ lands' = IF p \in Bad THEN lands + 1 ELSE lands
    /\ UNCHANGED <<order, drains, kept, alone, rests, broken>>

\* What is known when these are blamed, and of one of them that it was its doing.
Blamed(S, doers) ==
    LET b(p) == Least(blames[p] + 1, MaxBlames)
        h(p) == Least(harms[p] + 1, Harms)
    IN  /\ blames' = [p \in Producers |-> IF p \in S THEN b(p) ELSE blames[p]]
        /\ left' = [p \in Producers |-> IF p \in S THEN Need(b(p)) ELSE left[p]]
        /\ harms' = [p \in Producers |-> IF p \in doers THEN h(p) ELSE harms[p]]
        /\ rests' = [p \in Producers |-> rests[p] \/ (p \in doers /\ h(p) = Harms)]

\* Fetches end that others have broken.
Ends(S, by) ==
    /\ at' = [p \in Producers |-> IF p \in S THEN None ELSE at[p]]
    /\ broken' = [p \in Good |-> IF p \in S \ by THEN broken[p] + 1 ELSE broken[p]]

\* A reader dies while it reads from a bad producer.
Dies(p) ==
    LET r == at[p] S == On(r)
    IN  /\ p \in Bad /\ r \in Works
        /\ order' = Without(r)
        /\ Blamed(S, IF Cardinality(S) = 1 THEN S ELSE {})
        /\ Ends(S, {p})
        /\ UNCHANGED <<drains, kept, alone, lands>>

\* A READ of it is lost: its reader gets no new work, and what else it has may end well.
Lost(p) ==
    LET r == at[p]
    IN  /\ p \in Bad /\ r \in Works
        /\ order' = Without(r)
        /\ drains' = drains \cup {r}
        /\ Blamed({p}, {p})
        /\ Ends({p}, {p})
        /\ UNCHANGED <<kept, alone, lands>>

\* Its grace is over.
Exits(r) ==
    /\ r \in drains
    /\ drains' = drains \ {r}
    /\ Ends(On(r), {})
    /\ IF OwnBlame THEN UNCHANGED known ELSE Blamed(On(r), {})
    /\ UNCHANGED <<order, kept, alone, lands>>

Starts(r) ==
    /\ r \notin Works \cup drains
    /\ order' = Append(order, r)
    /\ UNCHANGED <<drains, kept, at, alone, known, broken, lands>>

\* Nobody answers there.
Unreachable(p) ==
    /\ at[p] # None
    /\ at' = [at EXCEPT ![p] = None]
    /\ rests' = [rests EXCEPT ![p] = TRUE]
    /\ UNCHANGED <<order, drains, kept, alone, blames, left, harms, broken, lands>>

Rested(p) ==
    /\ rests[p]
    /\ rests' = [rests EXCEPT ![p] = FALSE]
    /\ UNCHANGED <<order, drains, kept, at, alone, blames, left, harms, broken, lands>>

Next ==
    \/ \E p \in Producers, r \in Readers : Lend(p, r)
    \/ \E p \in Producers : Land(p) \/ Unreachable(p) \/ Rested(p)
    \/ \E p \in Bad : Dies(p) \/ Lost(p)
    \/ \E r \in Readers : Exits(r) \/ Starts(r)

Spec == Init /\ [][Next]_vars

\* Readers come and go, a fetch ends somehow, and a good producer is asked again.
Fairness ==
    /\ \A r \in Readers : WF_vars(Starts(r)) /\ WF_vars(Exits(r))
    /\ \A p \in Producers : WF_vars(Rested(p))
    /\ \A p \in Bad : WF_vars(Dies(p) \/ Lost(p) \/ Land(p) \/ Unreachable(p))
    /\ \A p \in Good : WF_vars(Land(p)) /\ SF_vars(\E r \in Readers : Lend(p, r))
    /\ \A p \in Good : SF_vars(alone[p] /\ Land(p))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ Works \cap drains = {} /\ Cardinality(Works) = Len(order)
    /\ kept \in Readers \cup {None}
    /\ at \in [Producers -> Readers \cup {None}]
    /\ alone \in [Producers -> BOOLEAN]
    /\ \A p \in Producers : /\ blames[p] \in 0 .. MaxBlames
                            /\ left[p] \in 0 .. Need(MaxBlames)
                            /\ harms[p] \in 0 .. Harms
    /\ \A p \in Producers : at[p] # None => at[p] \in Works \cup drains
    /\ lands \in 0 .. MostLands

\* EC-14.14: a suspect's fetch has its reader to itself, so that its end shows whose
\* doing it was. The reader may drain meanwhile.
AloneInv ==
    \A p, q \in Producers : p # q /\ at[p] # None /\ at[p] = at[q] => ~alone[p] /\ ~alone[q]

\* EC-14.14: a bad producer breaks fetches from a good one once, if it does nothing but
\* harm ...
OnceInv == lands = 0 => \A g \in Good : broken[g] <= Cardinality(Bad)

\* ... and otherwise it pays twice as much each time, in fetches that land.
RECURSIVE Power(_)
Power(n) == IF n = 0 THEN 1 ELSE 2 * Power(n - 1)
CheapInv == \A g \in Good : broken[g] = 0 \/ Power(broken[g] - 1) <= lands + 1

\* EC-9.4: who rests is not asked by any reader.
RestProp == [][\A p \in Producers : at[p] = None /\ at'[p] # None => ~rests[p]]_vars

\* EC-14.14: a reader that is replaced because a READ was lost makes nobody suspect.
InnocentProp ==
    [][\A r \in Readers : r \in drains /\ r \notin drains' => blames' = blames]_vars

\* EC-14.14: who did no harm shares a reader again.
BackProp == \A g \in Good : left[g] > 0 ~> left[g] = 0
=============================================================================
