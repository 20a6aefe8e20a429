\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Names --------------------------------
\* Servers give names to pictures and exchange encodings under them (EC-A.4, EC-2.8).
\* A host names a picture by its content, or by counting requests: then another
\* server, or the same one after a restart, gives the name to another picture. With
\* options in the request, count or UUID goes into a hash, and only the host knows which.

EXTENDS Naturals

CONSTANTS
    Servers,
    Pictures,
    Counting,       \* Servers whose host counts.
    MaxCount,       \* Requests that a host counts before it starts anew.
    NoPicture       \* No picture; model value.

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    RefuseCounted,  \* A name with the form of a count is not used.
    RefuseUntold    \* Nor a hash on a server that counts, unless the request brought it.

VARIABLES
    count,          \* [Servers -> 0..MaxCount]: the host's counter.
    tier,           \* [Servers -> [Named -> Pictures or NoPicture]]: whose bytes lie there.
    asked,          \* [Servers -> request]: what is being answered.
    given           \* [Servers -> Pictures or NoPicture]: the bytes that it was given.

vars == <<count, tier, asked, given>>

\* What is seen of a name is its form. A uuid is by content, as its giver promises.
Forms == {"uuid", "count", "hash"}
Sources == {<<"content", p>> : p \in Pictures} \cup {<<"count", n>> : n \in 1..MaxCount}
Named ==
    {n \in [form : Forms, of : Sources] :
        /\ n.form = "count" => n.of[1] = "count"
        /\ n.form = "uuid" => n.of[1] = "content"}

Request(p, name, brought) == [picture |-> p, name |-> name, brought |-> brought]
Idle == Request(NoPicture, NoPicture, FALSE)

-----------------------------------------------------------------------------
\* Whether a server uses a name at all; it sees the form and not the source.
Used(s) ==
    LET name == asked[s].name
    IN /\ asked[s] # Idle
       /\ RefuseCounted => name.form # "count"
       /\ RefuseUntold => ~(s \in Counting /\ name.form = "hash" /\ ~asked[s].brought)

Init ==
    /\ count = [s \in Servers |-> 0]
    /\ tier = [s \in Servers |-> [n \in Named |-> NoPicture]]
    /\ asked = [s \in Servers |-> Idle]
    /\ given = [s \in Servers |-> NoPicture]

\* A request without a name: the host finds one. With options it is a hash either way.
Ask(s, p, options) ==
    /\ asked[s] = Idle
    /\ s \in Counting => count[s] < MaxCount
    /\ LET source == IF s \in Counting THEN <<"count", count[s] + 1>> ELSE <<"content", p>>
           form == IF options \/ s \notin Counting THEN "hash" ELSE "count"
       IN asked' = [asked EXCEPT ![s] = Request(p, [form |-> form, of |-> source], FALSE)]
    /\ count' = [count EXCEPT ![s] = IF s \in Counting THEN @ + 1 ELSE @]
    /\ UNCHANGED <<tier, given>>

\* A request that brings a name: a client's own, or one that another server announced.
AskNamed(s, p, form) ==
    /\ asked[s] = Idle
    /\ form \in {"uuid", "hash"}
    /\ asked' = [asked EXCEPT ![s] = Request(p, [form |-> form, of |-> <<"content", p>>], TRUE)]
    /\ UNCHANGED <<count, tier, given>>

\* It is encoded here, saved, and announced to whoever asks.
Save(s) ==
    /\ Used(s)
    /\ tier[s][asked[s].name] = NoPicture
    /\ tier' = [tier EXCEPT ![s][asked[s].name] = asked[s].picture]
    /\ UNCHANGED <<count, asked, given>>

\* It is read from another server that has something under the name.
Pull(s, other) ==
    /\ Used(s)
    /\ tier[s][asked[s].name] = NoPicture
    /\ tier[other][asked[s].name] # NoPicture
    /\ tier' = [tier EXCEPT ![s][asked[s].name] = tier[other][asked[s].name]]
    /\ UNCHANGED <<count, asked, given>>

Load(s) ==
    /\ Used(s)
    /\ given[s] = NoPicture
    /\ tier[s][asked[s].name] # NoPicture
    /\ given' = [given EXCEPT ![s] = tier[s][asked[s].name]]
    /\ UNCHANGED <<count, tier, asked>>

Finish(s) ==
    /\ asked[s] # Idle
    /\ asked' = [asked EXCEPT ![s] = Idle]
    /\ given' = [given EXCEPT ![s] = NoPicture]
    /\ UNCHANGED <<count, tier>>

\* The tier goes with the process; what others have read from it stays with them.
Restart(s) ==
    /\ asked[s] = Idle
    /\ count' = [count EXCEPT ![s] = 0]
    /\ tier' = [tier EXCEPT ![s] = [n \in Named |-> NoPicture]]
    /\ UNCHANGED <<asked, given>>

Next ==
    \/ \E s \in Servers, p \in Pictures, options \in BOOLEAN : Ask(s, p, options)
    \/ \E s \in Servers, p \in Pictures, form \in Forms : AskNamed(s, p, form)
    \/ \E s \in Servers : Save(s)
    \/ \E s, other \in Servers : Pull(s, other)
    \/ \E s \in Servers : Load(s)
    \/ \E s \in Servers : Finish(s)
    \/ \E s \in Servers : Restart(s)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ count \in [Servers -> 0..MaxCount]
    /\ tier \in [Servers -> [Named -> Pictures \cup {NoPicture}]]
    /\ given \in [Servers -> Pictures \cup {NoPicture}]
    /\ \A s \in Servers :
        \/ asked[s] = Idle
        \/ asked[s] \in [picture : Pictures, name : Named, brought : BOOLEAN]

\* EC-2.2, EC-2.8: what is given to a request is the encoding of its own picture.
NoWrongBytesInv == \A s \in Servers : given[s] # NoPicture => given[s] = asked[s].picture

\* EC-2.8: nothing lies in a tier under a name that was counted.
NothingCountedInv ==
    \A s \in Servers, n \in Named : tier[s][n] # NoPicture => n.of[1] = "content"

-----------------------------------------------------------------------------
\* To be violated: a server that counts has what a request named, out of its tier.
ReachNamed == \A s \in Counting : given[s] = NoPicture
=============================================================================
