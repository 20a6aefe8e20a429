\* SPDX-License-Identifier: Apache-2.0
------------------------------- MODULE Timers -------------------------------
\* What each inequality of spec/timing.toml is for. A process starts with any
\* timers that keep the inequalities (Timing.tla, generated from that file) and
\* then lives through one fetch with its attempts, or through the silence of one
\* peer, tick by tick. The reader is prompt: a timer that has run out is acted
\* upon before time goes on. What a late one does is the matter of PeerRead.
\*
\* Timers are even numbers of ticks, so that something can happen at a bound, just
\* before it and just after it.
EXTENDS Integers, Timing

CONSTANTS
    Settings,   \* Records of timers to choose from, sound or not.
    CutPause    \* Safeguard: a pause leaves time for another attempt and its ack.

VARIABLES
    t,          \* The timers of this process.
    now,        \* Ticks since the fetch began.
    st,         \* Of the fetch; see TypeOK.
    first,      \* This is its first attempt.
    sent,       \* When the attempt was sent.
    fence,      \* What its ack made of the lease.
    posted,     \* When its READ was posted.
    lost,       \* When its READ was given up.
    next,       \* When the next attempt is due.
    link,       \* "whole" or "cut": how it is between us and a peer.
    beat,       \* Ticks since both sides last sent a heartbeat.
    heard,      \* Ticks since we heard the peer, until we give it up.
    theirs      \* Ticks since the peer heard us, until it gives us up.

fetch  == <<st, first, sent, fence, posted, lost, next>>
peer   == <<link, beat, heard, theirs>>
vars   == <<t, now, fetch, peer>>

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

Init ==
    /\ t \in {s \in Settings : Sound(s)}
    /\ now = 0
    /\ st = "requested"
    /\ first = TRUE
    /\ sent = 0 /\ fence = 0 /\ posted = 0 /\ lost = 0 /\ next = 0
    /\ link = "whole"
    /\ beat = 0 /\ heard = 0 /\ theirs = 0

-----------------------------------------------------------------------------
\* The fetch. Its request falls back at the deadline; what is left is a READ that
\* goes on, whose blocks are kept or quarantined.
Deadline == t.fetch_budget_s

AckInTime == st = "requested" /\ now < sent + t.ack_timeout_s

\* Our own lease, or the shorter one of a producer with other timers (EC-5.1).
AckOk(lease) ==
    /\ AckInTime
    /\ fence' = sent + lease - t.lease_margin_s
    /\ IF now + t.min_read_s < fence'
         THEN st' = "reading" /\ posted' = now
         ELSE st' = "refused" /\ UNCHANGED posted
    /\ UNCHANGED <<t, now, first, sent, lost, next, peer>>

\* A refused READ, and a retryable answer, lead to another attempt while there is
\* budget for one. The pause is any that EC-5.8 allows.
Retry(soonest) ==
    LET latest  == Deadline - t.ack_timeout_s
        longest == Max(t.retry_interval_s, t.retry_max_interval_s)
    IN  IF soonest <= latest
          THEN \E more \in 0..longest :
                  /\ st' = "waiting"
                  /\ next' = IF CutPause THEN Min(soonest + more, latest) ELSE soonest + more
          ELSE st' = "fallback" /\ UNCHANGED next

AckNack ==
    /\ AckInTime
    /\ Retry(now + t.retry_interval_s)
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, peer>>

Refused ==
    /\ st = "refused"
    /\ Retry(Max(now, sent + t.retry_interval_s))
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, peer>>

Again ==
    /\ st = "waiting"
    /\ now = next
    /\ st' = "requested"
    /\ first' = FALSE
    /\ sent' = now
    /\ UNCHANGED <<t, now, fence, posted, lost, next, peer>>

AckTimeout ==
    /\ st = "requested"
    /\ now = sent + t.ack_timeout_s
    /\ st' = "fallback"
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, next, peer>>

\* A READ that takes less than read_timeout_s is a healthy one.
Healthy == now < posted + t.read_timeout_s

Done ==
    /\ st = "reading"
    /\ Healthy
    /\ st' = IF now < fence THEN "done" ELSE "dropped"
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, next, peer>>

\* At its timeout, or before it when its peer is lost.
ReadLost ==
    /\ st = "reading"
    /\ st' = "quarantined"
    /\ lost' = now
    /\ UNCHANGED <<t, now, first, sent, fence, posted, next, peer>>

Proof ==
    /\ st = "quarantined"
    /\ Healthy
    /\ st' = "proved"
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, next, peer>>

