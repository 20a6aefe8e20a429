\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Grace --------------------------------
\* What T10 is for: a reader's READ is lost, and the reader is to be gone before its
\* blocks are given up. A process starts with any timers that keep the inequalities
\* (Timing.tla) and then lives through the end of one reader, tick by tick.
\*
\* The reader says that the READ is lost to the engine, which counts the quarantine from
\* then on, and in its next turn to its parent. Every turn is a sign of life. It may
\* stand still in between for as long as it likes, and nobody notices before stall_s.
\* Engine and parent are prompt: a timer that has run out is acted upon before time goes
\* on. How long the kernel takes to end a process has no timer; see Loans.
EXTENDS Integers, Timing

CONSTANT
    Settings    \* Records of timers to choose from, sound or not.

VARIABLES
    t,          \* The timers of this process.
    now,        \* Ticks since the engine was told.
    st,         \* "lost", "draining" (the parent knows), "gone" or "retired".
    beat,       \* When the reader last gave a sign of life.
    drained     \* When the parent was told.

vars == <<t, now, st, beat, drained>>

Init ==
    /\ t \in {s \in Settings : Sound(s)}
    /\ now = 0
    /\ st = "lost"
    /\ beat = 0 /\ drained = 0

Open == st \in {"lost", "draining"}
Stalled == now >= beat + t.stall_s
GraceOver == st = "draining" /\ now >= drained + t.drain_s
GivenUp == now >= t.quarantine_s

\* A turn of the reader. The first one tells the parent.
Turn ==
    /\ Open /\ ~Stalled
    /\ beat' = now
    /\ st' = "draining"
    /\ drained' = IF st = "lost" THEN now ELSE drained
    /\ UNCHANGED <<t, now>>

\* The parent kills it, and it is gone: the blocks come back.
Kill ==
    /\ Open /\ (Stalled \/ GraceOver)
    /\ st' = "gone"
    /\ UNCHANGED <<t, now, beat, drained>>

\* The engine gives the blocks up.
Retire ==
    /\ Open /\ GivenUp
    /\ st' = "retired"
    /\ UNCHANGED <<t, now, beat, drained>>

Tick ==
    /\ Open /\ ~(Stalled \/ GraceOver \/ GivenUp)
    /\ now' = now + 1
    /\ UNCHANGED <<t, st, beat, drained>>

\* Nothing is left to happen; for the deadlock check.
Over == ~Open /\ UNCHANGED vars

Next == Turn \/ Kill \/ Retire \/ Tick \/ Over

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ t \in Settings
    /\ now \in 0 .. t.quarantine_s
    /\ st \in {"lost", "draining", "gone", "retired"}
    /\ beat \in 0 .. now
    /\ drained \in 0 .. now

\* T10: the exit, which is the proof, comes first.
ProvenFirstInv == st # "retired"
=============================================================================
