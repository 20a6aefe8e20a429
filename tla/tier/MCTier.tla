\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE MCTier -------------------------------
\* Bounds, symmetry and views for Tier, and the states that a model must reach
\* to be worth its time.

EXTENDS TierStore, TLC

CONSTANTS A, B

SizeOne == [e \in Enc |-> 1]
SizeTwo == [e \in Enc |-> 2]
\* A fills the region of two blocks alone; B leaves one of them.
SizeMixed == [e \in Enc |-> IF e = A THEN 2 ELSE 1]

Symmetry == Permutations(Blocks) \cup Permutations(Copies)
SymmetryEnc == Symmetry \cup Permutations(Enc)

\* Without the history, and without what a slot's last copy was and how it ended.
View ==
    <<engineVars, tierVars,
      [c \in Copies |-> IF Over(c) THEN [cp[c] EXCEPT !.st = "none", !.kind = "none",
                                                      !.enc = Garbage] ELSE cp[c]],
      stale, byteVars, stopped>>

\* Slots are alike: without SYMMETRY the lowest free one stands for all.
LowestSlot(c) == Quiet(c) /\ \A d \in Copies : Quiet(d) => c <= d

-----------------------------------------------------------------------------
\* Each is false in some reachable state; a config whose INVARIANT it is must
\* fail, or the model has lost that behaviour.

\* The next step is being built while a copy of an earlier one is under way.
ReachTwoSteps ==
    ~\E c, d \in Copies : cp[c].st = "in_flight" /\ cp[d].st = "planned"

\* One rank has finished a load and said so, another has yet to start.
ReachLateRank ==
    ~\E c \in Copies : /\ cp[c].st = "in_flight" /\ cp[c].kind = "load"
                       /\ cp[c].heard # {}
                       /\ \E r \in Ranks : cp[c].todo[r] = cp[c].blocks

\* A load, a hold and a promise depend on one entry together.
ReachThreeHolders == ~\E e \in Enc : pins[e] >= 3

\* A save that moved some of its bytes and then gave up.
ReachTornSave ==
    ~\E c \in Copies : /\ cp[c].st = "in_flight" /\ cp[c].kind = "save"
                       /\ cp[c].rk[Saver] = "skip"
                       /\ \E b \in cp[c].blocks : content[b] = cp[c].enc

\* A step drops a save, or a load, that it had planned.
ReachDropped ==
    [][\A c \in Copies : ~(cp[c].st = "planned" /\ cp'[c].st = "skipped")]_vars

\* Two loads of one entry by two steps.
ReachTwoLoads ==
    ~\E c, d \in Copies : /\ c # d /\ cp[c].enc = cp[d].enc
                          /\ cp[c].st = "in_flight" /\ cp[c].kind = "load"
                          /\ cp[d].st = "in_flight" /\ cp[d].kind = "load"

\* An engine that marks entries in a way that no table knows, to show that
\* TypeOK looks.
Rogue(e) ==
    /\ est[e] = "ready"
    /\ est' = [est EXCEPT ![e] = "stale"]
    /\ ev' = {}
    /\ UNCHANGED <<engineVars, blk, free, writer, pins, holders, copyVars, byteVars, stopped>>

RogueSpec == Init /\ [][Next \/ \E e \in Enc : Rogue(e)]_vars

\* A table without a way to drop what was planned.
DeafCanFire(edges, s, x, G) ==
    x # "skip" /\ \E d \in edges : /\ d.from = s /\ d.event = x
                                   /\ d.needs \subseteq G /\ d.forbids \cap G = {}
=============================================================================
