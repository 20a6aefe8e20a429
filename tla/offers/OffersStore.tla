\* SPDX-License-Identifier: Apache-2.0
---------------------------- MODULE OffersStore ----------------------------
\* Offers refines ContentStore: the mapping.
\*
\* | ContentStore     | Offers                                                 |
\* | places           | the engine's region, and what its readers have         |
\* | what they serve  | names of open slots, with the bytes behind them; what   |
\* |                  | readers have accepted                                  |
\* | operations       | attempts of readers                                    |
\* | asked            | asked, granted, copying                                |
\* | got              | done                                                   |
\* | nothing          | dropped                                                |
\* | idle             | idle                                                   |
EXTENDS Offers

Bytes(n, right) == IF right THEN n ELSE None

Store == INSTANCE ContentStore WITH
    Names <- Names,
    Places <- {"engine", "readers"},
    Ops <- Readers,
    Garbage <- None,
    serves <- [p \in {"engine", "readers"} |->
                  IF p = "engine"
                    THEN {<<name[s], Bytes(name[s], whole[s])>> :
                             s \in {t \in Slots : offer[t] = "open"}}
                    ELSE {<<rd[r].name, Bytes(rd[r].name, rd[r].good)>> :
                             r \in {q \in Readers : rd[q].st = "done"}}],
    op <- [r \in Readers |->
              CASE rd[r].st \in {"asked", "granted", "copying"} ->
                       [st |-> "asked", at |-> "readers", name |-> rd[r].name]
                [] rd[r].st = "done" ->
                       [st |-> "got", name |-> rd[r].name,
                        bytes |-> Bytes(rd[r].name, rd[r].good)]
                [] rd[r].st = "dropped" -> [st |-> "nothing", name |-> rd[r].name]
                [] OTHER -> [st |-> "idle"]]

StoreSpec == Store!StoreSpec
=============================================================================
