\* SPDX-License-Identifier: Apache-2.0
---------------------------- MODULE TraceBelieve ----------------------------
\* The invariants alone. Every record is believed, whatever it tells: no action,
\* no guard, no table stands in the way. So a doctored trace shows that an
\* invariant can fail, and which one does. Used by tests, never by
\* `ec-protocol trace check`.

EXTENDS Trace

Believe(r) ==
    LET s == proc[r.p]
        tier == IF r.tier = <<>> THEN [free |-> s.free, retired |-> s.retired] ELSE r.tier[1]
        bytes(i) ==
            CASE r.act = "SaveLanded" -> r.entries[i].mm_hash
              [] r.act = "ReadDone" /\ r.id \in DOMAIN s.reads -> BytesRead(s.reads[r.id])
              [] i \in DOMAIN s.entries -> s.entries[i].bytes
              [] OTHER -> ""
        read(i) == r.reads[i] @@ [seen |-> r.now]
        grant(i) ==
            IF i \in DOMAIN s.grants THEN r.grants[i] @@ s.grants[i]
            ELSE r.grants[i] @@ [name |-> r.name, early |-> FALSE,
                                 extents |-> IF r.grants[i].entry \in DOMAIN s.entries
                                               THEN s.entries[r.grants[i].entry].extents ELSE <<>>]
        entries == [i \in DOMAIN r.entries |-> [bytes |-> bytes(i)] @@ r.entries[i]]
        grants == [i \in DOMAIN r.grants |-> grant(i)]
        lost == IF r.act = "Retire" THEN [i \in DOMAIN r.entries |-> r.entries[i].extents] ELSE <<>>
    IN proc' = [proc EXCEPT ![r.p] = [s EXCEPT
            !.entries = Without(entries @@ s.entries, EntryTerminal),
            !.copies = Without(r.copies @@ s.copies, CopyTerminal),
            !.reads = Without([i \in DOMAIN r.reads |-> read(i)] @@ s.reads, ReadTerminal),
            !.grants = Remembered(grants @@ s.grants),
            !.peers = Without(r.peers @@ s.peers, PeerTerminal),
            !.owned = s.owned + More(s, entries, Blocks),
            !.held = s.held + More(s, entries, BlocksHeld),
            !.given = s.given + More(s, entries, BlocksGiven),
            !.by_peer = ByPeer(s, grants),
            !.shared = Shared(s, grants),
            !.free = tier.free,
            !.retired = tier.retired,
            !.lost = lost @@ s.lost]]

BelieveNext ==
    \/ /\ ~AtEnd
       /\ Holds
       /\ \E r \in {Current} :
            /\ Believe(r)
            /\ last' = [p |-> r.p, touched |-> DOMAIN r.entries]
       /\ Advance
    \/ Accept

=============================================================================
