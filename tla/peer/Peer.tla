\* SPDX-License-Identifier: Apache-2.0
-------------------------------- MODULE Peer --------------------------------
\* One address of a producer as a consumer sees it: the process behind it dies
\* and restarts, heartbeats stop, acks of a former process arrive late. The
\* consumer keeps one session, a peer of the lifecycle, per incarnation; READs
\* refer to theirs until they are settled.
\*
\* READs move along their own table, but only the moves of peers are recorded:
\* PeerRead is the model of READs, with leases, fences and bytes. There are no
\* clocks here either: whatever a timer may do, it may do at any moment.

EXTENDS Lifecycle, Naturals, FiniteSets

CONSTANTS
    Sessions,           \* Slots for peers; a drained one is used again.
    MaxReads,           \* Attempts 1 .. MaxReads, each used once.
    MaxProcs            \* Incarnations 1 .. MaxProcs of the process.

CONSTANTS               \* Safeguards, TRUE except in bug configs.
    OneSession,         \* An address has one session that is not down.
    IncarnationCheck,   \* An ack of another incarnation replaces the session.
    FailReads,          \* A session that goes down takes its READs along.
    DrainWhenIdle,      \* A session is forgotten when no READ refers to it.
    BoundedQuarantine   \* A quarantine without a proof ends by retirement.

NoSession == 0
ASSUME NoSession \notin Sessions

Reads == 1..MaxReads
Procs == 1..MaxProcs

VARIABLES
    \* consumer
    peer,       \* [Sessions -> PeerStates]; "drained" also before the first use.
    inc,        \* [Sessions -> incarnation that the session knows, 0 if none].
    current,    \* The session that requests go to, or NoSession.
    read,       \* [Reads -> record], see NoRead.
    \* environment
    proc,       \* Incarnation of the process that has the address now.
    alive,      \* Whether it runs.
    acks,       \* OK acks under way: <<attempt, incarnation>>.
    ev          \* Lifecycle events of peers that the last step fired.

consumerVars == <<peer, inc, current, read>>
processVars == <<proc, alive, acks>>
vars == <<consumerVars, processVars, ev>>

\* meta: incarnation whose agent metadata the READ uses; addr: whose addresses.
\* dma: "moving" while bytes may still come, "over" when all came, "broken".
NoRead == [st |-> "none", ses |-> NoSession, meta |-> 0, addr |-> 0, dma |-> "none"]

Unsettled(r) == read[r].st \notin {"none"} \cup ReadTerminal
Usable(s) == peer[s] \in {"connecting", "live"}
FreeSession(s) == peer[s] \in PeerTerminal /\ \A r \in Reads : ~(Unsettled(r) /\ read[r].ses = s)

\* A READ that is over refers to nothing.
Moved(r, event, G) ==
    LET to == Fire(ReadEdges, read[r].st, event, G)
    IN IF to \in ReadTerminal THEN [NoRead EXCEPT !.st = to] ELSE [read[r] EXCEPT !.st = to]

\* Acks matter only while their attempt is waiting for one: any other is dropped.
Relevant(rd) == {a \in acks : rd[a[1]].st = "requested"}

-----------------------------------------------------------------------------
Init ==
    /\ peer = [s \in Sessions |-> "drained"]
    /\ inc = [s \in Sessions |-> 0]
    /\ current = NoSession
    /\ read = [r \in Reads |-> NoRead]
    /\ proc = 1
    /\ alive = TRUE
    /\ acks = {}
    /\ ev = {}

\* -------------------------------------------------------------------- peers

\* | spec               | trace              | code                   |
\* | s                  | args.peer          | PeerTable.open         |
PeerOpen(s) ==
    /\ OneSession => current = NoSession
    /\ FreeSession(s)
    /\ peer' = [peer EXCEPT ![s] = PeerInitial]
    /\ inc' = [inc EXCEPT ![s] = 0]
    /\ current' = s
    /\ ev' = {}
    /\ UNCHANGED <<read, processVars>>

