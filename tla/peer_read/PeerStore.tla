\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE PeerStore -----------------------------
\* PeerRead refines ContentStore: the mapping.
\*
\* | ContentStore     | PeerRead                                              |
\* | places           | the two regions                                       |
\* | what they serve  | names of ready and pinned entries, and the bytes that |
\* |                  | really lie in their blocks                            |
\* | operations       | attempts: each is one fetch into the consumer         |
\* | asked            | requested, granted, reading                           |
\* | got              | done                                                  |
\* | nothing          | retryable, failed, quarantined                        |
\* | idle             | absent, settled                                       |
\*
\* A retry is a new operation, so a retryable attempt returned nothing. What a
\* done attempt got is what the consumer serves under the name; once that has
\* been given up again nobody can look any more.
EXTENDS PeerRead

Served(s) == entry[s] \in {"ready", "pinned"}
ServedBy(S) == {<<names[s], bytes[at[s]]>> : s \in {t \in S : Served(t)}}

NameOf(a) == CHOOSE h \in Asked(a) : TRUE
Delivered(h) ==
    LET found == {s \in Sinks : Served(s) /\ names[s] = h}
    IN  IF found = {} THEN h ELSE bytes[at[CHOOSE s \in found : TRUE]]

Store == INSTANCE ContentStore WITH
    Names <- Encodings,
    Places <- {"producer", "consumer"},
    Ops <- Attempts,
    Garbage <- Torn,
    serves <- [p \in {"producer", "consumer"} |->
                  ServedBy(IF p = "producer" THEN {Origin} ELSE Sinks)],
    op <- [a \in Attempts |->
              CASE read[a] \in Fenced ->
                       [st |-> "asked", at |-> "consumer", name |-> NameOf(a)]
                [] read[a] = "done" ->
                       [st |-> "got", name |-> NameOf(a), bytes |-> Delivered(NameOf(a))]
                [] read[a] \in {"retryable", "failed", "quarantined"} ->
                       [st |-> "nothing", name |-> NameOf(a)]
                [] OTHER -> [st |-> "idle"]]

StoreSpec == Store!StoreSpec
=============================================================================
