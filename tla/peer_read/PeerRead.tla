\* SPDX-License-Identifier: Apache-2.0
------------------------------ MODULE PeerRead ------------------------------
\* One consumer READs encodings out of the region of one producer.
\*
\* Actors: the consumer's engine and reader, the producer's server, the network
\* between them, the DMA, and the clock. Every lifecycle move is an edge of the
\* generated Lifecycle module; the effects that move blocks and release grants
\* are read from the same edges. Actions have the names of spec/lifecycle.toml;
\* the others are marked "Environment" and fire nothing that ev records. What
\* is left out, and why that is sound, is told in README.md, "PeerRead".
EXTENDS PeerState

-----------------------------------------------------------------------------
\* Tier steps of either side.

\* Any order of allocation over the slots gives the same states, so the first
\* empty slot is taken. A quarantined entry has left the index, so its encoding
\* may be allocated anew.
Alloc(s, h, b) ==
    /\ entry[s] = "freed"
    /\ \A t \in Sinks : t < s => entry[t] # "freed"
    /\ b \in free \cap RegionOf(s)
    /\ \A t \in Slots : (names[t] = h /\ Indexed(t)) => RegionOf(t) # RegionOf(s)
    /\ entry' = [entry EXCEPT ![s] = EntryInitial]
    /\ names' = [names EXCEPT ![s] = h]
    /\ at' = [at EXCEPT ![s] = b]
    /\ free' = free \ {b}
    /\ ev' = {}
    /\ UNCHANGED <<retired, bytes, consumer, plane, net, producer>>

Evict(s) ==
    /\ CanEntry(s, "evict", {})
    /\ EntryStep(s, "evict", {})
    /\ free' = FreeAfter(s, "evict", {})
    /\ bytes' = Gone(s)
    /\ seen' = Spoilt(at[s])
    /\ ev' = {EvEntry(s, "evict", {})}
    /\ UNCHANGED <<retired, consumer, dma, net, producer>>

\* Given up before any writer has the block: also a kept entry whose request
\* went away between two attempts.
Cancel(s) ==
    /\ CancelUnasked
    /\ ~Busy(s)
    /\ CanEntry(s, "cancel", {})
    /\ EntryStep(s, "cancel", {})
    /\ free' = FreeAfter(s, "cancel", {})
    /\ bytes' = Gone(s)
    /\ ev' = {EvEntry(s, "cancel", {})}
    /\ UNCHANGED <<retired, consumer, plane, net, producer>>

\* Environment: the engine of that side saves the encoding itself. For the
\* producer this is how encodings come and how others overwrite them; for the
\* consumer it is local compute, and other encodings that reuse its blocks.
\* These are steps of Tier.tla seen from outside, so ev does not record them.
SaveBegin(s) ==
    /\ s \in LocalSaves
    /\ ~Busy(s)
    /\ CanEntry(s, "begin_write", {})
    /\ EntryStep(s, "begin_write", {})
    /\ bytes' = Gone(s)
    /\ ev' = {}
    /\ UNCHANGED <<free, retired, consumer, plane, net, producer>>

SaveEnd(s) ==
    /\ ~Busy(s)
    /\ CanEntry(s, "write_landed", {})
    /\ EntryStep(s, "write_landed", {})
    /\ bytes' = [bytes EXCEPT ![at[s]] = names[s]]
    /\ ev' = {}
    /\ UNCHANGED <<free, retired, consumer, plane, net, producer>>

-----------------------------------------------------------------------------
\* Consumer.

\* A first attempt and a retry look alike: the entry is allocated and no other
\* attempt is tied to it.
RequestRead(a, s) ==
    /\ read[a] = "absent"
    /\ \A b \in Attempts : b < a => read[b] # "absent"
    /\ entry[s] = "allocated"
    /\ ~Busy(s)
    /\ read' = [read EXCEPT ![a] = ReadInitial]
    /\ fence' = [fence EXCEPT ![a] = Lease - Margin]
    /\ slot' = [slot EXCEPT ![a] = s]
    /\ net' = net \cup {Req(a, names[s])}
    /\ ev' = {}
    /\ UNCHANGED <<tiers, dst, src, handle, session, plane, producer>>