\* Any traffic: heartbeats of whatever process is there, late acks of another.
\* | s                  | args.peer          | PeerTable.heard        |
PeerHeard(s) ==
    /\ s = current
    /\ alive \/ \E a \in acks : read[a[1]].ses = s
    /\ CanFire(PeerEdges, peer[s], "heard", {})
    /\ peer' = [peer EXCEPT ![s] = Fire(PeerEdges, @, "heard", {})]
    /\ ev' = {Ev("peer", PeerEdges, peer[s], "heard", {})}
    /\ UNCHANGED <<inc, current, read, processVars>>

\* The effect fail_reads of event e, in the same step.
Failed(r, s, e) ==
    IF /\ FailReads
       /\ Effect(PeerEdges, peer[s], e, {}) = "fail_reads"
       /\ read[r].ses = s
       /\ CanFire(ReadEdges, read[r].st, "peer_lost", {})
      THEN Moved(r, "peer_lost", {}) ELSE read[r]

\* Heartbeats may stop, and the connection may break, at any moment; replaced
\* is what an ack of another incarnation shows. Requests that nobody answered
\* go over to the new session then.
\* | s                  | args.peer          | PeerTable.down         |
PeerDown(s) ==
    /\ s = current
    /\ \/ \E e \in {"lost", "close"} :
            /\ CanFire(PeerEdges, peer[s], e, {})
            /\ peer' = [peer EXCEPT ![s] = Fire(PeerEdges, @, e, {})]
            /\ ev' = {Ev("peer", PeerEdges, peer[s], e, {})}
            /\ read' = [r \in Reads |-> Failed(r, s, e)]
            /\ current' = NoSession
            /\ UNCHANGED inc
       \/ \E a \in acks, f \in Sessions \ {s} :
            /\ IncarnationCheck
            /\ read[a[1]].st = "requested" /\ read[a[1]].ses = s
            /\ inc[s] \notin {0, a[2]}
            /\ FreeSession(f)
            /\ CanFire(PeerEdges, peer[s], "replaced", {})
            /\ peer' = [peer EXCEPT ![s] = Fire(PeerEdges, @, "replaced", {}),
                                    ![f] = PeerInitial]
            /\ ev' = {Ev("peer", PeerEdges, peer[s], "replaced", {})}
            /\ inc' = [inc EXCEPT ![f] = a[2]]
            /\ read' = [r \in Reads |-> IF read[r].ses = s /\ read[r].st = "requested"
                                          THEN [read[r] EXCEPT !.ses = f] ELSE Failed(r, s, "replaced")]
            /\ current' = f
    /\ acks' = Relevant(read')
    /\ UNCHANGED <<proc, alive>>

NoReads(s) ==
    IF DrainWhenIdle => \A r \in Reads : ~(Unsettled(r) /\ read[r].ses = s)
      THEN {"no_reads"} ELSE {}

\* | s                  | args.peer          | PeerTable.drain        |
PeerDrained(s) ==
    /\ CanFire(PeerEdges, peer[s], "drain", NoReads(s))
    /\ peer' = [peer EXCEPT ![s] = Fire(PeerEdges, @, "drain", NoReads(s))]
    /\ inc' = IF Effect(PeerEdges, peer[s], "drain", NoReads(s)) = "forget"
                THEN [inc EXCEPT ![s] = 0] ELSE inc
    /\ ev' = {Ev("peer", PeerEdges, peer[s], "drain", NoReads(s))}
    /\ UNCHANGED <<current, read, processVars>>

\* -------------------------------------------------------------------- READs

Step(r, event, G) ==
    /\ CanFire(ReadEdges, read[r].st, event, G)
    /\ read' = [read EXCEPT ![r] = Moved(r, event, G)]
    /\ acks' = Relevant(read')
    /\ ev' = {}
    /\ UNCHANGED <<peer, inc, current, proc, alive>>

RequestRead(r) ==
    /\ read[r].st = "none"
    /\ r > 1 => read[r - 1].st # "none"
    /\ current # NoSession
    /\ read' = [read EXCEPT ![r].st = ReadInitial, ![r].ses = current]
    /\ ev' = {}
    /\ UNCHANGED <<peer, inc, current, processVars>>

