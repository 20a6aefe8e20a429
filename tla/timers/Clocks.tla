\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Clocks -------------------------------
\* One attempt and its grant, with a clock for each side. The consumer counts
\* the fence from sending on its own clock, the producer the lease from granting
\* on its own; the clocks run at any two rates, which may change at any moment,
\* as long as they drift apart by no more than Drift within one lease (EC-A.2).
\*
\* FenceFirstInv is what PeerRead and Fleet rest on: no lease ends before the
\* fence of its attempt has closed. PeerRead has both timers on one clock and
\* lets the lease end Drift ticks early; Fleet has no ticks at all.
EXTENDS Integers

CONSTANTS
    Lease,      \* Ticks of the producer's clock that a grant lasts.
    Margin,     \* Ticks that the consumer takes off the lease.
    MinRead,    \* Ticks before the fence at which a READ is not posted any more.
    Drift,      \* How far the clocks may drift apart within one lease.
    FromSend    \* Safeguard: the fence is counted from sending, not from the ack.

VARIABLES
    st,         \* "sent", "acked", "reading", "accepted" or "dropped".
    mine,       \* Consumer's ticks since it sent the request, or since the ack.
    grant,      \* "none", "running" or "over".
    theirs,     \* Producer's ticks since it granted.
    ahead       \* theirs, less the consumer's ticks in the same time.

vars == <<st, mine, grant, theirs, ahead>>

Bound  == Lease - Margin
Waits  == st \in {"sent", "acked", "reading"}
Open   == Waits /\ mine < Bound

Init ==
    /\ st = "sent"
    /\ mine = 0
    /\ grant = "none"
    /\ theirs = 0
    /\ ahead = 0

\* The request may be under way for any time.
Grant ==
    /\ grant = "none"
    /\ grant' = "running"
    /\ UNCHANGED <<st, mine, theirs, ahead>>

\* So may the ack. It is no use with too little of the fence left.
Ack ==
    /\ st = "sent"
    /\ grant # "none"
    /\ mine' = IF FromSend THEN mine ELSE 0
    /\ st' = IF mine' + MinRead < Bound THEN "acked" ELSE "dropped"
    /\ UNCHANGED <<grant, theirs, ahead>>

Post ==
    /\ st = "acked"
    /\ st' = IF mine + MinRead < Bound THEN "reading" ELSE "dropped"
    /\ UNCHANGED <<mine, grant, theirs, ahead>>

\* The READ was seen finished, at whatever time.
Done ==
    /\ st = "reading"
    /\ st' = IF Open THEN "accepted" ELSE "dropped"
    /\ UNCHANGED <<mine, grant, theirs, ahead>>

\* The lease ends at its bound, or later: its producer may be busy.
Expire ==
    /\ grant = "running"
    /\ theirs >= Lease
    /\ grant' = "over"
    /\ UNCHANGED <<st, mine, theirs, ahead>>

\* A timer that has run out stands still.
TickMine ==
    /\ Waits /\ mine < Bound
    /\ grant # "running" \/ ahead > -Drift
    /\ mine' = mine + 1
    /\ ahead' = IF grant = "running" THEN ahead - 1 ELSE ahead
    /\ UNCHANGED <<st, grant, theirs>>

TickTheirs ==
    /\ grant = "running"
    /\ theirs < Lease
    /\ ahead < Drift
    /\ theirs' = theirs + 1
    /\ ahead' = ahead + 1
    /\ UNCHANGED <<st, mine, grant>>

\* Nothing is left to happen; for the deadlock check.
Over ==
    /\ ~ENABLED (Grant \/ Ack \/ Post \/ Done \/ Expire \/ TickMine \/ TickTheirs)
    /\ UNCHANGED vars

Next == Grant \/ Ack \/ Post \/ Done \/ Expire \/ TickMine \/ TickTheirs \/ Over

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ st \in {"sent", "acked", "reading", "accepted", "dropped"}
    /\ mine \in 0..Bound
    /\ grant \in {"none", "running", "over"}
    /\ theirs \in 0..Lease
    /\ ahead \in (-Drift)..Drift

\* No lease is over while the fence is open.
FenceFirstInv == grant = "over" => ~Open

\* What was accepted was read while the grant lasted.
FencedAcceptProp == [][st # "accepted" /\ st' = "accepted" => grant = "running"]_vars
=============================================================================