\* Message m is taken for one about attempt a.
Named(m, a) == m.of = a \/ (~AckIdentity /\ m.names \in Asked(a))

\* An ack that speaks for another incarnation replaces the session; that the
\* attempts of the old one are failed first is PeerLost's and ReadLost's work.
\* Without the check the descriptors of the first session are used for ever,
\* and they match nothing in the memory of a later process.
AckOk(a, i) ==
    /\ \E m \in Acks("ok") : m.inc = i /\ Named(m, a)
    /\ IncarnationCheck => \/ session = i
                           \/ \A b \in Attempts \ {a} : read[b] \notin Fenced
    /\ LET f == IF FenceFromSend THEN fence[a] ELSE Lease - Margin
           G == ReadG(f)
       IN  /\ CanRead(a, "ack_ok", G)
           /\ ReadStep(a, "ack_ok", G, f)
           /\ EntryDoes(slot[a], Asks(ReadEffect(a, "ack_ok", G)))
           /\ net' = net \cup Released(a, "ack_ok", G, i)
           /\ src' = [src EXCEPT ![a] = IF read'[a] # "granted" THEN Wild
                                        ELSE IF IncarnationCheck \/ session \in {0, i} THEN i
                                        ELSE Wild]
           /\ ev' = {EvRead(a, "ack_ok", G)}
    /\ session' = IF IncarnationCheck \/ session = 0 THEN i ELSE session
    /\ UNCHANGED <<free, retired, bytes, slot, dst, handle, plane, producer>>

Nacked(a, t, e) ==
    /\ \E m \in Acks(t) : Named(m, a)
    /\ ReadStep(a, e, {}, 0)
    /\ EntryDoes(slot[a], Asks(ReadEffect(a, e, {})))
    /\ net' = net \cup Released(a, e, {}, src[a])
    /\ ev' = {EvRead(a, e, {})}
    /\ UNCHANGED <<free, retired, bytes, slot, dst, src, handle, session, plane, producer>>

AckRetry(a) ==
    /\ CanRead(a, "ack_retry", {})
    /\ Nacked(a, "retry", "ack_retry")

AckRefused(a) ==
    /\ CanRead(a, "ack_refused", {})
    /\ Nacked(a, "refused", "ack_refused")

\* Environment (the table has no event for it): an OK ack that no attempt waits
\* for is dropped, and its grant is given back over the data plane.
DropAck(a, i) ==
    /\ \E m \in Acks("ok") : m.of = a /\ m.inc = i
    /\ \/ read[a] \in {"retryable", "failed", "quarantined", "settled"}
       \/ read[a] \in {"granted", "reading"} /\ src[a] # i
    /\ Notice(a, i) \notin net
    /\ net' = net \cup {Notice(a, i)}
    /\ ev' = {}
    /\ UNCHANGED <<tiers, consumer, plane, producer>>

\* Attempt a ends, on event e, before anything was posted.
EndUnposted(a, e, G) ==
    /\ ReadStep(a, e, G, 0)
    /\ EntryDoes(slot[a], Asks(ReadEffect(a, e, G)))
    /\ net' = net \cup Released(a, e, G, src[a])
    /\ src' = [src EXCEPT ![a] = Wild]
    /\ ev' = {EvRead(a, e, G)}
    /\ UNCHANGED <<free, retired, bytes, slot, dst, handle, session, plane, producer>>

AckTimeout(a) ==
    /\ CanRead(a, "ack_timeout", {})
    /\ EndUnposted(a, "ack_timeout", {})

Abort(a) ==
    /\ CanRead(a, "abort", {})
    /\ EndUnposted(a, "abort", {})

PostFailed(a) ==
    /\ CanRead(a, "post_failed", {})
    /\ EndUnposted(a, "post_failed", {})

\* Once the READ is posted, losing the peer is ReadLost's business.
PeerLost(a) ==
    /\ read[a] \notin {"absent", "reading"}
    /\ CanRead(a, "peer_lost", {})
    /\ EndUnposted(a, "peer_lost", {})

