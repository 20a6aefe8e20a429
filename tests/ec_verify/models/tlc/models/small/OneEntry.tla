\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE OneEntry ------------------------------
\* One object that takes every edge of the entry table: the least model that can
\* be compared with it. `Forgotten` takes edges away, `Rogue` adds one.
EXTENDS Lifecycle

CONSTANTS Forgotten, Rogue

VARIABLES entry, ev

vars == <<entry, ev>>

Init == entry = EntryInitial /\ ev = {}

Take(e, G) ==
    /\ e \notin Forgotten
    /\ CanFire(EntryEdges, entry, e, G)
    /\ entry' = Fire(EntryEdges, entry, e, G)
    /\ ev' = {Ev("entry", EntryEdges, entry, e, G)}

\* TLC labels a step with the operator that holds the step's first conjunct, so
\* each action starts with one of its own.
PostRead    == entry = "allocated" /\ Take("begin_write", {})
Cancel      == entry = "allocated" /\ Take("cancel", {})
SaveLanded  == entry = "saving" /\ Take("write_landed", {})
SaveSkipped == entry = "saving" /\ Take("write_ended", {})
ReadLost    == entry = "saving" /\ Take("write_lost", {})
Hold        == entry \in {"ready", "pinned"} /\ Take("pin", {})
ReleaseHold == entry = "pinned" /\ \E G \in SUBSET EntryGuards : Take("unpin", G)
Evict       == entry = "ready" /\ Take("evict", {})
DmaEnded    == entry = "quarantined" /\ Take("dma_ended", {})
Retire      == entry = "quarantined" /\ Take("retire", {})

\* Serving bytes that nobody has written: no table has this edge.
Shortcut ==
    /\ Rogue
    /\ entry = "allocated"
    /\ entry' = "ready"
    /\ ev' = {<<"entry", "allocated", "write_landed", "ready">>}

Stop == entry \in EntryTerminal /\ ev' = {} /\ UNCHANGED entry

Next ==
    \/ PostRead \/ Cancel \/ SaveLanded \/ SaveSkipped \/ ReadLost \/ Hold \/ ReleaseHold
    \/ Evict \/ DmaEnded \/ Retire \/ Shortcut \/ Stop

Spec == Init /\ [][Next]_vars

TypeOK == entry \in EntryStates
=============================================================================
