\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE TraceRead ------------------------------
\* Attempts, grants and peers: the actions of PeerRead.tla and Peer.tla, for any
\* number of processes. What one process knows of another is what messages told
\* it; so where both sides of an attempt are in the run, the record of the one
\* must fit what the other had done by then. That is also all that the order
\* of the merged log is believed for.
\*
\* r.now is the moment at which the code decided, by its own clock; r.t, a
\* little later, is the moment at which it recorded that.

EXTENDS TraceInstance

-----------------------------------------------------------------------------
\* The other side of an attempt

\* Grants that were made for attempt a, as <<process, id>>.
GrantsFor(a) ==
    UNION {{<<q, g>> : g \in {x \in DOMAIN proc[q].grants : proc[q].grants[x].notice = Key(a)}} :
               q \in Processes}
GrantOf(x) == proc[x[1]].grants[x[2]]

\* The process whose entry was granted: the granting one itself, or its engine.
Home(x) == IF Serves(x[1]) THEN EngineOf(x[1]) ELSE x[1]
\* Nobody knows that the entry is not there any more.
StillThere(x) ==
    GrantOf(x).home = 0
    \/ /\ GrantOf(x).home \in DOMAIN proc[Home(x)].entries
       /\ Servable(proc[Home(x)].entries[GrantOf(x).home])

\* The process that granted attempt a is in the run: its trace is complete, so
\* the grant must be there.
Traced(a) == Key(a) \in Run.granted \/ a.incarnation \in Run.incarnations

Outstanding(a) == {x \in GrantsFor(a) : GrantOf(x).state = GrantInitial}

\* Grants under which the source still is what it was when it was granted. A producer
\* that shuts down ends its grants early, but gives their blocks to nobody else. A server
\* that is gone ends none: they last for their leases, as the engine sees to.
Sound(a) ==
    {x \in GrantsFor(a) :
        \/ GrantOf(x).state = "completed"
        \/ (GrantOf(x).state = GrantInitial \/ GrantOf(x).early) /\ StillThere(x)}

\* What an accepted READ has put into its blocks (NoWrongBytes). The bytes of a
\* source that was given up under the READ are nobody's.
BytesRead(a) ==
    IF ~Traced(a) THEN Encoding(a.mm_hash)
    ELSE IF Sound(a) # {} THEN GrantOf(CHOOSE x \in Sound(a) : TRUE).name
    ELSE "torn"

-----------------------------------------------------------------------------
\* Attempts

HasRead(r) ==
    /\ Guard("an attempt that is not settled (AttemptIdentity)", r.id \in DOMAIN proc[r.p].reads)
    /\ Is("name of the attempt", proc[r.p].reads[r.id].mm_hash, r.name)
    /\ Guard("not decided before the request", AtMost(proc[r.p].reads[r.id].sent_at, r.now))
ReadRec(r) == proc[r.p].reads[r.id]
ReadMove(r, event, G) == Moved("read", r.id, ReadEdges, ReadRec(r).state, event, G)
ReadAfter(r, event, G) == [ReadRec(r) EXCEPT !.state = Fire(ReadEdges, @, event, G)]
\* The guards that the event depends on, as far as the record tells that they hold.
OnlyGuard(r, guard) == Fits("guards of the event", ToldGuards(r, "read") \subseteq {guard},
                            {guard}, ToldGuards(r, "read"))
ReadTable(r, event, G) == Table(ReadEdges, ReadRec(r).state, event, G)
PeerOf(r) == proc[r.p].peers[ReadRec(r).peer]
KnownPeer(r) == Guard("the peer is not drained (EC-6.4)", ReadRec(r).peer \in DOMAIN proc[r.p].peers)
Told1(r, kind) == Is(<<kind, "told">>, {r.id}, DOMAIN r.reads)

\* Every record of an attempt tells its peer as well.
WithPeer(r) == [Nothing EXCEPT !.peers = ReadRec(r).peer :> PeerOf(r)]

Usable(s, key) == {i \in DOMAIN s.peers : s.peers[i].key = key /\ s.peers[i].state \in {"connecting", "live"}}