\* From here on the DMA may read and write whenever it likes.
PostRead(a) ==
    /\ CanRead(a, "post_read", ReadG(fence[a]))
    /\ LET G == ReadG(fence[a])
           s == slot[a]
       IN  IF ReadEffect(a, "post_read", G) # "post"
           THEN EndUnposted(a, "post_read", G)
           ELSE /\ ReadStep(a, "post_read", G, fence[a])
                /\ EntryStep(s, "begin_write", {})
                /\ dst' = [dst EXCEPT ![a] = at[s]]
                /\ handle' = [handle EXCEPT ![a] = TRUE]
                /\ dma' = [dma EXCEPT ![a] = "posted"]
                /\ ev' = {EvRead(a, "post_read", G), EvEntry(s, "begin_write", {})}
                /\ UNCHANGED <<free, retired, bytes, slot, src, session, seen, net, producer>>

\* The handle of a READ is given up. What a DMA that still runs does with its
\* source and destination does not depend on that.
Forget(a) ==
    /\ handle' = [handle EXCEPT ![a] = FALSE]
    /\ IF dma[a] \in Moving
       THEN UNCHANGED <<dst, src, dma>>
       ELSE /\ dst' = [dst EXCEPT ![a] = NoBlock]
            /\ src' = [src EXCEPT ![a] = Wild]
            /\ dma' = [dma EXCEPT ![a] = "none"]

\* What a READ brought is what the producer's checksum stands for.
Intact(a) == ~Altering \/ ~Checksum \/ bytes[dst[a]] = names[slot[a]]

\* Done in time or too late, the DMA is over: the entry is ready, or its block
\* is clean and waits for Settle.
ReadDone(a) ==
    /\ dma[a] = "completed"
    /\ read[a] = "reading" /\ "in_lease" \in ReadG(fence[a]) => Intact(a)
    /\ LET G == ReadG(fence[a])
           s == slot[a]
           e == Asks(ReadEffect(a, "read_done", G))
       IN  /\ CanRead(a, "read_done", G)
           /\ ReadStep(a, "read_done", G, fence[a])
           /\ EntryDoes(s, e)
           /\ slot' = [slot EXCEPT ![a] = IF e = "write_landed" THEN 0 ELSE @]
           /\ bytes' = IF e = "write_landed" THEN bytes ELSE Gone(s)
           /\ ev' = {EvRead(a, "read_done", G)} \cup EvEntryDoes(s, e)
    /\ Forget(a)
    /\ UNCHANGED <<free, retired, session, seen, net, producer>>

\* Done in time, and not what it should be: its block is clean and waits for Settle.
ReadCorrupt(a) ==
    /\ dma[a] = "completed"
    /\ CanRead(a, "read_corrupt", {})
    /\ "in_lease" \in ReadG(fence[a])
    /\ ~Intact(a)
    /\ LET e == Asks(ReadEffect(a, "read_corrupt", {}))
       IN  /\ ReadStep(a, "read_corrupt", {}, 0)
           /\ EntryDoes(slot[a], e)
           /\ bytes' = Gone(slot[a])
           /\ ev' = {EvRead(a, "read_corrupt", {})} \cup EvEntryDoes(slot[a], e)
    /\ Forget(a)
    /\ UNCHANGED <<free, retired, slot, session, seen, net, producer>>

\* An error, the read timeout and the loss of the peer come whenever they like,
\* whatever the DMA does; in quarantine only the proof counts.
ReadLost(a, e) ==
    /\ handle[a]
    /\ read[a] # "quarantined"
    /\ CanRead(a, e, {})
    /\ ReadStep(a, e, {}, 0)
    /\ EntryDoes(slot[a], Asks(ReadEffect(a, e, {})))
    /\ handle' = [handle EXCEPT ![a] = KeepHandles \/ e # "peer_lost"]
    /\ ev' = {EvRead(a, e, {})} \cup EvEntryDoes(slot[a], Asks(ReadEffect(a, e, {})))
    /\ UNCHANGED <<free, retired, bytes, slot, dst, src, session, plane, net, producer>>

