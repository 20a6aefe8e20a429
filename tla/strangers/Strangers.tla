\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Strangers ------------------------------
\* By whose word something is the encoding that a request means (EC-15.8). One encoding,
\* one instance; requests come from anybody, and each may name a peer that it is to be
\* read from. Some peers have authenticated, the others are strangers. What a stranger
\* sends is kept in a place of its own, in the tier, on the ranks, and in what others see.
\*
\* A word is whose bytes they are: the instance's own, or the peer's that sent them.
\* How a fetch goes is PeerRead's and Loans' part; here it lands or fails when it likes.
\* What the host itself does with what a rank holds, by its name, is not here: to the
\* host it is one encoding, and nothing that a connector does changes that.

EXTENDS FiniteSets

CONSTANTS
    Requests,
    Peers,
    Known,          \* Those of the peers that have authenticated.
    Named,          \* [Requests -> the peer that it names, or None].
    Own,            \* The instance itself, and the place of what is everybody's.
    None

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    OwnPlace,       \* What a stranger sends is kept in a place of its own.
    NamedOnly,      \* A request looks there only if it names the stranger.
    NotShown,       \* It is neither granted nor announced.
    NotSaved,       \* A rank does not save what it holds by a stranger's word.
    LoadedAnew      \* A load replaces what a rank holds by another stranger's word.

ASSUME Known \subseteq Peers /\ Named \in [Requests -> Peers \cup {None}]

VARIABLES
    tier,           \* [Places -> "absent", "fetching", "ready"].
    word,           \* [Places -> whose bytes are there, or on their way; None].
    waits,          \* [Requests -> the place that it waits for, or None].
    given,          \* [Requests -> whose bytes it was given, or None].
    rank,           \* Whose bytes a rank holds for the encoding, or None.
    shown           \* Words that others were granted or told of.

vars == <<tier, word, waits, given, rank, shown>>

Places == {Own} \cup Peers
Words == {Own} \cup Peers

\* Where what a peer sends is kept.
Place(p) == IF p \in Known \/ ~OwnPlace THEN Own ELSE p

\* Where a request looks: what is everybody's, and what its own peer has sent.
Looks(r) ==
    {Own} \cup IF NamedOnly THEN {Named[r]} \ {None} ELSE Peers

\* Nobody's word but that of those who may speak for everybody.
Everybodys(w) == w = Own \/ w \in Known

-----------------------------------------------------------------------------
Init ==
    /\ tier = [k \in Places |-> "absent"]
    /\ word = [k \in Places |-> None]
    /\ waits = [r \in Requests |-> None]
    /\ given = [r \in Requests |-> None]
    /\ rank = None
    /\ shown = {}

\* A request that finds nothing has its peer asked, or waits for what is asked already.
Want(r) ==
    /\ given[r] = None /\ waits[r] = None
    /\ Named[r] # None
    /\ \A k \in Looks(r) : tier[k] # "ready"
    /\ LET k == Place(Named[r])
       IN /\ waits' = [waits EXCEPT ![r] = k]
          /\ tier' = [tier EXCEPT ![k] = "fetching"]
          /\ word' = [word EXCEPT ![k] = IF tier[k] = "absent" THEN Named[r] ELSE @]
    /\ UNCHANGED <<given, rank, shown>>

Lands(k) ==
    /\ tier[k] = "fetching"
    /\ tier' = [tier EXCEPT ![k] = "ready"]
    /\ UNCHANGED <<word, waits, given, rank, shown>>

\* Who waited encodes for itself, if it can, or is over.
Fails(k) ==
    /\ tier[k] = "fetching"
    /\ tier' = [tier EXCEPT ![k] = "absent"]
    /\ word' = [word EXCEPT ![k] = None]
    /\ waits' = [r \in Requests |-> IF waits[r] = k THEN None ELSE waits[r]]
    /\ UNCHANGED <<given, rank, shown>>

Evict(k) ==
    /\ tier[k] = "ready"
    /\ tier' = [tier EXCEPT ![k] = "absent"]
    /\ word' = [word EXCEPT ![k] = None]
    /\ UNCHANGED <<waits, given, rank, shown>>

