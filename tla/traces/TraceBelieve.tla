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
            CASE r.act \in {"SaveLanded", "Landed"} -> Encoding(r.entries[i].mm_hash)
              [] r.act = "ReadDone" /\ r.id \in DOMAIN s.reads -> BytesRead(s.reads[r.id])
              [] i \in DOMAIN s.entries -> s.entries[i].bytes
              [] OTHER -> ""
        read(i) == r.reads[i] @@ [seen |-> r.now]
        behind(said) == IF Serves(r.p) THEN Granted(r, said) ELSE said.entry
        grant(i) ==
            IF i \in DOMAIN s.grants THEN r.grants[i] @@ s.grants[i]
            ELSE r.grants[i] @@ [name |-> r.name, early |-> FALSE, home |-> behind(r.grants[i]),
                                 extents |-> IF r.grants[i].entry \in DOMAIN s.entries
                                               THEN s.entries[r.grants[i].entry].extents ELSE <<>>]
        entries == [i \in DOMAIN r.entries |-> [bytes |-> bytes(i)] @@ r.entries[i]]
        grants == [i \in DOMAIN r.grants |-> grant(i)]
        lost == IF r.act \in {"Retire", "RetireLoan"}
                  THEN [i \in DOMAIN r.entries |-> r.entries[i].extents] ELSE <<>>
        offer(i) == r.offers[i] @@ [name |-> r.name]
        loan(i) == r.loans[i] @@ [name |-> r.name]
        placed(i) == \/ r.act = "TakePlace"
                     \/ i \in DOMAIN s.processes /\ s.processes[i].placed
        process(i) == r.processes[i] @@ [placed |-> placed(i)]
        c == [Nothing EXCEPT !.entries = entries, !.lost = lost,
                             !.found = IF r.act = "Reclaim" THEN r.id ELSE 0]
    IN proc' = [proc EXCEPT ![r.p] = [s EXCEPT
            !.entries = Without(entries @@ s.entries, Over(r.p)),
            !.copies = Without(r.copies @@ s.copies, CopyTerminal),
            !.reads = Without([i \in DOMAIN r.reads |-> read(i)] @@ s.reads, ReadTerminal),
            !.grants = Remembered(grants @@ s.grants),
            !.peers = Without(r.peers @@ s.peers, PeerTerminal),
            !.offers = Without([i \in DOMAIN r.offers |-> offer(i)] @@ s.offers, OfferTerminal),
            !.loans = Without([i \in DOMAIN r.loans |-> loan(i)] @@ s.loans, LoanTerminal),
            !.processes = Without([i \in DOMAIN r.processes |-> process(i)] @@ s.processes,
                                  ProcessTerminal),
            !.gone = @ \cup (IF r.act = "Exited"
                                THEN {r.loans[i].reader : i \in DOMAIN r.loans}
                                     \cup {i \in DOMAIN r.processes : placed(i)}
                             ELSE {}),
            !.words = IF Reads(r.p) THEN Words(r.p, s, c) ELSE <<>>,
            !.clock = r.t,
            !.owned = s.owned + More(s, entries, LAMBDA e : BlocksOf(e, Over(r.p))),
            !.held = s.held + More(s, entries, BlocksHeld),
            !.given = s.given + (IF Serves(r.p) THEN MoreGiven(s, grants)
                                 ELSE More(s, entries, BlocksGiven)),
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