\* A completion, a confirmed abort or the end of the endpoint was seen.
Proof(a) == handle[a] /\ (dma[a] \in Over \/ ~ProofRequired)

\* Attempt a settles on event e: its blocks are freed (the entry takes event `freeing`),
\* retired, or left with the entry, as the edge says. Who is tied to no entry has none
\* to end. Without RetryOwnsBlocks those that are left are free as well.
Ends(a, e, G, freeing) ==
    LET s == slot[a]
        x == CASE ReadEffect(a, e, G) = "free_blocks"   -> freeing
               [] ReadEffect(a, e, G) = "retire_blocks" -> "retire"
               [] OTHER                                 -> ""
    IN  /\ x # "" => s # 0
        /\ ReadStep(a, e, G, 0)
        /\ slot' = [slot EXCEPT ![a] = 0]
        /\ EntryDoes(s, x)
        /\ free' = CASE x = ""     -> IF RetryOwnsBlocks \/ s = 0 THEN free ELSE free \cup {at[s]}
                     [] x = "retire" /\ ~HeldQuarantine -> free \cup {at[s]}
                     [] OTHER      -> FreeAfter(s, x, {})
        /\ retired' = IF /\ x = "retire"
                         /\ EntryEffect(s, x, {}) = "retire_blocks"
                         /\ HeldQuarantine
                         /\ CountRetired
                      THEN [retired EXCEPT ![at[s]] = a] ELSE retired
        /\ bytes' = IF x = freeing THEN Gone(s) ELSE bytes
        /\ ev' = {EvRead(a, e, G)} \cup EvEntryDoes(s, x)

DmaEnded(a) ==
    /\ Proof(a)
    /\ CanRead(a, "dma_ended", {})
    /\ Ends(a, "dma_ended", {}, "dma_ended")
    /\ Forget(a)
    /\ UNCHANGED <<session, seen, net, producer>>

\* The bound of the quarantine is a clock, so it may come at any time. The
\* timer belongs to the handle.
Retire(a) ==
    /\ handle[a]
    /\ CanRead(a, "retire", {})
    /\ Ends(a, "retire", {}, "dma_ended")
    /\ UNCHANGED <<dst, src, handle, session, plane, net, producer>>

Reclaim(a, b) ==
    /\ retired[b] = a
    /\ Proof(a)
    /\ retired' = [retired EXCEPT ![b] = 0]
    /\ free' = free \cup {b}
    /\ bytes' = [bytes EXCEPT ![b] = Torn]
    /\ Forget(a)
    /\ ev' = {}
    /\ UNCHANGED <<entry, names, at, read, fence, slot, session, seen, net, producer>>

\* `again`: the fetch has budget for another attempt and somebody still waits.
\* Whether it has is left open.
Settle(a, again) ==
    LET G == IF again THEN {"retry_left"} ELSE {}
    IN  /\ CanRead(a, "settle", G)
        /\ Ends(a, "settle", G, "cancel")
        /\ UNCHANGED <<dst, src, handle, session, plane, net, producer>>

-----------------------------------------------------------------------------
\* Data plane (environment). A DMA takes the bytes of its source over some
\* stretch of time and leaves the destination torn meanwhile. It may wait for
\* ever before each step, whatever became of its READ.

Source(a) == IF src[a] = Wild THEN Torn ELSE bytes[src[a]]

DmaCopy(a) ==
    /\ dma[a] = "posted"
    /\ dma' = [dma EXCEPT ![a] = "copying"]
    /\ seen' = [seen EXCEPT ![a] = Source(a)]
    /\ bytes' = [bytes EXCEPT ![dst[a]] = Torn]
    /\ ev' = {}
    /\ UNCHANGED <<entry, names, at, free, retired, consumer, net, producer>>

