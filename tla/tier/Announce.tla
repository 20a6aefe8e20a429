\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE Announce -------------------------------
\* A producer's engine finishes requests and announces what they encoded, while
\* saves land or fail and other encodings want the room. What is said of an
\* encoding is said in one step: metadata and address from
\* one look at its entry, and the hold that makes the announcement worth something.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Enc,            \* Encodings.
    Requests,       \* Requests that finish; each has encoded one encoding.
    Of              \* [Requests -> Enc]

CONSTANTS           \* Safeguards, TRUE except in bug configs.
    OneLook,        \* Metadata and address come from one look at the entry.
    ExpectedOnly,   \* Only what is there, or about to be, is announced.
    HoldAnnounced,  \* An announced entry is held.
    BoundedHold     \* The hold ends by itself.

VARIABLES
    est,            \* [Enc -> EntryStates]; "freed" also before the first use.
    saving,         \* [Enc -> BOOLEAN]: a save is planned or under way.
    wanted,         \* [Enc -> BOOLEAN]: a hold is wanted, or in force.
    said            \* [Requests -> record]: the answer to the request.

vars == <<est, saving, wanted, said>>

\* An answer is whole when it is done and names both or neither.
Unsaid == [done |-> FALSE, metadata |-> FALSE, address |-> FALSE]

-----------------------------------------------------------------------------
Servable(e) == est[e] \in {"ready", "pinned"}
Expected(e) == Servable(e) \/ saving[e]
CanSay(e) == ExpectedOnly => Expected(e)

\* The hold as it is in force: on bytes that are there.
Held(e) == HoldAnnounced /\ wanted[e] /\ est[e] = "pinned"

Init ==
    /\ est = [e \in Enc |-> "freed"]
    /\ saving = [e \in Enc |-> FALSE]
    /\ wanted = [e \in Enc |-> FALSE]
    /\ said = [r \in Requests |-> Unsaid]

\* ----------------------------------------------------------------- the tier

\* Alloc and PlanSave; the step that carries the save may not come.
Plan(e) ==
    /\ est[e] = "freed"
    /\ est' = [est EXCEPT ![e] = EntryInitial]
    /\ saving' = [saving EXCEPT ![e] = TRUE]
    /\ UNCHANGED <<wanted, said>>

Submit(e) ==
    /\ saving[e]
    /\ CanFire(EntryEdges, est[e], "begin_write", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "begin_write", {})]
    /\ UNCHANGED <<saving, wanted, said>>

\* A hold that was wanted before the bytes were there begins when they are.
Landed(e) ==
    /\ saving[e]
    /\ CanFire(EntryEdges, est[e], "write_landed", {})
    /\ LET ready == Fire(EntryEdges, est[e], "write_landed", {})
       IN est' = [est EXCEPT ![e] = IF HoldAnnounced /\ wanted[e]
                                      THEN Fire(EntryEdges, ready, "pin", {}) ELSE ready]
    /\ saving' = [saving EXCEPT ![e] = FALSE]
    /\ UNCHANGED <<wanted, said>>

\* The encoder did not run; the hold waits for another save until its time is over.
Skipped(e) ==
    /\ saving[e]
    /\ LET clean == IF est[e] = EntryInitial THEN est[e]
                    ELSE Fire(EntryEdges, est[e], "write_ended", {})
       IN est' = [est EXCEPT ![e] = Fire(EntryEdges, clean, "cancel", {})]
    /\ saving' = [saving EXCEPT ![e] = FALSE]
    /\ UNCHANGED <<wanted, said>>

Evict(e) ==
    /\ CanFire(EntryEdges, est[e], "evict", {})
    /\ est' = [est EXCEPT ![e] = Fire(EntryEdges, @, "evict", {})]
    /\ UNCHANGED <<saving, wanted, said>>

\* announce_hold_s has passed, or the first reader came and went.
HoldOver(e) ==
    /\ wanted[e]
    /\ BoundedHold
    /\ wanted' = [wanted EXCEPT ![e] = FALSE]
    /\ est' = IF Held(e) THEN [est EXCEPT ![e] = Fire(EntryEdges, @, "unpin", {"last_holder"})]
              ELSE est
    /\ UNCHANGED <<saving, said>>

