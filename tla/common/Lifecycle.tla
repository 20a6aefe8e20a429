\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE Lifecycle -----------------------------
\* Generated from spec/lifecycle.toml by `ec-protocol generate`: do not edit.
\*
\* Per lifecycle X: XStates, XInitial, XTerminal, XEvents, XGuards and XEdges,
\* the set of its edges. In every operator below, G is the set of names of the
\* guards that hold; a guard that is not in G does not hold.

\* Some edge leaves state s on event e while exactly the guards in G hold.
CanFire(edges, s, e, G) ==
    \E d \in edges : /\ d.from = s
                     /\ d.event = e
                     /\ d.needs \subseteq G
                     /\ d.forbids \cap G = {}

\* That edge. The tables are deterministic, so CHOOSE has nothing to choose.
EdgeOf(edges, s, e, G) ==
    CHOOSE d \in edges : /\ d.from = s
                         /\ d.event = e
                         /\ d.needs \subseteq G
                         /\ d.forbids \cap G = {}

\* The state it leads to, and the effect that it asks for ("" for none).
Fire(edges, s, e, G) == EdgeOf(edges, s, e, G).to
Effect(edges, s, e, G) == EdgeOf(edges, s, e, G).effect

\* What a spec adds to its history variable `ev`: the set of the lifecycle
\* events fired in the last step, compared with the tables by edge coverage.
Ev(lifecycle, edges, s, e, G) == <<lifecycle, s, e, Fire(edges, s, e, G)>>