\* The notice travels with the completion.
DmaFinish(a) ==
    /\ dma[a] = "copying"
    /\ dma' = [dma EXCEPT ![a] = "completed"]
    /\ seen' = [seen EXCEPT ![a] = Nothing]
    /\ bytes' = [bytes EXCEPT ![dst[a]] = seen[a]]
    /\ net' = net \cup {Notice(a, src[a])}
    /\ ev' = {}
    /\ UNCHANGED <<entry, names, at, free, retired, consumer, producer>>

\* What was read is not what lay there: a fault of memory or way, or somebody's doing.
DmaAlter(a) ==
    /\ Altering
    /\ dma[a] = "copying"
    /\ seen[a] # Torn
    /\ seen' = [seen EXCEPT ![a] = Torn]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, consumer, dma, net, producer>>

\* Aborted, or its endpoint is gone: it will not touch anything any more.
DmaStop(a) ==
    /\ dma[a] \in Moving
    /\ dma' = [dma EXCEPT ![a] = "stopped"]
    /\ seen' = [seen EXCEPT ![a] = Nothing]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, consumer, net, producer>>

-----------------------------------------------------------------------------
\* Producer.

\* A request is answered once by each incarnation: ZeroMQ does not repeat it.
Unanswered(a) == \A m \in net : m.type \in AckTypes => (m.of # a \/ m.inc # inc)
Fresh(a) == grant[a] = "absent" /\ Unanswered(a)
Answer(t, a)  == net' = net \cup {Ack(t, a, h, inc) : h \in Asked(a)}

Grant(a) ==
    /\ names[Origin] \in Asked(a)
    /\ Fresh(a)
    /\ \/ CanEntry(Origin, "pin", {})
       \/ ~ServeReadyOnly /\ entry[Origin] \in {"allocated", "saving"}
    /\ grant' = [grant EXCEPT ![a] = GrantInitial]
    /\ lease' = [lease EXCEPT ![a] = Lease]
    /\ pins' = pins + 1
    /\ IF CanEntry(Origin, "pin", {})
       THEN /\ EntryStep(Origin, "pin", {})
            /\ ev' = {EvEntry(Origin, "pin", {})}
       ELSE UNCHANGED <<entry, names, at>> /\ ev' = {}
    /\ Answer("ok", a)
    /\ UNCHANGED <<free, retired, bytes, consumer, plane, inc>>

\* Environment (the table has no event for it): a nack changes nothing at the
\* producer.
AnswerNotReady(a) ==
    /\ names[Origin] \in Asked(a)
    /\ Unanswered(a)
    /\ entry[Origin] \in {"allocated", "saving"}
    /\ Answer("retry", a)
    /\ ev' = {}
    /\ UNCHANGED <<tiers, consumer, plane, producer>>

AnswerMissing(a) ==
    /\ Asked(a) # {}
    /\ names[Origin] \notin Asked(a)
    /\ Unanswered(a)
    /\ Answer("refused", a)
    /\ ev' = {}
    /\ UNCHANGED <<tiers, consumer, plane, producer>>

\* The grant of attempt a ends on event e, and with it one pin.
EndGrant(a, e, G) ==
    /\ grant' = [grant EXCEPT ![a] = Fire(GrantFrom[grant[a]], grant[a], e, G)]
    /\ lease' = [lease EXCEPT ![a] = 0]
    /\ IF Effect(GrantFrom[grant[a]], grant[a], e, G) = "unpin"
         THEN /\ Unpin
              /\ ev' = {Ev("grant", GrantFrom[grant[a]], grant[a], e, G),
                        EvEntry(Origin, "unpin", UnpinG)}
         ELSE /\ UNCHANGED <<entry, names, at, pins>>
              /\ ev' = {Ev("grant", GrantFrom[grant[a]], grant[a], e, G)}
    /\ UNCHANGED <<free, retired, bytes, consumer, plane, net, inc>>