\* | reads[id]          | vars.read:ID            | Attempt.variables           |
\* | .mm_hash           | .mm_hash                | Entry.mm_hash               |
\* | .session           | .session                | Attempt.session_id          |
\* | .entry             | .entry                  | Entry.entry_id              |
\* | .peer              | .peer                   | Peer.peer_id                |
\* | .version           | .version                | Attempt.version             |
\* | .state             | .state                  | Attempt.state               |
\* | .sent_at           | .sent_at                | Attempt.sent_at             |
\* | .fence             | .fence                  | Attempt.fence               |
\* | .posted_at         | .posted_at              | Attempt.posted_at           |
\* | .lost_at           | .lost_at                | Attempt.lost_at             |
\* | .lease_s           | .lease_s                | Attempt.lease_s             |
\* | .incarnation       | .incarnation            | Attempt.incarnation         |
\* | .source            | .source                 | Attempt.source              |
\* | r.id               | args.attempt            | Attempt.attempt_id          |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
\* | r.now              | args.now                | Attempts (argument)         |
\* | facts.session      | facts.reads.session     | Attempts.session            |
RequestRead(r) ==
    LET s == proc[r.p] id == s.last.read + 1
    IN /\ Is("attempt", id, r.id)
       /\ HasEntry(r)
       /\ Is("state of the entry", EntryInitial, EntryRec(r).state)
       /\ Guard("nobody else writes the entry (EC-2.3)",
                Copying(s, EntryId(r), "save") = {} /\ Writers(s, EntryId(r)) = {})
       /\ Told1(r, "read")
       /\ LET peer == r.reads[id].peer
          IN /\ Guard("a peer that is not drained", peer \in DOMAIN s.peers)
             /\ Is("the address's current peer (EC-9.2)", {peer}, Usable(s, s.peers[peer].key))
             /\ Change(r, [Nothing EXCEPT
                    !.reads = id :> [mm_hash |-> r.name,
                                     session |-> Run.facts[r.p].session \o "." \o ToString(id),
                                     entry |-> EntryId(r), peer |-> peer,
                                     version |-> s.peers[peer].version, state |-> ReadInitial,
                                     sent_at |-> r.now, fence |-> r.now, posted_at |-> r.now,
                                     lost_at |-> r.now, lease_s |-> -1, incarnation |-> "",
                                     source |-> <<>>, seen |-> 0],
                    !.peers = peer :> s.peers[peer],
                    !.last = [read |-> id]], {})

\* What an ack says of the process that sent it (EC-9.2). Another incarnation than
\* the known one has made a new peer before (PeerOpen, PeerDown by "replaced").
Learned(r) ==
    LET peer == ReadRec(r).peer
        said == r.peers[peer].incarnation
    IN /\ Is("peers told", {peer}, DOMAIN r.peers)
       /\ Guard("a peer has one incarnation (EC-9.2)", PeerOf(r).incarnation \in {"", said})

\* | facts.margin       | facts.reads.lease_margin_s | Timing.lease_margin_s    |
\* | facts.min_read     | facts.reads.min_read_s  | Timing.min_read_s           |
\* | facts.read_lease   | facts.reads.lease_s     | Timing.lease_s              |
AckOk(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ Told1(r, "read") /\ ToldOne(r, "read") /\ Learned(r)
    /\ LET a == ReadRec(r)
           f == Run.facts[r.p]
           said == r.reads[r.id]
           lease == said.lease_s
           fence == said.fence
           G == ToldGuards(r, "read")
           b == [a EXCEPT !.incarnation = said.incarnation]
       IN /\ OnlyGuard(r, "fence_open")
          /\ ReadTable(r, "ack_ok", G)
          /\ Guard("a lease", lease >= 0)
          /\ Guard("the lease of one's own configuration, if the ack has none (EC-5.1)",
                   said.incarnation = "" => Near(lease, f.read_lease))
          /\ Fits("fence = sending time + lease - margin (EC-5.1)",
                  Near(fence, a.sent_at + lease - f.margin), a.sent_at + lease - f.margin, fence)
          /\ Judged("fence_open: now + min_read_s <= fence (EC-5.2)", "fence_open" \in G,
                    r.now + f.min_read, fence)
          /\ Guard("granted before it is acknowledged", Traced(b) => GrantsFor(a) # {})
          /\ Guard("the grant is of the process and the blocks that the ack names (EC-9.3)",
                   Traced(b) /\ said.incarnation # "" =>
                       \E x \in GrantsFor(a) :
                           /\ Run.facts[x[1]].incarnation = said.incarnation
                           /\ GrantOf(x).extents = said.source
                           /\ AtMost(lease, Run.facts[x[1]].lease))
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> [ReadAfter(r, "ack_ok", G) EXCEPT
                                      !.fence = fence, !.lease_s = lease,
                                      !.incarnation = said.incarnation, !.source = said.source],
                 !.peers[a.peer].incarnation =
                     IF said.incarnation = "" THEN @ ELSE said.incarnation],
                 {ReadMove(r, "ack_ok", G)})

