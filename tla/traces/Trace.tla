\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Trace --------------------------------
\* Replays recorded runs. Each record must be an action of the specification
\* that is enabled with its arguments and leads to the variables that it tells.
\*
\* A run, or a mutant of one, is accepted when its last record was replayed:
\* then, and only then, "@accepted" is printed. Whatever cannot go on has
\* printed "@blame" and ends there.

EXTENDS TraceProps

Init ==
    /\ run \in DOMAIN Runs
    /\ mut = 0
    /\ pos = 1
    /\ rep = 0
    /\ last = [p |-> "", touched |-> {}]
    /\ proc = [p \in DOMAIN Runs[run].facts |->
                 [Start EXCEPT !.free = Room(p)]]

-----------------------------------------------------------------------------
\* What must come next, because it is one call with what came before:
\* nobody else can have seen the state in between.

Due(r) ==
    LET s == proc[r.p]
        over == {a \in DOMAIN s.reads : s.reads[a].state \in {"done", "retryable", "failed"}}
        replacing == {i \in DOMAIN s.peers :
                        \E j \in Usable(s, s.peers[i].key) :
                            i < j /\ s.peers[i].state \in {"connecting", "live"}}
        down == {i \in DOMAIN s.peers : s.peers[i].state = "down"}
        of(i) == {a \in DOMAIN s.reads : s.reads[a].peer = i}
        returning == {l \in DOMAIN s.loans : s.loans[l].reader \in s.gone}
        failing == {a \in DOMAIN s.reads :
                      s.reads[a].peer \in down
                        /\ s.reads[a].state \in {"requested", "granted", "reading"}}
    IN IF s.making
         THEN Guard("room was made: Alloc, or more room (EC-2.6)",
                    r.act \in {"Evict", "Alloc", "Close"})
       ELSE IF s.back # 0
         THEN Guard("what is proven comes back at once (EC-6.3)", r.act = "Reclaim")
       ELSE IF returning # {}
         THEN Guard("all that was lent to a reader that is gone comes back at once (EC-14.8)",
                    \/ r.act = "Exited" /\ r.id \in returning
                    \/ r.act \in {"Close", "Evict", "Alloc", "Lend"})
       ELSE IF over # {}
         THEN Guard("the attempt's outcome is applied at once (EC-5.9)",
                    \/ r.act = "Settle" /\ r.id \in over
                    \/ /\ \A a \in over : s.reads[a].state = "done"
                       /\ r.act \in {"Hold", "ReleaseHold"})
       ELSE IF replacing # {}
         THEN Guard("the replaced session goes down at once (EC-9.2)",
                    r.act = "PeerDown" /\ r.id \in replacing)
       ELSE IF failing # {}
         THEN Guard("the attempts of a lost peer end at once (EC-9.1)",
                    r.act \in {"PeerLost", "ReadLost"} /\ r.id \in failing)
       ELSE IF \E i \in down : of(i) = {}
         THEN Guard("a peer that nothing refers to is forgotten at once (EC-9.5)",
                    r.act = "PeerDrained")
       ELSE TRUE

\* Server or reader: its parent had given it its place, and nobody has seen its end.
Lives(r) ==
    LET E == EngineOf(r.p)
        kind == IF Serves(r.p) THEN "server" ELSE "reader"
    IN IF ~Serves(r.p) /\ ~Reads(r.p) THEN TRUE
       ELSE /\ Guard("its exit was not seen before (EC-14.8)",
                     E = "" \/ Number(r.p) \notin proc[E].gone)
            /\ Guard("it has taken its place, and is not gone (EC-14.6)",
                     Placed(r.p, Number(r.p), kind))