\* An ack of incarnation i; the session learns the first one that it sees.
\* Without the check descriptors are kept per session, and only the agent
\* metadata of the ack is new.
AckOk(r, i) ==
    /\ <<r, i>> \in acks
    /\ LET s == read[r].ses
       IN /\ Usable(s)
          /\ IncarnationCheck => inc[s] \in {0, i}
          /\ inc' = [inc EXCEPT ![s] = IF @ = 0 THEN i ELSE @]
          /\ read' = [read EXCEPT ![r] =
                         [Moved(r, "ack_ok", {"fence_open"}) EXCEPT
                            !.meta = i, !.addr = IF inc[s] = 0 \/ IncarnationCheck THEN i
                                                 ELSE inc[s]]]
    /\ acks' = Relevant(read')
    /\ ev' = {}
    /\ UNCHANGED <<peer, current, proc, alive>>

AckTimeout(r) ==
    /\ read[r].st = "requested"
    /\ Step(r, "ack_timeout", {})

PostRead(r) ==
    /\ read[r].st = "granted"
    /\ read' = [read EXCEPT ![r] = [Moved(r, "post_read", {"fence_open"}) EXCEPT !.dma = "moving"]]
    /\ ev' = {}
    /\ UNCHANGED <<peer, inc, current, processVars>>

ReadDone(r) ==
    /\ read[r].st = "reading"
    /\ read[r].dma = "over"
    /\ Step(r, "read_done", {"in_lease"})

ReadLost(r) ==
    /\ read[r].st = "reading"
    /\ Step(r, "read_error", {})

DmaEnded(r) ==
    /\ read[r].st = "quarantined"
    /\ read[r].dma \in {"over", "broken"}
    /\ Step(r, "dma_ended", {})

Retire(r) ==
    /\ BoundedQuarantine
    /\ read[r].st = "quarantined"
    /\ Step(r, "retire", {})

Settle(r) ==
    /\ CanFire(ReadEdges, read[r].st, "settle", {})
    /\ Step(r, "settle", {})

\* -------------------------------------------------------------- environment

ProcDies ==
    /\ alive
    /\ alive' = FALSE
    /\ ev' = {}
    /\ UNCHANGED <<consumerVars, proc, acks>>

\* The next process has the same address, and nothing else of the former one.
ProcStarts ==
    /\ ~alive
    /\ proc < MaxProcs
    /\ proc' = proc + 1
    /\ alive' = TRUE
    /\ ev' = {}
    /\ UNCHANGED <<consumerVars, acks>>

\* A request reaches the process, and its ack is under way: for ever if the
\* network loses it, and also after the process has died.
Answer(r) ==
    /\ alive
    /\ read[r].st = "requested"
    /\ <<r, proc>> \notin acks
    /\ acks' = acks \cup {<<r, proc>>}
    /\ ev' = {}
    /\ UNCHANGED <<consumerVars, proc, alive>>

\* A READ completes only from a living process that has the right metadata.
Completes(r) ==
    /\ read[r].dma = "moving"
    /\ alive /\ proc = read[r].meta
    /\ read' = [read EXCEPT ![r].dma = "over"]
    /\ ev' = {}
    /\ UNCHANGED <<peer, inc, current, processVars>>

Breaks(r) ==
    /\ read[r].dma = "moving"
    /\ ~(alive /\ proc = read[r].meta)
    /\ read' = [read EXCEPT ![r].dma = "broken"]
    /\ ev' = {}
    /\ UNCHANGED <<peer, inc, current, processVars>>

-----------------------------------------------------------------------------
Next ==
    \/ \E s \in Sessions : PeerOpen(s)
    \/ \E s \in Sessions : PeerHeard(s)
    \/ \E s \in Sessions : PeerDown(s)
    \/ \E s \in Sessions : PeerDrained(s)
    \/ \E r \in Reads : RequestRead(r)
    \/ \E r \in Reads, i \in Procs : AckOk(r, i)
    \/ \E r \in Reads : AckTimeout(r)
    \/ \E r \in Reads : PostRead(r)
    \/ \E r \in Reads : ReadDone(r)
    \/ \E r \in Reads : ReadLost(r)
    \/ \E r \in Reads : DmaEnded(r)
    \/ \E r \in Reads : Retire(r)
    \/ \E r \in Reads : Settle(r)
    \/ ProcDies
    \/ ProcStarts
    \/ \E r \in Reads : Answer(r)
    \/ \E r \in Reads : Completes(r)
    \/ \E r \in Reads : Breaks(r)