\* A notice reaches the process that its endpoint was opened to, and no other. It
\* could be taken for one of any grant of the same encoding, unless it has ended
\* its own; the guard says whether it is.
Noticed(n, a) ==
    /\ n.type = "notice"
    /\ n.inc = inc
    /\ n.of = a \/ (Asked(n.of) = Asked(a) /\ grant[n.of] # "completed")
NamesG(n, a) == IF n.of = a \/ ~NoticeIdentity THEN {"names_this_attempt"} ELSE {}

Complete(a) ==
    \E G \in {NamesG(n, a) : n \in {m \in net : Noticed(m, a)}} :
      IF ~ReleaseOnce /\ grant[a] \in GrantTerminal
       THEN /\ G # {}
            /\ pins > 0
            /\ Unpin
            /\ ev' = {EvEntry(Origin, "unpin", UnpinG)}
            /\ UNCHANGED <<free, retired, bytes, consumer, plane, net, inc, grant, lease>>
       ELSE /\ CanFire(GrantFrom[grant[a]], grant[a], "complete", G)
            /\ EndGrant(a, "complete", G)

\* The producer's clock may be ahead of ours by Drift when the lease ends.
Expire(a) ==
    /\ CanFire(GrantFrom[grant[a]], grant[a], "expire", {})
    /\ LeaseEnds
    /\ lease[a] <= Drift
    /\ EndGrant(a, "expire", {})

\* Environment: the process dies and another one takes its address. Its grants
\* and its entry die with it. Its memory is still there for the READs that are
\* under way, unchanged; nothing of it is in the new region.
ProducerRestart ==
    /\ inc < MaxIncs
    /\ inc' = inc + 1
    /\ entry' = [entry EXCEPT ![Origin] = "freed"]
    /\ names' = [names EXCEPT ![Origin] = Nothing]
    /\ at' = [at EXCEPT ![Origin] = NoBlock]
    /\ free' = (free \ {inc}) \cup {inc + 1}
    /\ pins' = 0
    /\ grant' = [a \in Attempts |-> "absent"]
    /\ lease' = [a \in Attempts |-> 0]
    /\ ev' = {}
    /\ UNCHANGED <<retired, bytes, consumer, plane, net>>

-----------------------------------------------------------------------------
\* Clock (environment).

Running == \/ \E a \in Attempts : read[a] \in Fenced /\ fence[a] > 0
           \/ \E a \in Attempts : lease[a] > 0

Tick ==
    /\ Running
    /\ fence' = [a \in Attempts |-> IF read[a] \in Fenced /\ fence[a] > 0
                                    THEN fence[a] - 1 ELSE fence[a]]
    /\ lease' = [a \in Attempts |-> IF lease[a] > 0 THEN lease[a] - 1 ELSE 0]
    /\ ev' = {}
    /\ UNCHANGED <<tiers, read, slot, dst, src, handle, session, plane, net, inc, pins, grant>>

-----------------------------------------------------------------------------
LostEvents == {"read_error", "read_timeout", "peer_lost"}

Next ==
    \/ \E s \in Slots, h \in Encodings, b \in Blocks \cup Incs : Alloc(s, h, b)
    \/ \E s \in Slots : Evict(s) \/ Cancel(s) \/ SaveBegin(s) \/ SaveEnd(s)
    \/ \E a \in Attempts, s \in Sinks : RequestRead(a, s)
    \/ \E a \in Attempts, i \in Incs : AckOk(a, i) \/ DropAck(a, i)
    \/ \E a \in Attempts, e \in LostEvents : ReadLost(a, e)
    \/ \E a \in Attempts, again \in BOOLEAN : Settle(a, again)
    \/ \E a \in Attempts, b \in Blocks : Reclaim(a, b)
    \/ \E a \in Attempts :
         \/ AckRetry(a) \/ AckRefused(a) \/ AckTimeout(a) \/ Abort(a)
         \/ PostRead(a) \/ PostFailed(a) \/ ReadDone(a) \/ PeerLost(a)
         \/ ReadCorrupt(a) \/ DmaAlter(a) \/ DmaEnded(a) \/ Retire(a)
         \/ DmaCopy(a) \/ DmaFinish(a) \/ DmaStop(a)
         \/ Grant(a) \/ AnswerNotReady(a) \/ AnswerMissing(a)
         \/ Complete(a) \/ Expire(a)
    \/ ProducerRestart
    \/ Tick

Spec == Init /\ [][Next]_vars
=============================================================================