\* No two edges can fire at once.
Deterministic(edges) ==
    \A a, b \in edges :
        (a # b /\ a.from = b.from /\ a.event = b.event)
            => (a.needs \cap b.forbids) \cup (b.needs \cap a.forbids) # {}

-----------------------------------------------------------------------------
\* entry: One encoding in one region.
EntryStates == {"allocated", "saving", "ready", "pinned", "quarantined", "freed"}
    \* allocated: Blocks are assigned and nobody may touch their bytes yet (or any more).
    \* saving: Someone may be writing the blocks: a device-to-host copy, or a remote READ into them.
    \* ready: The blocks hold exactly the encoding that mm_hash names; nobody holds the entry.
    \* pinned: As ready, and at least one holder (load, grant, hold, step) depends on the bytes.
    \* quarantined: A transfer that cannot be aborted may still touch the blocks: not served, not evicted, not reused.
    \* freed: The entry owns no blocks any more.
EntryInitial == "allocated"
EntryTerminal == {"freed"}
EntryEvents == {"begin_write", "write_landed", "write_ended", "write_lost", "cancel", "pin", "unpin", "evict", "dma_ended", "retire"}
EntryGuards == {"last_holder"}
    \* last_holder: The holder being released is the only one.

EntryEdges == {
    \* From here on the bytes are in flux, so the entry is neither served nor freed without a proof.
    [from |-> "allocated", event |-> "begin_write", needs |-> {}, forbids |-> {},
     to |-> "saving", effect |-> ""],
    \* No writer ever had the blocks, or the last one provably finished: they are free at once.
    [from |-> "allocated", event |-> "cancel", needs |-> {}, forbids |-> {},
     to |-> "freed", effect |-> "free_blocks"],
    \* The one way by which bytes become servable.
    [from |-> "saving", event |-> "write_landed", needs |-> {}, forbids |-> {},
     to |-> "ready", effect |-> "enqueue"],
    \* The writer is gone; a retry keeps the same blocks, or cancel frees them.
    [from |-> "saving", event |-> "write_ended", needs |-> {}, forbids |-> {},
     to |-> "allocated", effect |-> ""],
    \* A transfer that may still land must not meet another owner of these blocks.
    [from |-> "saving", event |-> "write_lost", needs |-> {}, forbids |-> {},
     to |-> "quarantined", effect |-> ""],
    \* The first holder makes the entry unevictable.
    [from |-> "ready", event |-> "pin", needs |-> {}, forbids |-> {},
     to |-> "pinned", effect |-> ""],
    \* Only an entry that nobody holds gives up its blocks.
    [from |-> "ready", event |-> "evict", needs |-> {}, forbids |-> {},
     to |-> "freed", effect |-> "free_blocks"],
    \* Holders are independent of each other.
    [from |-> "pinned", event |-> "pin", needs |-> {}, forbids |-> {},
     to |-> "pinned", effect |-> ""],
    \* Other holders still depend on the bytes.
    [from |-> "pinned", event |-> "unpin", needs |-> {}, forbids |-> {"last_holder"},
     to |-> "pinned", effect |-> ""],
    \* Without holders the entry may be evicted again.
    [from |-> "pinned", event |-> "unpin", needs |-> {"last_holder"}, forbids |-> {},
     to |-> "ready", effect |-> "enqueue"],
    \* With the proof in hand the blocks are as good as new.
    [from |-> "quarantined", event |-> "dma_ended", needs |-> {}, forbids |-> {},
     to |-> "freed", effect |-> "free_blocks"],
    \* Time alone proves nothing: the blocks leave circulation, are counted, and come back only with a proof.
    [from |-> "quarantined", event |-> "retire", needs |-> {}, forbids |-> {},
     to |-> "freed", effect |-> "retire_blocks"]
}

-----------------------------------------------------------------------------
\* read: One attempt of a consumer to READ one encoding from one producer.
ReadStates == {"requested", "granted", "reading", "done", "retryable", "failed", "quarantined", "settled"}
    \* requested: XferReq was handed to the control plane; the lease is counted from this moment.
    \* granted: An OK XferAck names the source blocks and the lease; nothing is posted yet.
    \* reading: The READ is posted: the destination blocks may be written at any time.
    \* done: The READ provably ended inside the lease; its bytes are accepted.
    \* retryable: Nothing is in flight and the same encoding may be asked for again with the same blocks.
    \* failed: Nothing is in flight and this encoding falls back to local compute.
    \* quarantined: The outcome of the READ is unknown; its blocks are quarantined and the request has fallen back.
    \* settled: The attempt is over and nothing refers to it.
ReadInitial == "requested"
ReadTerminal == {"settled"}
ReadEvents == {"ack_ok", "ack_retry", "ack_refused", "ack_timeout", "post_read", "post_failed", "read_done", "read_corrupt", "read_error", "read_timeout", "peer_lost", "abort", "dma_ended", "retire", "settle"}
ReadGuards == {"fence_open", "in_lease", "retry_left"}
    \* fence_open: Now plus the least time a READ is given is still before the fence (sending time + lease - margin).
    \* in_lease: The READ was seen finished before the fence, by the consumer's own clock.
    \* retry_left: The fetch has budget for another attempt and somebody still waits for it.

ReadEdges == {
    \* The grant is worth using.
    [from |-> "requested", event |-> "ack_ok", needs |-> {"fence_open"}, forbids |-> {},
     to |-> "granted", effect |-> ""],
    \* Too little of the lease is left for a READ to end inside it; posting would only lose the blocks.
    [from |-> "requested", event |-> "ack_ok", needs |-> {}, forbids |-> {"fence_open"},
     to |-> "retryable", effect |-> "release_grant"],
    \* The producer expects its save to land; latency, not recompute.
    [from |-> "requested", event |-> "ack_retry", needs |-> {}, forbids |-> {},
     to |-> "retryable", effect |-> ""],
    \* The producer cannot serve it, or we cannot trust what it said.
    [from |-> "requested", event |-> "ack_refused", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> ""],
    \* A silent producer must not hold the request.
    [from |-> "requested", event |-> "ack_timeout", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> ""],
    \* The answer will never come.
    [from |-> "requested", event |-> "peer_lost", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> ""],
    \* A late answer for it is dropped and its grant released.
    [from |-> "requested", event |-> "abort", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> ""],
    \* Checked again at the moment of posting: an engine step may have passed since the ack.
    [from |-> "granted", event |-> "post_read", needs |-> {"fence_open"}, forbids |-> {},
     to |-> "reading", effect |-> "post"],
    \* The lease ran down while the ack waited; a fresh attempt gets a fresh lease.
    [from |-> "granted", event |-> "post_read", needs |-> {}, forbids |-> {"fence_open"},
     to |-> "retryable", effect |-> "release_grant"],
    \* Nothing was posted, so the blocks are clean.
    [from |-> "granted", event |-> "post_failed", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> "release_grant"],
    \* The grant died with the incarnation that gave it.
    [from |-> "granted", event |-> "peer_lost", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> ""],
    \* The producer need not keep the pin until the lease ends.
    [from |-> "granted", event |-> "abort", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> "release_grant"],
    \* The source blocks were pinned for the whole READ, so the bytes are the named encoding.
    [from |-> "reading", event |-> "read_done", needs |-> {"in_lease"}, forbids |-> {},
     to |-> "done", effect |-> "promote"],
    \* The source may have been reused under the READ. It is over, so the blocks are clean and can be tried again.
    [from |-> "reading", event |-> "read_done", needs |-> {}, forbids |-> {"in_lease"},
     to |-> "retryable", effect |-> "drop_bytes"],
    \* It is over, so the blocks are clean; what was granted is not what came, and asking again would trust the same memory.
    [from |-> "reading", event |-> "read_corrupt", needs |-> {}, forbids |-> {},
     to |-> "failed", effect |-> "drop_bytes"],
    \* An error is no proof that every byte of the transfer has stopped.
    [from |-> "reading", event |-> "read_error", needs |-> {}, forbids |-> {},
     to |-> "quarantined", effect |-> "fall_back"],
    \* Neither is the passing of time.
    [from |-> "reading", event |-> "read_timeout", needs |-> {}, forbids |-> {},
     to |-> "quarantined", effect |-> "fall_back"],
    \* Nor is the death of the peer; the handle is kept until a proof comes.
    [from |-> "reading", event |-> "peer_lost", needs |-> {}, forbids |-> {},
     to |-> "quarantined", effect |-> "fall_back"],
    \* The entry is ready.
    [from |-> "done", event |-> "settle", needs |-> {}, forbids |-> {},
     to |-> "settled", effect |-> ""],
    \* The next attempt writes into the same blocks; nothing else is evicted to win them back.
    [from |-> "retryable", event |-> "settle", needs |-> {"retry_left"}, forbids |-> {},
     to |-> "settled", effect |-> "keep_blocks"],
    \* Out of budget: local compute.
    [from |-> "retryable", event |-> "settle", needs |-> {}, forbids |-> {"retry_left"},
     to |-> "settled", effect |-> "free_blocks"],
    \* Local compute.
    [from |-> "failed", event |-> "settle", needs |-> {}, forbids |-> {},
     to |-> "settled", effect |-> "free_blocks"],
    \* The proof frees the blocks; the bytes are dropped, since the request went another way.
    [from |-> "quarantined", event |-> "dma_ended", needs |-> {}, forbids |-> {},
     to |-> "settled", effect |-> "free_blocks"],
    \* No proof within the bound: the blocks are counted out.
    [from |-> "quarantined", event |-> "retire", needs |-> {}, forbids |-> {},
     to |-> "settled", effect |-> "retire_blocks"]
}

-----------------------------------------------------------------------------
\* grant: One producer pin for one attempt of one consumer.
GrantStates == {"granted", "completed", "expired"}
    \* granted: The source entry is pinned for this attempt until the lease ends.
    \* completed: The attempt's own completion notice released the pin.
    \* expired: The lease ended without a notice and released the pin.
GrantInitial == "granted"
GrantTerminal == {"completed", "expired"}
GrantEvents == {"complete", "expire"}
GrantGuards == {"names_this_attempt"}
    \* names_this_attempt: The notice carries this attempt's identity and no other grant can be meant.

GrantEdges == {
    \* Only the reader that the grant was made for can say that it has finished.
    [from |-> "granted", event |-> "complete", needs |-> {"names_this_attempt"}, forbids |-> {},
     to |-> "completed", effect |-> "unpin"],
    \* The consumer fences itself off before this moment, so the pin protects nothing any more.
    [from |-> "granted", event |-> "expire", needs |-> {}, forbids |-> {},
     to |-> "expired", effect |-> "unpin"]
}

-----------------------------------------------------------------------------
\* copy: One device copy of one encoding, a save (device to region) or a load (region to device).
CopyStates == {"planned", "in_flight", "landed", "skipped"}
    \* planned: The scheduler decided on it; no worker knows.
    \* in_flight: Handed to the workers: any participating rank may be copying.
    \* landed: Every participating rank reported that its copy finished.
    \* skipped: Every participating rank is finished, and at least one of them did not copy.
CopyInitial == "planned"
CopyTerminal == {"landed", "skipped"}
CopyEvents == {"submit", "skip", "report"}
CopyGuards == {"last_rank", "all_landed"}
    \* last_rank: With this report every participating rank has reported.
    \* all_landed: No rank, this one included, reported a copy that did not happen.

CopyEdges == {
    \* Once the metadata is out the copy cannot be called back.
    [from |-> "planned", event |-> "submit", needs |-> {}, forbids |-> {},
     to |-> "in_flight", effect |-> "begin"],
    \* Nothing started.
    [from |-> "planned", event |-> "skip", needs |-> {}, forbids |-> {},
     to |-> "skipped", effect |-> "undo"],
    \* Other ranks may still be copying.
    [from |-> "in_flight", event |-> "report", needs |-> {}, forbids |-> {"last_rank"},
     to |-> "in_flight", effect |-> ""],
    \* All copies ended and all bytes are in place.
    [from |-> "in_flight", event |-> "report", needs |-> {"last_rank", "all_landed"}, forbids |-> {},
     to |-> "landed", effect |-> "finish"],
    \* All copies ended, but the encoder never ran, or a submission failed: the bytes are not there.
    [from |-> "in_flight", event |-> "report", needs |-> {"last_rank"}, forbids |-> {"all_landed"},
     to |-> "skipped", effect |-> "undo"]
}

-----------------------------------------------------------------------------
\* peer: One incarnation of one remote endpoint, as seen by a consumer.
PeerStates == {"connecting", "live", "down", "drained"}
    \* connecting: The control connection is being made; nothing was heard yet.
    \* live: The peer was heard within the heartbeat timeout.
    \* down: Lost, replaced or closed: nothing new is sent, quarantined READs may be left.
    \* drained: No READ refers to this incarnation any more.
PeerInitial == "connecting"
PeerTerminal == {"drained"}
PeerEvents == {"heard", "lost", "replaced", "close", "drain"}
PeerGuards == {"no_reads"}
    \* no_reads: Every READ of this incarnation is settled.

PeerEdges == {
    \* Somebody answers.
    [from |-> "connecting", event |-> "heard", needs |-> {}, forbids |-> {},
     to |-> "live", effect |-> ""],
    \* Waiting requests fall back at once.
    [from |-> "connecting", event |-> "lost", needs |-> {}, forbids |-> {},
     to |-> "down", effect |-> "fail_reads"],
    \* Shutdown before the first answer.
    [from |-> "connecting", event |-> "close", needs |-> {}, forbids |-> {},
     to |-> "down", effect |-> "fail_reads"],
    \* Still there.
    [from |-> "live", event |-> "heard", needs |-> {}, forbids |-> {},
     to |-> "live", effect |-> ""],
    \* Heartbeat time, not read time, bounds the wait.
    [from |-> "live", event |-> "lost", needs |-> {}, forbids |-> {},
     to |-> "down", effect |-> "fail_reads"],
    \* Addresses and descriptors of the old process name nothing in the new one.
    [from |-> "live", event |-> "replaced", needs |-> {}, forbids |-> {},
     to |-> "down", effect |-> "fail_reads"],
    \* Orderly shutdown.
    [from |-> "live", event |-> "close", needs |-> {}, forbids |-> {},
     to |-> "down", effect |-> "fail_reads"],
    \* Handles outlive the peer until each READ is proven over or retired.
    [from |-> "down", event |-> "drain", needs |-> {"no_reads"}, forbids |-> {},
     to |-> "drained", effect |-> "forget"]
}

-----------------------------------------------------------------------------
\* offer: One entry in the table that the engine and the server's process both see: what the server may grant without asking.
OfferStates == {"coming", "open", "closed"}
    \* coming: The entry is being written: who asks too early is told to ask again.
    \* open: The server may grant the entry; the engine needs leave to use its memory for anything else.
    \* closed: The server may not grant it, and no grant needs it: the memory is the engine's alone.
OfferInitial == "coming"
OfferTerminal == {"closed"}
OfferEvents == {"open", "close"}
OfferGuards == {"granted"}
    \* granted: The ledger says that a lease on this slot has not ended yet.

OfferEdges == {
    \* From here on the server may grant it without asking.
    [from |-> "coming", event |-> "open", needs |-> {}, forbids |-> {},
     to |-> "open", effect |-> ""],
    \* The bytes will not come.
    [from |-> "coming", event |-> "close", needs |-> {}, forbids |-> {"granted"},
     to |-> "closed", effect |-> ""],
    \* Under the lock nobody can grant it meanwhile, and nobody has it: the last lease is over, or its attempt has said that it is done.
    [from |-> "open", event |-> "close", needs |-> {}, forbids |-> {"granted"},
     to |-> "closed", effect |-> ""]
}

-----------------------------------------------------------------------------
\* loan: The blocks of one entry, lent to one reader process for one fetch.
LoanStates == {"lent", "lost", "retired", "returned"}
    \* lent: The reader may have READs write into the blocks; the entry is saving.
    \* lost: A READ into the blocks may go on and the fetch is given up: the entry is quarantined.
    \* retired: As lost, but nobody counts on a proof any more.
    \* returned: Nothing of that reader can touch the blocks any more.
LoanInitial == "lent"
LoanTerminal == {"returned"}
LoanEvents == {"landed", "failed", "lost", "proven", "exited", "overdue", "retire"}
LoanGuards == {}

LoanEdges == {
    \* The reader alone may say so, and only once.
    [from |-> "lent", event |-> "landed", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "accept"],
    \* No READ was posted, or the last one provably ended.
    [from |-> "lent", event |-> "failed", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "take_back"],
    \* The request falls back at once; the blocks wait for a proof.
    [from |-> "lent", event |-> "lost", needs |-> {}, forbids |-> {},
     to |-> "lost", effect |-> "quarantine"],
    \* A process that is gone moves no byte.
    [from |-> "lent", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "take_back"],
    \* Nobody waits for a reader that may never be heard of again; it may still have a READ under way.
    [from |-> "lent", event |-> "overdue", needs |-> {}, forbids |-> {},
     to |-> "lost", effect |-> "quarantine"],
    \* Its own completion is the quickest proof.
    [from |-> "lost", event |-> "proven", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "free"],
    \* The proof that always comes: a reader with a lost READ is killed when its grace is over.
    [from |-> "lost", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "free"],
    \* A process that the kernel cannot end keeps its blocks: time proves nothing.
    [from |-> "lost", event |-> "retire", needs |-> {}, forbids |-> {},
     to |-> "retired", effect |-> "retire"],
    \* Late, but a proof.
    [from |-> "retired", event |-> "proven", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "reclaim"],
    \* Late, but a proof.
    [from |-> "retired", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "returned", effect |-> "reclaim"]
}

-----------------------------------------------------------------------------
\* process: One data process: a server or a reader.
ProcessStates == {"starting", "spare", "working", "draining", "killed", "exited"}
    \* starting: It was started with exec and has not said yet that it can work.
    \* spare: It can work and has nothing to do: it stands by for another.
    \* working: It has work.
    \* draining: It gets no new work, and is killed when its grace is over.
    \* killed: It was killed; it may still run a little.
    \* exited: The kernel says that it is gone.
ProcessInitial == "starting"
ProcessTerminal == {"exited"}
ProcessEvents == {"ready", "take", "drain", "kill", "exited"}
ProcessGuards == {}

ProcessEdges == {
    \* Mapping and registering take long, so they are done ahead of need.
    [from |-> "starting", event |-> "ready", needs |-> {}, forbids |-> {},
     to |-> "spare", effect |-> ""],
    \* It takes too long, or the instance ends.
    [from |-> "starting", event |-> "kill", needs |-> {}, forbids |-> {},
     to |-> "killed", effect |-> "sigkill"],
    \* It could not start; the next one is started later and later.
    [from |-> "starting", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "exited", effect |-> "restart"],
    \* Nobody waits for a start.
    [from |-> "spare", event |-> "take", needs |-> {}, forbids |-> {},
     to |-> "working", effect |-> ""],
    \* The instance ends, or it stands still.
    [from |-> "spare", event |-> "kill", needs |-> {}, forbids |-> {},
     to |-> "killed", effect |-> "sigkill"],
    \* Spares die too.
    [from |-> "spare", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "exited", effect |-> "restart"],
    \* What it has under way may still end well.
    [from |-> "working", event |-> "drain", needs |-> {}, forbids |-> {},
     to |-> "draining", effect |-> ""],
    \* A process that stands still helps nobody.
    [from |-> "working", event |-> "kill", needs |-> {}, forbids |-> {},
     to |-> "killed", effect |-> "sigkill"],
    \* It died by itself, or somebody killed it.
    [from |-> "working", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "exited", effect |-> "restart"],
    \* Its grace is over, or all its work is.
    [from |-> "draining", event |-> "kill", needs |-> {}, forbids |-> {},
     to |-> "killed", effect |-> "sigkill"],
    \* It died before its grace was over.
    [from |-> "draining", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "exited", effect |-> "restart"],
    \* Only now is it a proof: a signal that was sent ends nothing yet.
    [from |-> "killed", event |-> "exited", needs |-> {}, forbids |-> {},
     to |-> "exited", effect |-> "restart"]
}

-----------------------------------------------------------------------------
\* region: The shared-memory file of one engine instance and data-parallel rank.
RegionStates == {"creating", "live", "draining", "orphan", "unlinked"}
    \* creating: The file has no name yet; only its creator can see it.
    \* live: The file has its name; each process that maps it holds a shared lock on it.
    \* draining: Its instance is shutting down; mappings may remain.
    \* orphan: The file has its name, and whoever took its lock exclusively found that no process holds it.
    \* unlinked: The name is gone; the memory goes with the last mapping.
RegionInitial == "creating"
RegionTerminal == {"unlinked"}
RegionEvents == {"publish", "abandon", "drain", "unlink", "holders_died", "reap"}
RegionGuards == {"no_holders"}
    \* no_holders: An exclusive lock could be had, which proves that no process maps the file.

RegionEdges == {
    \* The name appears with everything in place, so nobody can see half a region.
    [from |-> "creating", event |-> "publish", needs |-> {}, forbids |-> {},
     to |-> "live", effect |-> ""],
    \* A file without a name leaves nothing behind.
    [from |-> "creating", event |-> "abandon", needs |-> {}, forbids |-> {},
     to |-> "unlinked", effect |-> ""],
    \* The kernel frees a file without a name when its creator dies.
    [from |-> "creating", event |-> "holders_died", needs |-> {}, forbids |-> {},
     to |-> "unlinked", effect |-> ""],
    \* Shutdown is orderly.
    [from |-> "live", event |-> "drain", needs |-> {}, forbids |-> {},
     to |-> "draining", effect |-> ""],
    \* SIGKILL gives nobody a chance to unlink.
    [from |-> "live", event |-> "holders_died", needs |-> {}, forbids |-> {},
     to |-> "orphan", effect |-> ""],
    \* Removing the name does not disturb processes that still map the file.
    [from |-> "draining", event |-> "unlink", needs |-> {}, forbids |-> {},
     to |-> "unlinked", effect |-> ""],
    \* Killed in the middle of shutdown.
    [from |-> "draining", event |-> "holders_died", needs |-> {}, forbids |-> {},
     to |-> "orphan", effect |-> ""],
    \* The lock, not the age or the owner's pid, proves that nobody uses the file.
    [from |-> "orphan", event |-> "reap", needs |-> {"no_holders"}, forbids |-> {},
     to |-> "unlinked", effect |-> ""]
}

ASSUME Deterministic(EntryEdges)
ASSUME Deterministic(ReadEdges)
ASSUME Deterministic(GrantEdges)
ASSUME Deterministic(CopyEdges)
ASSUME Deterministic(PeerEdges)
ASSUME Deterministic(OfferEdges)
ASSUME Deterministic(LoanEdges)
ASSUME Deterministic(ProcessEdges)
ASSUME Deterministic(RegionEdges)

=============================================================================