Retire ==
    /\ st = "quarantined"
    /\ now = lost + t.quarantine_s
    /\ st' = "retired"
    /\ UNCHANGED <<t, now, first, sent, fence, posted, lost, next, peer>>

-----------------------------------------------------------------------------
\* The peer. Both sides send a heartbeat every heartbeat_interval_s; it arrives at
\* once or, after a cut, never.
Watched == heard < t.heartbeat_timeout_s
Trusts  == theirs < t.heartbeat_ttl_s

Beat ==
    /\ beat = t.heartbeat_interval_s
    /\ beat' = 0
    /\ heard' = IF link = "whole" /\ Watched THEN 0 ELSE heard
    /\ theirs' = IF link = "whole" /\ Trusts THEN 0 ELSE theirs
    /\ UNCHANGED <<t, now, fetch, link>>

Cut ==
    /\ link = "whole"
    /\ link' = "cut"
    /\ UNCHANGED <<t, now, fetch, beat, heard, theirs>>

-----------------------------------------------------------------------------
FetchDue ==
    \/ st = "requested" /\ now = sent + t.ack_timeout_s
    \/ st = "waiting" /\ now = next
    \/ st = "refused"
    \/ st = "reading" /\ ~Healthy
    \/ st = "quarantined" /\ now = lost + t.quarantine_s

FetchOver == st \in {"done", "dropped", "fallback", "proved", "retired"}
PeerOver  == ~Watched /\ ~Trusts

Tick ==
    /\ ~FetchDue /\ ~FetchOver
    /\ now' = now + 1
    /\ UNCHANGED <<t, fetch, peer>>

\* Time of the peer's part; the two parts have nothing to do with one another.
PeerTick ==
    /\ ~PeerOver
    /\ beat < t.heartbeat_interval_s
    /\ beat' = beat + 1
    /\ heard' = IF Watched THEN heard + 1 ELSE heard
    /\ theirs' = IF Trusts THEN theirs + 1 ELSE theirs
    /\ UNCHANGED <<t, now, fetch, link>>

\* Nothing is left to happen; for the deadlock check.
Over == (FetchOver \/ PeerOver) /\ UNCHANGED vars

FetchNext ==
    \/ \E lease \in 1..t.lease_s : AckOk(lease)
    \/ AckNack \/ Refused \/ Again \/ AckTimeout
    \/ Done \/ ReadLost \/ Proof \/ Retire
    \/ Tick \/ Over

PeerNext == Beat \/ Cut \/ PeerTick \/ Over

FetchSpec == Init /\ [][FetchNext]_vars
PeerSpec  == Init /\ [][PeerNext]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ t \in Settings
    /\ now \in Nat
    /\ st \in {"requested", "waiting", "refused", "reading", "quarantined",
               "done", "dropped", "fallback", "proved", "retired"}
    /\ first \in BOOLEAN
    /\ {sent, posted, lost} \subseteq 0..now
    /\ next \in Nat
    /\ fence \in Int
    /\ link \in {"whole", "cut"}
    /\ beat \in 0..t.heartbeat_interval_s
    /\ heard \in 0..t.heartbeat_timeout_s
    /\ theirs \in 0..t.heartbeat_ttl_s

OwnLease == fence = sent + t.lease_s - t.lease_margin_s

\* T1: an ack that is in time still leaves time for a READ.
AckUsefulInv == st = "refused" => ~OwnLease

\* T2: a healthy READ is not thrown away, unless its producer's lease was short.
HealthyKeptInv == st = "dropped" => ~OwnLease

\* T3: blocks are not retired under a READ that may still be a healthy one.
HealthyNotRetiredProp == [][st' = "retired" /\ st # "retired" => ~Healthy]_vars

\* T6: the first attempt ends before its request falls back, if nothing is lost.
AttemptFitsProp == [][first /\ st = "reading" /\ st' = "done" => now < Deadline]_vars

\* T7: one that is turned away at once is made again.
RetryFitsProp ==
    [][first /\ now = 0 /\ st = "requested" => st' # "fallback"]_vars

\* And whenever it is made again, its ack can be waited for (EC-5.8).
AckFitsInv == st = "requested" => sent + t.ack_timeout_s <= Deadline

\* T8: a READ that could take all its time is not refused.
RefusedForLackProp ==
    [][st = "requested" /\ st' = "refused" => now + t.read_timeout_s >= fence']_vars

\* T4: a peer that sends its heartbeats is not given up.
LivePeerKeptInv == ~Watched => link = "cut"

\* T5: it does not give us up before we would give it up.
GivenUpFirstInv == ~Trusts => ~Watched
=============================================================================
