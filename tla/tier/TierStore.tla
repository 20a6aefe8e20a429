\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE TierStore -----------------------------
\* Tier refines ContentStore: the mapping.
\*
\* | ContentStore     | Tier                                                  |
\* | place            | the region                                            |
\* | what it serves   | ready and pinned entries: the name with its bytes if  |
\* |                  | all of its blocks hold them, else with garbage        |
\* | operations       | copy slots that carry a load                          |
\* | asked            | planned, in_flight                                    |
\* | got              | landed: with garbage if a rank ever copied a wrong    |
\* |                  | block                                                 |
\* | nothing          | skipped                                               |
\*
\* A save is no operation of the store: it is how the region comes to serve.
EXTENDS Tier

BytesOf(e) == IF \A b \in blk[e] : content[b] = e THEN e ELSE Garbage

Store == INSTANCE ContentStore WITH
    Names <- Enc,
    Places <- {"region"},
    Ops <- Copies,
    serves <- [p \in {"region"} |-> {<<e, BytesOf(e)>> : e \in {f \in Enc : Servable(f)}}],
    op <- [c \in Copies |->
              CASE cp[c].kind = "load" /\ cp[c].st \in {"planned", "in_flight"} ->
                       [st |-> "asked", at |-> "region", name |-> cp[c].enc]
                [] cp[c].kind = "load" /\ cp[c].st = "landed" ->
                       [st |-> "got", name |-> cp[c].enc,
                        bytes |-> IF wrong THEN Garbage ELSE cp[c].enc]
                [] cp[c].kind = "load" /\ cp[c].st = "skipped" ->
                       [st |-> "nothing", name |-> cp[c].enc]
                [] OTHER -> [st |-> "idle"]]

StoreSpec == Store!StoreSpec
=============================================================================