\* A refusal of the version makes the peer one to ask with version 1 (EC-8.2).
\* | peers[id].version  | vars.peer:ID.version    | Peer.version                |
AckRetry(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ Learned(r) /\ ReadTable(r, "ack_retry", {})
    /\ LET a == ReadRec(r) said == r.peers[a.peer]
       IN /\ Guard("version 1 only after version 2 (EC-8.2)",
                   said.version = PeerOf(r).version \/ said.version = 1)
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> ReadAfter(r, "ack_retry", {}),
                 !.peers[a.peer].incarnation = said.incarnation,
                 !.peers[a.peer].version = said.version], {ReadMove(r, "ack_retry", {})})

\* | peers[id].incarnation | vars.peer:ID.incarnation | Peer.incarnation        |
AckRefused(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ Learned(r) /\ ReadTable(r, "ack_refused", {})
    /\ LET a == ReadRec(r)
       IN Change(r, [WithPeer(r) EXCEPT
              !.reads = r.id :> ReadAfter(r, "ack_refused", {}),
              !.peers[a.peer].incarnation = r.peers[a.peer].incarnation],
              {ReadMove(r, "ack_refused", {})})

\* An attempt ends without having posted anything.
Ends(r, event) ==
    /\ ReadTable(r, event, {})
    /\ Change(r, [WithPeer(r) EXCEPT !.reads = r.id :> ReadAfter(r, event, {})],
              {ReadMove(r, event, {})})

\* | facts.ack_timeout  | facts.reads.ack_timeout_s | Timing.ack_timeout_s      |
AckTimeout(r) ==
    /\ HasRead(r) /\ KnownPeer(r)
    /\ Guard("ack_timeout_s since the request (EC-7.3)",
             AtMost(ReadRec(r).sent_at + Run.facts[r.p].ack_timeout, r.now))
    /\ Ends(r, "ack_timeout")

\* | r.id               | args.attempt            | Attempt.attempt_id          |
Abort(r) == HasRead(r) /\ KnownPeer(r) /\ Ends(r, "abort")

\* | r.id               | args.attempt            | Attempt.attempt_id          |
PostFailed(r) == HasRead(r) /\ KnownPeer(r) /\ Ends(r, "post_failed")

\* | r.id               | args.attempt            | Attempt.attempt_id          |
PeerLost(r) ==
    /\ HasRead(r) /\ KnownPeer(r)
    /\ Is("state of the peer", "down", PeerOf(r).state)
    /\ Ends(r, "peer_lost")

ReadEntry(r) == proc[r.p].entries[ReadRec(r).entry]

\* | reads[id].posted_at | vars.read:ID.posted_at | Attempt.posted_at           |
PostRead(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ToldOne(r, "read")
    /\ LET a == ReadRec(r) e == ReadEntry(r) G == ToldGuards(r, "read") open == "fence_open" \in G
       IN /\ OnlyGuard(r, "fence_open")
          /\ ReadTable(r, "post_read", G)
          /\ Judged("fence_open: now + min_read_s <= fence (EC-5.2)", open,
                    r.now + Run.facts[r.p].min_read, a.fence)
          /\ IF open
               THEN /\ Guard("the source is pinned when the READ is posted (EC-5.4, EC-A.2)",
                             Traced(a) => Sound(a) # {})
                    /\ Table(EntryEdges, e.state, "begin_write", {})
                    /\ Change(r, [WithPeer(r) EXCEPT
                           !.reads = r.id :> [ReadAfter(r, "post_read", G) EXCEPT !.posted_at = r.now],
                           !.entries = a.entry :> [EntryAfter(e, "begin_write", {}) EXCEPT
                                                     !.writer = <<"read", r.id>>]],
                           {ReadMove(r, "post_read", G),
                            EntryMove(a.entry, e, "begin_write", {})})
               ELSE Change(r, [WithPeer(r) EXCEPT !.reads = r.id :> ReadAfter(r, "post_read", G)],
                           {ReadMove(r, "post_read", G)})

\* | reads[id].seen     | args.now                | Attempts (argument)         |
ReadDone(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ToldOne(r, "read")
    /\ LET a == ReadRec(r) e == ReadEntry(r) G == ToldGuards(r, "read")
           landed == "in_lease" \in G
           event == IF landed THEN "write_landed" ELSE "write_ended"
       IN /\ OnlyGuard(r, "in_lease")
          /\ ReadTable(r, "read_done", G)
          /\ Guard("not over before it was posted", AtMost(a.posted_at, r.now))
          /\ Judged("in_lease: now <= fence (FencedAccept, EC-5.3)", landed, r.now, a.fence)
          /\ Table(EntryEdges, e.state, event, {})
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> [ReadAfter(r, "read_done", G) EXCEPT !.seen = r.now],
                 !.entries = a.entry :> [EntryAfter(e, event, {}) EXCEPT
                                           !.writer = <<>>,
                                           !.bytes = IF landed THEN BytesRead(a) ELSE ""],
                 \* A loan whose bytes have landed is over: the entry goes on at the engine.
                 !.free = IF landed /\ Reads(r.p) THEN Size(e.extents) ELSE 0],
                 {ReadMove(r, "read_done", G), EntryMove(a.entry, e, event, {})})

\* | reads[id].seen     | args.now                | Attempts (argument)         |
ReadCorrupt(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ReadTable(r, "read_corrupt", {})
    /\ LET a == ReadRec(r) e == ReadEntry(r)
       IN /\ Guard("not over before it was posted", AtMost(a.posted_at, r.now))
          /\ Table(EntryEdges, e.state, "write_ended", {})
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> [ReadAfter(r, "read_corrupt", {}) EXCEPT !.seen = r.now],
                 !.entries = a.entry :> [EntryAfter(e, "write_ended", {}) EXCEPT
                                           !.writer = <<>>, !.bytes = ""]],
                 {ReadMove(r, "read_corrupt", {}), EntryMove(a.entry, e, "write_ended", {})})

\* | reads[id].lost_at  | vars.read:ID.lost_at    | Attempt.lost_at             |
\* | facts.read_timeout | facts.reads.read_timeout_s | Timing.read_timeout_s    |
ReadLost(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ToldOne(r, "read")
    /\ LET a == ReadRec(r) e == ReadEntry(r) event == ToldEvent(r, "read")
       IN /\ Guard("lost by an error, in time, or with the peer",
                   event \in {"read_error", "read_timeout", "peer_lost"})
          /\ ReadTable(r, event, {})
          /\ Guard("not lost before it was posted", AtMost(a.posted_at, r.now))
          /\ Guard("read_timeout_s since the READ was posted (EC-7.3)",
                   event = "read_timeout" =>
                       AtMost(a.posted_at + Run.facts[r.p].read_timeout, r.now))
          /\ Guard("the peer is down", event = "peer_lost" => PeerOf(r).state = "down")
          /\ Table(EntryEdges, e.state, "write_lost", {})
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> [ReadAfter(r, event, {}) EXCEPT !.lost_at = r.now],
                 !.entries = a.entry :> EntryAfter(e, "write_lost", {})],
                 {ReadMove(r, event, {}), EntryMove(a.entry, e, "write_lost", {})})