\* The records of a process are all there, in order; those of an instance are in the order
\* of its clock. A mutant has gaps by nature.
InOrder(r) ==
    /\ Guard("the next record of its process", mut # 0 \/ r.seq = proc[r.p].seq + 1)
    /\ Guard("clocks do not go back",
             \A q \in Run.family[r.p].all : AtMost(proc[q].clock, r.t))
    /\ Guard("recorded after it was decided", r.now = -1000000000 \/ AtMost(r.now, r.t))

Action(r) ==
    \/ r.act = "Alloc" /\ Alloc(r)
    \/ r.act = "Evict" /\ Evict(r)
    \/ r.act = "Cancel" /\ Cancel(r)
    \/ r.act = "Reserve" /\ Reserve(r)
    \/ r.act = "EndStep" /\ EndStep(r)
    \/ r.act = "PlanSave" /\ PlanSave(r)
    \/ r.act = "SubmitSave" /\ SubmitSave(r)
    \/ r.act = "SaveLanded" /\ SaveLanded(r)
    \/ r.act = "SaveSkipped" /\ SaveSkipped(r)
    \/ r.act = "PlanLoad" /\ PlanLoad(r)
    \/ r.act = "SubmitLoad" /\ SubmitLoad(r)
    \/ r.act = "RankReport" /\ RankReport(r)
    \/ r.act = "LoadLanded" /\ LoadLanded(r)
    \/ r.act = "LoadSkipped" /\ LoadSkipped(r)
    \/ r.act = "Hold" /\ Hold(r)
    \/ r.act = "ReleaseHold" /\ ReleaseHold(r)
    \/ r.act = "Reclaim" /\ Reclaim(r)
    \/ r.act = "RequestRead" /\ RequestRead(r)
    \/ r.act = "AckOk" /\ AckOk(r)
    \/ r.act = "AckRetry" /\ AckRetry(r)
    \/ r.act = "AckRefused" /\ AckRefused(r)
    \/ r.act = "AckTimeout" /\ AckTimeout(r)
    \/ r.act = "Abort" /\ Abort(r)
    \/ r.act = "PostRead" /\ PostRead(r)
    \/ r.act = "PostFailed" /\ PostFailed(r)
    \/ r.act = "ReadDone" /\ ReadDone(r)
    \/ r.act = "ReadCorrupt" /\ ReadCorrupt(r)
    \/ r.act = "ReadLost" /\ ReadLost(r)
    \/ r.act = "PeerLost" /\ PeerLost(r)
    \/ r.act = "DmaEnded" /\ DmaEnded(r)
    \/ r.act = "Retire" /\ Retire(r)
    \/ r.act = "Settle" /\ Settle(r)
    \/ r.act = "Grant" /\ Grant(r)
    \/ r.act = "Complete" /\ Complete(r)
    \/ r.act = "Expire" /\ Expire(r)
    \/ r.act = "PeerOpen" /\ PeerOpen(r)
    \/ r.act = "PeerHeard" /\ PeerHeard(r)
    \/ r.act = "PeerDown" /\ PeerDown(r)
    \/ r.act = "PeerDrained" /\ PeerDrained(r)
    \/ r.act = "Expect" /\ Expect(r)
    \/ r.act = "Offer" /\ Offer(r)
    \/ r.act = "Close" /\ Close(r)
    \/ r.act = "Lend" /\ Lend(r)
    \/ r.act = "Landed" /\ Landed(r)
    \/ r.act = "Failed" /\ Failed(r)
    \/ r.act = "Lost" /\ Lost(r)
    \/ r.act = "Proven" /\ Proven(r)
    \/ r.act = "Exited" /\ Exited(r)
    \/ r.act = "Overdue" /\ Overdue(r)
    \/ r.act = "RetireLoan" /\ RetireLoan(r)
    \/ r.act = "StartProcess" /\ StartProcess(r)
    \/ r.act = "ProcessReady" /\ ProcessReady(r)
    \/ r.act = "TakePlace" /\ TakePlace(r)
    \/ r.act = "DrainProcess" /\ DrainProcess(r)
    \/ r.act = "KillProcess" /\ KillProcess(r)

\* The invariants, on the state that the last record has led to. They are conjuncts
\* of the next step, so that nothing goes on from a state that breaks one, and the
\* report names it. (A primed invariant would make TLC evaluate lazily kept values of
\* the old state in the new one.)
Holds ==
    IF last.p = "" THEN TRUE
    ELSE LET p == last.p touched == last.touched
       IN /\ Guard("TypeOKInv", TypeOKInv(p))
          /\ Guard("NoOverlapInv", NoOverlapInv(p, touched))
          /\ Guard("ConservedInv", ConservedInv(p))
          /\ Guard("OneNameInv", OneNameInv(p, touched))
          /\ Guard("PromiseKeptInv", PromiseKeptInv(p, touched))
          /\ Guard("PinSafetyInv", PinSafetyInv(p, touched))
          /\ Guard("NoReuseUnderDMAInv", NoReuseUnderDMAInv(p))
          /\ Guard("DestinationInv", DestinationInv(p))
          /\ Guard("ServeReadyOnlyInv", ServeReadyOnlyInv(p))
          /\ Guard("NoWrongBytesInv", NoWrongBytesInv(p, touched))
          /\ Guard("WordsInv", WordsInv(p))
          /\ Guard("FencedAcceptInv", FencedAcceptInv(p))
          /\ Guard("AttemptIdentityInv", AttemptIdentityInv(p))
          /\ Guard("SharesInv", SharesInv(p))
          /\ Guard("CoveredReadInv", CoveredReadInv(p))
          /\ Guard("OneSessionInv", OneSessionInv(p))
          /\ Guard("OfferedInv", OfferedInv(p))
          /\ Guard("KeptInv", KeptInv(p))
          /\ Guard("LentInv", LentInv(p))
          /\ Guard("OneServerInv", OneServerInv(p))

-----------------------------------------------------------------------------
\* The place in the log
Advance ==
    /\ UNCHANGED <<run, mut>>
    /\ IF rep = 0 THEN pos' = pos + 1 /\ rep' = 0
       ELSE IF rep < Len(Mutant.lines) THEN pos' = pos /\ rep' = rep + 1
       ELSE pos' = Mutant.resume /\ rep' = 0

\* The quantifier makes TLC look the record up once, in this state.
Step ==
    /\ ~AtEnd
    /\ Holds
    /\ \E r \in {Current} :
         /\ InOrder(r)
         /\ Lives(r)
         /\ Due(r)
         /\ Action(r)
         /\ last' = [p |-> r.p, touched |-> DOMAIN r.entries]
    /\ Advance

\* From here on another log: up to its first changed record a mutant is the run.
Mutate ==
    /\ mut = 0
    /\ \E m \in DOMAIN Run.mutants :
         /\ Run.mutants[m].first = pos
         /\ mut' = m
         /\ IF Run.mutants[m].lines = <<>>
              THEN rep' = 0 /\ pos' = Run.mutants[m].resume
              ELSE rep' = 1 /\ pos' = pos
    /\ UNCHANGED <<run, last, proc>>

Accept ==
    /\ AtEnd
    /\ pos = Len(Run.log) + 1
    /\ Holds
    /\ PrintT(<<"@accepted", run, mut>>)
    /\ pos' = pos + 1
    /\ UNCHANGED <<run, mut, rep, last, proc>>

Next == Step \/ Mutate \/ Accept

Spec == Init /\ [][Next]_vars

=============================================================================