\* ------------------------------------------------------------- announcements

\* The hold of an announced encoding; one that is held already stays so.
Keep(e, whole) ==
    IF ~whole THEN UNCHANGED <<est, wanted>>
    ELSE /\ wanted' = [wanted EXCEPT ![e] = TRUE]
         /\ est' = IF HoldAnnounced /\ est[e] = "ready"
                     THEN [est EXCEPT ![e] = Fire(EntryEdges, @, "pin", {})] ELSE est

\* The request is over, in whatever way.
Announces(r) ==
    /\ OneLook
    /\ ~said[r].done
    /\ LET whole == CanSay(Of[r])
       IN /\ said' = [said EXCEPT ![r] = [done |-> TRUE, metadata |-> whole, address |-> whole]]
          /\ Keep(Of[r], whole)
    /\ UNCHANGED saving

\* Without the safeguard: two looks, and anything in between.
SaysMetadata(r) ==
    /\ ~OneLook
    /\ said[r] = Unsaid
    /\ CanSay(Of[r])
    /\ said' = [said EXCEPT ![r].metadata = TRUE]
    /\ UNCHANGED <<est, saving, wanted>>

SaysAddress(r) ==
    /\ ~OneLook
    /\ ~said[r].done
    /\ said' = [said EXCEPT ![r].done = TRUE, ![r].address = CanSay(Of[r])]
    /\ Keep(Of[r], CanSay(Of[r]))
    /\ UNCHANGED saving

Next ==
    \/ \E e \in Enc : Plan(e)
    \/ \E e \in Enc : Submit(e)
    \/ \E e \in Enc : Landed(e)
    \/ \E e \in Enc : Skipped(e)
    \/ \E e \in Enc : Evict(e)
    \/ \E e \in Enc : HoldOver(e)
    \/ \E r \in Requests : Announces(r)
    \/ \E r \in Requests : SaysMetadata(r)
    \/ \E r \in Requests : SaysAddress(r)

Spec == Init /\ [][Next]_vars

\* Saves come to an end, and the time of a hold passes.
Fairness ==
    \A e \in Enc : WF_vars(Submit(e) \/ Landed(e) \/ Skipped(e)) /\ WF_vars(HoldOver(e))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ est \in [Enc -> {"allocated", "saving", "ready", "pinned", "freed"}]
    /\ saving \in [Enc -> BOOLEAN]
    /\ wanted \in [Enc -> BOOLEAN]
    /\ said \in [Requests -> [done : BOOLEAN, metadata : BOOLEAN, address : BOOLEAN]]

\* EC-11.1: metadata and address together or not at all.
AnnounceWholeInv == \A r \in Requests : said[r].done => said[r].metadata = said[r].address

\* EC-11.1, EC-11.2: an address is given only for bytes that are there, or that a
\* save under way will bring.
AnnouncedIsExpectedProp ==
    [][\A r \in Requests :
        (~said[r].done /\ said'[r].done /\ said'[r].address) => Expected(Of[r])]_vars

\* EC-11.3: announced bytes stay until the hold is over.
AnnouncedStaysProp ==
    [][\A e \in Enc : (wanted[e] /\ Servable(e) /\ wanted'[e]) => est'[e] = "pinned"]_vars

\* EC-2.4: pinned means held, here by the announcement.
PinSafetyInv == \A e \in Enc : est[e] = "pinned" <=> (Servable(e) /\ HoldAnnounced /\ wanted[e])

\* EC-3.5: every hold ends.
HoldEndsProp == \A e \in Enc : wanted[e] ~> ~wanted[e]

-----------------------------------------------------------------------------
\* To be violated: an announcement before its bytes, that was kept for them.
ReachEarly ==
    [][\A e \in Enc : ~(wanted[e] /\ est[e] = "saving" /\ est'[e] = "pinned")]_vars

\* And one that says nothing, because there was nothing to say.
ReachEmpty == \A r \in Requests : ~(said[r].done /\ ~said[r].address)
=============================================================================