\* | r.id               | args.attempt            | Attempt.attempt_id          |
DmaEnded(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ReadTable(r, "dma_ended", {})
    /\ LET a == ReadRec(r) e == ReadEntry(r)
       IN /\ Table(EntryEdges, e.state, "dma_ended", {})
          /\ Guard("not over before it was lost", AtMost(a.lost_at, r.now))
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> ReadAfter(r, "dma_ended", {}),
                 !.entries = a.entry :> [EntryAfter(e, "dma_ended", {}) EXCEPT !.writer = <<>>],
                 !.free = Size(e.extents)],
                 {ReadMove(r, "dma_ended", {}), EntryMove(a.entry, e, "dma_ended", {})})

\* | facts.quarantine   | facts.reads.quarantine_s | Timing.quarantine_s        |
\* | lost               | vars.tier.retired       | EncodingTier.retired_blocks |
Retire(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ReadTable(r, "retire", {})
    /\ LET a == ReadRec(r) e == ReadEntry(r)
       IN /\ Guard("quarantine_s since the READ was lost (EC-6.3)",
                   AtMost(a.lost_at + Run.facts[r.p].quarantine, r.now))
          /\ Table(EntryEdges, e.state, "retire", {})
          /\ Change(r, [WithPeer(r) EXCEPT
                 !.reads = r.id :> ReadAfter(r, "retire", {}),
                 !.entries = a.entry :> EntryAfter(e, "retire", {}),
                 !.retired = Size(e.extents),
                 !.lost = a.entry :> e.extents],
                 {ReadMove(r, "retire", {}), EntryMove(a.entry, e, "retire", {})})

\* Whether there is budget left is the fetch's business and not recorded.
\* | r.id               | args.attempt            | Attempt.attempt_id          |
Settle(r) ==
    /\ HasRead(r) /\ KnownPeer(r) /\ ToldOne(r, "read")
    /\ LET a == ReadRec(r) G == ToldGuards(r, "read")
       IN /\ OnlyGuard(r, "retry_left")
          /\ ReadTable(r, "settle", G)
          /\ Guard("only a retryable attempt is retried", G # {} => a.state = "retryable")
          /\ LET c == [WithPeer(r) EXCEPT !.reads = r.id :> ReadAfter(r, "settle", G)]
             IN IF Effect(ReadEdges, a.state, "settle", G) # "free_blocks"
                  THEN Change(r, c, {ReadMove(r, "settle", G)})
                  ELSE LET e == ReadEntry(r)
                       IN /\ Table(EntryEdges, e.state, "cancel", {})
                          /\ Change(r, [c EXCEPT
                                 !.entries = a.entry :> EntryAfter(e, "cancel", {}),
                                 !.free = Size(e.extents)],
                                 {ReadMove(r, "settle", G), EntryMove(a.entry, e, "cancel", {})})

-----------------------------------------------------------------------------
\* Grants

\* The engine's entry behind an open slot; 0 if there is none, or no engine to say so.
Granted(r, said) ==
    LET E == EngineOf(r.p)
        open == IF E = "" THEN {}
                ELSE {o \in DOMAIN proc[E].offers :
                        LET x == proc[E].offers[o]
                        IN /\ x.slot = said.entry /\ x.name = r.name /\ x.state = "open"
                           /\ x.entry \in DOMAIN proc[E].entries
                           /\ proc[E].entries[x.entry].extents = said.extents}
    IN IF open = {} THEN 0 ELSE proc[E].offers[TheOne(open)].entry

GivenTo(s, identity) == {g \in Given(s) : s.grants[g].identity = identity}

\* | grants[id]         | vars.grant:ID           | Grant.variables             |
\* | .state             | .state                  | Grant.state                 |
\* | .entry             | .entry                  | Entry.entry_id              |
\* | .attempt           | .attempt                | Grant.attempt_id            |
\* | .notice            | .notice                 | Grant.key                   |
\* | .identity          | .identity               | Grant.identity              |
\* | .expires_at        | .expires_at             | Grant.expires_at            |
\* | .extents           | .extents                | Grant.entry                 |
\* | r.id               | args.grant              | Grant.grant_id              |
\* | r.att              | args.attempt            | Grant.attempt_id            |
\* | r.name             | args.mm_hash            | Entry.mm_hash               |
\* | r.now              | args.now                | ProducerGrants (argument)   |
\* | facts.lease        | facts.grants.lease_s    | Timing.lease_s              |
\* | facts.quota        | facts.grants.quota_blocks | ProducerGrants.quota_blocks |
\* | facts.grant_quota  | facts.grants.grant_quota_blocks | ProducerGrants.grant_quota_blocks |
\* | facts.incarnation  | facts.grants.incarnation | ProducerGrants.incarnation |
Grant(r) ==
    LET s == proc[r.p] id == s.last.grant + 1 f == Run.facts[r.p]
    IN /\ Is("grant", id, r.id)
       /\ Is("grants touched", {id}, DOMAIN r.grants)
       /\ Guard("nothing is granted during shutdown", ~s.closed)
       /\ LET said == r.grants[id]
              given(i, extents, home) ==
                  [state |-> GrantInitial, entry |-> i, attempt |-> r.att,
                   notice |-> said.notice, identity |-> said.identity,
                   expires_at |-> said.expires_at, name |-> r.name,
                   extents |-> extents, home |-> home, early |-> FALSE]
          IN /\ Is("name that the notice carries", r.name, said.notice[2])
             /\ Guard("one outstanding grant an attempt (AttemptIdentity, EC-5.7)",
                      r.att # 0 => \A g \in Given(s) :
                          s.grants[g].notice = said.notice => s.grants[g].attempt # r.att)
             /\ Fits("end of the lease = now + lease_s", Near(said.expires_at, r.now + f.lease),
                     r.now + f.lease, said.expires_at)
             /\ Guard("no attempt is granted before its request",
                      said.notice[1] \in DOMAIN Run.sessions =>
                          LET x == Run.sessions[said.notice[1]] IN x[2] <= proc[x[1]].last.read)
             /\ IF Serves(r.p)
                  THEN /\ Guard("its blocks are told", "extents" \in DOMAIN said)
                       /\ Guard("blocks of the region", ApartInside(said.extents) /\
                                   Inside(said.extents, f.total) /\ said.extents # <<>>)
                       /\ Guard("a slot of the table", said.entry < f.slots)
                       /\ Guard("its slot was open, under that name (ServeReadyOnly, EC-14.2)",
                                EngineOf(r.p) # "" => Granted(r, said) # 0)
                       /\ Change(r, [Nothing EXCEPT
                              !.grants = id :> given(said.entry, said.extents, Granted(r, said)),
                              !.last = [grant |-> id]], {})
                  ELSE /\ HasEntry(r)
                       /\ LET i == EntryId(r) e == EntryRec(r)
                          IN /\ Guard("the entry can be served (ServeReadyOnly, EC-5.4)",
                                      Servable(e))
                             /\ Change(r, [Nothing EXCEPT
                                    !.entries = i :> Pinned(e, <<"grant", id>>),
                                    !.grants = id :> given(i, e.extents, i),
                                    !.last = [grant |-> id]], {EntryMove(i, e, "pin", {})})

\* A grant's end takes its holder with it, where grants hold entries.
GrantOver(r, event, G, closed, late) ==
    LET s == proc[r.p] g == s.grants[r.id] i == g.entry
        over == [Nothing EXCEPT
                   !.grants = r.id :> [g EXCEPT !.state = Fire(GrantEdges, @, event, G),
                                                !.early = closed],
                   !.late = late,
                   !.closed = closed]
        moved == Moved("grant", r.id, GrantEdges, g.state, event, G)
    IN /\ Table(GrantEdges, g.state, event, G)
       /\ Is("name of its entry", g.name, r.name)
       /\ Is("attempt", g.attempt, r.att)
       /\ IF Serves(r.p) THEN Change(r, over, {moved})
          ELSE LET e == s.entries[i] h == <<"grant", r.id>>
               IN /\ Guard("the grant holds its entry (EC-2.4)", h \in e.holders)
                  /\ Table(EntryEdges, e.state, "unpin", LastHolder(e, h))
                  /\ Change(r, [over EXCEPT !.entries = i :> Unpinned(e, h)],
                            {moved, EntryMove(i, e, "unpin", LastHolder(e, h))})

\* For so many leases the notice of an old peer, which does not tell its attempts apart,
\* may still come after its lease ran out.
LateLeases == 10

HasGrant(r) == Guard("an outstanding grant (AttemptIdentity)", r.id \in Given(proc[r.p]))

\* | r.id               | args.grant              | Grant.grant_id              |
Complete(r) ==
    /\ HasGrant(r)
    /\ LET s == proc[r.p] g == s.grants[r.id]
       IN /\ Guard("no other grant can be meant (AttemptIdentity, EC-5.5)",
                   /\ g.notice \notin s.shared
                   /\ g.notice \in DOMAIN s.late => AtMost(s.late[g.notice], r.now))
          /\ Guard("the attempt posted its READ, or gave the grant back (EC-5.11)",
                   \A q \in Processes : \A a \in DOMAIN proc[q].reads :
                       Key(proc[q].reads[a]) = g.notice =>
                           proc[q].reads[a].state \notin {"requested", "granted"})
          /\ GrantOver(r, "complete", {"names_this_attempt"}, FALSE, <<>>)

\* | r.why              | args.why                | ProducerGrants.shutdown     |
Expire(r) ==
    /\ HasGrant(r)
    /\ Guard("why: lease or shutdown", r.why \in {"lease", "shutdown"})
    /\ Guard("the lease is over (EC-5.4)",
             r.why = "lease" => AtMost(proc[r.p].grants[r.id].expires_at, r.now))
    /\ LET g == proc[r.p].grants[r.id]
           late == IF g.attempt = 0 THEN g.notice :> (r.now + LateLeases * Run.facts[r.p].lease)
                   ELSE <<>>
       IN GrantOver(r, "expire", {}, r.why = "shutdown", late)

-----------------------------------------------------------------------------
\* Peers

PeerMove(i, s, event, G) == Moved("peer", i, PeerEdges, s.peers[i].state, event, G)
HasPeer(r) == Guard("a peer that is not drained", r.id \in DOMAIN proc[r.p].peers)

\* | peers[id]          | vars.peer:ID            | Peer.variables              |
\* | .key               | .key                    | Peer.key                    |
\* | .state             | .state                  | Peer.state                  |
\* | .incarnation       | .incarnation            | Peer.incarnation            |
\* | .version           | .version                | Peer.version                |
\* | .attempts          | .attempts               | Peer.attempts               |
\* | r.id               | args.peer               | Peer.peer_id                |
PeerOpen(r) ==
    LET s == proc[r.p] id == s.last.peer + 1
    IN /\ Is("peer", id, r.id)
       /\ Is("peers touched", {id}, DOMAIN r.peers)
       /\ Guard("one session an address, two while one replaces the other (EC-9.2)",
                \A i \in Usable(s, r.peers[id].key) : s.peers[i].state = "live")
       /\ Change(r, [Nothing EXCEPT
              !.peers = id :> [key |-> r.peers[id].key, state |-> PeerInitial,
                               incarnation |-> "", version |-> 2],
              !.last = [peer |-> id]], {})

\* | r.id               | args.peer               | Peer.peer_id                |
PeerHeard(r) ==
    /\ HasPeer(r)
    /\ LET s == proc[r.p]
       IN /\ Table(PeerEdges, s.peers[r.id].state, "heard", {})
          /\ Change(r, [Nothing EXCEPT !.peers = r.id :> [s.peers[r.id] EXCEPT
                            !.state = Fire(PeerEdges, @, "heard", {})]],
                    {PeerMove(r.id, s, "heard", {})})

\* Requests that nobody has answered go over to the session that replaces this one.
\* | reads[id].peer     | vars.read:ID.peer       | Attempt.peer                |
PeerDown(r) ==
    /\ HasPeer(r) /\ ToldOne(r, "peer")
    /\ LET s == proc[r.p] x == s.peers[r.id] event == ToldEvent(r, "peer")
           down == r.id :> [x EXCEPT !.state = Fire(PeerEdges, @, event, {})]
           others == Usable(s, x.key) \ {r.id}
           moving == {a \in DOMAIN s.reads : s.reads[a].peer = r.id /\ s.reads[a].state = ReadInitial}
       IN /\ Guard("lost, replaced or closed", event \in {"lost", "replaced", "close"})
          /\ Table(PeerEdges, x.state, event, {})
          /\ IF event # "replaced"
               THEN Change(r, [Nothing EXCEPT !.peers = down], {PeerMove(r.id, s, event, {})})
               ELSE /\ Is("sessions that replace it", 1, Cardinality(others))
                    /\ LET new == TheOne(others)
                       IN /\ Is("peers touched", {r.id, new}, DOMAIN r.peers)
                          /\ Guard("another incarnation (EC-9.2)",
                                   r.peers[new].incarnation \notin {"", x.incarnation})
                          /\ Change(r, [Nothing EXCEPT
                                 !.peers = down @@ (new :> [s.peers[new] EXCEPT
                                                   !.incarnation = r.peers[new].incarnation]),
                                 !.reads = [a \in moving |-> [s.reads[a] EXCEPT !.peer = new]]],
                                 {PeerMove(r.id, s, event, {})})

\* | r.id               | args.peer               | Peer.peer_id                |
PeerDrained(r) ==
    /\ HasPeer(r)
    /\ LET s == proc[r.p]
           free == {a \in DOMAIN s.reads : s.reads[a].peer = r.id} = {}
           G == IF free THEN {"no_reads"} ELSE {}
       IN /\ Table(PeerEdges, s.peers[r.id].state, "drain", G)
          /\ Change(r, [Nothing EXCEPT !.peers = r.id :> [s.peers[r.id] EXCEPT
                            !.state = Fire(PeerEdges, @, "drain", G)]],
                    {PeerMove(r.id, s, "drain", G)})

=============================================================================