\* A rank loads what is ready in a place where the request looks. What it holds already it
\* keeps, unless that is a stranger's word and not the one that the load brings.
Load(r, k) ==
    /\ given[r] = None
    /\ k \in Looks(r) /\ tier[k] = "ready"
    /\ LET keeps == rank # None
                    /\ (LoadedAnew => Everybodys(rank) \/ rank = word[k])
       IN rank' = IF keeps THEN rank ELSE word[k]
    /\ given' = [given EXCEPT ![r] = rank']
    /\ waits' = [waits EXCEPT ![r] = None]
    /\ UNCHANGED <<tier, word, shown>>

\* A request encodes for itself, and what the encoder made is saved if there is room.
Encode(r, saved) ==
    /\ given[r] = None /\ waits[r] = None
    /\ rank' = Own
    /\ given' = [given EXCEPT ![r] = Own]
    /\ IF saved /\ tier[Own] = "absent"
         THEN tier' = [tier EXCEPT ![Own] = "ready"] /\ word' = [word EXCEPT ![Own] = Own]
         ELSE UNCHANGED <<tier, word>>
    /\ UNCHANGED <<waits, shown>>

\* The host evicts the encoding and allocates it again in one pass (EC-4.7): a save is
\* planned and no encoder runs, so it is made of what the rank holds.
SaveHeld ==
    /\ rank # None
    /\ tier[Own] = "absent"
    /\ NotSaved => Everybodys(rank)
    /\ tier' = [tier EXCEPT ![Own] = "ready"]
    /\ word' = [word EXCEPT ![Own] = rank]
    /\ UNCHANGED <<waits, given, rank, shown>>

HostEvicts ==
    /\ rank # None
    /\ rank' = None
    /\ UNCHANGED <<tier, word, waits, given, shown>>

\* Another instance is granted what is there, or somebody is told of it.
Show(k) ==
    /\ tier[k] = "ready"
    /\ NotShown => k = Own
    /\ shown' = shown \cup {word[k]}
    /\ UNCHANGED <<tier, word, waits, given, rank>>

Leave(r) ==
    /\ given[r] # None \/ waits[r] # None
    /\ given' = [given EXCEPT ![r] = None]
    /\ waits' = [waits EXCEPT ![r] = None]
    /\ UNCHANGED <<tier, word, rank, shown>>

Next ==
    \/ \E r \in Requests : Want(r) \/ Leave(r)
    \/ \E r \in Requests, k \in Places : Load(r, k)
    \/ \E r \in Requests, saved \in BOOLEAN : Encode(r, saved)
    \/ \E k \in Places : Lands(k) \/ Fails(k) \/ Evict(k) \/ Show(k)
    \/ SaveHeld
    \/ HostEvicts

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ tier \in [Places -> {"absent", "fetching", "ready"}]
    /\ word \in [Places -> Words \cup {None}]
    /\ waits \in [Requests -> Places \cup {None}]
    /\ given \in [Requests -> Words \cup {None}]
    /\ rank \in Words \cup {None}
    /\ shown \subseteq Words

\* EC-15.8: what a request is given is ours, or comes from one who has authenticated, or
\* from the very peer that it names.
NamedWordInv ==
    \A r \in Requests : given[r] # None => Everybodys(given[r]) \/ given[r] = Named[r]

\* Nothing that others see is a stranger's word.
NotShownInv == \A w \in shown : Everybodys(w)

\* Nobody waits for a stranger that it did not name.
WaitsInv ==
    \A r \in Requests :
        waits[r] # None => word[waits[r]] = None \/ Everybodys(word[waits[r]])
                           \/ word[waits[r]] = Named[r]

-----------------------------------------------------------------------------
\* To be violated: what one who has authenticated sent is given to whoever asks.
ReachShared == \A r \in Requests : given[r] \in Known => Named[r] = given[r]

\* Both a stranger's word and our own are there at once.
ReachBoth == ~\E p \in Peers \ Known : tier[p] = "ready" /\ tier[Own] = "ready"
=============================================================================