Spec == Init /\ [][Next]_vars

\* Timers and the reader go on; nothing obliges the process or the network.
GoesOn(r) == \/ AckTimeout(r) \/ PostRead(r) \/ ReadDone(r) \/ ReadLost(r)
             \/ DmaEnded(r) \/ Retire(r) \/ Settle(r)
Fairness ==
    /\ \A r \in Reads : WF_vars(GoesOn(r))
    /\ \A s \in Sessions : WF_vars(PeerDrained(s))

FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ peer \in [Sessions -> PeerStates]
    /\ inc \in [Sessions -> 0..MaxProcs]
    /\ current \in Sessions \cup {NoSession}
    /\ read \in [Reads -> [st : ReadStates \cup {"none"}, ses : Sessions \cup {NoSession},
                           meta : 0..MaxProcs, addr : 0..MaxProcs,
                           dma : {"none", "moving", "over", "broken"}]]
    /\ proc \in Procs
    /\ alive \in BOOLEAN
    /\ acks \subseteq Reads \X Procs

\* Requests go to one session, which nobody has given up.
OneSessionInv == \A s \in Sessions : Usable(s) <=> s = current

\* Nothing waits for a session that is down: its READs failed or are
\* quarantined, so that heartbeats and not read timeouts bound the wait.
DownFailsInv ==
    \A r \in Reads : read[r].st \in {"requested", "granted", "reading"} => Usable(read[r].ses)

\* A session outlives every READ that refers to it, quarantined ones included.
HandleKeptInv == \A r \in Reads : Unsettled(r) => peer[read[r].ses] # "drained"

\* EC-9.5: of a session that is over nothing is remembered.
ForgottenInv == \A s \in Sessions : peer[s] = "drained" => inc[s] = 0

\* EC-9.1: the world may speak, fall silent or be given up while a session is usable,
\* and another process may answer; none of that is ever an error.
ReceptiveInv ==
    \A s \in Sessions :
        /\ Usable(s) => \A e \in {"heard", "lost", "close"} : CanFire(PeerEdges, peer[s], e, {})
        /\ peer[s] = "live" => CanFire(PeerEdges, peer[s], "replaced", {})

\* A READ uses metadata and addresses of one process, the one of its session.
IncarnationInv ==
    \A r \in Reads : read[r].st \in {"granted", "reading"} =>
        /\ read[r].meta = read[r].addr
        /\ inc[read[r].ses] = read[r].meta

\* Bytes that are accepted came from where the ack said that they are.
NoWrongBytesInv == \A r \in Reads : read[r].st = "done" => read[r].meta = read[r].addr

EdgesProp ==
    [][\A s \in Sessions : peer'[s] # peer[s] =>
         \/ peer[s] = "drained" /\ peer'[s] = "connecting"
         \/ \E d \in PeerEdges : /\ d.from = peer[s] /\ d.to = peer'[s]
                                 /\ <<"peer", peer[s], d.event, peer'[s]>> \in ev']_vars

\* EC-9.1: live means heard, from the first traffic on, and nothing else does.
HeardProp ==
    [][/\ \A x \in ev' : x[3] = "heard" => x[4] = "live"
       /\ \A s \in Sessions : (peer[s] # "live" /\ peer'[s] = "live")
                               => \E x \in ev' : x[3] = "heard"]_vars

\* Every attempt comes to an end, and a session that went down is forgotten.
ProgressProp ==
    /\ \A r \in Reads : Unsettled(r) ~> ~Unsettled(r)
    /\ \A s \in Sessions : peer[s] = "down" ~> peer[s] # "down"
=============================================================================
